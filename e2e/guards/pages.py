"""What a page of these tests has: an app's own database, written to with the guard or, to see its use, without."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from e2e.python_pages.kit import PythonPage

from tabhelm.testing.driver import DrivenTab

SETUP = """async () => {
  window.guard = await import("/tabhelm/guard.mjs");
  const opening = indexedDB.open("cases", 1);
  opening.onupgradeneeded = () => {
    opening.result.createObjectStore("fence", { keyPath: ["domain", "resource"] });
    opening.result.createObjectStore("cases", { keyPath: "id" });
  };
  window.db = await new Promise((resolve, reject) => {
    opening.onsuccess = () => resolve(opening.result);
    opening.onerror = () => reject(opening.error);
  });
  const ended = (transaction) => new Promise((resolve) => {
    transaction.oncomplete = () => resolve("complete");
    transaction.onabort = () => resolve("aborted");
  });
  // One effect before the check and one after it; with `awaited: false` all three are asked for in one breath.
  window.effect = async (token, id, { rule = "strict", guarded = true, awaited = true, abort = true } = {}) => {
    const transaction = db.transaction(["fence", "cases"], "readwrite", { durability: "strict" });
    const end = ended(transaction);
    const cases = transaction.objectStore("cases");
    cases.put({ id: `${id} before` });
    let error = null;
    const told = ({ name, code, message, highWater, overtaken }) =>
      (error = { name, code, message, highWater, overtaken });
    if (guarded) {
      const checked = window.guard.check(transaction.objectStore("fence"), token, { rule, abort }).catch(told);
      if (awaited) await checked;
    }
    if (!error) cases.put({ id: `${id} after` });
    return { end: await end, error };
  };
  window.stored = (name) => new Promise((resolve) => {
    db.transaction(name).objectStore(name).getAll().onsuccess = ({ target }) => resolve(target.result);
  });
}"""

PLAY = """async (text) => {
  const report = [];
  for (const { name, rule, steps } of JSON.parse(text).sequences) {
    await new Promise((done) => {
      const clearing = db.transaction(["fence", "cases"], "readwrite");
      for (const each of ["fence", "cases"]) clearing.objectStore(each).clear();
      clearing.oncomplete = done;
    });
    const wanted = new Map();
    const effects = [];
    for (const [number, { token, verdict, marks, high_water }] of steps.entries()) {
      for (const awaited of [true, false]) {
        if (!awaited && verdict === "accepted") continue; // it was accepted, and cannot be once more
        const { end, error } = await effect(token, number, { rule, awaited });
        const judged = error ? (error.overtaken ? "overtaken" : "stale") : "accepted";
        if (judged !== verdict) report.push(`${name}, ${number}: ${judged}, not ${verdict}`);
        if ((end === "complete") !== (verdict === "accepted")) report.push(`${name}, ${number}: ${end}`);
        if (error && (error.name !== "StaleOwner" || error.code !== "stale-owner")) report.push(JSON.stringify(error));
        if (error && ["epoch", "seq", "owner"].some((key) => error.highWater[key] !== high_water[key]))
          report.push(`${name}, ${number}: ${JSON.stringify(error.highWater)}`);
      }
      if (marks) {
        effects.push(`${number} after`, `${number} before`);
        wanted.set(`${token.domain} ${token.resource}`, JSON.stringify(sorted(marks)));
      }
      const found = (await stored("fence")).map(({ domain, resource, ...rest }) =>
        [`${domain} ${resource}`, JSON.stringify(sorted(rest))]);
      if (JSON.stringify(found.sort()) !== JSON.stringify([...wanted].sort()))
        report.push(`${name}, ${number}: ${JSON.stringify(found)}`);
      const ids = (await stored("cases")).map(({ id }) => id);
      if (JSON.stringify(ids.sort()) !== JSON.stringify(effects.sort()))
        report.push(`${name}, ${number}: effects ${ids}`);
    }
  }
  return report;
  function sorted(value) {
    if (typeof value !== "object") return value;
    return Object.keys(value).sort().map((key) => [key, sorted(value[key])]);
  }
}"""


async def set_up(tab: DrivenTab) -> None:
    """Open the app's database in this page."""
    await tab.evaluate(SETUP)


async def effect(tab: DrivenTab, token: dict[str, Any], name: str, **options: Any) -> dict[str, Any]:
    """Write an effect under a token; returns ``{end: "complete" | "aborted", error}``."""
    result: dict[str, Any] = await tab.evaluate(
        "([token, name, options]) => effect(token, name, options)", [token, name, options]
    )
    return result


async def stored(tab: DrivenTab, store: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = await tab.evaluate("(store) => stored(store)", store)
    return found


class GuardedPage(PythonPage):
    """A page that runs Python itself: the database from there (``inside.py``) and from its scripts."""

    ask = 'async ([name, args]) => `{"result": ${await guarding.call(name, args)}}`'
    _LOAD = """(text) => {
      pyodide.FS.writeFile("/home/pyodide/guarding.py", text);
      window.guarding = pyodide.pyimport("guarding");
    }"""

    async def load(self) -> None:
        await self.tab.evaluate(self._LOAD, Path(__file__).with_name("inside.py").read_text())
