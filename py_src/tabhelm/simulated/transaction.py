"""One IndexedDB transaction: the body driven in its agent, the requests performed in the browser.

The body is a coroutine that no event loop runs: each success callback sends it on, synchronously. Awaiting anything but
a request of this transaction is therefore an error, as it is in a browser, where it would end the transaction.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Coroutine, Generator, Sequence
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from tabhelm.errors import DatabaseError, ForeignAwait, QuotaExceeded
from tabhelm.ports.database import Durability, Key, KeyRange, Record, TransactionMode
from tabhelm.simulated.faults import draw
from tabhelm.simulated.loop import fail, settle
from tabhelm.simulated.records import Bounds, ObjectStore, clone_record, size_of

if TYPE_CHECKING:
    from tabhelm.simulated.database import SimulatedDatabase
    from tabhelm.simulated.disk import Stored

T = TypeVar("T")
Undo = Callable[[], None]
INACTIVITY_BOUND = 60.0
"""Seconds after which the browser aborts a transaction whose agent does not go on (frozen, hung)."""


class Request(Generic[T]):
    """What a body awaits."""

    def __init__(self, transaction: AgentTransaction, operation: Callable[[], T]) -> None:
        self.transaction = transaction
        self.operation = operation
        self.done = False
        self.result: T | None = None

    def __await__(self) -> Generator[Request[T], None, T]:
        if not self.done:
            yield self
        if not self.done:
            raise ForeignAwait("a request was resumed before it succeeded: its body is not driven by its transaction")
        return self.result  # type: ignore[return-value]


class AgentTransaction:
    """Implements ``ports.Transaction`` for the body; ``run`` drives it."""

    def __init__(
        self,
        database: SimulatedDatabase,
        stored: Stored,
        stores: tuple[str, ...],
        mode: TransactionMode,
        durability: Durability,
    ) -> None:
        self.database = database
        self.stored = stored
        self.stores = stores
        self.mode = mode
        self.durability = durability
        # the browser's side
        self.started = False
        self.finished = False
        self.undo: list[Undo] = []
        self._before: int | None = None
        self._written = 0
        """Bytes. As in Chromium, what the same transaction deletes makes no room for what it writes."""
        self._backlog: list[Callable[[], None]] = []
        self._watchdog: asyncio.TimerHandle | None = None
        # the agent's side
        self._coroutine: Coroutine[Any, Any, Any] | None = None
        self._outcome: asyncio.Future[Any] = database.agent.loop.create_future()
        self._active = False
        self._over = False
        self._waiting: Request[Any] | None = None
        self._outstanding = 0
        self._returned = False
        self._result: Any = None
        self._commit_sent = False

    # ---- the agent's side -------------------------------------------------------------------------------------------

    async def run(self, body: Callable[[Any], Coroutine[Any, Any, T]]) -> T:
        """Drive the body to its end; return its result when the transaction is complete."""
        self._coroutine = body(self)
        self.database.to_browser.send(self.stored.enter, self)
        self._drive()
        try:
            result: T = await self._outcome
            return result
        except asyncio.CancelledError:
            self._give_up()
            raise

    def get(self, store: str, key: Key, *, index: str | None = None) -> Request[Record | None]:
        data = self._store(store)
        return self._request(lambda: clone_record(data.one(key, index)))

    def get_all(
        self, store: str, keys: KeyRange | None = None, *, index: str | None = None, count: int | None = None
    ) -> Request[list[Record]]:
        data, bounds = self._store(store), Bounds(keys)
        return self._request(lambda: [clone_record(record) for record in data.select(bounds, index)[:count]])

    def count(self, store: str, keys: KeyRange | None = None, *, index: str | None = None) -> Request[int]:
        data, bounds = self._store(store), Bounds(keys)
        return self._request(lambda: len(data.select(bounds, index)))

    def put(self, store: str, value: Record) -> Request[Key]:
        data, copy = self._store(store, write=True), clone_record(value)
        return self._request(lambda: self._write(data, copy, "value", new=False))

    def put_all(self, store: str, values: Sequence[Record]) -> Request[list[Key]]:
        return self._write_all(store, values, new=False)

    def add_all(self, store: str, values: Sequence[Record]) -> Request[list[Key]]:
        return self._write_all(store, values, new=True)

    def delete(self, store: str, key: Key) -> Request[None]:
        data = self._store(store, write=True)
        return self._request(lambda: self._erase(data, [key]))

    def delete_all(self, store: str, keys: Sequence[Key]) -> Request[None]:
        data, wanted = self._store(store, write=True), list(keys)
        return self._request(lambda: self._erase(data, wanted))

    def delete_ranges(self, store: str, ranges: Sequence[KeyRange]) -> Request[None]:
        data, wanted = self._store(store, write=True), [Bounds(keys) for keys in ranges]
        return self._request(lambda: self._erase(data, [key for bounds in wanted for key in data.keys(bounds)]))

    def _store(self, name: str, *, write: bool = False) -> ObjectStore:
        if name not in self.stores:
            raise DatabaseError(f"store {name!r} is not in this transaction's scope {self.stores!r}")
        if write and self.mode != "readwrite":
            raise DatabaseError(f"store {name!r} is open for reading only: the transaction's mode is {self.mode!r}")
        return self.stored.stores[name]

    def _write_all(self, store: str, values: Sequence[Record], *, new: bool) -> Request[list[Key]]:
        data = self._store(store, write=True)
        copies = [clone_record(value, f"values[{i}]") for i, value in enumerate(values)]
        return self._request(
            lambda: [self._write(data, copy, f"values[{i}]", new=new) for i, copy in enumerate(copies)]
        )

    def _request(self, operation: Callable[[], T]) -> Request[T]:
        if not self._active:
            raise DatabaseError(f"the transaction on {self.stores!r} is not active: only its own body may use it")
        request = Request(self, operation)
        self._outstanding += 1
        self.database.to_browser.send(self._in_order, lambda: self._perform(request))
        return request

    def _drive(self) -> None:
        """Send the body on until it waits for a request, returns or fails."""
        coroutine = self._coroutine
        assert coroutine is not None
        self._active = True
        try:
            yielded = coroutine.send(None)
        except StopIteration as stop:
            self._returned, self._result = True, stop.value
        except BaseException as error:
            self._give_up(error)
        else:
            if isinstance(yielded, Request) and yielded.transaction is self:
                self._waiting = yielded
            else:
                self._give_up(_foreign(coroutine, yielded))
        finally:
            self._active = False
        self._commit_if_done()

    def _commit_if_done(self) -> None:
        if self._returned and not self._outstanding and not self._over and not self._commit_sent:
            self._commit_sent = True
            self.database.to_browser.send(self._in_order, self._commit)

    def _give_up(self, error: BaseException | None = None) -> None:
        """Abort from the agent's side: the body failed or awaited something foreign, or the caller was cancelled."""
        if self._over:
            return
        self._over = True
        if self._coroutine is not None:
            _end(self._coroutine)
        if error is not None:
            fail(self._outcome, error)
        if self.database.agent.alive:
            self.database.to_browser.send(self._abort)

    def cut_off(self, error: Exception) -> None:
        """Its owner closed the database: abort what is not being committed."""
        if not self._commit_sent:
            self._give_up(error)

    def _on_success(self, request: Request[Any], result: Any) -> None:
        if self._over:
            return
        self._outstanding -= 1
        request.done, request.result = True, result
        if self._waiting is request:
            self._waiting = None
            self._drive()
        else:
            self._commit_if_done()

    def _on_failure(self, error: Exception) -> None:
        """The browser aborted the transaction: the body hears why, and may only say it in its own words."""
        if self._over:
            return
        self._over = True
        raised: BaseException = error
        if self._coroutine is not None and not self._returned:
            try:
                self._coroutine.throw(error)
            except StopIteration:
                pass
            except BaseException as own:
                raised = own
            _end(self._coroutine)
        fail(self._outcome, raised)

    def _on_complete(self) -> None:
        self._over = True
        settle(self._outcome, self._result)

    # ---- the browser's side -----------------------------------------------------------------------------------------

    def excludes(self, other: AgentTransaction) -> bool:
        """Whether the two may not run at the same time."""
        return "readwrite" in (self.mode, other.mode) and not set(self.stores).isdisjoint(other.stores)

    def start(self) -> None:
        loop = self.database.agent.loop
        self.started = True
        timeout = DatabaseError(f"the browser aborted a transaction that stood still for {INACTIVITY_BOUND:g} s")
        self._watchdog = loop.call_later(INACTIVITY_BOUND, self.fail, timeout, context=loop.root.context())
        loop.root.post(self._drain)

    def fail(self, error: Exception) -> None:
        """Abort and tell the agent why."""
        if not self.finished:
            self._abort()
            self.database.to_agent.send(self.database.agent.post, self._on_failure, error)

    def orphaned(self) -> None:
        """The agent died: without a commit on its way nothing is left; with one, it happens or not."""
        if not self._commit_sent or self.stored.storage.rng.random() < 0.5:
            self._abort()

    def _in_order(self, step: Callable[[], None]) -> None:
        self._backlog.append(step)
        if self.started:
            self._drain()

    def _drain(self) -> None:
        while self._backlog and not self.finished:
            self._backlog.pop(0)()

    def _perform(self, request: Request[T]) -> None:
        try:
            result = request.operation()
        except DatabaseError as error:
            self.fail(error)
            return
        self.database.to_agent.send(self.database.agent.post, self._on_success, request, result)

    def _commit(self) -> None:
        storage = self.stored.storage
        loop = self.database.agent.loop
        delay = draw(storage.rng, storage.world.faults.commit_delay)
        loop.call_later(delay, self._complete, context=loop.root.context())

    def _complete(self) -> None:
        if self.finished:
            return
        self._finish()
        self.stored.committed(self, self.durability)
        self.stored.leave(self)
        self.stored.storage.world.note(self.database.agent.name, f"committed {self.mode} {','.join(self.stores)}")
        self.database.to_agent.send(self.database.agent.post, self._on_complete)

    def _abort(self) -> None:
        if self.finished:
            return
        self._finish()
        for step in reversed(self.undo):
            step()
        self.undo = []
        self.stored.leave(self)

    def _finish(self) -> None:
        self.finished = True
        if self._watchdog is not None:
            self._watchdog.cancel()

    def _write(self, data: ObjectStore, value: Record, path: str, *, new: bool) -> Key:
        storage = self.stored.storage
        key, copy, generator = data.prepare(value, path)
        size = size_of(copy)
        if self._before is None:
            self._before = storage.size
        self._written += size
        quota = storage.world.faults.quota
        if quota is not None and self._before + self._written > quota:
            raise QuotaExceeded(f"storing {size} bytes in {data.shape.name!r} would exceed the quota of {quota} bytes")
        primary, old = data.write(key, copy, size, new=new)
        before = data.generator
        data.generator = generator

        def undo() -> None:
            data.restore(primary, old)
            data.generator = before

        self.undo.append(undo)
        return key

    def _erase(self, data: ObjectStore, keys: Sequence[Key]) -> None:
        for key in keys:
            primary, old = data.erase(key)
            if old is not None:
                self.undo.append(lambda primary=primary, old=old: data.restore(primary, old))  # type: ignore[misc]


def _foreign(coroutine: Coroutine[Any, Any, Any], yielded: object) -> ForeignAwait:
    """Tell the body at the very place what it did wrong."""
    error = ForeignAwait(
        f"the transaction body {getattr(coroutine, '__qualname__', '?')} awaited {type(yielded).__name__}, not a"
        " request of its own transaction: the browser ends a transaction that waits for anything else"
    )
    with contextlib.suppress(BaseException):
        coroutine.throw(error)
    return error


def _end(coroutine: Coroutine[Any, Any, Any]) -> None:
    """Close the body, even if its ``finally`` awaits."""
    for _ in range(100):
        try:
            coroutine.close()
            return
        except RuntimeError:
            continue
        except BaseException:
            return
