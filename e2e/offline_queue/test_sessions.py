"""Two users of one browser: nobody's work travels with somebody else's cookies."""

from __future__ import annotations

from typing import Any

from e2e.kit import Site

from tabhelm.testing import ChaosBrowser, ChaosTab

from .lane import acknowledged, drained, enqueue, judge, open_queue, operations, queueing, stats

_SIGN_IN = "(session) => tab.update({ session })"
_SIGN_OUT = "() => tab.update({ session: null })"
_MISMATCH = """async () => {
  const elections = Object.values((await tab.diagnose()).engine.elections);
  return elections.some(({ state, reason }) => state === "idle" && reason === "session-mismatch");
}"""


async def barred(tab: ChaosTab) -> None:
    await tab.until(_MISMATCH, what="the first user's flusher to be barred")


async def test_what_one_user_enqueued_waits_while_another_is_signed_in(browser: ChaosBrowser, site: Site) -> None:
    tab = await queueing(browser, site, join_options={"session": "user:1"}, scope="user:1")
    await tab.offline(True)
    gone = "() => tab.presence().self?.online === false && !Object.keys(tab.presence().leaders).length"
    await tab.until(gone, what="the offline tab to lead nothing")
    await enqueue(tab, operations("first", 5))
    acks: list[dict[str, Any]] = await acknowledged(tab)
    await tab.evaluate(_SIGN_IN, "user:2")
    await tab.offline(False)
    await barred(tab)
    first = await stats(tab)

    await open_queue(tab, scope="user:2")
    await enqueue(tab, operations("second", 5))
    await drained(tab, done=5)
    acks += await acknowledged(tab)
    assert first["queued"] == 5
    assert {effect["payload"]["from"] for effect in await site.effects()} == {"second"}

    await tab.evaluate(_SIGN_IN, "user:1")
    await open_queue(tab, scope="user:1")
    await drained(tab, done=5)
    assert len(await judge(site, acks)) == 10


async def test_signing_in_another_user_while_the_engine_is_away_is_not_lost(browser: ChaosBrowser, site: Site) -> None:
    # The engine dies; while the next one boots, the page signs the first user out and another one in, and says so.
    await site.joined(browser)
    tab = await queueing(browser, site, join_options={"session": "user:1"}, scope="user:1")
    await site.faults(status=503)
    await enqueue(tab, operations("first", 1))
    await tab.evaluate("""() => tab.addEventListener("host", ({ detail }) => {
      if (detail.state === "connecting") setTimeout(() => tab.update({ session: "user:2" }), 100);
    })""")
    await (await browser.shared_workers())[0].kill_process()
    await tab.until("() => hosts.some(({ state }) => state === 'connected')", what="the tab to be connected again")
    await site.faults()
    await barred(tab)
    assert await site.effects() == []


async def test_what_a_user_enqueued_waits_once_nobody_is_signed_in_also_with_the_next_engine(
    browser: ChaosBrowser, site: Site
) -> None:
    # The next user's cookies may come before the app says who that is.
    await site.joined(browser)  # another page, so that the engine is a process of its own
    tab = await queueing(browser, site, join_options={"session": "user:1"}, scope="user:1")
    await tab.evaluate(_SIGN_OUT)
    await enqueue(tab, operations("first", 5))
    await barred(tab)
    await (await browser.shared_workers())[0].kill_process()
    await tab.until("() => hosts.some(({ state }) => state === 'connected')", what="the tab to be connected again")
    await barred(tab)
    assert (await stats(tab))["queued"] == 5
    assert await site.effects() == []
    await tab.evaluate(_SIGN_IN, "user:1")
    await drained(tab, done=5)
