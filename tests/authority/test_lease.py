"""The lease among clocks that jump, owners that stand still, and stores that hang, forget or write late."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import pytest
from lease_kit import Crew, fencing, reasons

from tabhelm.authority import LeaseTimes, Rivals
from tabhelm.errors import InvalidPolicy, LeadershipLost
from tabhelm.leadership import Leading
from tabhelm.names import Resource
from tabhelm.simulated import World

SEEDS = range(6)


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("how", ["step-down", "stop", "leave", "die"])
def test_the_next_leads_soon_after_a_leader_that_says_so_and_after_expiry_of_one_that_died(seed: int, how: str) -> None:
    with World(seed) as world:
        crew = Crew(world)

        async def main() -> None:
            first, second = crew.join("a"), crew.join("b")
            election = crew.lead(first)
            await crew.led(first)
            crew.lead(second)
            await world.sleep(world.rng.uniform(20.0, 30.0))
            assert second.led == []
            match how:
                case "step-down":
                    first.call(election.step_down)
                case "stop":
                    first.call(election.stop)
                case "leave":
                    await first.agent.start(first.tab.leave("left"))
                case _:
                    first.agent.die()
            took = await crew.led(second)
            assert took < 1.0 if how != "die" else 9.0 < took < 18.5, took
            assert second.led == [first.led[-1] + 1]

        world.run(main())
        assert crew.both == []


@pytest.mark.parametrize("seed", SEEDS)
def test_an_engine_that_closes_gives_its_lease_back_first(seed: int) -> None:
    with World(seed) as world:
        crew = Crew(world)

        async def main() -> None:
            first = crew.join("a")
            crew.lead(first)
            await crew.led(first)

            async def go() -> None:
                await first.tab.leave("left")
                await first.services.close()

            await first.agent.start(go())
            first.agent.die()
            assert fencing(world)["lease:app:v1:leader:r"]["released"]

        world.run(main())


@pytest.mark.parametrize("jump", [-1e6, 1e6])
def test_wall_clocks_mean_nothing(jump: float) -> None:
    with World(1) as world:
        crew = Crew(world)

        async def main() -> None:
            first, second = crew.join("a"), crew.join("b")
            crew.lead(first)
            await crew.led(first)
            crew.lead(second)
            for member in (first, second, first):
                await world.sleep(7.0)
                member.agent.clock.wall_offset += jump
            await world.sleep(60.0)
            assert first.leading and len(first.led) == 1 and second.led == []

        world.run(main())


@pytest.mark.parametrize("seed", SEEDS)
def test_an_observer_whose_clock_leaps_has_seen_nothing_meanwhile(seed: int) -> None:
    with World(seed) as world:
        crew = Crew(world)

        async def main() -> None:
            first, second = crew.join("a"), crew.join("b")
            crew.lead(first)
            await crew.led(first)
            crew.lead(second)
            for _ in range(5):
                await world.sleep(world.rng.uniform(10.0, 20.0))
                second.agent.clock._offset += 3600.0
            await world.sleep(30.0)
            assert first.leading and len(first.led) == 1 and second.led == []

        world.run(main())
        assert crew.both == []


@pytest.mark.parametrize("seed", SEEDS)
def test_an_owner_whose_clock_leaps_believes_no_more(seed: int) -> None:
    with World(seed) as world:
        crew = Crew(world)

        async def main() -> None:
            first = crew.join("a")
            crew.lead(first)
            await crew.led(first)
            await world.sleep(world.rng.uniform(0.0, 20.0))
            hold = crew.hold(first)
            first.agent.clock._offset += 3600.0
            assert first.call(lambda: hold.lost) == "lease-renewal-failed"
            await world.until(lambda: len(first.led) == 2)
            assert reasons(first) == ["lease-renewal-failed"] and first.led == [1, 2]

        world.run(main())


@pytest.mark.parametrize("seed", SEEDS)
def test_a_thawed_owner_knows_at_its_first_instruction(seed: int) -> None:
    """Its process stood still, and nobody dropped anything: its own clock is all that it has."""
    with World(seed) as world:
        crew = Crew(world)

        async def main() -> None:
            first, second = crew.join("a"), crew.join("b")
            crew.lead(first)
            await crew.led(first)
            crew.lead(second)
            await world.sleep(world.rng.uniform(0.0, 12.0))
            context = crew.contexts[-1][1]
            hold = crew.hold(first)
            first.agent.freeze()
            assert await crew.led(second) < 18.5
            await world.sleep(world.rng.uniform(0.0, 40.0))
            first.agent.thaw()
            with pytest.raises(LeadershipLost, match="lease-renewal-failed"):
                first.call(context.next_token)
            assert hold._ended == "lease-renewal-failed"
            await world.sleep(30.0)
            assert second.leading and not first.leading and second.led == [2]
            assert reasons(first) == ["lease-renewal-failed"]

        world.run(main())
        assert crew.both == []


def test_who_stood_still_for_less_than_its_lease_goes_on() -> None:
    with World(1) as world:
        crew = Crew(world)

        async def main() -> None:
            first, second = crew.join("a"), crew.join("b")
            crew.lead(first)
            await crew.led(first)
            crew.lead(second)
            await world.sleep(20.0)
            first.agent.freeze()
            await world.sleep(3.0)
            first.agent.thaw()
            await world.sleep(60.0)
            assert first.leading and first.led == [1] and second.led == []

        world.run(main())


@pytest.mark.parametrize("how", ["freeze", "stall"])
@pytest.mark.parametrize("in_page", [False, True])
def test_who_may_lead_again_before_anything_ran_has_led_before_all_the_same(how: str, in_page: bool) -> None:
    """Its page froze or hung, and is back when the first task runs: what was said of it meanwhile holds."""
    with World(1) as world:
        crew = Crew(world)

        async def main() -> None:
            first, second = crew.join("a", in_page=in_page), crew.join("b")
            crew.lead(first)
            await crew.led(first)
            election = crew.lead(second)
            await world.sleep(20.0)
            connection = first.tab.identity.connection_id

            def there_and_back() -> None:
                first.ports.locks.drop(connection)
                if how == "stall":
                    first.tab.set_stalled(True)
                else:
                    first.tab.set_state(replace(first.tab.state, lifecycle="frozen"))
                first.ports.locks.admit(connection)
                if how == "stall":
                    first.tab.set_stalled(False)
                else:
                    first.tab.set_state(replace(first.tab.state, lifecycle="active"))

            first.call(there_and_back)
            await world.sleep(60.0)
            assert reasons(first) == ["lock-lost"]
            assert len(crew.believers()) == 1 and sorted(first.led + second.led) == [1, 2]
            leader = second.call(election.leader)
            assert leader is not None and leader.epoch == 2

        world.run(main())
        assert crew.both == []


@pytest.mark.parametrize("seed", SEEDS)
def test_clocks_of_different_speeds(seed: int) -> None:
    """The owner's runs 15 % slow, the observer's 15 % fast: still the owner gives up before the observer takes."""
    with World(seed) as world:
        crew = Crew(world)

        async def main() -> None:
            first, second = crew.join("a"), crew.join("b")
            first.agent.clock._rate, second.agent.clock._rate = 0.85, 1.15
            crew.lead(first)
            await crew.led(first)
            crew.lead(second)
            for _ in range(4):
                await world.sleep(world.rng.uniform(5.0, 25.0))
                world.faults.commit_delay = (60.0, 60.0)  # nothing gets written for a while
                await world.sleep(world.rng.uniform(2.0, 30.0))
                world.faults.commit_delay = (0.0, 0.004)
            await world.sleep(120.0)
            assert len(crew.believers()) == 1

        world.run(main())
        assert crew.both == []


@pytest.mark.parametrize("seed", SEEDS)
def test_a_store_that_hangs_ends_a_tenure_in_time(seed: int) -> None:
    with World(seed) as world:
        crew = Crew(world)

        async def main() -> None:
            first, second = crew.join("a"), crew.join("b")
            crew.lead(first)
            await crew.led(first)
            crew.lead(second)
            await world.sleep(world.rng.uniform(5.0, 15.0))
            world.faults.commit_delay = (40.0, 40.0)
            before = world.loop.time()
            await world.until(lambda: not first.leading, within=10.1)
            assert reasons(first) == ["lease-renewal-failed"], world.loop.time() - before
            await world.sleep(60.0)
            world.faults.commit_delay = (0.0, 0.004)
            await world.until(lambda: first.leading or second.leading, within=120.0)

        world.run(main())
        assert crew.both == []


def test_a_lease_that_is_written_too_late_is_none() -> None:
    with World(1) as world:
        crew = Crew(world)

        async def main() -> None:
            first, second = crew.join("a"), crew.join("b")
            crew.lead(first)
            await world.sleep(9.0)  # an empty store is watched for ten seconds
            world.faults.commit_delay = (9.9, 9.99)
            await world.sleep(30.0)
            world.faults.commit_delay = (0.0, 0.004)
            crew.lead(second)
            await world.until(lambda: first.leading or second.leading, within=60.0)

        world.run(main())
        assert crew.both == []


@pytest.mark.parametrize("seed", SEEDS)
def test_storage_wiped_under_a_living_owner_is_written_back(seed: int) -> None:
    with World(seed) as world:
        crew = Crew(world)

        async def main() -> None:
            first, second = crew.join("a"), crew.join("b")
            crew.lead(first)
            await crew.led(first)
            crew.lead(second)
            await world.sleep(world.rng.uniform(1.0, 20.0))
            domain = fencing(world)["domain"]["domain"]
            world.storage.wipe()
            world.faults.channel_loss = 1.0
            third = crew.join("c")  # it knows nothing of what was before
            crew.lead(third)
            await world.sleep(12.0)
            records = fencing(world)
            assert (records["domain"]["domain"], records["epoch:app:r"]["epoch"]) == (domain, 1)
            await world.sleep(30.0)
            assert first.leading and first.led == [1] and second.led == third.led == []

        world.run(main())
        assert crew.both == []


@pytest.mark.parametrize("seed", SEEDS)
def test_what_was_watched_before_a_leader_was_there_does_not_count_when_the_store_is_wiped_later(seed: int) -> None:
    with World(seed) as world:
        crew = Crew(world)

        async def main() -> None:
            first, second = crew.join("a"), crew.join("b")
            election = crew.lead(first)
            await crew.led(first)  # it watched the empty store for ten seconds
            crew.lead(second)
            await world.sleep(3.0)
            first.call(election.step_down)
            await crew.led(second)
            await world.sleep(world.rng.uniform(15.0, 25.0))
            world.storage.wipe()
            await world.sleep(30.0)
            assert second.leading and (first.led, second.led) == ([1], [2])

        world.run(main())
        assert crew.both == []


def test_what_was_seen_of_resources_is_not_kept_for_ever() -> None:
    with World(1) as world:
        crew = Crew(world)

        async def main() -> None:
            first, second = crew.join("a"), crew.join("b")
            for member in (first, second):
                for number in range(20):
                    crew.lead(member, f"r{number}")
            await world.sleep(60.0)
            for member in (first, second):
                for election in list(member.tab.elections.values()):
                    member.call(election.stop)
                crew.lead(member, "last")
            await world.sleep(700.0)
            (waiting,) = [member for member in (first, second) if not member.leading]
            kept = waiting.services.lease.rivals._stillness
            assert {name for _, name in kept} == {"app:v1:leader:last"}

        world.run(main())


@pytest.mark.parametrize("seed", SEEDS)
def test_storage_wiped_and_the_owner_dead(seed: int) -> None:
    with World(seed) as world:
        crew = Crew(world)

        async def main() -> None:
            first, second = crew.join("a"), crew.join("b")
            crew.lead(first)
            await crew.led(first)
            crew.lead(second)
            await world.sleep(2.0)
            first.agent.die()
            world.storage.wipe()
            assert await crew.led(second) < 20.0
            assert second.led == [2], "it remembers the epoch"

        world.run(main())


@pytest.mark.parametrize("seed", SEEDS)
def test_storage_wiped_and_begun_anew_by_others_ends_the_tenure(seed: int) -> None:
    with World(seed) as world:
        crew = Crew(world)

        async def main() -> None:
            first = crew.join("a")
            crew.lead(first)
            await crew.led(first)
            world.faults.channel_loss = 1.0
            world.storage.wipe()
            stranger = crew.join("b")
            stranger.lead("something", authorities=("web-locks",))
            await crew.led(stranger)
            await world.until(lambda: reasons(first) == ["storage-wiped"], within=10.0)
            await world.until(lambda: first.leading, within=60.0)

        world.run(main())


@pytest.fixture
def looks(monkeypatch: pytest.MonkeyPatch) -> dict[str, list[float]]:
    """When whoever waits began to look, by resource."""
    begun: dict[str, list[float]] = {}
    original = Rivals.look

    async def look(self: Rivals, resource: Resource, *args: str) -> Any:
        begun.setdefault(resource.token_resource, []).append(asyncio.get_running_loop().time())
        return await original(self, resource, *args)

    monkeypatch.setattr(Rivals, "look", look)
    return begun


def test_news_wake_those_alone_whom_they_concern(looks: dict[str, list[float]]) -> None:
    with World(1) as world:
        crew = Crew(world)

        async def main() -> None:
            first, second = crew.join("a"), crew.join("b")
            for resource in "xy":
                crew.lead(first, resource)
            await world.until(lambda: len(first.led) == 2, within=30.0)
            for resource in "xy":
                crew.lead(second, resource)
            await world.sleep(30.0)
            lease = second.services.lease
            await world.until(lambda: world.loop.time() - max(map(max, looks.values())) > 0.5)
            before = {resource: len(times) for resource, times in looks.items()}
            gone = frozenset(led for led in lease._leaders if led[0] != "app:x")
            second.call(lease.look, gone)
            await world.sleep(0.05)
            after = {resource: len(times) for resource, times in looks.items()}
            assert after["app:x"] > before["app:x"] and after["app:y"] == before["app:y"]

        world.run(main())


def test_news_that_come_during_a_look_are_not_missed(looks: dict[str, list[float]]) -> None:
    with World(1) as world:
        crew = Crew(world)

        async def main() -> None:
            first, second = crew.join("a"), crew.join("b")
            crew.lead(first)
            await crew.led(first)
            crew.lead(second)
            await world.sleep(30.0)
            times = looks["app:r"]
            world.faults.commit_delay = (0.3, 0.3)
            known = len(times)
            await world.until(lambda: len(times) > known)  # this look is under way
            second.call(second.services.lease.look, frozenset())
            await world.sleep(0.5)
            assert len(times) == known + 2

        world.run(main())


def test_what_it_costs() -> None:
    """Idle, one leader and one standby, three watchers: what is read and written in a minute."""
    with World(1) as world:
        crew = Crew(world)

        async def main() -> None:
            members = [crew.join(f"m{n}") for n in range(5)]
            for member in members:
                crew.lead(member)
            await world.sleep(60.0)
            begun = len(world.trace)
            await world.sleep(60.0)
            committed = [line for line in world.trace[begun:] if "committed" in line and "fencing" in line]
            written = [line for line in committed if "readwrite" in line]
            print(f"a minute: {len(written)} writes, {len(committed) - len(written)} reads")
            assert len(written) <= 13 and len(committed) - len(written) <= 40

        world.run(main())


@pytest.mark.parametrize(
    "times",
    [
        {"look_every": 0.0},
        {"look_every": 5.1},
        {"lease": 10.0},
        {"renew_deadline": 5.0},
        {"renew_every": 1.0},
        {"retry": 0.0},
        {"lease": 9.0},
    ],
)
def test_times_that_cannot_work_are_refused(times: dict[str, float]) -> None:
    with pytest.raises(InvalidPolicy, match="renew_every"):
        LeaseTimes(**times)


@pytest.mark.parametrize("seed", range(30))
def test_chaos(seed: int) -> None:
    """Freeze, thaw, death, leaps, wiped and hanging stores, lost news: never two believe, and in the end one leads."""
    with World(seed) as world:
        crew, rng = Crew(world), world.stream("chaos")
        members: list[Any] = []

        def newcomer() -> None:
            member = crew.join(f"m{len(members)}")
            members.append(member)
            crew.lead(member)

        async def main() -> None:
            for _ in range(3):
                newcomer()
            for _ in range(30):
                living = [member for member in members if member.agent.alive]
                some = rng.choice(living)
                match rng.choice(["freeze", "stall", "thaw", "thaw", "die", "leap", "hang", "calm", "deaf", "step"]):
                    case "freeze" if some.agent.state == "running":
                        some.freeze()
                    case "stall" if some.agent.state == "running":
                        some.agent.freeze()
                    case "thaw" if some.agent.state == "frozen":
                        some.thaw()
                    case "die":
                        some.agent.die()
                        newcomer()
                    case "leap":
                        some.agent.clock._offset += rng.choice([3.0, 12.0, 3600.0])
                    case "hang":
                        world.faults.commit_delay = rng.choice([(0.0, 2.0), (0.0, 12.0), (20.0, 30.0)])
                    case "calm":
                        world.faults.commit_delay = (0.0, 0.004)
                    case "deaf":
                        world.faults.channel_loss = rng.choice([0.0, 0.5, 1.0])
                    case "step" if some.agent.state == "running":
                        some.call(next(iter(some.tab.elections.values())).step_down)
                await world.sleep(rng.choice([0.0, 0.01, 1.0, 6.0, 14.0]))
            world.faults.commit_delay, world.faults.channel_loss = (0.0, 0.004), 0.0
            for member in members:
                if member.agent.state == "frozen":
                    member.thaw()
            await world.sleep(90.0)
            leaders = [m for m in members if m.agent.alive and m.leading]
            assert len(leaders) == 1
            assert isinstance(next(iter(leaders[0].tab.elections.values())).status, Leading)
            epochs = sorted(epoch for member in members for epoch in member.led)
            assert len(set(epochs)) == len(epochs), "no epoch led twice"

        world.run(main())
        assert crew.both == [], f"seed {seed}"


def test_the_watch_finds_an_owner_that_believes_for_too_long(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is watched above proves nothing if it would not be noticed."""
    monkeypatch.setattr(LeaseTimes, "__post_init__", lambda self: object.__setattr__(self, "renew_deadline", 60.0))
    with World(1) as world:
        crew = Crew(world)

        async def main() -> None:
            first, second = crew.join("a"), crew.join("b")
            crew.lead(first)
            await crew.led(first, within=90.0)
            crew.lead(second)
            await world.sleep(10.0)
            first.agent.freeze()
            await crew.led(second)
            first.agent.thaw()
            await world.sleep(10.0)

        world.run(main())
        assert crew.both
