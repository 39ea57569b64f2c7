"""``window.__orchestration``, which test builds expose: each hook in real tabs, on both hosts."""

from __future__ import annotations

import pytest
from e2e.kit import Site, leader, leaders, stands_by, uncaught, until, write

from tabhelm.testing import ChaosBrowser, ChaosTab

HOSTS = pytest.mark.parametrize("host", ["shared", "window"])


async def pair(browser: ChaosBrowser, site: Site, host: str) -> tuple[ChaosTab, ChaosTab]:
    """Two joined tabs that stand: one leads, the other is next in line."""
    first, second = [await site.joined(browser, host=host) for _ in range(2)]
    await site.stand(first)
    await leader([first])
    await site.stand(second)
    await stands_by(second)
    return first, second


@HOSTS
async def test_a_snapshot_of_presence_is_what_the_tab_knows(browser: ChaosBrowser, site: Site, host: str) -> None:
    first, second = await pair(browser, site, host)
    ids = [await tab.evaluate("() => tab.id") for tab in (first, second)]
    for tab, own in zip((first, second), ids, strict=True):
        await tab.until("() => __orchestration.presenceSnapshot().tabs.length === 2", what="both in the snapshot")
        told = "() => __orchestration.presenceSnapshot().leaders.job?.tabId"
        await tab.until(f"(id) => ({told})() === id", arg=ids[0], what="the leader in the snapshot")
        seen = await tab.evaluate("() => __orchestration.presenceSnapshot()")
        assert seen["self"]["tabId"] == own
        assert {each["tabId"] for each in seen["tabs"]} == set(ids)
        assert {each["liveness"] for each in seen["tabs"]} == {"alive"}
    await first.close()
    await second.until("() => __orchestration.presenceSnapshot().tabs.length === 1", what="the closed tab to be gone")


@HOSTS
async def test_the_state_of_leadership_as_each_tab_sees_it(browser: ChaosBrowser, site: Site, host: str) -> None:
    first, second = await pair(browser, site, host)
    onlooker = await site.joined(browser, host=host)
    led = await leader([first, second])
    look = "(resource) => __orchestration.leadershipState(resource)"
    for tab in (first, second, onlooker):
        told = "() => __orchestration.leadershipState('job').leader?.tabId"
        await tab.until(f"(id) => ({told})() === id", arg=led.tab_id, what="the leader to be known")
    mine, next_one, nobody = [await tab.evaluate(look, "job") for tab in (first, second, onlooker)]
    assert (mine["status"]["state"], mine["status"]["epoch"]) == ("leading", led.epoch)
    assert (next_one["status"]["state"], next_one["status"]["standby"]) == ("waiting", True)
    assert nobody["status"] is None, "it does not stand"
    assert {each["leader"]["epoch"] for each in (mine, next_one, nobody)} == {led.epoch}
    assert await first.evaluate(look, "another") == {"status": None, "leader": None}


@HOSTS
async def test_a_forced_election_makes_another_tab_lead(browser: ChaosBrowser, site: Site, host: str) -> None:
    first, second = await pair(browser, site, host)
    old = await leader([first])
    await first.evaluate("() => __orchestration.forceElection('job')")
    new = await leader([second], above=old.epoch)
    run = await first.evaluate(
        "() => { const { reason, abortedAt } = stands.job.runs[0]; return [reason, abortedAt]; }"
    )
    assert run[0] == "forced" and run[1] is not None
    assert await write(second, "next") == 200
    await stands_by(first)
    # It leads no more: there is nothing to force.
    await first.evaluate("() => __orchestration.forceElection('job')")
    assert [(each.tab, each.epoch) for each in await leaders([first, second])] == [(second, new.epoch)]
    refused = "() => __orchestration.forceElection('another').then(() => 'taken', ({ message }) => message)"
    assert "does not stand for 'e2e:another'" in await first.evaluate(refused)
    for tab in (first, second):
        assert await uncaught(tab) == []


@HOSTS
async def test_a_simulated_freeze_lets_go_and_a_simulated_restore_comes_back(
    browser: ChaosBrowser, site: Site, host: str
) -> None:
    first, second = await pair(browser, site, host)
    old = await leader([first])
    # In the very call, as in a real freeze handler: whatever runs after it sees an aborted signal.
    aborted, error = await first.evaluate("""() => {
      __orchestration.simulateFreeze();
      const { ctx } = stands.job.runs[0];
      try {
        return [ctx.signal.aborted, ctx.headers()];
      } catch (error) {
        return [ctx.signal.aborted, error.name];
      }
    }""")
    assert aborted is True and error == "LeadershipLost"
    new = await leader([second], above=old.epoch)
    assert await write(second, "next") == 200
    assert await leaders([first]) == []
    await first.evaluate("() => __orchestration.simulateRestore()")
    await stands_by(first)
    assert await leaders([first]) == [], "coming back takes nothing from the one that leads"
    await second.close()
    again = await leader([first], above=new.epoch)
    assert await write(first, "back") == 200
    assert again.tab_id == old.tab_id
    assert await uncaught(first) == []


async def test_the_hooks_are_there_for_test_builds_alone_and_go_with_the_tab(browser: ChaosBrowser, site: Site) -> None:
    tab = await site.joined(browser, testHooks=False)
    assert await tab.evaluate("() => '__orchestration' in window") is False
    other = await site.joined(browser)
    names = await other.evaluate("() => Object.keys(__orchestration).sort()")
    assert names == [
        "forceElection", "leadershipState", "metrics", "presenceSnapshot", "simulateFreeze", "simulateRestore",
    ]  # fmt: skip
    await other.evaluate("() => tab.leave('enough')")

    async def gone() -> bool:
        return await other.evaluate("() => '__orchestration' in window") is False

    await until(gone, "the hooks to be gone")
