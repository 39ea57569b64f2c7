"""One transaction: its requests, and its body, driven synchronously from inside the browser's success callbacks.

One pair of proxies serves a whole transaction, however many requests it makes, and only a request that is being awaited
calls back: what a body asks for without waiting costs no call into Python. A transaction answers its requests in the
order in which they were made, so whoever awaits the last of several waits once.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Generator, Sequence
from contextvars import copy_context
from typing import Any, Generic, TypeVar

from tabhelm.browser._js import Thrown, create_proxy, js, js_exception, to_js_value, to_python_value
from tabhelm.browser.opaque import call_all, to_js_arguments, to_js_records, to_python_records
from tabhelm.errors import DatabaseClosed, DatabaseError, ForeignAwait, KeyExists, QuotaExceeded
from tabhelm.ports.database import Key, KeyRange, Record, Schema, Store, Transaction

T = TypeVar("T")
R = TypeVar("R")


class _Request(Generic[R]):
    """What a body awaits. Its result is read when it is awaited: what nobody looks at never crosses the bridge."""

    __slots__ = ("_asked", "_read", "owner")

    def __init__(self, owner: BrowserTransaction, asked: Any, read: Callable[[Any], R]) -> None:
        self.owner = owner
        self._asked = asked
        """The browser's request; ``None`` if there was nothing to ask."""
        self._read = read

    @property
    def done(self) -> bool:
        return self._asked is None or self._asked.readyState == "done"

    def call_back(self, listener: Any) -> None:
        self._asked.onsuccess = listener

    def __await__(self) -> Generator[_Request[R], None, R]:
        if not self.done:
            yield self
        return self._read(None if self._asked is None else self._asked.result)


