"""IndexedDB, with transaction bodies that asyncio never runs.

Awaiting in an asyncio task kills an IndexedDB transaction in every engine. So a body is a coroutine function
``async def body(tx)`` that the port drives synchronously from inside the success callbacks; it may await only what
``tx`` returns. Success means *complete* (committed), not that the last request succeeded.

Values are what JSON can hold, and ``Opaque`` fields; keys are ``str``, ``int`` or lists of them.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Coroutine, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol, TypeVar

T = TypeVar("T")
Key = str | int | list[Any]
Record = dict[str, Any]
TransactionMode = Literal["readonly", "readwrite"]
Durability = Literal["strict", "relaxed"]
DatabaseEvent = Literal["opened", "closed", "versionchange", "blocked"]


@dataclass(frozen=True, slots=True)
class Index:
    name: str
    key_path: str | tuple[str, ...]
    unique: bool = False
    multi_entry: bool = False
    """The key path finds a list, and each of its items is a key of its own."""


@dataclass(frozen=True, slots=True)
class Store:
    name: str
    key_path: str | tuple[str, ...]
    auto_increment: bool = False
    indexes: tuple[Index, ...] = ()


@dataclass(frozen=True, slots=True)
class Schema:
    version: int
    stores: tuple[Store, ...]


@dataclass(frozen=True, slots=True)
class KeyRange:
    """Keys from ``lower`` to ``upper``; ``None`` is unbounded."""

    lower: Key | None = None
    upper: Key | None = None
    lower_open: bool = False
    upper_open: bool = False

    @classmethod
    def only(cls, key: Key) -> KeyRange:
        return cls(key, key)

    @classmethod
    def prefix(cls, *parts: str | int) -> KeyRange:
        """All array keys that begin with these parts (an array sorts after every number and string)."""
        return cls(list(parts), [*parts, []])


class Opaque:
    """A value that the database carries as it is: anything that structured clone takes (a Blob, a Map, typed arrays, an
    object with cycles). Only a *field of a record* may be one, ``{"id": 1, "value": Opaque(value)}``; it comes back as
    an ``Opaque`` of a copy, through ``get``, ``get_all`` and any further ``put``.

    ``value`` is an object of JavaScript or plain Python data (``dict``, ``list``, ``bytes``, numbers, text, ``None``);
    in a browser a read gives JavaScript's objects, whoever wrote. Two are equal only if they are the same; copying one
    (also by ``dataclasses.asdict``) gives the same again.
    """

    __slots__ = ("value",)

    def __init__(self, value: Any) -> None:
        self.value = value

    def python(self) -> Any:
        """The value as Python data, as far as it can be: for Python code that wants to look into it."""
        return self.value

    def __copy__(self) -> Opaque:
        return self

    def __deepcopy__(self, _memo: object) -> Opaque:
        return self

    def __repr__(self) -> str:
        return f"Opaque({type(self.value).__name__})"


class Transaction(Protocol):
    """What a body may await. Each call queues its request at once; awaiting gives its result."""

    def get(self, store: str, key: Key, *, index: str | None = None) -> Awaitable[Record | None]: ...

    def get_all(
        self, store: str, keys: KeyRange | None = None, *, index: str | None = None, count: int | None = None
    ) -> Awaitable[list[Record]]: ...

    def count(self, store: str, keys: KeyRange | None = None, *, index: str | None = None) -> Awaitable[int]: ...

    def put(self, store: str, value: Record) -> Awaitable[Key]: ...

    def put_all(self, store: str, values: Sequence[Record]) -> Awaitable[list[Key]]:
        """Many at once (one bridge crossing); the keys in the same order."""

    def add_all(self, store: str, values: Sequence[Record]) -> Awaitable[list[Key]]:
        """Like ``put_all``, but an existing key or unique index value aborts with ``KeyExists``."""

    def delete(self, store: str, key: Key) -> Awaitable[None]: ...

    def delete_all(self, store: str, keys: Sequence[Key]) -> Awaitable[None]: ...

    def delete_ranges(self, store: str, ranges: Sequence[KeyRange]) -> Awaitable[None]: ...


class Database(Protocol):
    @property
    def name(self) -> str: ...

    async def transaction(
        self,
        stores: Sequence[str],
        mode: TransactionMode,
        body: Callable[[Transaction], Coroutine[Any, Any, T]],
        *,
        durability: Durability = "strict",
    ) -> T:
        """Run ``body`` in one transaction and return its result once the transaction is complete.

        Transactions of one ``Database`` begin in the order of the calls, also while it is being opened.

        Opens the database when there is no open connection. An exception in the body aborts and is raised as itself.
        Cancelling the caller aborts what has not completed; whether it completed is then unknown.

        Raises:
            DatabaseClosed: the connection was closed under it; the next call opens anew.
            DatabaseBlocked, DatabaseDenied, QuotaExceeded, KeyExists, ForeignAwait, DatabaseError: see ``errors``.
        """

    def subscribe(self, callback: Callable[[DatabaseEvent], None]) -> None:
        """Call back when the connection opens, is closed by the browser, must give way to an upgrade, or is blocked."""

    def close(self) -> None:
        """Close the connection for good, and abort what runs in it (``DatabaseClosed``) unless it is being committed;
        harmless when closed."""


class Databases(Protocol):
    def database(self, name: str, schema: Schema) -> Database:
        """The database of this name; opened at its first transaction."""
