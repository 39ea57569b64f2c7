"""The life of the database: first openings, upgrades, deletions, wipes, blocks, full storage."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from kit import Member, join, one_leader
from tabhelm.errors import DatabaseBlocked, DatabaseDenied, DatabaseNewer, QuotaExceeded
from tabhelm.fencing.schema import FENCING
from tabhelm.leadership import BackingOff, Leading
from tabhelm.names import database_name
from tabhelm.observe import LeadershipChanged, StorageChanged
from tabhelm.queue import Queue
from tabhelm.simulated import SimulatedReceiver, World

URL = "https://receiver.example/operations"
NAME = database_name("app")
SEEDS = pytest.mark.parametrize("seed", range(6))


def played(seed: int, scene: Callable[[World], Coroutine[Any, Any, None]]) -> None:
    with World(seed) as world:
        world.run(scene(world), limit=86_400)


def changes(member: Member) -> list[str]:
    return [
        event.change
        for event in member.services.events.recent
        if isinstance(event, StorageChanged) and event.database == NAME
    ]


def ends(member: Member) -> list[str]:
    """Why its terms ended."""
    return [
        event.reason
        for event in member.services.events.recent
        if isinstance(event, LeadershipChanged) and event.before == "leading"
    ]


def opened(member: Member, **options: Any) -> Queue:
    return member.call(lambda: member.tab.queue("m", **{"endpoint": URL, **options}))  # type: ignore[no-any-return]


async def put(member: Member, queue: Queue, *numbers: int) -> None:
    for number in numbers:
        await member.agent.start(queue.enqueue({"n": number}))


def applied(receiver: SimulatedReceiver) -> list[int]:
    return [effect.payload["n"] for effect in receiver.accepted]


# -- first openings ----------------------------------------------------------------------------------------------------


@SEEDS
def test_many_engines_open_for_the_first_time_at_once(seed: int) -> None:
    async def scene(world: World) -> None:
        members = [join(world, f"m{number}") for number in range(8)]
        for member in members:
            member.lead()
        queues = [opened(member) for member in members]
        receiver = SimulatedReceiver(world, URL)
        for number, (member, queue) in enumerate(zip(members, queues, strict=True)):
            member.agent.start(queue.enqueue({"n": number}))
        await world.until(lambda: sorted(applied(receiver)) == list(range(8)), within=60)
        records = {record["key"]: record for record in world.storage.dump(NAME)[FENCING]}
        assert {event.domain for member in members for event in member.grants} == {records["domain"]["domain"]}
        assert all("wiped" not in changes(member) for member in members)

    played(seed, scene)


# -- wiped, deleted, closed --------------------------------------------------------------------------------------------


@SEEDS
@pytest.mark.parametrize("how", ["wiped", "deleted"])
def test_a_leader_whose_epochs_are_gone_steps_down_and_goes_on_above_in_the_domain(seed: int, how: str) -> None:
    """Nobody writes, nobody asks: its engine finds out by itself."""

    async def scene(world: World) -> None:
        a, b = join(world, "a"), join(world, "b")
        for member in (a, b):
            member.lead()
        await one_leader(world, [a, b])
        before = [*a.grants, *b.grants][-1]
        await world.sleep(5.0)
        if how == "wiped":
            world.storage.wipe()
        else:
            world.storage.delete(NAME)
        await world.until(lambda: any("wiped" in changes(member) for member in (a, b)), within=5)
        await world.until(lambda: len([*a.grants, *b.grants]) > 1 and (a.leading or b.leading), within=20)
        after = max([*a.grants, *b.grants], key=lambda event: event.epoch)
        assert (after.domain, after.epoch > before.epoch) == (before.domain, True)
        reason = "versionchange" if how == "deleted" else "storage-wiped"
        assert reason in [*ends(a), *ends(b)]
        records = {record["key"]: record for record in world.storage.dump(NAME)[FENCING]}
        assert records["domain"]["domain"] == before.domain and records["epoch:app:r"]["epoch"] == after.epoch

    played(seed, scene)


@SEEDS
def test_every_engine_says_once_that_the_database_is_another(seed: int) -> None:
    async def scene(world: World) -> None:
        members = [join(world, f"m{number}") for number in range(4)]
        for member in members:
            member.lead()
        await one_leader(world, members)
        await world.sleep(5.0)
        for times in (1, 2):
            world.storage.wipe()
            await world.sleep(30.0)
            told = [changes(member).count("wiped") for member in members]
            # Who stands by and never asked for the database anything has nothing to lose.
            assert set(told) <= {0, times} and times in told, told
            await one_leader(world, members)

    played(seed, scene)


@SEEDS
def test_a_connection_closed_by_the_browser_is_opened_again_and_costs_no_leadership(seed: int) -> None:
    async def scene(world: World) -> None:
        a = join(world, "a")
        receiver = SimulatedReceiver(world, URL)
        queue = opened(a)
        await put(a, queue, 1)
        await world.until(lambda: applied(receiver) == [1])
        await world.sleep(5.0)
        world.storage.close_connections(NAME)
        await put(a, queue, 2)
        await world.until(lambda: applied(receiver) == [1, 2], within=5)
        assert ends(a) == [] and "closed" in changes(a) and "wiped" not in changes(a)

    played(seed, scene)


@SEEDS
def test_what_was_acknowledged_before_a_wipe_and_done_is_not_done_again_and_what_comes_after_is_sent(seed: int) -> None:
    async def scene(world: World) -> None:
        a, b = join(world, "a"), join(world, "b")
        receiver = SimulatedReceiver(world, URL)
        queues = [opened(a), opened(b)]
        await put(a, queues[0], 1, 2, 3)
        await world.until(lambda: applied(receiver) == [1, 2, 3])
        world.storage.wipe()
        await put(b, queues[1], 4, 5)
        await put(a, queues[0], 6)
        await world.until(lambda: sorted(applied(receiver)) == [1, 2, 3, 4, 5, 6], within=60)

    played(seed, scene)


# -- blocked, upgraded -------------------------------------------------------------------------------------------------


@SEEDS
def test_an_old_connection_in_the_way_of_a_deletion_is_told_and_all_goes_on_when_it_is_gone(seed: int) -> None:
    async def scene(world: World) -> None:
        a = join(world, "a")
        receiver = SimulatedReceiver(world, URL)
        queue = opened(a)
        await put(a, queue, 1)
        await world.until(lambda: applied(receiver) == [1])
        in_the_way = world.storage.foreign(NAME)
        world.storage.delete(NAME)
        await world.until(lambda: "versionchange" in changes(a), within=1)
        with pytest.raises(DatabaseBlocked, match="did not open within 10 s"):
            await put(a, queue, 2)
        assert "blocked" in changes(a) and not a.leading
        await world.sleep(120.0)
        assert changes(a).count("blocked") == 1, "told once, however often it is tried"
        in_the_way.close()
        await world.until(lambda: changes(a)[-1] in ("opened", "wiped"), within=1)
        await put(a, queue, 3)
        await world.until(lambda: applied(receiver) == [1, 3], within=30)

    played(seed, scene)


@SEEDS
def test_a_later_release_upgrades_the_database_leaders_step_down_and_are_told_to_reload(seed: int) -> None:
    async def scene(world: World) -> None:
        a, b = join(world, "a"), join(world, "b")
        election = a.lead()
        await world.until(lambda: a.leading)
        queue = opened(b, flush=False)
        await put(b, queue, 1)
        done: list[int] = []
        world.storage.upgrade(NAME, 2, lambda: done.append(1))
        await world.until(lambda: done == [1], within=1)
        await world.until(lambda: ends(a) == ["versionchange"], within=10)
        with pytest.raises(DatabaseNewer, match="newer"):
            await put(b, queue, 2)
        await world.until(lambda: isinstance(election.status, BackingOff), within=10)
        await world.sleep(60.0)
        assert not isinstance(election.status, Leading)
        for member in (a, b):
            assert [change for change in changes(member) if change != "opened"] == ["versionchange", "newer"]

    played(seed, scene)


# -- full, denied, persistent ------------------------------------------------------------------------------------------


@SEEDS
def test_a_full_storage_refuses_whole_calls_and_a_deletion_makes_room_only_afterwards(seed: int) -> None:
    async def scene(world: World) -> None:
        a = join(world, "a")
        queue = opened(a, endpoint=None)
        await put(a, queue, 1)
        world.faults.quota = world.storage.size + 200
        with pytest.raises(QuotaExceeded):
            await put(a, queue, *range(2, 20))
        stored = (await a.agent.start(queue.stats())).queued
        assert 1 <= stored < 19
        world.faults.quota = None
        await put(a, queue, 99)
        assert (await a.agent.start(queue.stats())).queued == stored + 1

    played(seed, scene)


@SEEDS
@pytest.mark.parametrize("lanes", [1, 3])
def test_a_full_queue_is_flushed_and_counts_are_right_once_there_is_room(seed: int, lanes: int) -> None:
    async def scene(world: World) -> None:
        a = join(world, "a")
        receiver = SimulatedReceiver(world, URL)
        queue = opened(a, lanes=lanes, batch=5)
        await put(a, queue, 0)
        await world.until(lambda: applied(receiver) == [0])
        world.faults.http_delay = (0.5, 0.5)
        for number in range(1, 31):
            await a.agent.start(queue.enqueue({"n": number}, partition=f"p{number % 3}"))
        world.faults.quota = 0
        with pytest.raises(QuotaExceeded):
            await put(a, queue, 99)
        await world.until(lambda: sorted(applied(receiver)) == list(range(31)), within=120)
        for partition in range(3):
            numbers = [number for number in applied(receiver)[1:] if number % 3 == partition]
            assert numbers == sorted(numbers)
        await world.until(lambda: world.storage.dump(NAME)["operations"] == [], within=10)
        world.faults.quota = None
        await put(a, queue, 31)
        await world.until(lambda: applied(receiver)[-1] == 31, within=60)
        await world.sleep(5.0)
        stats = await a.agent.start(queue.stats())
        assert (stats.queued, stats.in_flight, stats.done, stats.bytes) == (0, 0, 32, 0)

    played(seed, scene)


@SEEDS
def test_a_leader_that_died_while_the_storage_was_full_leaves_right_counts_to_the_next(seed: int) -> None:
    async def scene(world: World) -> None:
        a = join(world, "a")
        receiver = SimulatedReceiver(world, URL)
        queue = opened(a)
        await put(a, queue, 0)
        await world.until(lambda: applied(receiver) == [0])
        world.faults.http_delay = (0.5, 0.5)
        await put(a, queue, *range(1, 11))
        world.faults.quota = 0
        await world.until(lambda: len(applied(receiver)) == 11, within=120)
        await world.sleep(1.0)
        a.agent.die()
        world.faults.quota = None
        b = join(world, "b")
        again = opened(b)
        await put(b, again, 11)
        await world.until(lambda: applied(receiver)[-1] == 11, within=60)
        await world.sleep(5.0)
        stats = await b.agent.start(again.stats())
        assert (stats.queued, stats.in_flight, stats.done, stats.bytes) == (0, 0, 12, 0)
        assert sorted(applied(receiver)) == list(range(12)), "none twice"

    played(seed, scene)


@SEEDS
def test_a_full_storage_keeps_new_leaders_from_leading_until_there_is_room(seed: int) -> None:
    async def scene(world: World) -> None:
        a = join(world, "a")
        world.faults.quota = 0
        election = a.lead()
        await world.until(lambda: isinstance(election.status, BackingOff), within=10)
        assert election.status == BackingOff("quota-exceeded", election.status.retry_in)  # type: ignore[union-attr]
        world.faults.quota = None
        await world.until(lambda: a.leading, within=30)

    played(seed, scene)


def test_denied_storage_is_a_clear_error_each_time_and_used_once_it_is_allowed() -> None:
    async def scene(world: World) -> None:
        world.faults.storage_denied = True
        a = join(world, "a")
        queue = opened(a, endpoint=None)
        for _ in range(2):
            with pytest.raises(DatabaseDenied, match="may not use IndexedDB"):
                await put(a, queue, 1)
        world.faults.storage_denied = False
        await put(a, queue, 2)
        assert (await a.agent.start(queue.stats())).queued == 1

    played(1, scene)


def test_storage_that_loses_a_request_to_open_is_asked_again() -> None:
    """As old WebKit did: the first open() is never answered, a later one is."""

    async def scene(world: World) -> None:
        world.faults.storage_hangs = True
        a = join(world, "a")
        queue = opened(a, endpoint=None)
        with pytest.raises(DatabaseBlocked):
            await put(a, queue, 1)
        world.faults.storage_hangs = False
        await put(a, queue, 2)
        assert (await a.agent.start(queue.stats())).queued == 1

    played(1, scene)


def test_persistence_is_asked_for_on_demand() -> None:
    async def scene(world: World) -> None:
        a = join(world, "a")
        world.faults.persistence_refused = True
        assert await a.agent.start(a.tab.persist()) is False
        world.faults.persistence_refused = False
        assert await a.agent.start(a.ports.storage.persisted()) is False
        assert await a.agent.start(a.tab.persist()) is True
        assert await a.agent.start(a.ports.storage.persisted()) is True
        assert (await a.agent.start(a.ports.storage.estimate())).quota is None

    played(1, scene)
