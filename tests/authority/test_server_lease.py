"""Devices that compete at a lease service: handovers, turns, belief, and a storm of faults."""

from __future__ import annotations

import pytest
from device_kit import RECEIVER, Devices

from tabhelm.fencing.http_form import token_header
from tabhelm.simulated import HttpRequest, World

SEEDS = range(6)


# -- who leads --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("how", ["step-down", "stop", "leave", "die"])
def test_one_device_leads_and_the_other_follows(seed: int, how: str) -> None:
    with World(seed) as world:
        devices = Devices(world)

        async def main() -> None:
            receiver = devices.receiver()
            first = devices.one.join()
            election = devices.one.lead(first, fence=RECEIVER)
            await devices.crew.led(first)
            second = devices.two.standing(fence=RECEIVER)
            await world.sleep(world.rng.uniform(20.0, 40.0))
            assert first.leading and second.led == []
            late = first.call(devices.crew.contexts[0][1].next_token)
            match how:
                case "step-down":
                    first.call(election.step_down)
                case "stop":
                    first.call(election.stop)
                case "leave":
                    await first.agent.start(first.tab.leave("left"))
                case _:
                    first.agent.die()
            took = await devices.crew.led(second)
            assert took < 0.5 if how != "die" else 9.0 < took < 15.5, took
            assert (first.led, second.led) == ([1], [2])
            grants = [*first.grants, *second.grants]
            assert {grant.authority for grant in grants} == {"server-lease"} and len({g.domain for g in grants}) == 1
            request = HttpRequest("POST", RECEIVER, {"fencing-token": token_header(late)}, '{"operations": []}', "late")
            assert (await receiver.handle(request)).status == 409, "the old one's late write is refused"

        world.run(main())
        assert devices.crew.both == []


def test_many_devices_lead_in_turn_and_every_grant_has_a_higher_epoch() -> None:
    with World(3) as world:
        devices = Devices(world)

        async def main() -> None:
            members = [devices.one.standing(), devices.two.standing()]
            for _ in range(10):
                await world.until(lambda: any(member.leading for member in members))
                leader = next(member for member in members if member.leading)
                leader.call(leader.tab.elections["app:r"].step_down)
                await world.until(lambda leader=leader: not leader.leading)  # type: ignore[misc]
            epochs = sorted(epoch for member in members for epoch in member.led)
            assert epochs == list(range(1, len(epochs) + 1)) and len(epochs) >= 10

        world.run(main())
        assert devices.crew.both == []


def test_of_the_tabs_of_a_device_one_asks() -> None:
    with World(1) as world:
        devices = Devices(world)

        async def main() -> None:
            await devices.one.leading()
            agent = devices.two.join("many")
            others = [agent]
            devices.two.lead(agent)
            for n in range(4):
                others.append(devices.two.join(f"many-{n}"))
                devices.two.lead(others[-1])
            await world.sleep(30.0)
            asked = len(world.network.requests)
            await world.sleep(60.0)
            holder, waiting = 60 / 5, 5 * 60 / 10
            assert len(world.network.requests) - asked <= 1.3 * (holder + waiting)
            assert not any(other.leading for other in others)

        world.run(main())


def test_of_several_tabs_of_one_engine_one_asks() -> None:
    with World(1) as world:
        devices = Devices(world)

        async def main() -> None:
            first = await devices.one.leading()
            second = devices.two.join()
            others = [second, *(devices.two.beside(second, f"x{n}") for n in range(4))]
            for other in others:
                devices.two.lead(other)
            await world.sleep(30.0)
            asked = sum(request.sender == "d2-tab" for request in world.network.requests)
            await world.sleep(60.0)
            asked = sum(request.sender == "d2-tab" for request in world.network.requests) - asked
            assert asked <= 8, "one request that waits for ten seconds at a time"
            first.agent.die()
            await world.until(lambda: any(other.leading for other in others))

        world.run(main())


@pytest.mark.parametrize("delay", [0.5, 1.0])
def test_it_is_believed_in_from_before_the_request_was_sent(delay: float) -> None:
    with World(1) as world:
        devices = Devices(world)

        async def main() -> None:
            world.faults.http_delay = (delay, delay)
            first = await devices.one.leading()
            devices.one.cut_off()
            await world.until(lambda: not first.leading)
            given = devices.record.renewed_at - 1.8e9
            assert world.loop.time() - given < 10.05 - delay, "the time of the way is not given to the holder"

        world.run(main())


# -- a storm ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(20))
def test_whatever_happens_two_never_believe_and_one_leads_at_the_end(seed: int) -> None:
    """Cut off, frozen, thawed, killed service processes, lost and late answers; the service's clock is not set."""
    with World(seed) as world:
        devices = Devices(world)

        async def main() -> None:
            members = {"one": devices.one.standing(), "two": devices.two.standing()}
            rng = world.stream("storm")
            for _ in range(25):
                await world.sleep(rng.uniform(0.0, 12.0))
                name = rng.choice(["one", "two"])
                device, member = getattr(devices, name), members[name]
                match rng.randrange(7):
                    case 0:
                        device.cut_off()
                    case 1:
                        device.cut_off(False)
                    case 2 if not member.agent.frozen:
                        member.agent.freeze()
                    case 3 if member.agent.frozen:
                        member.agent.thaw()
                    case 4:
                        devices.restart()
                    case 5:
                        world.faults.http_lose_answer = rng.choice([0.0, 0.3])
                        world.faults.http_delay = rng.choice([(0.001, 0.05), (0.5, 6.0)])
                    case 6:
                        member.agent.clock.wall_offset += rng.uniform(-3600.0, 3600.0)
            world.faults.http_lose_answer, world.faults.http_delay = 0.0, (0.001, 0.05)
            for name, member in members.items():
                getattr(devices, name).cut_off(False)
                if member.agent.frozen:
                    member.agent.thaw()
            await world.until(lambda: sum(m.leading for m in members.values()) == 1, within=60.0)
            epochs = [epoch for member in members.values() for epoch in member.led]
            assert len(set(epochs)) == len(epochs)

        world.run(main())
        assert devices.crew.both == []
