"""Devices that are cut off from a lease service, hang, sleep or have wrong clocks."""

from __future__ import annotations

import pytest
from device_kit import Devices, hold_of, troubles
from lease_kit import reasons

from tabhelm.errors import LeadershipLost
from tabhelm.simulated import NextAnswer, World

SEEDS = range(6)


# -- cut off, hung, late ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", SEEDS)
def test_who_is_cut_off_gives_up_before_another_takes_it_and_says_so(seed: int) -> None:
    with World(seed) as world:
        devices = Devices(world)

        async def main() -> None:
            first = await devices.one.leading()
            second = devices.two.standing()
            await world.sleep(world.rng.uniform(0.0, 20.0))
            devices.one.cut_off()
            cut = world.loop.time()
            await world.until(lambda: not first.leading)
            assert world.loop.time() - cut < 10.5
            assert reasons(first) == ["lease-renewal-failed"]
            assert await devices.crew.led(second) < 15.5
            assert troubles(first)[-1] is not None and "no answer" in str(troubles(first)[-1])
            devices.one.cut_off(False)
            await world.sleep(60.0)
            assert second.leading and second.led == [2] and not first.leading
            assert troubles(first)[-1] is None, "it answers again"
            second.agent.die()
            assert await devices.crew.led(first) < 15.5

        world.run(main())
        assert devices.crew.both == []


@pytest.mark.parametrize("seed", SEEDS)
def test_a_service_that_hangs_and_answers_when_it_is_too_late(seed: int) -> None:
    with World(seed) as world:
        devices = Devices(world)

        async def main() -> None:
            first = await devices.one.leading()
            await world.sleep(world.rng.uniform(0.0, 5.0))
            # What arrives is answered, much later: the lease is renewed there all the time.
            world.faults.http_delay = (13.0, 25.0)
            await world.until(lambda: not first.leading, within=30.0)
            assert reasons(first) == ["lease-renewal-failed"]
            context = devices.crew.contexts[-1][1]
            await world.sleep(40.0)
            with pytest.raises(LeadershipLost):
                first.call(context.next_token)
            world.faults.http_delay = (0.001, 0.05)
            await devices.crew.led(first)
            assert len(first.led) == 2

        world.run(main())
        assert devices.crew.both == []


@pytest.mark.parametrize("seed", SEEDS)
def test_answers_that_get_lost_cost_no_leadership_while_one_in_time_arrives(seed: int) -> None:
    with World(seed) as world:
        devices = Devices(world)

        async def main() -> None:
            first = await devices.one.leading()
            for _ in range(10):
                world.network.script.append(NextAnswer(lose_answer=True))
                await world.sleep(world.rng.uniform(15.0, 20.0))
                world.network.script.clear()
            assert first.leading and first.led == [1]

        world.run(main())


@pytest.mark.parametrize("seed", SEEDS)
def test_an_owner_frozen_within_its_tenure_never_renews_and_knows_at_its_first_instruction(seed: int) -> None:
    with World(seed) as world:
        devices = Devices(world)

        async def main() -> None:
            first = await devices.one.leading()
            second = devices.two.standing()
            await world.sleep(world.rng.uniform(0.0, 12.0))
            context, hold = devices.crew.contexts[0][1], hold_of(devices, first)
            first.agent.freeze()
            await world.sleep(1.0)
            renewed = devices.record.seq
            assert await devices.crew.led(second) < 15.5
            assert devices.record.holder is not None and devices.record.holder.startswith("t-d2-tab:")
            first.agent.thaw()
            with pytest.raises(LeadershipLost, match="lease-renewal-failed"):
                first.call(context.next_token)
            assert hold.lost == "lease-renewal-failed" and devices.record.epoch == 2 and renewed >= 1
            await world.sleep(30.0)
            assert second.leading and second.led == [2] and not first.leading

        world.run(main())
        assert devices.crew.both == []


def test_a_page_that_its_engine_dropped_is_given_back_and_not_renewed() -> None:
    """Frozen, but its engine lives on (another page of it runs): the lease is given back at once."""
    with World(1) as world:
        devices = Devices(world)

        async def main() -> None:
            first = await devices.one.leading()
            second = devices.two.standing()
            await world.sleep(7.0)
            first.call(lambda: first.ports.locks.drop(first.tab.identity.connection_id))
            first.set(lifecycle="frozen")
            assert await devices.crew.led(second) < 1.0
            assert reasons(first) == ["frozen"]

        world.run(main())
        assert devices.crew.both == []


