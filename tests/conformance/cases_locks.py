"""How locks must behave."""

from __future__ import annotations

import asyncio

from cases_kit import cases, eventually, fresh, holds, raised, spawn

from tabhelm.errors import LockWithdrawn
from tabhelm.ports import LockEnd, Ports


async def a_free_lock_is_granted_and_released(here: Ports, there: Ports) -> None:
    name = fresh(here, "lock")
    lock = await holds(here, name)
    lock.release()
    assert not lock.held, "held must turn false with release, synchronously"
    lock.release()
    again = await holds(there, name)
    again.release()


async def waiters_are_served_first_in_first_out(here: Ports, there: Ports) -> None:
    name = fresh(here, "lock")
    first = await holds(here, name)
    served: list[int] = []

    async def wait(number: int) -> None:
        lock = await holds(here, name)
        served.append(number)
        lock.release()

    tasks = []
    for number in range(5):
        tasks.append(spawn(wait(number)))
        await here.clock.sleep(0.01)
    assert served == [], "nobody may be served while the lock is held"
    first.release()
    await asyncio.gather(*tasks)
    assert served == [0, 1, 2, 3, 4], f"served in the order {served}"


async def one_context_waits_for_another(here: Ports, there: Ports) -> None:
    name = fresh(here, "lock")
    lock = await holds(here, name)
    waiter = spawn(holds(there, name))
    await there.clock.sleep(0.05)
    assert not waiter.done(), "granted twice"
    lock.release()
    (await waiter).release()


async def shared_locks_are_held_together(here: Ports, there: Ports) -> None:
    name = fresh(here, "lock")
    one = await holds(here, name, mode="shared")
    two = await holds(there, name, mode="shared")
    exclusive = spawn(holds(here, name))
    await here.clock.sleep(0.05)
    assert not exclusive.done(), "exclusive granted beside shared"
    late = spawn(holds(there, name, mode="shared"))
    await here.clock.sleep(0.05)
    assert not late.done(), "a shared request overtook the exclusive one before it"
    one.release()
    await here.clock.sleep(0.05)
    assert not exclusive.done(), "exclusive granted while one shared holder is left"
    two.release()
    lock = await exclusive
    await here.clock.sleep(0.05)
    assert not late.done(), "shared granted beside exclusive"
    lock.release()
    (await late).release()


async def if_available_answers_none_when_taken(here: Ports, there: Ports) -> None:
    name = fresh(here, "lock")
    lock = await holds(here, name, if_available=True)
    assert await there.locks.acquire(name, if_available=True) is None, "two holders"
    lock.release()
    await here.clock.sleep(0.05)
    (await holds(there, name, if_available=True)).release()


async def steal_tells_the_holder(here: Ports, there: Ports) -> None:
    name = fresh(here, "lock")
    robbed = await holds(here, name)
    ends: list[LockEnd] = []
    robbed.on_end(ends.append)
    queued = spawn(holds(here, name))
    await here.clock.sleep(0.05)
    thief = await holds(there, name, steal=True)
    await eventually(here, lambda: ends == ["stolen"], f"the holder is told 'stolen' (told {ends})")
    assert not robbed.held, "a stolen lock still says that it is held"
    robbed.release()
    assert thief.held, "the robbed holder's release took the thief's lock"
    assert not queued.done(), "a waiter was granted beside the thief"
    thief.release()
    (await queued).release()
    assert ends == ["stolen"], f"told more than once: {ends}"


async def the_end_of_a_lock_is_told_once(here: Ports, there: Ports) -> None:
    lock = await holds(here, fresh(here, "lock"))
    ends: list[LockEnd] = []
    lock.on_end(ends.append)
    lock.release()
    lock.release()
    await eventually(here, lambda: ends == ["released"], "told 'released'")
    await here.clock.sleep(0.03)
    assert ends == ["released"], f"told {ends}"
    late: list[LockEnd] = []
    lock.on_end(late.append)
    await eventually(here, lambda: late == ["released"], "told 'released' when asked after the end")


