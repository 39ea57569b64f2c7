"""One leader among three tabs; whatever befalls it, another leads, and what the old one still sends is refused."""

from __future__ import annotations

from typing import Any

import pytest
from e2e.kit import STALL_MS, WATCHED, Leader, Site, fire, leader, leaders, now, until, write

from tabhelm.testing import ChaosBrowser, ChaosTab


async def test_three_tabs_have_one_leader(browser: ChaosBrowser, site: Site) -> None:
    tabs = await site.standing(browser, 3)
    first = await leader(tabs)

    async def settled() -> bool:
        states = [at["status"]["state"] for tab in tabs if (at := await now(tab)) is not None]
        return sorted(states) == ["leading", "waiting", "waiting"]

    await until(settled, "one to lead and two to wait")
    assert await write(first.tab, "one") == 200
    for tab in tabs:
        said = await tab.until("() => stands.job.election.leader()", what="word of the leader")
        assert (said["tabId"], said["epoch"]) == (first.tab_id, first.epoch)
    assert [effect["op_id"] for effect in await site.effects()] == ["one"]


class Scene:
    """Three tabs; the first, whose process holds the engine, does not lead, so that the fault hits a tab alone."""

    def __init__(self, site: Site, tabs: list[ChaosTab], old: Leader[ChaosTab]) -> None:
        self.site = site
        self.tabs = tabs
        self.old = old

    @classmethod
    async def set(
        cls, browser: ChaosBrowser, site: Site, *, join: dict[str, Any] | None = None, **policy: Any
    ) -> Scene:
        host, *others = [await site.joined(browser, **given) for given in ({}, join or {}, {})]
        await site.stand(others[0], **policy)
        old = await leader([others[0]])
        await site.stand(others[1], **policy)
        await site.stand(host, **policy)
        assert await write(old.tab, "in-time") == 200
        # The write that will be late: the server has read it, and keeps it.
        await site.hold_one()
        await fire(old.tab, "late")
        await site.held()
        return cls(site, [host, *others], old)

    async def passes_on(self, *, barrier_alone: bool = False) -> Leader[ChaosTab]:
        """Another tab leads with a higher epoch, its writes are applied, and the late one of the old leader is not.

        ``barrier_alone``: the late one arrives before the new leader has written anything.
        """
        rest = [tab for tab in self.tabs if tab is not self.old.tab]
        new = await leader(rest, above=self.old.epoch)
        if not barrier_alone:
            assert await write(new.tab, "next") == 200
        await self.site.release()

        async def refused() -> list[dict[str, object]]:
            return [
                each
                for each in await self.site.requests()
                if (each["epoch"], each["outcome"], each["operations"]) == (self.old.epoch, 409, 1)
            ]

        await until(refused, "the old leader's late write to be refused")
        if barrier_alone:
            assert await write(new.tab, "next") == 200
        effects = await self.site.effects()
        assert [(effect["op_id"], effect["epoch"]) for effect in effects] == [
            ("in-time", self.old.epoch),
            ("next", new.epoch),
        ]
        assert [each.tab for each in await leaders(rest)] == [new.tab]
        return new

    async def lost(self, *reasons: str) -> None:
        """What the old leader's loop sees once it is awake: an aborted signal, and no more headers."""
        run = await self.old.tab.until("() => stands.job.runs[0].abortedAt !== null && stands.job.runs[0]")
        assert run["reason"] in reasons
        assert await self.old.tab.evaluate(_AFTERWARDS) == [True, "LeadershipLost", "LeadershipLost"]


_AFTERWARDS = """() => {
  const { ctx } = stands.job.runs[0];
  const tried = (what) => { try { what(); return "no error"; } catch (error) { return error.name; } };
  return [ctx.signal.aborted, tried(() => ctx.headers()), tried(() => ctx.nextToken())];
}"""


async def test_the_leader_closes(browser: ChaosBrowser, site: Site) -> None:
    scene = await Scene.set(browser, site)
    await scene.old.tab.close()
    await scene.passes_on()


async def test_the_barrier_alone_makes_the_late_write_harmless(browser: ChaosBrowser, site: Site) -> None:
    scene = await Scene.set(browser, site)
    await scene.old.tab.close()
    await scene.passes_on(barrier_alone=True)


async def test_the_leader_crashes(browser: ChaosBrowser, site: Site) -> None:
    scene = await Scene.set(browser, site)
    await scene.old.tab.kill_process()
    await scene.passes_on()


async def test_the_leader_navigates_away_and_comes_back_out_of_the_cache(browser: ChaosBrowser, site: Site) -> None:
    scene = await Scene.set(browser, site)
    await scene.old.tab.navigate("/blank2")
    await scene.passes_on()
    assert await scene.old.tab.back(), await scene.old.tab.not_restored_reasons()
    await scene.lost("pagehide")


async def test_the_leader_is_frozen(browser: ChaosBrowser, site: Site) -> None:
    scene = await Scene.set(browser, site)
    await scene.old.tab.freeze()
    new = await scene.passes_on()
    await scene.old.tab.thaw()
    await scene.lost("freeze")
    assert (await leader(scene.tabs)).tab is new.tab


async def test_the_leader_hangs(browser: ChaosBrowser, site: Site) -> None:
    scene = await Scene.set(browser, site, join=WATCHED)
    hang = 20.0
    await scene.old.tab.hang(hang)
    new = await scene.passes_on()
    assert scene.old.tab.silent, f"it was to lead while the old one hangs, not after those {hang} s"
    await scene.lost("doubt", "stalled")
    assert (await leader(scene.tabs)).tab is new.tab


async def test_a_leader_that_hung_may_not_write_in_the_very_task_that_wakes_it(
    browser: ChaosBrowser, site: Site
) -> None:
    scene = await Scene.set(browser, site, join=WATCHED)
    # No message can be read between the end of the busy loop and the attempt to write.
    tried = await scene.old.tab.evaluate(
        """(ms) => {
          const { ctx } = stands.job.runs[0];
          const end = performance.now() + ms;
          while (performance.now() < end) {}
          try { return ctx.headers(); } catch (error) { return [error.name, error.reason, ctx.signal.aborted]; }
        }""",
        2 * STALL_MS,
    )
    assert tried == ["LeadershipLost", "doubt", True]
    await scene.passes_on()


async def test_the_leader_goes_offline(browser: ChaosBrowser, site: Site) -> None:
    scene = await Scene.set(browser, site, online=True)
    await scene.old.tab.offline(True)
    await scene.passes_on()
    await scene.lost("offline")
    await scene.old.tab.offline(False)
    await scene.old.tab.until("() => stands.job.election.status.state === 'waiting'", what="standing again")


@pytest.mark.parametrize("stopping", ["stepDown", "stop"])
async def test_the_leader_gives_up(browser: ChaosBrowser, site: Site, stopping: str) -> None:
    scene = await Scene.set(browser, site)
    await scene.old.tab.evaluate(f"() => stands.job.election.{stopping}('enough')")
    await scene.passes_on()
    await scene.lost("enough")