@pytest.mark.parametrize("seed", SEEDS)
def test_a_device_whose_monotonic_clock_slept_with_it(seed: int) -> None:
    """A laptop whose lid was closed: its monotonic clock stood still, its wall clock is right when it wakes."""
    with World(seed) as world:
        devices = Devices(world)

        async def main() -> None:
            first = await devices.one.leading()
            second = devices.two.standing()
            await world.sleep(world.rng.uniform(5.0, 15.0))
            context = devices.crew.contexts[0][1]
            first.agent.freeze()
            await devices.crew.led(second)
            await world.sleep(300.0)
            first.agent.clock._offset -= 315.0 * first.agent.clock._rate
            first.agent.thaw()
            with pytest.raises(LeadershipLost, match="lease-renewal-failed"):
                first.call(context.next_token)
            await world.sleep(30.0)
            assert second.leading and not first.leading

        world.run(main())
        assert devices.crew.both == []


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("asleep", [8.0, 60.0])
def test_a_device_that_slept_while_its_grant_was_on_the_way_does_not_believe_in_it(seed: int, asleep: float) -> None:
    """The answer is read after the sleep, and by the monotonic clock, which slept too, it came at once."""
    with World(seed) as world:
        devices = Devices(world)

        async def main() -> None:
            first = devices.one.standing()
            await world.until(lambda: bool(devices.store.records), within=30.0)
            first.agent.freeze()
            second = devices.two.standing()
            await world.sleep(asleep)
            first.agent.clock._offset -= asleep * first.agent.clock._rate
            first.agent.thaw()
            await world.sleep(30.0)
            assert first.leading != second.leading

        world.run(main())
        assert devices.crew.both == []


def test_a_device_that_slept_while_its_renewal_was_on_the_way_counts_from_before_it() -> None:
    with World(1) as world:
        devices = Devices(world)

        async def main() -> None:
            first = await devices.one.leading()
            await world.until(lambda: devices.record.seq == 2, within=10.0)
            await world.sleep(0.2)
            context = devices.crew.contexts[0][1]
            first.agent.call(lambda: first.agent.loop.create_task(context.check()))  # long before its time
            await world.until(lambda: devices.record.seq == 3, within=1.0)
            renewed = world.loop.time()
            first.agent.freeze()
            await world.sleep(9.0)
            first.agent.clock._offset -= 9.0 * first.agent.clock._rate
            first.agent.thaw()
            devices.one.cut_off()
            await world.sleep(renewed + 15.0 - world.loop.time())
            with pytest.raises(LeadershipLost):
                first.call(context.next_token)

        world.run(main())


# -- clocks -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("skew", [-1e6, -600.0, 600.0, 1e6])
def test_wall_clocks_of_devices_and_service_need_not_agree(skew: float) -> None:
    with World(1) as world:
        devices = Devices(world)

        async def main() -> None:
            first = devices.one.join()
            first.agent.clock.wall_offset += skew
            devices.one.lead(first)
            await devices.crew.led(first)
            second = devices.two.join()
            second.agent.clock.wall_offset -= skew
            devices.two.lead(second)
            await world.sleep(120.0)
            assert first.leading and first.led == [1] and second.led == []

        world.run(main())
        assert devices.crew.both == []


@pytest.mark.parametrize("jump", [-1e6, 1e6])
@pytest.mark.parametrize("restarted", [False, True])
def test_the_services_clock_is_set(jump: float, restarted: bool) -> None:
    with World(1) as world:
        devices = Devices(world)

        async def main() -> None:
            first = await devices.one.leading()
            second = devices.two.standing()
            await world.sleep(20.0)
            devices.wall += jump
            if restarted:
                devices.restart()  # it knows by its database's clock alone when the lease was renewed
            await world.sleep(60.0)
            epochs = sorted(first.led + second.led)
            assert sum(member.leading for member in (first, second)) == 1
            if not restarted or jump < 0:
                assert epochs == [1] and devices.crew.both == []
            else:
                # Nothing tells that from time that passed. For a while both believe: receivers tell them apart.
                assert epochs == [1, 2] and reasons(first) == ["newer-epoch"]
            leader = first if first.leading else second
            leader.agent.die()
            assert await devices.crew.led(second if leader is first else first) < 31.0

        world.run(main())


@pytest.mark.parametrize("seed", SEEDS)
def test_clocks_of_different_speeds(seed: int) -> None:
    with World(seed) as world:
        devices = Devices(world)

        async def main() -> None:
            first, second = devices.one.join(), devices.two.join()
            first.agent.clock._rate, second.agent.clock._rate = 0.75, 1.3
            devices.one.lead(first)
            await devices.crew.led(first)
            devices.two.lead(second)
            for _ in range(4):
                await world.sleep(world.rng.uniform(5.0, 25.0))
                devices.one.cut_off()
                await world.sleep(world.rng.uniform(2.0, 30.0))
                devices.one.cut_off(False)
            await world.sleep(60.0)
            assert len(devices.crew.believers()) == 1

        world.run(main())
        assert devices.crew.both == []


@pytest.mark.parametrize("hidden", [False, True])
def test_a_hidden_page_that_runs_python_has_a_longer_lease(hidden: bool) -> None:
    with World(1) as world:
        devices = Devices(world)

        async def main() -> None:
            first = devices.one.join(in_page=True)
            devices.one.lead(first)
            await devices.crew.led(first)
            second = devices.two.standing()
            await world.sleep(10.0)
            if hidden:
                first.set(visible=False, lifecycle="hidden")
                first.agent.clock.throttled, first.agent.clock.throttle = True, 60.0
                await world.sleep(600.0)
                assert first.leading and first.led == [1] and devices.record.ttl == 200.0
            else:
                await world.sleep(60.0)
                assert devices.record.ttl == 15.0
            first.agent.die()
            took = await devices.crew.led(second, within=300.0)
            assert (took > 100.0) == hidden and took < (201.0 if hidden else 16.0)

        world.run(main())
        assert devices.crew.both == []
