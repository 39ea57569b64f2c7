"""What an inspector does: add, rename and complete cases; with and without a network, with and without a mouse."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from e2e.demo.person import SENT, Person, applied, cases, each_once
from e2e.kit import Site, until
from playwright.async_api import expect

Arrives = Callable[..., Awaitable[Person]]
PUMP = "Pump 7, valve leaks"


async def test_cases_are_added_renamed_and_completed_for_all_tabs(arrives: Arrives, site: Site) -> None:
    ann, bob = await arrives(), await arrives()
    await ann.adds(PUMP, "Lift 3")
    await applied(site, {PUMP, "Lift 3"})
    await bob.reads("#cases", PUMP)
    await bob.presses(f"Rename {PUMP}")
    await bob.page.get_by_label(f"New title of {PUMP}").fill("Pump 7, mended")
    await bob.page.get_by_label(f"New title of {PUMP}").press("Enter")
    await ann.reads("#cases", "Pump 7, mended")
    await ann.presses("Complete Lift 3")
    wanted = {("Pump 7, mended", False), ("Lift 3", True)}

    async def done() -> bool:
        return {(str(case["title"]), case["completed"]) for case in await cases(site)} == wanted

    await until(done, "one case to be renamed, the other to be completed")
    await bob.reads("#cases .completed", "Lift 3")
    await ann.reads("#queue-note", SENT)
    await ann.reads("#effects-note", "each applied exactly once")
    await each_once(site, ann, bob)


async def test_a_case_stays_on_the_page_over_a_reload_while_it_waits(arrives: Arrives, site: Site) -> None:
    ann = await arrives()
    await site.faults(status=503)
    await ann.adds(PUMP)
    await ann.reads("#cases .pending", PUMP)
    await ann.tab.until("() => demo.acks.length === 1")
    await ann.tab.reload()
    await ann.reads("#cases .pending", PUMP)
    await site.faults()
    await applied(site, {PUMP})
    await expect(ann.sees("#cases .pending")).to_have_count(0, timeout=20_000)
    await expect(ann.sees("#cases-state")).to_have_text("1 open of 1", timeout=20_000)
    await each_once(site, ann)


async def test_an_offline_tab_keeps_what_is_recorded(arrives: Arrives, site: Site) -> None:
    ann = await arrives()
    await ann.leads()
    await ann.presses("Offline")
    await ann.tab.until("() => !document.querySelector('#nobody').hidden", what="nobody to lead")
    await ann.adds(PUMP)
    await ann.reads("#queue-note", "1 change kept safely: this tab is offline")
    assert await cases(site) == []
    await ann.presses("Offline")
    await applied(site, {PUMP})
    await ann.reads("#queue-note", SENT)
    await each_once(site, ann)


async def test_an_online_tab_sends_for_an_offline_one(arrives: Arrives, site: Site) -> None:
    ann = await arrives()
    await ann.leads()
    bob = await arrives()
    await ann.presses("Offline")
    await bob.leads()
    await bob.told("went offline")
    await ann.adds(PUMP)
    await applied(site, {PUMP})
    await ann.presses("Offline")
    await ann.reads("#cases-state", "1 open of 1")
    await each_once(site, ann, bob)


async def test_that_it_opens_offline_is_said_later_and_moves_no_button_away_from_a_mouse(arrives: Arrives) -> None:
    ann = await arrives()
    await ann.reads("#kept", "Opens offline", 60)  # seconds after everything else
    moved = await ann.tab.evaluate("""() => {
      const kept = document.querySelector("#kept");
      const top = () => document.querySelector("#offline").getBoundingClientRect().top;
      const now = top();
      kept.textContent = "";
      return top() - now;
    }""")
    assert moved == 0
    await ann.sees("#offline").click()
    await ann.reads("#me", "offline")


async def test_what_the_server_refuses_for_good_can_be_tried_again_and_removed(arrives: Arrives, site: Site) -> None:
    ann = await arrives()
    await ann.presses("Record nonsense")
    await ann.reads("#dead-letters", "belongs to another district")
    await ann.told("refuses a change for good")
    tries = await _answered(site)
    await ann.presses("Try again: Inspect “Boiler 13”")
    await until(lambda: _refused_again(ann, site, tries), "it to be sent and refused once more")
    await ann.reads("#dead-letters", "belongs to another district")
    await ann.presses("Remove: Inspect “Boiler 13”")
    await ann.tab.until("() => document.querySelector('#dead-part').hidden", what="the list to be empty")
    assert await ann.sees("#dead").inner_text() == "0"
    assert ann.complaints == []


async def _answered(site: Site) -> int:
    """Batches of the queue that were answered: no barriers, no reports."""
    ours = [each for each in await site.requests() if each["resource"] == "inspections:offline-queue:mutations"]
    return sum(bool(each["operations"]) and each["outcome"] == 200 for each in ours)


async def _refused_again(ann: Person, site: Site, before: int) -> bool:
    if await _answered(site) <= before:
        return False
    # Once it was sent again it is alive no more by what is stored: one dead means dead again.
    at = await ann.tab.evaluate("() => demo.queue.stats()")
    return (at["dead"], at["queued"], at["inFlight"]) == (1, 0, 0)


_FOCUS = """() => {
  const { activeElement: at } = document;
  if (at === document.body) return null;
  const style = getComputedStyle(at);
  return {
    id: at.id,
    name: at.getAttribute("aria-label") ?? at.labels?.[0]?.innerText ??
      document.getElementById(at.getAttribute("aria-labelledby"))?.innerText ?? at.innerText,
    outlined: style.outlineStyle !== "none" && parseFloat(style.outlineWidth) >= 2,
  };
}"""


async def test_everything_can_be_done_with_the_keyboard(arrives: Arrives, site: Site) -> None:
    ann = await arrives()
    await ann.leads()
    await ann.tab.show()
    keys = ann.page.keyboard

    async def tab_to(name: str) -> None:
        for _ in range(60):
            await keys.press("Tab")
            at = await ann.tab.evaluate(_FOCUS)
            if at is not None:
                assert at["name"], f"what has the focus has no name: {at}"
                assert at["outlined"], f"the focus cannot be seen: {at}"
                if at["name"] == name:
                    return
        raise AssertionError(f"no way to {name!r} with the Tab key")

    await tab_to("Got it")
    await keys.press("Enter")
    assert (await ann.tab.evaluate(_FOCUS))["id"] == "title", "where the work begins"
    await keys.type(PUMP)
    await keys.press("Enter")
    await applied(site, {PUMP})
    await tab_to(f"Rename {PUMP}")
    await keys.press("Enter")
    assert (await ann.tab.evaluate(_FOCUS))["name"] == f"New title of {PUMP}"
    await keys.press("Escape")
    assert (await ann.tab.evaluate(_FOCUS))["name"] == f"Rename {PUMP}"
    await keys.press("Enter")
    await keys.type("Pump 8")
    await keys.press("Enter")
    await applied(site, {"Pump 8"})
    await tab_to("Complete Pump 8")
    await keys.press("Space")
    await ann.reads("#cases .completed", "Pump 8")
    assert (await ann.tab.evaluate(_FOCUS))["name"] == "Rename Pump 8", "the focus must not fall out of the list"
    await tab_to("Offline")
    await keys.press("Space")
    await ann.reads("#me", "offline")
    await keys.press("Space")
    await ann.leads()
    await tab_to("works")
    await keys.press("ArrowDown")
    await ann.tab.until("async () => (await (await fetch('/api/faults')).json()).faults.delay_ms === 3000")
    await tab_to("Show a diagnosis")
    await ann.reads("#queue-note", SENT, 30)
    await each_once(site, ann)
