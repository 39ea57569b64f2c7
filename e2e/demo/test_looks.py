"""How it looks and what it weighs: on a phone, light and dark, for those who need contrast, on the first visit."""

from __future__ import annotations

import gzip
from collections.abc import Awaitable, Callable

import pytest
from e2e.demo.person import Person, each_once
from e2e.kit import Site

from tabhelm_build.demo_app import ROOT

Arrives = Callable[..., Awaitable[Person]]
LONG = "Substation " + "with-a-name-that-nobody-can-break-" * 3

_OVERFLOW = """() => {
  const wide = [...document.querySelectorAll("body *")]
    .filter((each) => each.checkVisibility() && each.getBoundingClientRect().right > innerWidth + 0.5);
  const page = document.documentElement.scrollWidth - innerWidth;
  return { page, wide: wide.map((each) => each.outerHTML.slice(0, 80)) };
}"""

# WCAG 2.2, 1.4.3: every text that is shown, against the nearest background that is painted behind it.
_CONTRAST = """() => {
  const parse = (color) => color.match(/[\\d.]+/g).map(Number);
  const light = (color) => {
    const linear = (value) => (value <= 0.04045 ? value / 12.92 : ((value + 0.055) / 1.055) ** 2.4);
    const [r, g, b] = parse(color).map((value) => linear(value / 255));
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const behind = (element) => {
    for (let each = element; each; each = each.parentElement) {
      const color = getComputedStyle(each).backgroundColor;
      if ((parse(color)[3] ?? 1) === 1) return color;
    }
    return "rgb(255, 255, 255)";
  };
  const found = [];
  const texts = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  while (texts.nextNode()) {
    const element = texts.currentNode.parentElement;
    if (!texts.currentNode.data.trim() || !element.checkVisibility() || element.closest(":disabled")) continue;
    const [one, other] = [light(getComputedStyle(element).color), light(behind(element))].sort((a, b) => b - a);
    const ratio = (one + 0.05) / (other + 0.05);
    found.push({ text: texts.currentNode.data.trim().slice(0, 40), ratio });
  }
  return found;
}"""


async def emulated(person: Person, *, width: int, scheme: str) -> None:
    session = await person.page.context.new_cdp_session(person.page)
    metrics = {"width": width, "height": 740, "deviceScaleFactor": 1, "mobile": width < 500}
    await session.send("Emulation.setDeviceMetricsOverride", metrics)
    features = [{"name": "prefers-color-scheme", "value": scheme}]
    await session.send("Emulation.setEmulatedMedia", {"features": features})
    await person.tab.until("(width) => innerWidth === width", arg=width)


async def busy(person: Person, site: Site) -> None:
    """A page that has something to show everywhere."""
    await person.leads()
    await person.adds("Lift 3", LONG)
    await person.presses("Complete Lift 3")
    await person.presses("Record nonsense")
    await person.reads("#dead-letters", "district")
    await person.reads("#cases .completed", "Lift 3")
    await site.faults(status=503)
    await person.adds("Pump 7")
    await person.reads("#cases .pending", "Pump 7")
    await person.reads("#queue-note", "503")


@pytest.mark.parametrize("scheme", ["light", "dark"])
async def test_every_text_can_be_read(arrives: Arrives, site: Site, scheme: str) -> None:
    ann = await arrives()
    await emulated(ann, width=1280, scheme=scheme)
    await busy(ann, site)
    ground = await ann.tab.evaluate("() => getComputedStyle(document.body).backgroundColor")
    assert (ground == "rgb(18, 22, 21)") == (scheme == "dark")
    found = await ann.tab.evaluate(_CONTRAST)
    assert len(found) > 50
    assert [each for each in found if each["ratio"] < 4.5] == []
    assert ann.complaints == []


@pytest.mark.parametrize("width", [320, 360, 800, 1280])
async def test_nothing_hangs_out_of_the_page(arrives: Arrives, site: Site, width: int) -> None:
    ann = await arrives()
    await busy(ann, site)
    await emulated(ann, width=width, scheme="light")
    overflow = await ann.tab.evaluate(_OVERFLOW)
    assert overflow["page"] <= 0 and overflow["wide"] == []


async def test_fingers_find_what_they_press(arrives: Arrives, site: Site) -> None:
    ann = await arrives()
    await busy(ann, site)
    await emulated(ann, width=360, scheme="light")
    small = await ann.tab.evaluate("""() => [...document.querySelectorAll("button, .button, fieldset label, input")]
      .filter((each) => each.checkVisibility() && !each.closest("label"))
      .map((each) => [each.innerText, each.getBoundingClientRect().height]).filter(([, height]) => height < 32)""")
    assert small == []


async def test_the_first_visit_says_what_to_try_and_later_ones_do_not(arrives: Arrives, site: Site) -> None:
    ann = await arrives()
    await ann.reads("#hint", "open this page in a second tab")
    await ann.presses("Got it")
    assert await ann.sees("#hint").is_hidden()
    await ann.tab.reload()
    await ann.leads()
    assert await ann.sees("#hint").is_hidden()
    await each_once(site, ann)


async def test_the_tab_strip_tells_who_leads(arrives: Arrives) -> None:
    ann = await arrives()
    await ann.leads()
    bob = await arrives()
    await ann.tab.until("() => document.title.startsWith('★')")
    assert not (await bob.page.title()).startswith("★")


def test_the_demo_is_light() -> None:
    files = [path for path in (ROOT / "web" / "demo").iterdir() if path.suffix in (".mjs", ".html", ".css", ".svg")]
    weight = sum(len(gzip.compress(path.read_bytes())) for path in files)
    print(f"the demo: {len(files)} files, {weight} bytes gzipped")
    assert weight <= 25_000
