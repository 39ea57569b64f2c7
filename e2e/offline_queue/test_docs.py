"""Every example of docs/queue.md runs as it stands there."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from e2e.kit import Site, join, uncaught, until
from e2e.python_pages.kit import PythonPage
from e2e.python_pages.site import PythonSite, serve
from playwright.async_api import Route

from tabhelm.testing import ChaosBrowser

ROOT = Path(__file__).resolve().parents[2]
TEXT = (ROOT / "docs" / "queue.md").read_text(encoding="utf-8")
SNIPPETS = dict(re.findall(r"<!-- file: (\S+) -->\n```\w+\n(.*?)```\n", TEXT, re.DOTALL))
BAD = {"kind": "reject", "reason": "no such case"}

_PYTHON = """async ([given, snippet, after]) => {
  window.printed = [];
  pyodide.setStdout({ batched: (text) => printed.push(text) });
  window.globals ??= pyodide.toPy({});
  for (const code of [given, snippet, after]) await pyodide.runPythonAsync(code, { globals });
  return printed;
}"""


@pytest.fixture
def python_site(bundle: Path, tmp_path: Path) -> Iterator[PythonSite]:
    with serve(bundle, tmp_path) as served:
        yield served


def test_every_example_is_named_and_used_here() -> None:
    assert len(re.findall(r"^```\w+$", TEXT, re.MULTILINE)) == len(SNIPPETS) == 6
    used = Path(__file__).read_text(encoding="utf-8")
    assert {name for name in SNIPPETS if not re.search(f"""['"]{name}['"]""", used)} == set()


async def test_the_examples_in_javascript(browser: ChaosBrowser, site: Site) -> None:
    tab = await site.open(browser)
    files: list[tuple[str, dict[str, str]]] = []
    statuses = [429, 500, 201]

    async def answer(route: Route) -> None:
        files.append((route.request.url, dict(route.request.headers)))
        await route.fulfill(status=statuses.pop(0) if statuses else 413)

    await tab.page.route("**/files/**", answer)
    await join(tab)
    await tab.evaluate("""() => {
      window.accessToken = async () => "secret";
      window.texts = [];
      window.show = (text) => texts.push(text);
    }""")
    await tab.evaluate(f"async () => {{ {SNIPPETS['http.mjs']} window.q = queue; }}")

    async def three() -> bool:
        return len(await site.effects()) == 3

    await until(three, "three operations to be applied")
    assert [each["partition"] for each in await site.effects()] == ["case-42", "case-43", "case-43"]
    await tab.until("() => texts.some((text) => text.startsWith('0 to send'))", what="the figures to be shown")
    await tab.evaluate(f"async () => {{ {SNIPPETS['sender.mjs']} window.uploads = queue; }}")
    await tab.until("async () => (await uploads.stats()).done === 1", what="the upload to be done", timeout=40)
    assert len(files) == 3 and all("fencing-token" in headers for _, headers in files)
    assert all(headers["idempotency-key"].strip('"') in url for url, headers in files)
    await tab.evaluate("() => uploads.enqueue({ file: new File(['x'], 'large') }, { id: 'large' })")
    await tab.until("async () => (await uploads.stats()).dead === 1", what="the large one to be refused")
    dead = "async (bad) => { for (const n of [1, 2]) await q.enqueue({ ...bad, n }, { id: `id-${n}` }); }"
    await tab.evaluate(dead, BAD)
    await tab.until("async () => (await q.stats()).dead === 2", what="two dead letters")
    size = await tab.evaluate(f"async () => {{ const queue = q; {SNIPPETS['letters.mjs']} return file.size; }}")
    assert size > 100
    await tab.until("async () => (await q.deadLetters()).map(({ id }) => id).join() === 'id-1'", what="one to be left")
    assert await uncaught(tab) == []


async def test_the_examples_in_python(browser: ChaosBrowser, python_site: PythonSite) -> None:
    page = await PythonPage.open(browser, python_site)
    given = """
import asyncio
import tabhelm
tab = await tabhelm.join(app="e2e")
async def access_token():
    return "secret"
async def until(condition):
    while not await condition():
        await asyncio.sleep(0.05)
async def done(queue, count):
    return (await queue.stats()).done == count
async def dead(queue, count):
    return (await queue.stats()).dead == count
"""

    async def run(given: str, name: str, after: str) -> list[str]:
        printed: list[str] = await page.tab.evaluate(_PYTHON, [given, SNIPPETS[name], after], timeout=60)
        return printed

    printed = await run(given, "http.py", "await until(lambda: done(queue, 5))")
    assert printed
    applied: dict[str, list[dict[str, object]]] = {}
    for effect in await python_site.effects():
        applied.setdefault(effect["partition"], []).append(effect["payload"])
    assert applied == {
        "case-42": [{"title": "Pump 7"}],
        "case-43": [{"title": "Pump 8"}, {"done": True}],
        "case-44": [{"title": "Pump 9"}],
        "case-45": [{"done": True}],
    }
    given = """
statuses = [429, 500, 201]
seen = []
async def put(url, data, headers):
    seen.append([url, bytes(data), sorted(headers)])
    return statuses.pop(0) if statuses else 413
"""
    after = """
await until(lambda: done(uploads, 1))
await until(lambda: done(bulk, 1))
assert [data for _, data, _ in seen] == [b"..."] * 3, seen
assert all(names == ["Fencing-Token", "Idempotency-Key"] for _, _, names in seen), seen
await uploads.enqueue({"data": b"large"}, op_id="large")
await until(lambda: dead(uploads, 1))
"""
    await run(given, "sender.py", after)
    given = f"""
queue = tab.queue("mutations")
for n in (1, 2):
    await queue.enqueue({BAD!r} | {{"n": n}}, op_id=f"id-{{n}}")
await until(lambda: dead(queue, 2))
"""
    after = """
async def one_left():
    return [letter.op_id for letter in await queue.dead_letters()] == ["id-1"]
await until(one_left)
assert "no such case" in text, text
await tab.leave()
"""
    printed = await run(given, "letters.py", after)
    assert [line.split()[0] for line in printed if line.startswith("id-")] == ["id-1", "id-2"], printed
    assert await page.uncaught() == []
