"""The first example of docs/guards.md runs as it stands there: what it writes is guarded."""

from __future__ import annotations

import re
from pathlib import Path

from e2e.kit import Site, join

from tabhelm.testing import ChaosBrowser

TEXT = (Path(__file__).resolve().parents[2] / "docs" / "guards.md").read_text(encoding="utf-8")

_RUN = """async () => {{
  {imports}
  const opening = indexedDB.open("cases", 1);
  window.opened = new Promise((resolve) => (opening.onsuccess = () => resolve((db = opening.result))));
  let db;
  window.gone = [];
  window.found = [];
  async function* source(signal) {{
    await opened;
    signal.addEventListener("abort", () => gone.push(signal.reason.reason));
    for (let n = 1; ; n++) {{
      yield {{ id: `case-${{n}}` }};
      found.push(n); // it was written, or the loop would not ask for the next
      if (n === 2) await new Promise((go) => (window.go = go));
    }}
  }}
  {example}
}}"""
_STORED = """(name) => new Promise(async (resolve) => {
  (await opened).transaction(name).objectStore(name).getAll().onsuccess = ({ target }) => resolve(target.result);
})"""
_NEWER = """async ([marks]) => {
  const { check } = await import("/tabhelm/guard.mjs");
  const transaction = (await opened).transaction("fence", "readwrite");
  const [stream] = Object.keys(marks.streams);
  await check(transaction.objectStore("fence"), { ...marks, stream, epoch: marks.epoch + 1, owner: "newer", seq: 1 });
}"""


def example() -> tuple[str, str]:
    """Its imports, as a function body may hold them, and the rest."""
    found = re.search(r"```js\n(.*?)```", TEXT, re.DOTALL)
    assert found is not None
    imports, _, rest = found[1].partition("\n\n")
    dynamic = re.sub(r'import (\{.*?\}) from ("\S+");', r"const \1 = await import(\2);", imports)
    assert "await import" in dynamic, imports
    return dynamic.partition("//")[0], rest


async def test_the_first_example_writes_with_its_marks_and_stops_at_a_newer_owner(
    browser: ChaosBrowser, site: Site
) -> None:
    tab = await browser.new_tab(f"{site.url}/blank")
    await join(tab)
    imports, rest = example()
    await tab.evaluate(_RUN.format(imports=imports, example=rest))
    await tab.until("() => found.length === 2", what="two cases to be written")
    assert [each["id"] for each in await tab.evaluate(_STORED, "cases")] == ["case-1", "case-2"]
    (marks,) = await tab.evaluate(_STORED, "fence")
    assert marks["epoch"] >= 1 and list(marks["streams"].values()) == [2], "one token for each write"

    await tab.evaluate(_NEWER, [marks])
    await tab.evaluate("() => go()")
    await tab.until("() => gone.length > 0", what="the loop to end")
    cases = [each["id"] for each in await tab.evaluate(_STORED, "cases")]
    assert cases == ["case-1", "case-2"], "what a stale owner put was aborted"
