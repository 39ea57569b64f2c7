"""What a page does to tabhelm's database behind its back: a later release upgrades it, the app deletes it, a connection
stands in the way, something else has made it; and what the engine says of it."""

from __future__ import annotations

from typing import Any

from e2e.kit import Opens, Site, TabT, until

from tabhelm.testing.driver import DrivenTab

DATABASE = "tabhelm:e2e"

_CHANGES = """(name) => events.filter(({ type, database }) => type === "storage-changed" && database === name)
  .map(({ change }) => change)"""

_HOLD = """(name) => new Promise((resolve, reject) => {
  const request = indexedDB.open(name);
  request.onsuccess = () => { window.inTheWay = request.result; resolve(window.inTheWay.version); };
  request.onerror = () => reject(request.error);
})"""

_ASK = """([method, name, version]) => {
  window.asked = { state: "waiting", blocked: false };
  const request = indexedDB[method](name, ...(version === null ? [] : [version]));
  request.onblocked = () => (asked.blocked = true);
  request.onerror = () => (asked.state = `failed: ${request.error}`);
  request.onsuccess = () => { asked.state = "done"; request.result?.close(); };
}"""

_FOREIGN = """(name) => new Promise((made, failed) => {
  const request = indexedDB.open(name, 1);
  request.onupgradeneeded = () => request.result.createObjectStore("something", { keyPath: "id" });
  request.onsuccess = () => { request.result.close(); made(); };
  request.onerror = () => failed(request.error);
})"""

_STORED = """(name) => new Promise((resolve, reject) => {
  const request = indexedDB.open(name);
  request.onerror = () => reject(request.error);
  request.onsuccess = () => {
    const database = request.result;
    const all = database.transaction("fencing").objectStore("fencing").getAll();
    all.onsuccess = () => {
      database.close();
      resolve(Object.fromEntries(all.result.map((each) => [each.key, each])));
    };
    all.onerror = () => reject(all.error);
  };
})"""


async def both_hosts(browser: Opens[TabT], site: Site) -> list[TabT]:
    """Two joined tabs: one on the shared host, one on its own."""
    return [await site.joined(browser, host=host) for host in ("shared", "window")]


async def make_foreign(tab: DrivenTab) -> None:
    """Make a database of our name with something else in it."""
    await tab.evaluate(_FOREIGN, DATABASE)


async def changes(tab: DrivenTab) -> list[str]:
    """What became of the app's database, in the words of ``storage-changed``."""
    told: list[str] = await tab.evaluate(_CHANGES, DATABASE)
    return told


async def told(tab: DrivenTab, change: str, *, times: int = 1, timeout: float = 20.0) -> None:
    """Wait until the page was told of a change (so often)."""

    async def it_was() -> bool:
        return (await changes(tab)).count(change) >= times

    await until(it_was, f"{tab} to be told that the database is {change}", timeout)


async def stand_in_the_way(tab: DrivenTab) -> None:
    """Keep a connection open that gives way to nobody."""
    await tab.evaluate(_HOLD, DATABASE)


async def get_out_of_the_way(tab: DrivenTab) -> None:
    await tab.evaluate("() => inTheWay.close()")


async def ask_to_delete(tab: DrivenTab) -> None:
    """Ask for the deletion of the database, and wait for nothing."""
    await tab.evaluate(_ASK, ["deleteDatabase", DATABASE, None])


async def ask_to_upgrade(tab: DrivenTab, version: int) -> None:
    """Ask for a higher version, as a page of a later release would, and wait for nothing."""
    await tab.evaluate(_ASK, ["open", DATABASE, version])


async def done(tab: DrivenTab) -> None:
    """Wait until what was asked for is done."""
    await tab.until("() => asked.state === 'done'", 20, "the database to be deleted or upgraded")


async def stored(tab: DrivenTab) -> dict[str, Any]:
    """The records of epochs, by key."""
    found: dict[str, Any] = await tab.evaluate(_STORED, DATABASE)
    return found


async def ended(tab: DrivenTab, key: str = "job") -> str:
    """Wait until the first loop of the tab was told to stop; why."""
    reason: str = await tab.until(
        "(key) => stands[key].runs[0]?.abortedAt && (stands[key].runs[0].reason ?? 'no reason')",
        20,
        "the leader's loop to be told to stop",
        arg=key,
    )
    return reason