async def cancelling_withdraws_the_request(here: Ports, there: Ports) -> None:
    name = fresh(here, "lock")
    lock = await holds(here, name)
    for _ in range(10):
        waiter = spawn(holds(there, name))
        await there.clock.sleep(0.01)
        waiter.cancel()
        await raised(asyncio.CancelledError, waiter)
    await there.clock.sleep(0.05)
    snapshot = await there.locks.query()
    assert not [info for info in snapshot.pending if info.name == name], "a cancelled request is still queued"
    assert len([info for info in snapshot.held if info.name == name]) == 1, "the holder is not shown once"
    lock.release()
    await here.clock.sleep(0.05)
    (await holds(here, name, if_available=True)).release()


async def cancelling_at_the_grant_leaves_nothing_held(here: Ports, there: Ports) -> None:
    for delay in (0.0, 0.001, 0.002, 0.003, 0.005):
        name = fresh(here, "lock")
        waiter = spawn(holds(here, name))
        await here.clock.sleep(delay)
        if waiter.done():
            (await waiter).release()
        else:
            waiter.cancel()
            await raised(asyncio.CancelledError, waiter)
        await free_soon(there, name)


async def free_soon(ports: Ports, name: str) -> None:
    """What was granted too late is given back when its context reads of it."""
    end = ports.clock.monotonic() + 5.0
    while (lock := await ports.locks.acquire(name, if_available=True)) is None:
        assert ports.clock.monotonic() < end, f"{name} is kept by somebody"
        await ports.clock.sleep(0.02)
    lock.release()


async def dropping_an_owner_releases_withdraws_and_shuts_out(here: Ports, there: Ports) -> None:
    held_name, wanted_name = fresh(here, "lock"), fresh(here, "lock")
    here.locks.admit("page")
    assert here.locks.admitted("page"), "admitted, yet not so"
    own = await holds(here, held_name, owner="page")
    ends: list[LockEnd] = []
    own.on_end(ends.append)
    other = await holds(there, wanted_name)
    pending = spawn(holds(here, wanted_name, owner="page"))
    await here.clock.sleep(0.05)
    here.locks.drop("page")
    assert not own.held, "held must turn false with drop, synchronously"
    assert not here.locks.admitted("page"), "dropped, yet admitted"
    await raised(LockWithdrawn, pending)
    await raised(LockWithdrawn, here.locks.acquire(fresh(here, "lock"), owner="page"))
    (await holds(there, held_name)).release()
    await eventually(here, lambda: ends == ["dropped"], f"told 'dropped' (told {ends})")
    other.release()
    (await holds(there, wanted_name)).release()
    here.locks.admit("page")
    (await holds(here, held_name, owner="page")).release()
    here.locks.drop("page")
    here.locks.drop("page")


async def owners_do_not_touch_each_other(here: Ports, there: Ports) -> None:
    names = [fresh(here, "lock") for _ in range(3)]
    for owner in ("one", "two"):
        here.locks.admit(owner)
    one = await holds(here, names[0], owner="one")
    two = await holds(here, names[1], owner="two")
    own = await holds(here, names[2])
    here.locks.drop("one")
    assert not one.held and two.held and own.held, "drop took another owner's lock"
    await raised(LockWithdrawn, here.locks.acquire(names[0], owner="never admitted"))
    two.release()
    own.release()
    here.locks.drop("two")


async def a_lock_excludes_under_contention(here: Ports, there: Ports) -> None:
    name = fresh(here, "lock")
    inside: list[int] = []
    most = 0

    async def work(ports: Ports, number: int) -> None:
        nonlocal most
        for _ in range(5):
            lock = await holds(ports, name)
            inside.append(number)
            most = max(most, len(inside))
            await ports.clock.sleep(0.001)
            inside.remove(number)
            lock.release()

    await asyncio.gather(*(work(here if number % 2 else there, number) for number in range(6)))
    assert most == 1, f"{most} holders at once"


CASES = cases(
    a_free_lock_is_granted_and_released,
    waiters_are_served_first_in_first_out,
    one_context_waits_for_another,
    shared_locks_are_held_together,
    if_available_answers_none_when_taken,
    steal_tells_the_holder,
    the_end_of_a_lock_is_told_once,
    cancelling_withdraws_the_request,
    cancelling_at_the_grant_leaves_nothing_held,
    dropping_an_owner_releases_withdraws_and_shuts_out,
    owners_do_not_touch_each_other,
    a_lock_excludes_under_contention,
)
