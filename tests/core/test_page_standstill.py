"""A page that runs its own engine: what a standstill costs, and what is none."""

from __future__ import annotations

import pytest
from page_kit import SEEDS, led_by, open_page, run

from tabhelm import LeaderContext, Leading, Waiting
from tabhelm.errors import LeadershipLost
from tabhelm.observe import LeadershipChanged
from tabhelm.simulated import World


@pytest.mark.parametrize("seed", SEEDS)
def test_a_loop_that_stood_still_for_too_long_may_not_write_when_it_wakes(seed: int) -> None:
    async def test(world: World) -> None:
        page, other = open_page(world, "a"), open_page(world, "b")
        tab, others = await page.join(stall_after=4.0), await other.join(stall_after=4.0)
        woken: list[str] = []
        late: list[float] = []

        async def writes(context: LeaderContext) -> None:
            clock = page.ports.clock
            while True:
                before = clock.monotonic()
                await clock.sleep(0.05)  # not the context's own: it would look by itself
                try:
                    context.next_token()
                except LeadershipLost as lost:
                    woken.append(lost.reason)
                    raise
                if clock.monotonic() - before > 4.0:
                    late.append(clock.monotonic() - before)

        first = page.lead(tab, loop=writes)
        await led_by(world, first)
        second = other.lead(others)
        await world.sleep(1.0)
        page.agent.hang(3.0)
        await world.sleep(5.0)
        assert isinstance(first.status, Leading) and woken == [], "a short standstill costs nothing"
        page.agent.hang(9.0)
        await led_by(world, second, within=12.0)
        await world.until(lambda: woken != [] or not isinstance(first.status, Leading), within=1.0)
        assert len(woken) <= 1 and late == []
        reasons = [e.reason for e in tab.events.recent if isinstance(e, LeadershipChanged) and e.before == "leading"]
        assert reasons[-1] in ("stalled", "lock-lost")
        await world.until(lambda: isinstance(first.status, Waiting))
        assert len(tab.presence().tabs) == 2

    run(seed, test)


def test_what_runs_first_after_a_standstill_may_not_write_either() -> None:
    async def test(world: World) -> None:
        page = open_page(world, "a")
        tab = await page.join(stall_after=4.0)
        election = page.lead(tab)
        await led_by(world, election)
        page.call(page.contexts[0].next_token)
        page.agent.hang(9.0)
        await world.sleep(8.999)
        with pytest.raises(LeadershipLost):  # as in an event handler that comes before every timer
            page.call(page.contexts[0].next_token)
        await world.until(lambda: page.runs == [1, 2])
        assert tab.state.lifecycle == "active"

    run(1, test)


def test_a_hidden_page_s_slow_timers_are_no_standstill() -> None:
    async def test(world: World) -> None:
        page = open_page(world, "a")
        tab = await page.join(stall_after=1.0)
        election = page.lead(tab)
        await led_by(world, election)
        page.lifecycle.show(False)
        for _ in range(3):
            page.agent.hang(60.0)  # what throttling to one timer a minute looks like from inside
            await world.sleep(61.0)
        page.agent.hang(40.0)
        await world.sleep(39.999)
        page.lifecycle.show(True)
        await world.sleep(5.0)
        assert page.runs == [1]
        page.agent.hang(2.0)
        await world.until(lambda: page.runs == [1, 2])

    run(1, test)
