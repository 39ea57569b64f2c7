"""What ``test_ports.py`` runs inside the page. Shipped there as text and called by name; returns what JSON can hold."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from importlib import import_module
from typing import Any

from tabhelm.browser import browser_ports
from tabhelm.errors import DatabaseClosed, DatabaseError, LockWithdrawn, QuotaExceeded, Unreachable
from tabhelm.ports import Database, HeldLock, HttpAnswer, Index, Schema, Store, Transaction

js: Any = import_module("js")
desk: Any = import_module("tabhelm_desk").LockDesk.new()
pyodide: Any = import_module("pyodide_js")
PORTS = browser_ports(desk)
SCHEMA = Schema(1, (Store("ops", "id", indexes=(Index("lane", ("partition", "seq")),)),))
ROUNDS = 200

pyodide._module.enable_pyproxy_allocation_tracing()


def proxies() -> int:
    """How many Python objects JavaScript holds."""
    return int(pyodide._module.pyproxy_alloc_map.size)


def fresh(kind: str) -> str:
    return f"test:v1:{kind}:{PORTS.entropy.token_bytes(6).hex()}"


async def settled() -> None:
    """Let what is under way in the browser (abort events, say) arrive."""
    await PORTS.clock.sleep(0.1)


async def growth(work: Callable[[], Awaitable[object]]) -> int:
    """By how many the proxies grew when ``work`` was done so many times."""
    await work()
    await settled()
    before = proxies()
    for _ in range(ROUNDS):
        await work()
    for _ in range(50):
        await settled()
        if proxies() == before:
            break
    return proxies() - before


async def swallow(kind: type[BaseException], awaitable: Awaitable[object]) -> None:
    try:
        await awaitable
    except kind:
        return
    raise AssertionError(f"{kind.__name__} was expected")


# -- no proxy leaks ----------------------------------------------------------------------------------------------------


async def leaks() -> dict[str, int]:
    name, held_name = fresh("leader"), fresh("leader")
    database = PORTS.databases.database(fresh("db"), SCHEMA)
    blocker = await PORTS.locks.acquire(held_name)
    assert blocker is not None
    PORTS.locks.admit("page")

    async def lock() -> None:
        taken = await PORTS.locks.acquire(name)
        assert taken is not None
        taken.on_end(lambda end: None)
        taken.release()

    async def missed() -> None:
        assert await PORTS.locks.acquire(held_name, if_available=True) is None

    async def cancelled() -> None:
        waiter = asyncio.ensure_future(PORTS.locks.acquire(held_name))
        await asyncio.sleep(0)
        waiter.cancel()
        await swallow(asyncio.CancelledError, waiter)

    async def dropped() -> None:
        PORTS.locks.admit("page")
        await PORTS.locks.acquire(name, owner="page")
        waiter = asyncio.ensure_future(PORTS.locks.acquire(name, owner="page"))
        await asyncio.sleep(0)
        PORTS.locks.drop("page")
        await swallow(LockWithdrawn, waiter)

    async def stolen() -> None:
        robbed = await PORTS.locks.acquire(name)
        thief = await PORTS.locks.acquire(name, steal=True)
        assert robbed is not None and thief is not None
        thief.release()

    async def timer() -> None:
        PORTS.clock.call_later(1000.0, lambda: None).cancel()
        await PORTS.clock.sleep(0.001)

    async def channel() -> None:
        opened = PORTS.channels.open("test:leaks")
        opened.subscribe(lambda data: None)
        opened.post("text")
        opened.close()

    async def write() -> None:
        async def body(tx: Transaction) -> None:
            record = await tx.get("ops", "a") or {"id": "a", "n": 0}
            await tx.put("ops", {**record, "n": record["n"] + 1})
            await tx.put_all("ops", [{"id": f"b{number}"} for number in range(3)])

        await database.transaction(["ops"], "readwrite", body, durability="relaxed")

    async def abort() -> None:
        async def body(tx: Transaction) -> None:
            await tx.put("ops", {"id": "never"})
            raise LookupError

        await swallow(LookupError, database.transaction(["ops"], "readwrite", body, durability="relaxed"))

    async def cancelled_write() -> None:
        async def body(tx: Transaction) -> None:
            while True:
                await tx.get("ops", "a")

        task = asyncio.ensure_future(database.transaction(["ops"], "readwrite", body, durability="relaxed"))
        await PORTS.clock.sleep(0.001)
        task.cancel()
        await swallow(asyncio.CancelledError, task)
        await write()  # begins when the aborted one has ended, and we were told so

    async def reopen() -> None:
        await write()
        again = PORTS.databases.database(database.name, SCHEMA)

        async def body(tx: Transaction) -> int:
            return await tx.count("ops")

        await again.transaction(["ops"], "readonly", body)
        again.close()

    async def request() -> None:
        await PORTS.http.send("GET", "/blank", headers={}, timeout=5.0)

    async def cancelled_request() -> None:
        task = asyncio.ensure_future(PORTS.http.send("GET", "/blank", headers={}, timeout=5.0))
        await asyncio.sleep(0)
        task.cancel()
        await swallow(asyncio.CancelledError, task)

    works = (
        lock,
        missed,
        cancelled,
        dropped,
        stolen,
        timer,
        channel,
        write,
        abort,
        cancelled_write,
        reopen,
        request,
        cancelled_request,
    )
    grown = {work.__name__: await growth(work) for work in works}
    blocker.release()
    return grown


# -- locks -------------------------------------------------------------------------------------------------------------


async def held_of_what_was_let_go() -> list[bool]:
    """Whether a lock says that it is held: at first, when it was let go and nobody has been told, afterwards."""
    PORTS.locks.admit("page")
    lock = await PORTS.locks.acquire(fresh("leader"), owner="page")
    assert lock is not None
    seen = [lock.held]
    tell = desk.letGo("page")
    seen.append(lock.held)
    tell()
    return [*seen, lock.held]


async def cancelled_requests_are_withdrawn() -> dict[str, Any]:
    name = fresh("leader")
    blocker = await PORTS.locks.acquire(name)
    assert blocker is not None
    waiters = [asyncio.ensure_future(PORTS.locks.acquire(name)) for _ in range(100)]
    await settled()
    queued = len([info for info in (await PORTS.locks.query()).pending if info.name == name])
    for waiter in waiters:
        waiter.cancel()
    await asyncio.gather(*waiters, return_exceptions=True)
    pending = [info for info in (await PORTS.locks.query()).pending if info.name == name]
    blocker.release()
    await settled()
    held = [info for info in (await PORTS.locks.query()).held if info.name == name]
    return {"queued": queued, "pending": len(pending), "held": len(held), "desk": int(desk.size)}


async def late_grants_are_let_go() -> list[str]:
    """Requests without a signal (the browser takes none with these options) are granted after their cancellation."""
    kept = []
    for number in range(20):
        name = fresh("leader")
        options = {"if_available": True} if number % 2 else {"steal": True}
        waiter = asyncio.ensure_future(PORTS.locks.acquire(name, **options))
        await asyncio.sleep(0)
        waiter.cancel()
        await swallow(asyncio.CancelledError, waiter)
        if not await _free_soon(name):
            kept.append(f"{number} {options}")
    return kept


async def _free_soon(name: str) -> bool:
    """A grant that came too late is given back when the page reads of it."""
    for _ in range(250):
        await PORTS.clock.sleep(0.02)
        if not [info for info in (await PORTS.locks.query()).held if info.name == name]:
            return True
    return False


_HELD: dict[str, HeldLock] = {}
_ENDS: dict[str, list[str]] = {}


async def hold(name: str, owner: str = "") -> bool:
    PORTS.locks.admit(owner)
    lock = await PORTS.locks.acquire(name, owner=owner)
    assert lock is not None
    _HELD[name] = lock
    _ENDS[name] = []
    lock.on_end(_ENDS[name].append)
    return lock.held


async def lock_state(name: str) -> list[Any]:
    return [_HELD[name].held, _ENDS[name]]


async def drop_and_count(owner: str, names: list[str]) -> list[bool]:
    PORTS.locks.drop(owner)
    return [_HELD[name].held for name in names]


# -- database ----------------------------------------------------------------------------------------------------------

_EVENTS: list[str] = []
_DATABASE: list[Database] = []


async def open_database(name: str, version: int = 1) -> str | None:
    for former in _DATABASE:
        former.close()
    database = PORTS.databases.database(name, Schema(version, SCHEMA.stores))
    database.subscribe(_EVENTS.append)
    _DATABASE[:] = [database]
    _EVENTS.clear()
    try:
        await write_bytes(1)
    except DatabaseError as error:
        return f"{type(error).__name__}: {error}"
    return None


async def database_events() -> list[str]:
    return list(_EVENTS)


async def write_bytes(size: int) -> str:
    payload = PORTS.entropy.token_bytes(size // 2).hex()  # what compresses well would hardly count

    async def body(tx: Transaction) -> None:
        await tx.put("ops", {"id": "big", "payload": payload})

    try:
        await _DATABASE[0].transaction(["ops"], "readwrite", body)
    except QuotaExceeded:
        return "QuotaExceeded"
    except DatabaseClosed:
        return "DatabaseClosed"
    return "written"


async def count_all() -> int:
    async def body(tx: Transaction) -> int:
        return await tx.count("ops")

    return await _DATABASE[0].transaction(["ops"], "readonly", body)


async def endless(seconds: float) -> str:
    """A transaction that keeps itself alive with requests."""
    end = PORTS.clock.monotonic() + seconds

    async def body(tx: Transaction) -> str:
        while PORTS.clock.monotonic() < end:
            await tx.get("ops", "big")
        return "completed"

    try:
        return await _DATABASE[0].transaction(["ops"], "readwrite", body)
    except DatabaseError as error:
        return type(error).__name__


async def without_storage() -> list[str]:
    """What is told where IndexedDB is missing, and where it is forbidden."""
    real, told = js.indexedDB, []
    forbidding = js.JSON.parse("{}")
    forbidding.open = import_module("tabhelm_parts").forbidden
    for substitute in (None, forbidding):
        js.Object.defineProperty(js.globalThis, "indexedDB", property_of(substitute))
        try:
            told.append(await open_database("test:denied") or "written")
            told.append(await open_database("test:denied") or "written")
        finally:
            js.Object.defineProperty(js.globalThis, "indexedDB", property_of(real))
    told.append(await open_database("test:denied") or "written")
    return told


def property_of(value: Any) -> Any:
    described = js.JSON.parse('{"configurable": true, "writable": true}')
    described.value = value
    return described


async def thousand_operations() -> dict[str, float]:
    """Milliseconds for 1,000 operations put in one strictly durable transaction; read back; deleted."""
    database = PORTS.databases.database(fresh("db"), SCHEMA)
    operations = [
        {
            "id": f"op-{number:06}",
            "partition": f"case-{number % 20}",
            "seq": number,
            "payload": json.dumps({"n": number}),
        }
        for number in range(1000)
    ]

    async def put(tx: Transaction) -> int:
        return len(await tx.put_all("ops", operations))

    async def read(tx: Transaction) -> int:
        return len(await tx.get_all("ops"))

    async def delete(tx: Transaction) -> int:
        await tx.delete_all("ops", [str(operation["id"]) for operation in operations])
        return await tx.count("ops")

    async def nothing(tx: Transaction) -> int:
        return await tx.count("ops")

    await database.transaction(["ops"], "readonly", nothing)  # opened before the watch runs
    taken: dict[str, float] = {}
    for name, body, expected in (("put", put, 1000), ("read", read, 1000), ("delete", delete, 0)):
        before = PORTS.clock.monotonic()
        found = await database.transaction(["ops"], "readwrite", body)
        taken[name] = round((PORTS.clock.monotonic() - before) * 1000, 1)
        assert found == expected, f"{name}: {found} instead of {expected}"
    return taken


# -- channel and http --------------------------------------------------------------------------------------------------


async def foreign_messages() -> list[Any]:
    came: list[object] = []
    opened = PORTS.channels.open("test:foreign")
    opened.subscribe(came.append)
    raw = js.BroadcastChannel.new("test:foreign")
    for text in ("null", "42", '"sched$x"', "{}", '{"leader": null, "deep": [null, 1.5]}', "true"):
        raw.postMessage(js.JSON.parse(text))
    raw.postMessage(None)
    raw.postMessage(2**70)
    raw.postMessage("x" * 5_000_000)
    raw.postMessage(js.Blob.new())
    end = PORTS.clock.monotonic() + 5.0
    while len(came) < 10 and PORTS.clock.monotonic() < end:
        await PORTS.clock.sleep(0.01)
    raw.close()
    opened.close()
    return [f"text of {len(data)}" if isinstance(data, str) and len(data) > 100 else data for data in came]


async def fetch(method: str, url: str, body: str | None = None, timeout: float = 5.0) -> dict[str, Any]:
    try:
        answer: HttpAnswer = await PORTS.http.send(method, url, headers={"x-test": "1"}, body=body, timeout=timeout)
    except Unreachable as error:
        return {"unreachable": str(error)}
    return {
        "status": answer.status,
        "type": answer.headers.get("content-type"),
        "body": answer.body[:2000],
        "size": len(answer.body),
        "redirected": answer.redirected,
    }


async def cancel_a_request(url: str) -> float:
    """Seconds that a cancelled request needed to end."""
    task = asyncio.ensure_future(PORTS.http.send("GET", url, headers={}, timeout=30.0))
    await PORTS.clock.sleep(0.2)
    before = PORTS.clock.monotonic()
    task.cancel()
    await swallow(asyncio.CancelledError, task)
    return PORTS.clock.monotonic() - before
