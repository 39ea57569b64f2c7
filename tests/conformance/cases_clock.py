"""How clock and entropy must behave."""

from __future__ import annotations

import asyncio

from cases_kit import cases, eventually, raised, spawn

from tabhelm.ports import Ports


async def sleepers_wake_in_order(here: Ports, there: Ports) -> None:
    woke: list[float] = []

    async def nap(delay: float) -> None:
        await here.clock.sleep(delay)
        woke.append(delay)

    # The shorter first: a pause of the machine between two calls would change the order in which they are due.
    long = spawn(nap(60.0))
    await asyncio.gather(*(nap(delay) for delay in (0.03, 0.06, 0.09)))
    assert woke == [0.03, 0.06, 0.09], f"woke as {woke}"
    long.cancel()
    await raised(asyncio.CancelledError, long)


async def a_sleep_lasts_and_the_clock_goes_on(here: Ports, there: Ports) -> None:
    for delay in (0.0, 0.001, 0.002, 0.004, 0.05):
        before = here.clock.monotonic()
        await here.clock.sleep(delay)
        passed = here.clock.monotonic() - before
        assert passed >= delay - 0.002, f"a sleep of {delay} s lasted {passed} s"


async def sleeping_never_is_no_mistake(here: Ports, there: Ports) -> None:
    await here.clock.sleep(0)
    await here.clock.sleep(-1.0)


async def a_cancelled_sleep_ends_at_once(here: Ports, there: Ports) -> None:
    sleeper = spawn(here.clock.sleep(60.0))
    await here.clock.sleep(0.01)
    before = here.clock.monotonic()
    sleeper.cancel()
    await raised(asyncio.CancelledError, sleeper)
    assert here.clock.monotonic() - before < 5.0, "cancelling did not end the sleep"


async def call_later_calls_once_and_can_be_taken_back(here: Ports, there: Ports) -> None:
    called: list[str] = []
    here.clock.call_later(0.02, lambda: called.append("kept"))
    timer = here.clock.call_later(0.01, lambda: called.append("cancelled"))
    timer.cancel()
    timer.cancel()
    await eventually(here, lambda: bool(called), "the timer fires")
    await here.clock.sleep(0.05)
    assert called == ["kept"], f"called {called}"
    here.clock.call_later(0.0, lambda: called.append("now"))
    assert called == ["kept"], "call_later called back before it returned"
    await eventually(here, lambda: called == ["kept", "now"], "a timer of zero fires")


async def wall_time_is_of_this_century(here: Ports, there: Ports) -> None:
    assert 1_700_000_000 < here.clock.wall() < 5_000_000_000, f"wall() is {here.clock.wall()}: not seconds since 1970"


async def entropy_differs(here: Ports, there: Ports) -> None:
    drawn = [ports.entropy.token_bytes(16) for ports in (here, there, here, there)]
    assert all(len(each) == 16 for each in drawn), f"wrong lengths {[len(each) for each in drawn]}"
    assert len(set(drawn)) == 4, "two draws are the same"
    numbers = [here.entropy.uniform(2.0, 3.0) for _ in range(50)]
    assert all(2.0 <= number <= 3.0 for number in numbers), f"out of bounds: {numbers}"
    assert len(set(numbers)) > 40, "uniform hardly varies"


CASES = cases(
    sleepers_wake_in_order,
    a_sleep_lasts_and_the_clock_goes_on,
    sleeping_never_is_no_mistake,
    a_cancelled_sleep_ends_at_once,
    call_later_calls_once_and_can_be_taken_back,
    wall_time_is_of_this_century,
    entropy_differs,
)
