"""Storage that is denied, silent or broken, in shared engines and in pages: overridden before the engine loads."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from e2e.serving.pages import FLUSHED, try_join, works
from e2e.serving.site import OddSite, serve

from tabhelm.testing import ChaosBrowser, ChaosTab

FAULTS = """
const thrown = (name, message) => Object.defineProperty(new DOMException(message, name), "stack", { value: name });
const failing = (name, message) => {
  const request = new EventTarget();
  Object.defineProperty(request, "error", { value: new DOMException(message, name) });
  for (const kind of ["success", "error", "blocked", "upgradeneeded"])
    Object.defineProperty(request, `on${kind}`, { set: (listener) => request.addEventListener(kind, listener) });
  setTimeout(() => request.dispatchEvent(new Event("error", { cancelable: true })));
  return request;
};
const methods = ["get", "getAll", "count", "put", "add", "delete"];
const faults = {
  missing: () => Object.defineProperty(globalThis, "indexedDB", { value: undefined }),
  throwing: () => { IDBFactory.prototype.open = () => { throw thrown("SecurityError", "denied"); }; },
  readonly: () => { IDBFactory.prototype.open = () => failing("InvalidStateError", "did not allow mutations"); },
  refused: () => { IDBFactory.prototype.open = () => failing("UnknownError", "The user denied permission"); },
  silent: () => { IDBFactory.prototype.open = () => new EventTarget(); },
  dead: () => { IDBDatabase.prototype.transaction = () => { throw thrown("InvalidStateError", "is closing"); }; },
  lost: () => { IDBDatabase.prototype.transaction = () => { throw thrown("UnknownError", "server lost"); }; },
  unreadable: () => {
    const unreadable = () => { throw thrown("UnknownError", "Internal error"); };
    for (const name of methods) IDBObjectStore.prototype[name] = unreadable;
  },
  // The first connection alone is dead: as after the browser's storage process crashed.
  once: () => {
    const { transaction } = IDBDatabase.prototype;
    let first;
    IDBDatabase.prototype.transaction = function (...given) {
      first ??= this;
      if (first === this) throw thrown("UnknownError", "Connection to Indexed Database server lost");
      return transaction.apply(this, given);
    };
  },
  // Full, for whatever holds too much: told by an exception, where other browsers abort the transaction.
  full: () => {
    for (const name of ["put", "add"]) {
      const { [name]: usual } = IDBObjectStore.prototype;
      IDBObjectStore.prototype[name] = function (record, ...key) {
        if (JSON.stringify(record).includes("too much")) throw thrown("QuotaExceededError", "no room for this");
        return usual.call(this, record, ...key);
      };
    }
  },
  // All connections that are open when the word comes: closed by the browser, which says so or not.
  closable: () => {
    const open = new Set();
    const { transaction } = IDBDatabase.prototype;
    IDBDatabase.prototype.transaction = function (...given) {
      open.add(this);
      return transaction.apply(this, given);
    };
    const channel = new BroadcastChannel("fault");
    channel.onmessage = ({ data }) => {
      for (const connection of open) {
        connection.close();
        if (data === "told") connection.dispatchEvent(new Event("close"));
      }
      channel.postMessage(open.size);
      open.clear();
    };
  },
  // Transactions stay alive, and nothing in them is ever answered.
  hanging: () => {
    const { get } = IDBObjectStore.prototype;
    for (const name of methods) IDBObjectStore.prototype[name] = function () {
      const on = () => { get.call(this, 0).onsuccess = on; };
      try { on(); } catch {} // the last round: its transaction is over
      return Object.assign(new EventTarget(), { readyState: "pending" });
    };
  },
};
"""
ENQUEUE = """async () => {
  const began = performance.now();
  window.election ??= tab.lead("job", ({ signal }) => new Promise((end) => signal.addEventListener("abort", end)), {});
  const enqueued = tab.queue("mutations", { endpoint: "/api/operations" }).enqueue({ kind: "note" });
  const [name, code, message] = await enqueued.then(() => [], ({ name, code, message }) => [name, code, message]);
  return { name, code, message, ms: Math.round(performance.now() - began) };
}"""

NAMES = """async () => {
  const effects = await (await fetch("/api/effects")).json();
  return effects.map(({ payload }) => payload.name);
}"""


@pytest.fixture
def site(bundle: Path) -> Iterator[OddSite]:
    with serve(bundle) as served:
        yield served


async def joined(browser: ChaosBrowser, site: OddSite, fault: str, host: str) -> ChaosTab:
    does = site.does
    does.script("/odd/fault.mjs", f"{FAULTS}\nfaults[{fault!r}]();")
    does.script("/odd/engine.mjs", 'import "./fault.mjs"; import "/tabhelm/engine.mjs";')
    does.script("/odd/window.mjs", 'import "./fault.mjs"; export * from "/tabhelm/window.mjs";')
    tab = await browser.new_tab(f"{site.url}/blank")
    result = await try_join(tab, host=host, engineUrl="/odd/engine.mjs")
    assert result.get("host") == host, result
    return tab


@pytest.mark.parametrize("host", ["shared", pytest.param("window", marks=pytest.mark.thorough)])
@pytest.mark.parametrize(
    ("fault", "code", "said", "way"),
    [
        ("missing", "database-denied", "this context has no IndexedDB", "allow cookies and site data"),
        ("throwing", "database-denied", "may not use IndexedDB (SecurityError: denied)", "allow cookies and site data"),
        ("readonly", "database-denied", "may not use IndexedDB (InvalidStateError", "leave private browsing"),
        ("refused", "database-denied", "may not use IndexedDB (UnknownError", "allow cookies and site data"),
        ("silent", "database-blocked", "did not open within 10 s", "the browser did not answer"),
        ("dead", "database-closed", "closed again as soon as it was opened", "restart the browser"),
        ("lost", "database-closed", "closed again as soon as it was opened", "restart the browser"),
        ("unreadable", "database", "UnknownError: Internal error", ""),
        ("hanging", "database-blocked", "the browser did not finish a transaction within 20 s", ""),
    ],
)
async def test_each_fault_of_the_database_is_told_and_nothing_hangs(
    browser: ChaosBrowser, site: OddSite, host: str, fault: str, code: str, said: str, way: str
) -> None:
    tab = await joined(browser, site, fault, host)
    result: dict[str, Any] = await tab.evaluate(ENQUEUE, timeout=60)
    print(f"\n{fault}, host {host}: {result.get('code')} after {result['ms']} ms: {result.get('message')}")
    assert (result.get("name"), result.get("code")) == ("TabhelmError", code), result
    assert said in result["message"] and way in result["message"]
    assert "'tabhelm:serving'" in result["message"], "the database's name"
    assert "JsException" not in result["message"]
    status = await tab.until(
        "() => election.status.state === 'backing-off' && election.status", timeout=40, what="the election to back off"
    )
    # Denied for good: nothing on the list can decide. Otherwise it is a failure of this attempt.
    assert status["reason"] == ("no-authority" if code == "database-denied" else code)
    assert await tab.evaluate("() => tab.hostState.state") == "connected", (
        "it is the storage that is missing, no engine"
    )


@pytest.mark.parametrize("host", ["shared", pytest.param("window", marks=pytest.mark.thorough)])
async def test_a_lost_connection_is_replaced(browser: ChaosBrowser, site: OddSite, host: str) -> None:
    await works(await joined(browser, site, "once", host))


@pytest.mark.parametrize("host", ["shared", pytest.param("window", marks=pytest.mark.thorough)])
async def test_a_put_that_throws_for_want_of_room_refuses_the_whole_call_and_nothing_else(
    browser: ChaosBrowser, site: OddSite, host: str
) -> None:
    tab = await joined(browser, site, "full", host)
    await browser.offline(True)
    await tab.until("() => tab.presence().self.online === false", what="the page to find out")
    told = await tab.evaluate("""async () => {
      window.queue = tab.queue("mutations", { endpoint: "/api/operations" });
      const named = (...names) => names.map((name) => ({ payload: { kind: "note", name }, partition: "p" }));
      await queue.enqueueAll(named("first", "second"));
      const refused = () => queue.enqueueAll(named("third", "too much", "fourth")).then(
        () => "taken", ({ name, code, message }) => `${name} ${code}: ${message}`);
      const alone = () => queue.enqueue("too much").then(() => "taken", ({ code }) => code);
      const told = [await refused(), await refused(), await alone()];
      await queue.enqueueAll(named("fifth"));
      return { told, queued: (await queue.stats()).queued };
    }""")
    assert all(text.startswith("TabhelmError quota-exceeded: ") for text in told["told"][:2]), told
    assert told["told"][2] == "quota-exceeded" and told["queued"] == 3, told
    await browser.offline(False)
    await tab.until(FLUSHED, what="the queue to be flushed")
    assert await tab.evaluate(NAMES) == ["first", "second", "fifth"]
    assert await tab.evaluate("() => tab.hostState.state") == "connected"


@pytest.mark.parametrize("host", ["shared", pytest.param("window", marks=pytest.mark.thorough)])
@pytest.mark.parametrize("how", ["told", "untold"])
async def test_what_is_queued_when_the_browser_closes_the_database_is_sent_once(
    browser: ChaosBrowser, site: OddSite, host: str, how: str
) -> None:
    tab = await joined(browser, site, "closable", host)
    await browser.offline(True)
    await tab.until("() => tab.presence().self.online === false", what="the page to find out")
    queued = await tab.evaluate(
        """async (how) => {
          window.queue = tab.queue("mutations", { endpoint: "/api/operations" });
          const named = (from) => Array.from({ length: 20 }, (_, n) => ({
            payload: { kind: "note", name: `${from}-${n}` }, partition: `p${n % 3}`, id: `${from}-${n}`,
          }));
          await queue.enqueueAll(named("before"));
          const channel = new BroadcastChannel("fault");
          const closed = new Promise((done) => (channel.onmessage = ({ data }) => done(data)));
          channel.postMessage(how);
          const connections = await closed;
          const { queued } = await queue.stats();
          await queue.enqueueAll(named("after"));
          return [connections, queued, (await queue.stats()).queued];
        }""",
        how,
    )
    assert queued == [1, 20, 40], "connections closed, then operations"
    await browser.offline(False)
    await tab.until(FLUSHED, what="the queue to be flushed")
    names = await tab.evaluate(NAMES)
    assert len(names) == len(set(names)) == 40
    for partition in range(3):
        expected = [f"{from_}-{n}" for from_ in ("before", "after") for n in range(20) if n % 3 == partition]
        assert [name for name in names if name in set(expected)] == expected
    kinds = await tab.evaluate("() => told.map(({ type, change }) => change ?? type)")
    assert "closed" in kinds or how == "untold", kinds
    assert "wiped" not in kinds and "queue-lost" not in kinds, kinds


@pytest.mark.parametrize("host", ["shared", pytest.param("window", marks=pytest.mark.thorough)])
async def test_a_page_without_web_storage_joins_all_the_same(browser: ChaosBrowser, site: OddSite, host: str) -> None:
    tab = await browser.new_tab(f"{site.url}/blank")
    await tab.evaluate("""() => {
      for (const name of ["sessionStorage", "localStorage"])
        Object.defineProperty(window, name, { get() { throw new DOMException("denied", "SecurityError"); } });
    }""")
    assert (await try_join(tab, host=host)).get("host") == host
    await works(tab)


async def test_a_browser_without_uuids_or_shared_workers_joins(browser: ChaosBrowser, site: OddSite) -> None:
    tab = await browser.new_tab(f"{site.url}/blank")
    await tab.evaluate("() => { delete Crypto.prototype.randomUUID; delete window.SharedWorker; }")
    result = await try_join(tab)
    assert result.get("host") == "window" and result["reason"] == "this browser has no SharedWorker", result
    await works(tab)
    result = await try_join(tab, app="other", host="shared")
    assert result.get("code") == "no-host" and 'use host "auto" or "window"' in result["message"], result


async def test_a_browser_without_locks_is_named(browser: ChaosBrowser, site: OddSite) -> None:
    tab = await browser.new_tab(f"{site.url}/blank")
    await tab.evaluate("() => { delete Navigator.prototype.locks; }")
    result = await try_join(tab)
    assert result.get("code") == "no-locks" and "Firefox 96" in result["message"], result
