"""An ordinary life leaves no word on any console, and nothing uncaught."""

from __future__ import annotations

from e2e.kit import RECEIVER, Site, hand_over, join, leader, uncaught, until, write

from tabhelm.testing import ChaosBrowser

_KINDS = """async () => {
  const { held, pending } = await navigator.locks.query();
  return [...held, ...pending].map(({ name }) => name.split(":")[2]);
}"""


async def test_join_lead_step_down_enqueue_leave(browser: ChaosBrowser, site: Site) -> None:
    tabs = await site.standing(browser, 3)
    old = await leader(tabs)
    assert await write(old.tab, "one") == 200
    rest = [tab for tab in tabs if tab is not old.tab]
    await hand_over(old, rest)
    new = await leader(rest, above=old.epoch)
    await new.tab.evaluate("() => stands.job.election.stop('enough')")
    over = await new.tab.evaluate("() => stands.job.election.stopped")
    assert over == {"state": "stopped", "reason": "enough"}
    for number, tab in enumerate(tabs):
        await tab.evaluate(
            """async ([endpoint, name]) => {
              const queue = tab.queue("mutations", { endpoint });
              await queue.enqueueAll([{ payload: { name }, id: name }]);
              tab.update({ capabilities: ["x"], session: "user:1" });
              await tab.diagnose();
              await __orchestration.metrics();
            }""",
            [RECEIVER, f"operation-{number}"],
        )

    async def all_applied() -> bool:
        return len(await site.effects()) == 4

    await until(all_applied, "three operations to be applied")
    await tabs[0].freeze()
    await tabs[0].thaw()
    assert await tabs[1].bfcache_round_trip("/blank2")
    await tabs[1].until("() => tab.hostState.state === 'connected'", what="joined again")
    (worker,) = await browser.shared_workers(url_contains="engine.mjs")
    for tab in tabs:
        await tab.evaluate("() => tab.leave('goodbye')")
        assert await uncaught(tab) == []
        assert list(tab.log) == []
    assert await worker.console() == []

    async def nothing_left() -> bool:
        return bool(await tabs[0].evaluate(_KINDS) == [])  # the engine of no page holds nothing either

    await until(nothing_left, "the locks of the tabs that left to be free")
    # And once more, in the same page.
    facts = await join(tabs[0])
    assert facts["generation"] > 1
    assert list(tabs[0].log) == []
