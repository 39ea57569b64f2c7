"""One payload from two sides: what a page and a page's Python take for the same, and what neither can store."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from e2e.kit import Site, uncaught
from e2e.python_pages.kit import PythonPage
from e2e.python_pages.site import PythonSite, serve

from tabhelm.testing import ChaosBrowser

from .lane import attempt, drained, queueing, stats
from .senders import sending

_PYTHON = """async (code) => {
  window.globals ??= pyodide.toPy({});
  await pyodide.runPythonAsync(code, { globals });
}"""
_JOIN = """async () => {
  const { join } = await import("/tabhelm/tabhelm.mjs");
  window.tab = await join({ app: "e2e" });
  window.q = tab.queue("clones", { payloads: "clone" });
  window.value = (n) => ({
    n,
    list: [1, 2.5, null, true, [], "ä\\u2028\\ud800\\n"],
    deep: { "x y": new Uint8Array([0, 255]), "😀": 1, "\\ufffd": 2 },
    numbers: [-0, 1e21, 1e-7, 2 ** 66, 123456.789, -5e-324],
  });
}"""
_GIVEN = """
import tabhelm
from js import Array, Blob, File
from tabhelm.queue import Item
tab = await tabhelm.join(app="e2e")
queue = tab.queue("clones", payloads="clone")
def value(n):
    return {
        "numbers": [-0.0, 1e21, 1e-7, 2.0**66, 123456.789, -5e-324],
        "deep": {"\\ufffd": 2, "😀": 1.0, "x y": b"\\x00\\xff"},
        "list": (1, 2.5, None, True, [], "ä\\u2028\\ud800\\n"),
        "n": n,
    }
"""


@pytest.fixture
def python_site(bundle: Path, tmp_path: Path) -> Iterator[PythonSite]:
    with serve(bundle, tmp_path) as served:
        yield served


async def test_a_page_and_its_python_know_each_others_payloads(browser: ChaosBrowser, python_site: PythonSite) -> None:
    page = await PythonPage.open(browser, python_site)
    tab = page.tab
    await tab.evaluate(_JOIN)
    await tab.evaluate("() => q.enqueue(value(1), { id: 'page' })")
    await tab.evaluate(
        _PYTHON,
        _GIVEN
        + """
await queue.enqueue(value(1), op_id="page")
try:
    await queue.enqueue(value(2), op_id="page")
except tabhelm.IdentifierReused:
    pass
else:
    raise AssertionError("another payload under the same id")
file = File.new(Array.of("the text"), "pump.txt", type="text/plain")
await queue.enqueue_many([Item(value(3), op_id="python"), Item({"file": file, "tags": {"a"}}, op_id="file")])
await queue.enqueue(Blob.new(Array.of("whole")), op_id="blob")
try:
    await queue.enqueue({"rows": [Array.of(1)]})
except tabhelm.InvalidPayload as error:
    assert "payload.rows[0] is JavaScript's" in str(error), error
else:
    raise AssertionError("an object that its owner may change")
""",
        timeout=60.0,
    )
    again = await tab.evaluate("""async () => {
      const attempts = [];
      for (const n of [3, 4]) attempts.push(await q.enqueue(value(n), { id: "python" }).catch(({ code }) => code));
      return [...attempts, (await q.stats()).queued];
    }""")
    assert again == ["python", "identifier-reused", 4]
    await tab.evaluate("() => { window.got = {}; }")
    await tab.evaluate(
        _PYTHON,
        """
seen = {}
async def send(operation, sending):
    seen[operation.op_id] = operation.content
sender = tab.queue("clones", sender=send)
import asyncio
while len(seen) < 4:
    await asyncio.sleep(0.05)
assert await seen["file"]["file"].text() == "the text" and seen["file"]["file"].name == "pump.txt", seen
assert seen["file"]["tags"] == {"a"} and await seen["blob"].text() == "whole", seen
assert seen["python"]["deep"]["x y"] == b"\\x00\\xff" and seen["page"]["list"][5] == "ä\\u2028\\ud800\\n", seen
await tab.leave()
""",
        timeout=60.0,
    )
    assert await page.uncaught() == []


async def test_what_not_every_browser_stores_is_refused_by_its_place(browser: ChaosBrowser, site: Site) -> None:
    tab = await sending(browser, site)
    told: dict[str, str] = await tab.evaluate("""async () => {
      const image = await createImageBitmap(new ImageData(1, 1));
      const frame = new VideoFrame(image, { timestamp: 0 });
      const told = async (call) => call.then(() => "taken", (error) => `${error.name}: ${error.message}`);
      return {
        image: await told(q.enqueue({ rows: [{ image }] })),
        frame: await told(q.enqueueAll([{ payload: 1 }, { payload: new Map([["key", frame]]) }])),
      };
    }""")
    assert "TypeError: payload.rows[0].image is of the kind ImageBitmap, which cannot be stored" in told["image"]
    assert 'TypeError: items[1].payload.get("key") is of the kind VideoFrame, which' in told["frame"]
    assert (await stats(tab))["queued"] == 0


async def test_a_refusal_that_waits_for_its_turn_is_told_once_and_to_its_caller(
    browser: ChaosBrowser, site: Site
) -> None:
    tab = await sending(browser, site)
    told = await tab.evaluate("""async () => {
      const image = await createImageBitmap(new ImageData(1, 1));
      // A large Blob takes long to read, and what comes behind it has failed long before it is its turn.
      const first = q.enqueue({ blob: new Blob(["x".repeat(20_000_000)]) }, { id: "first" });
      const second = q.enqueue({ image }, { id: "second" }).catch(({ name }) => name);
      return Promise.all([first, second]);
    }""")
    assert told == ["first", "TypeError"]
    await drained(tab, done=1)
    assert await uncaught(tab) == []


async def test_what_could_not_be_enqueued_says_under_which_ids_it_may_be_tried_again(
    browser: ChaosBrowser, site: Site
) -> None:
    tab = await queueing(browser, site, flush=False, maxOperations=2)
    assert (await attempt(tab, "enqueue", {"n": 1}, {"id": "one"}))["value"] == "one"
    told: dict[str, Any] = await tab.evaluate("""async () => {
      const items = [{ payload: 2, id: "two" }, { payload: 3 }];
      const { code, operationIds } = await q.enqueueAll(items).catch((error) => error);
      const drawn = await q.enqueue(3, { id: operationIds[1] });
      return { code, operationIds, drawn, queued: (await q.stats()).queued };
    }""")
    assert told["code"] == "queue-full" and told["operationIds"] == ["two", told["drawn"]] and told["queued"] == 2
