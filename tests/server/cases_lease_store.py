"""What every store of leases must do. Each case gets a function that opens one more store on the same database."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from tabhelm.server import LeaseKey, LeaseRecord, LeaseStore, TooManyLeases

Open = Callable[[], LeaseStore]
KEY = LeaseKey("somebody", "app:job")
FIRST = LeaseRecord(1, 1, "a", 15.0, 1000.25)
MOST = 1000


def becomes(after: LeaseRecord | None) -> Any:
    return lambda record, now: (after, record)


def counted(record: LeaseRecord | None, now: float) -> tuple[LeaseRecord, int]:
    """Read, then write: only a store that excludes the others gets this right."""
    epoch = record.epoch + 1 if record else 1
    return LeaseRecord(epoch, 1, "a", 15.0, now), epoch


def look(record: LeaseRecord | None, now: float) -> tuple[LeaseRecord | None, LeaseRecord | None]:
    return record, record


async def keeps_what_was_decided(open_store: Open) -> None:
    store, other = open_store(), open_store()
    assert await store.change(KEY, look, MOST) is None
    assert await store.change(KEY, becomes(FIRST), MOST) is None
    assert await other.change(KEY, look, MOST) == FIRST
    free = LeaseRecord(1, 1, None, 15.0, 1000.25)
    assert await other.change(KEY, becomes(free), MOST) == FIRST
    assert await store.change(KEY, look, MOST) == free


async def keys_never_meet(open_store: Open) -> None:
    store = open_store()
    await store.change(KEY, becomes(FIRST), MOST)
    for key in (LeaseKey("somebody", "app:other"), LeaseKey("somebody else", "app:job")):
        assert await store.change(key, look, MOST) is None
    odd = LeaseKey("o'dd \"; -- ü\\", "app:job:user:1")
    await store.change(odd, becomes(FIRST), MOST)
    assert await store.change(odd, look, MOST) == FIRST


async def one_domain_for_the_whole_database(open_store: Open) -> None:
    domains = await asyncio.gather(*(open_store().domain() for _ in range(4)))
    assert len(set(domains)) == 1 and len(domains[0]) >= 32
    assert await open_store().domain() == domains[0]


async def whatever_contends_no_epoch_comes_twice(open_store: Open) -> None:
    stores = [open_store() for _ in range(3)]
    keys = [LeaseKey("somebody", f"app:{n}") for n in range(2)]
    given: dict[LeaseKey, list[int]] = {key: [] for key in keys}

    async def ask(store: LeaseStore, key: LeaseKey) -> None:
        for _ in range(8):
            given[key].append(await store.change(key, counted, MOST))

    await asyncio.gather(*(ask(store, key) for store in stores for key in keys))
    for key in keys:
        assert sorted(given[key]) == list(range(1, 25))


async def a_new_lease_that_two_want_is_made_once(open_store: Open) -> None:
    stores = [open_store() for _ in range(4)]
    for n in range(5):
        key = LeaseKey("somebody", f"app:new-{n}")
        epochs = await asyncio.gather(*(store.change(key, counted, MOST) for store in stores))
        assert sorted(epochs) == [1, 2, 3, 4]


async def what_raises_changes_nothing(open_store: Open) -> None:
    store = open_store()
    await store.change(KEY, becomes(FIRST), MOST)

    def fail(record: LeaseRecord | None, now: float) -> tuple[LeaseRecord | None, None]:
        raise KeyError("decide")

    with pytest.raises(KeyError):
        await store.change(KEY, fail, MOST)
    assert await store.change(KEY, look, MOST) == FIRST
    assert await store.change(KEY, counted, MOST) == 2


async def a_subject_has_so_many_and_no_more(open_store: Open) -> None:
    store = open_store()
    for n in range(3):
        await store.change(LeaseKey("somebody", f"app:{n}"), counted, 3)
    with pytest.raises(TooManyLeases):
        await store.change(LeaseKey("somebody", "app:3"), counted, 3)
    assert await store.change(LeaseKey("somebody", "app:3"), look, 3) is None
    assert await store.change(LeaseKey("somebody", "app:1"), counted, 3) == 2, "those that there are go on"
    assert await store.change(LeaseKey("somebody else", "app:3"), counted, 3) == 1


async def those_who_come_at_once_find_no_more_room_than_there_is(open_store: Open) -> None:
    stores = [open_store() for _ in range(4)]
    await asyncio.gather(*(store.change(KEY, counted, MOST) for store in stores for _ in range(4)))  # all are connected
    keys = [LeaseKey("somebody else", f"app:{n}") for n in range(16)]
    asking = (stores[n % 4].change(key, counted, 2) for n, key in enumerate(keys))
    ends = await asyncio.gather(*asking, return_exceptions=True)
    assert [end for end in ends if not isinstance(end, TooManyLeases)] == [1, 1]


async def its_clock_goes_on(open_store: Open) -> None:
    store = open_store()
    times = [await store.change(KEY, lambda record, now: (record, now), MOST) for _ in range(3)]
    assert times == sorted(times) and times[0] > 1_000_000_000


async def closed_it_opens_again(open_store: Open) -> None:
    store = open_store()
    domain = await store.domain()
    await store.change(KEY, becomes(FIRST), MOST)
    await store.close()
    assert await store.change(KEY, look, MOST) == FIRST
    assert await store.domain() == domain


CASES: list[Callable[[Open], Awaitable[None]]] = [
    keeps_what_was_decided,
    keys_never_meet,
    one_domain_for_the_whole_database,
    whatever_contends_no_epoch_comes_twice,
    a_new_lease_that_two_want_is_made_once,
    what_raises_changes_nothing,
    a_subject_has_so_many_and_no_more,
    those_who_come_at_once_find_no_more_room_than_there_is,
    its_clock_goes_on,
    closed_it_opens_again,
]