class BrowserTransaction:
    """One ``IDBTransaction`` with its body."""

    def __init__(self, database: str, schema: Schema, transaction: Any) -> None:
        self._database = database
        self._schema = {store.name: store for store in schema.stores}
        self._transaction = transaction
        self._stores: dict[str, Any] = {}
        self._last: _Request[Any] | None = None
        self._awaited: _Request[Any] | None = None
        self._body: Coroutine[Any, Any, Any] | None = None
        self._context = copy_context()
        self._result: Any = None
        self._failure: BaseException | None = None
        self.dead = False
        """Its connection answers no more, and another must be opened."""
        self._listeners = (self._succeeded, self._settled)  # our own references: destroyed while they are running
        self._on_success, self._on_settled = map(create_proxy, self._listeners)
        self._done: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        for kind in ("complete", "abort", "error"):
            setattr(transaction, f"on{kind}", self._on_settled)

    # -- what the body calls ---------------------------------------------------------------------------------------

    def get(self, store: str, key: Key, *, index: str | None = None) -> _Request[Record | None]:
        return self._ask(lambda: self._source(store, index).get(_js_key(key)), to_python_records)

    def get_all(
        self, store: str, keys: KeyRange | None = None, *, index: str | None = None, count: int | None = None
    ) -> _Request[list[Record]]:
        return self._ask(lambda: self._source(store, index).getAll(_js_range(keys), count), to_python_records)

    def count(self, store: str, keys: KeyRange | None = None, *, index: str | None = None) -> _Request[int]:
        return self._ask(lambda: self._source(store, index).count(_js_range(keys)))

    def put(self, store: str, value: Record) -> _Request[Key]:
        return self._ask(lambda: self._source(store).put(to_js_records([value])[0]))

    def put_all(self, store: str, values: Sequence[Record]) -> _Request[list[Key]]:
        return self._write_all(store, "put", values)

    def add_all(self, store: str, values: Sequence[Record]) -> _Request[list[Key]]:
        return self._write_all(store, "add", values)

    def delete(self, store: str, key: Key) -> _Request[None]:
        return self._ask(lambda: self._source(store).delete(_js_key(key)))

    def delete_all(self, store: str, keys: Sequence[Key]) -> _Request[None]:
        def ask() -> Any:
            source = self._source(store)
            if len(keys) == 1:
                return source.delete(_js_key(keys[0]))
            return call_all(source.delete, source, to_js_value([[key] for key in keys])).at(-1)

        return self._ask(ask) if keys else _Request(self, None, _nothing)

    def delete_ranges(self, store: str, ranges: Sequence[KeyRange]) -> _Request[None]:
        def ask() -> Any:
            source, last = self._source(store), None
            for keys in ranges:
                last = source.delete(_js_range(keys))
            return last

        return self._ask(ask) if ranges else _Request(self, None, _nothing)

    def _write_all(self, store: str, method: str, values: Sequence[Record]) -> _Request[list[Key]]:
        schema = self._schema.get(store)
        requests: Any = None

        def ask() -> Any:
            nonlocal requests
            source = self._source(store)
            if len(values) == 1:  # a third of the price
                (value,) = to_js_records(values)
                request = source.add(value) if method == "add" else source.put(value)
                requests = [request]
                return request
            requests = call_all(getattr(source, method), source, to_js_arguments(values))
            return requests.at(-1)

        def keys() -> list[Key]:
            if schema is None or schema.auto_increment:
                return [to_python_value(request.result) for request in requests]
            return [_key_of(schema, value) for value in values]  # no need to ask a thousand times

        return self._ask(ask, lambda _answer: keys()) if values else _Request(self, None, lambda _answer: [])

    def _source(self, store: str, index: str | None = None) -> Any:
        source = self._stores.get(store)
        if source is None:
            source = self._stores[store] = self._transaction.objectStore(store)
        return source.index(index) if index is not None else source

    def _ask(self, ask: Callable[[], Any], read: Callable[[Any], Any] = to_python_value) -> _Request[Any]:
        try:
            asked = ask()
        except js_exception() as error:
            raise self._error(Thrown.of(error)) from None
        except (TypeError, ValueError, RecursionError) as error:
            raise DatabaseError(f"database {self._database!r}: this value cannot be stored: {error}") from error
        self._last = _Request(self, asked, read)
        return self._last

    # -- driving it ------------------------------------------------------------------------------------------------

    async def run(self, body: Callable[[Transaction], Coroutine[Any, Any, T]]) -> T:
        try:
            self._body = body(self)
        except BaseException as error:
            self._abort(error)
        else:
            self._step()
        try:
            result: T = await self._done
        except asyncio.CancelledError as error:
            self._abort(error)
            if self._done.done() and not self._done.cancelled():
                self._done.exception()  # an outcome that nobody will read is no unhandled error
            raise
        return result

    def _step(self) -> None:
        """Run the body up to the next request that has no answer yet. Raises nothing."""
        body = self._body
        if body is None:
            return
        try:
            while True:
                awaited = self._context.run(body.send, None)
                if not isinstance(awaited, _Request) or awaited.owner is not self:
                    what = type(awaited).__name__ if awaited is not None else "a bare yield, such as sleep(0)"
                    self._abort(
                        ForeignAwait(
                            f"a transaction body on database {self._database!r} awaited {what}: only the requests "
                            "of its own transaction may be awaited, or the browser commits behind its back"
                        )
                    )
                    return
                if not awaited.done:
                    awaited.call_back(self._on_success)
                    self._awaited = awaited
                    return
        except StopIteration as stop:
            self._body, self._result = None, stop.value
            self._commit()
        except BaseException as error:
            self._body = None
            self._abort(error)

    def _commit(self) -> None:
        """Spare the browser the wait for further requests. It would commit by itself, so failure is harmless.

        Not while answers are outstanding: a transaction told to commit cannot be aborted when one of them fails.
        """
        if self._failure is None and (self._last is None or self._last.done):
            try:
                self._transaction.commit()
            except js_exception():
                pass

    def _abort(self, failure: BaseException) -> None:
        """Note the first cause, stop the body, abort. The transaction's ``abort`` event then ends everything."""
        if self._failure is None:
            self._failure = failure
        self._close_body()
        try:
            self._transaction.abort()
        except js_exception():
            pass  # it has completed, or is aborting already: its own event comes, or came

    def cut_off(self, failure: DatabaseError) -> None:
        """Abort, unless it is being committed: then its own event says what came of it."""
        try:
            self._transaction.abort()
        except js_exception():
            return
        if self._failure is None:
            self._failure = failure
        self._close_body()

    def give_up(self, failure: DatabaseError, *, unknown: bool) -> None:
        """The browser does not answer. What it will not abort, because it is committing, may still be written: that is
        waited for, unless ``unknown`` says that the failure admits it. The next transaction gets another connection."""
        self.dead = True
        if self._failure is None:
            try:
                self._transaction.abort()
            except js_exception():
                if not unknown:
                    return
            self._failure = failure
        self._close_body()
        if not self._done.done():
            self._done.set_exception(self._failure)

    def _close_body(self) -> None:
        body, self._body = self._body, None
        if body is not None:
            try:
                body.close()
            except BaseException as error:  # its ``finally`` awaited or raised: the first cause is told, with this
                if self._failure is not None and error is not self._failure:
                    self._failure.add_note(f"and while it was being stopped: {type(error).__name__}: {error}")

    def _succeeded(self, _event: Any) -> None:
        """The answer to the request that is awaited."""
        if self._awaited is not None:
            self._awaited = None
            self._step()

    def _settled(self, event: Any) -> None:
        """``error`` of any request (the transaction then aborts by itself), ``abort`` or ``complete``."""
        kind = event.type
        if kind == "error":
            event.preventDefault()  # or it is reported as an uncaught error of the page; the abort is ours, below
            if self._failure is None:
                self._abort(self._error(Thrown.of(event.target.error)))
            return
        if kind == "abort" and self._failure is None:
            self._failure = self._error(Thrown.of(self._transaction.error))
        if self._body is not None:
            if self._failure is None:
                self._failure = DatabaseError(f"database {self._database!r}: the transaction ended before its body")
            self._close_body()
        self._on_success.destroy()
        self._on_settled.destroy()
        self._awaited = self._last = None
        self._stores.clear()
        if self._done.done():
            return
        if self._failure is not None:
            self._done.set_exception(self._failure)
        else:
            self._done.set_result(self._result)

    def _error(self, thrown: Thrown) -> DatabaseError:
        """Our error for a browser's. An abort that nobody here asked for means that the connection went away."""
        where = f"database {self._database!r}"
        self.dead = self.dead or thrown.name == "UnknownError"  # the backend was lost, or cannot read its files
        if thrown.name == "ConstraintError":
            return KeyExists(f"{where}: a record with this key or unique index value exists: {thrown.message}")
        if thrown.name == "QuotaExceededError":
            return QuotaExceeded(f"{where}: the storage of this origin is full; nothing was written")
        if thrown.name in ("", "AbortError", "InvalidStateError"):
            return DatabaseClosed(f"{where}: the connection was closed under a transaction ({thrown})")
        return DatabaseError(f"{where}: {thrown}")


def _nothing(_answer: Any) -> None:
    return None


def _js_key(key: Key) -> Any:
    return to_js_value(key) if isinstance(key, list | tuple) else key


def _js_range(keys: KeyRange | None) -> Any:
    if keys is None or (keys.lower is None and keys.upper is None):
        return None
    ranges = js().IDBKeyRange
    if keys.upper is None:
        return ranges.lowerBound(_js_key(keys.lower), keys.lower_open)  # type: ignore[arg-type]
    if keys.lower is None:
        return ranges.upperBound(_js_key(keys.upper), keys.upper_open)
    return ranges.bound(_js_key(keys.lower), _js_key(keys.upper), keys.lower_open, keys.upper_open)


def _key_of(store: Store, value: Record) -> Key:
    """The key that the store's key path finds in a value."""

    def at(path: str) -> Any:
        found: Any = value
        for part in path.split("."):
            found = found[part]
        return found

    return at(store.key_path) if isinstance(store.key_path, str) else [at(path) for path in store.key_path]
