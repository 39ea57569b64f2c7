"""Hostile and old messages on the channel and the port: counted, ignored, and no harm to anybody's leadership."""

from __future__ import annotations

import json
from typing import Any

from e2e.kit import Site, leader, uncaught, until, write

from tabhelm.testing import ChaosBrowser, ChaosTab

CHANNEL = "tabhelm:e2e:v1"
_POST = "([name, text]) => { const c = new BroadcastChannel(name); c.postMessage(JSON.parse(text)); c.close(); }"


async def ignored(tab: ChaosTab) -> dict[str, int]:
    """How many messages the tab's engine ignored, by reason."""
    found: dict[str, int] = (await tab.evaluate("() => tab.metrics()"))["ignored"]
    return found


async def test_nonsense_on_the_channel_is_counted_and_ignored(browser: ChaosBrowser, site: Site) -> None:
    tabs = await site.standing(browser, 2)
    old = await leader(tabs)
    stranger = await site.open(browser)
    beacon = {"tabhelm": 1, "kind": "beacon", "sender": "x", "number": 1, "next": 15, "tabs": [], "leaders": []}
    texts = ["sched$x", "[" * 100_000, "\ud800", json.dumps({**beacon, "tabhelm": 99}), json.dumps({"kind": "beacon"})]
    leading = {"resource": "e2e:job", "tab": "x", "connection": "x", "domain": "d", "epoch": -1, "age": 0}
    spoilt: list[dict[str, Any]] = [{"leaders": [leading]}, {"tabs": "all"}, {"next": 1e999}, {"next": 1e9}]
    texts += [json.dumps({**beacon, **fields}) for fields in spoilt]
    nonsense: list[Any] = [None, 42, {}, [], True, beacon, *texts]
    for data in nonsense:
        before = sum((await ignored(tabs[0])).values())
        await stranger.evaluate(_POST, [CHANNEL, json.dumps(data)])

        async def one_more(before: int = before) -> bool:
            return sum((await ignored(tabs[0])).values()) == before + 1

        await until(one_more, f"{str(data)[:60]!r} to be counted")
    await stranger.evaluate(
        "(name) => { const c = new BroadcastChannel(name); c.postMessage('x'.repeat(5_000_000)); c.close(); }", CHANNEL
    )

    async def too_long() -> bool:
        return "too-long" in await ignored(tabs[0])

    await until(too_long, "5 MB of text to be counted")
    assert (await leader(tabs)).epoch == old.epoch
    assert await write(old.tab, "one") == 200
    assert [await uncaught(tab) for tab in tabs] == [[], []]
    (worker,) = await browser.shared_workers(url_contains="engine.mjs")
    assert await worker.console() == []


async def test_a_liar_who_claims_to_lead_costs_time_at_most(browser: ChaosBrowser, site: Site) -> None:
    """A well-formed beacon of a stranger. Presence is a hint: the lock's holder goes on, and so does failover."""
    tabs = await site.standing(browser, 2)
    old = await leader(tabs)
    stranger = await site.open(browser)
    note = {"tab": "liar", "connection": "liar-1", "generation": 1, "lifecycle": "active", "visible": True}
    note |= {"online": True, "version": "", "capabilities": [], "stands": ["e2e:job"], "age": 1e6}
    lead = {"resource": "e2e:job", "tab": "liar", "connection": "liar-1", "domain": "", "epoch": 0, "age": 1e6}
    beacon = {"tabhelm": 1, "kind": "beacon", "sender": "liar", "number": 1, "next": 5, "tabs": [note]}
    beacon |= {"leaders": [lead]}
    # It even holds what a living engine holds; without that it is forgotten as soon as it is heard.
    await stranger.evaluate(
        "(name) => new Promise((held) => navigator.locks.request(name, () => (held(), new Promise(() => {}))))",
        "e2e:v1:engine:liar",
    )
    await stranger.evaluate(_POST, [CHANNEL, json.dumps(json.dumps(beacon))])
    for tab in tabs:
        await tab.until(f"() => {_LIAR}", what="the liar in the roster")
    assert (await leader(tabs)).epoch == old.epoch
    assert await write(old.tab, "one") == 200
    await old.tab.close()
    (rest,) = [tab for tab in tabs if tab is not old.tab]
    await leader([rest], above=old.epoch)
    await stranger.close()
    await rest.until(f"() => !{_LIAR}", 12.0, "the liar to leave the roster with the page that held its lock")


_LIAR = "tab.presence().tabs.some(({ tabId }) => tabId === 'liar')"


async def test_nonsense_on_the_port_is_ignored(browser: ChaosBrowser, site: Site) -> None:
    (tab,) = await site.standing(browser)
    old = await leader([tab])
    stranger = await site.open(browser)
    await stranger.evaluate(
        """async ([app, buildId]) => {
          const name = `tabhelm:${app}:v1:${buildId}`;
          const { port } = new SharedWorker("/tabhelm/engine.mjs", { type: "module", name });
          const hello = { type: "hello", wire: 1, session: "s", app, protocol: 1, stallAfterMs: 2000, at: 1 };
          const answered = new Promise((resolve) => (port.onmessage = ({ data }) => resolve(data)));
          for (const data of [null, 42, "x", [], {}]) port.postMessage(data);
          for (const type of [7, "gone", "bye", "pong", "stalled", "constructor"]) port.postMessage({ type });
          for (const part of [{ stallAfterMs: "soon" }, { lifeline: "not:yours" }, { lifeline: 7 }, { app: "other" }])
            port.postMessage({ ...hello, ...part });
          await answered;
        }""",
        ["e2e", (await tab.evaluate("() => tabhelm.buildId"))],
    )
    assert (await leader([tab])).epoch == old.epoch
    assert await write(tab, "one") == 200


async def test_values_nested_without_end_kill_no_engine(browser: ChaosBrowser, site: Site) -> None:
    """Not texts but values: this browser clones them down to some 3,000 levels, others may do so further down."""
    (tab,) = await site.standing(browser)
    old = await leader([tab])
    stranger = await site.open(browser)
    for depth in (600, 2_000, 3_000, 5_000, 8_000):
        await stranger.evaluate(_NESTED, [depth, CHANNEL, "e2e", await tab.evaluate("() => tabhelm.buildId")])

    async def counted() -> bool:
        found = await ignored(tab)
        return found.get("not-text", 0) >= 2 and found.get("malformed", 0) >= 2

    await until(counted, "the nested values to be counted")
    assert (await leader([tab])).epoch == old.epoch
    assert await write(tab, "one") == 200


_NESTED = """([depth, channel, app, buildId]) => {
  let value = [];
  for (let level = 0; level < depth; level++) value = [value];
  const broadcast = new BroadcastChannel(channel);
  const { port } = new SharedWorker("/tabhelm/engine.mjs", { type: "module", name: `tabhelm:${app}:v1:${buildId}` });
  const session = `deep-${depth}`;
  const hello = { type: "hello", wire: 1, session, lifeline: `${app}:v1:lifeline:x:${session}`, app, protocol: 1 };
  try {
    broadcast.postMessage(value);
    port.postMessage({ ...hello, stallAfterMs: 2000, at: 1, tab: "x", generation: 1, value });
  } catch (error) {
    if (error.name !== "RangeError") throw error;  // deeper than the browser clones
  }
}"""
