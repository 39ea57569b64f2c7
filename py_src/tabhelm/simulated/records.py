"""Object stores in memory: IndexedDB's key order, indexes, key generators and undo, with nothing asynchronous."""

from __future__ import annotations

import copy
import json
import math
from bisect import bisect_left, bisect_right, insort
from typing import Any

from tabhelm.errors import DatabaseError, KeyExists
from tabhelm.ports.database import Index, Key, KeyRange, Opaque, Record, Store

Encoded = tuple[Any, ...]
_BIGGEST = 2**53 - 1


def encode(key: object, path: str = "key") -> Encoded:
    """A key as a tuple that sorts as IndexedDB does: number < string < array.

    Raises:
        DatabaseError: not a valid key.
    """
    if isinstance(key, bool) or not isinstance(key, (int, float, str, list, tuple)):
        raise DatabaseError(f"{path} {key!r} is not a valid key: a string, a number or a list of them is expected")
    if isinstance(key, str):
        return (2, key.encode("utf-16-be", "surrogatepass"))
    if isinstance(key, (int, float)):
        if math.isnan(key):
            raise DatabaseError(f"{path} NaN is not a valid key")
        return (1, key)
    return (3, tuple(encode(part, f"{path}[{i}]") for i, part in enumerate(key)))


def clone(value: object, path: str = "value") -> Any:
    """A deep copy of what JSON can hold, numbers as JavaScript gives them back.

    Raises:
        DatabaseError: something else is inside; the message names where.
    """
    if value is None or isinstance(value, (bool, str)):
        return value
    if isinstance(value, int):
        if abs(value) > _BIGGEST:
            raise DatabaseError(f"{path} {value} is beyond the whole numbers that JavaScript keeps exactly")
        return value
    if isinstance(value, float):
        if not math.isfinite(value):
            raise DatabaseError(f"{path} {value!r} cannot be stored: JSON has no such number")
        return int(value) if value.is_integer() and abs(value) <= _BIGGEST else value
    if isinstance(value, list):
        return [clone(item, f"{path}[{i}]") for i, item in enumerate(value)]
    if isinstance(value, dict):
        for name in value:
            if not isinstance(name, str):
                raise DatabaseError(f"{path} has the key {name!r}: only strings may name members")
        return {name: clone(item, f"{path}.{name}") for name, item in value.items()}
    raise DatabaseError(f"{path} cannot be stored: {type(value).__name__} is not what JSON can hold")


def clone_record(value: Any, path: str = "value") -> Any:
    """A deep copy of a record, its ``Opaque`` fields included; of anything else what ``clone`` makes of it.

    Raises:
        DatabaseError: it holds what cannot be stored.
    """
    if not isinstance(value, dict):
        return clone(value, path)
    held = {name: item for name, item in value.items() if isinstance(item, Opaque)}
    if not held:
        return clone(value, path)
    made = clone({name: None if name in held else item for name, item in value.items()}, path)
    for name, item in held.items():
        if callable(item.value):
            raise DatabaseError(f"{path}.{name} cannot be stored: {type(item.value).__name__} is no data")
        try:
            made[name] = Opaque(copy.deepcopy(item.value))
        except (TypeError, RecursionError) as error:
            raise DatabaseError(f"{path}.{name} cannot be stored: {error}") from None
    return made


def size_of(record: Record) -> int:
    """Bytes that a stored record is said to take: those of its JSON, and of what its ``Opaque`` fields show."""
    return len(json.dumps(record, default=lambda held: repr(held.value)))


def key_at(value: Record, key_path: str | tuple[str, ...]) -> Any:
    """What the record holds at a key path; ``None`` if it is missing or is no valid key."""
    if isinstance(key_path, tuple):
        parts = [key_at(value, part) for part in key_path]
        return None if any(part is None for part in parts) else parts
    found: Any = value
    for name in key_path.split("."):
        if not isinstance(found, dict) or name not in found:
            return None
        found = found[name]
    try:
        encode(found)
    except DatabaseError:
        return None
    return found


def keys_at(value: Record, index: Index) -> list[Any]:
    """The keys under which an index lists the record: none, one, or as many as its list has valid items."""
    if not index.multi_entry:
        key = key_at(value, index.key_path)
        return [] if key is None else [key]
    assert isinstance(index.key_path, str), "an index of several entries has one path"
    found = value.get(index.key_path)
    items = {}
    for item in found if isinstance(found, list) else []:
        try:
            items[encode(item)] = item
        except DatabaseError:
            continue  # no valid key: the others are listed all the same
    return list(items.values())


class Bounds:
    """A ``KeyRange`` in encoded form."""

    def __init__(self, keys: KeyRange | None) -> None:
        lower, upper = (keys.lower, keys.upper) if keys is not None else (None, None)
        self.lower = None if lower is None else encode(lower, "lower bound")
        self.upper = None if upper is None else encode(upper, "upper bound")
        self.lower_open = keys is not None and keys.lower_open
        self.upper_open = keys is not None and keys.upper_open
        if self.lower is None or self.upper is None:
            return
        if self.lower > self.upper or (self.lower == self.upper and (self.lower_open or self.upper_open)):
            raise DatabaseError(f"the key range {keys!r} is empty: its lower bound is above its upper bound")

    def slice(self, ordered: list[Encoded]) -> list[Encoded]:
        """Those inside, of a sorted list."""
        start, end = 0, len(ordered)
        if self.lower is not None:
            start = (bisect_right if self.lower_open else bisect_left)(ordered, self.lower)
        if self.upper is not None:
            end = (bisect_left if self.upper_open else bisect_right)(ordered, self.upper)
        return ordered[start:end]

    def slice_index(self, entries: list[tuple[Encoded, Encoded]]) -> list[tuple[Encoded, Encoded]]:
        """Those inside, of a sorted list of (index key, primary key)."""
        start, end = 0, len(entries)
        if self.lower is not None:
            find = bisect_right if self.lower_open else bisect_left
            start = find(entries, self.lower, key=lambda entry: entry[0])
        if self.upper is not None:
            find = bisect_left if self.upper_open else bisect_right
            end = find(entries, self.upper, key=lambda entry: entry[0])
        return entries[start:end]


class ObjectStore:
    """Records of one store. ``write`` and ``erase`` return what undoes them."""

    def __init__(self, shape: Store) -> None:
        self.shape = shape
        self.generator = 1
        self.size = 0
        self._records: dict[Encoded, tuple[Key, Record, int]] = {}
        self._order: list[Encoded] = []
        self._indexes: dict[str, tuple[Index, list[tuple[Encoded, Encoded]]]] = {}
        for index in shape.indexes:
            self.add_index(index)

    def add_index(self, index: Index) -> None:
        entries: list[tuple[Encoded, Encoded]] = []
        self._indexes[index.name] = (index, entries)
        for primary in self._order:
            for key in keys_at(self._records[primary][1], index):
                insort(entries, (encode(key), primary))

    @property
    def indexes(self) -> list[str]:
        return list(self._indexes)

    def prepare(self, value: Record, path: str = "value") -> tuple[Key, Record, int]:
        """Copy a record and give it its key, generated if the store does that; also the generator's next value."""
        if not isinstance(value, dict):
            raise DatabaseError(f"{path} of store {self.shape.name!r} is {type(value).__name__}: a dict is expected")
        made: Record = clone_record(value, path)
        key = key_at(made, self.shape.key_path)
        generator = self.generator
        if key is None:
            if not self.shape.auto_increment or not isinstance(self.shape.key_path, str):
                raise DatabaseError(f"{path} has no valid key at {self.shape.key_path!r} of store {self.shape.name!r}")
            key = made[self.shape.key_path] = generator
            generator += 1
        elif self.shape.auto_increment and isinstance(key, (int, float)) and key >= generator:
            generator = math.floor(key) + 1
        return key, made, generator

    def write(self, key: Key, value: Record, size: int, *, new: bool) -> tuple[Encoded, tuple[Key, Record, int] | None]:
        """Store a prepared record.

        Raises:
            KeyExists: the key (with ``new``) or a unique index value is taken by another record.
        """
        primary = encode(key)
        old = self._records.get(primary)
        if new and old is not None:
            raise KeyExists(f"store {self.shape.name!r} already has a record with the key {key!r}")
        for index, entries in self._indexes.values():
            for found in keys_at(value, index) if index.unique else ():
                encoded = encode(found)
                at = bisect_left(entries, encoded, key=lambda entry: entry[0])
                if any(entry[0] == encoded and entry[1] != primary for entry in entries[at : at + 2]):
                    raise KeyExists(f"index {index.name!r} of store {self.shape.name!r} already has {found!r}")
        self.restore(primary, (key, value, size))
        return primary, old

    def erase(self, key: Key) -> tuple[Encoded, tuple[Key, Record, int] | None]:
        primary = encode(key)
        old = self._records.get(primary)
        self.restore(primary, None)
        return primary, old

    def restore(self, primary: Encoded, entry: tuple[Key, Record, int] | None) -> None:
        """Make a key hold exactly this (``None``: nothing)."""
        old = self._records.pop(primary, None)
        if old is not None:
            self.size -= old[2]
            self._unindex(primary, old[1])
        if entry is not None:
            self.size += entry[2]
            self._records[primary] = entry
            if old is None:
                insort(self._order, primary)
            for index, entries in self._indexes.values():
                for key in keys_at(entry[1], index):
                    insort(entries, (encode(key), primary))
        elif old is not None:
            del self._order[bisect_left(self._order, primary)]

    def select(self, bounds: Bounds, index: str | None) -> list[Record]:
        """The stored records inside the bounds, in order (not copied)."""
        if index is None:
            return [self._records[primary][1] for primary in bounds.slice(self._order)]
        if index not in self._indexes:
            raise DatabaseError(f"store {self.shape.name!r} has no index {index!r}")
        return [self._records[primary][1] for _, primary in bounds.slice_index(self._indexes[index][1])]

    def keys(self, bounds: Bounds) -> list[Key]:
        """The keys inside the bounds, in order."""
        return [self._records[primary][0] for primary in bounds.slice(self._order)]

    def one(self, key: Key, index: str | None) -> Record | None:
        if index is None:
            entry = self._records.get(encode(key))
            return None if entry is None else entry[1]
        found = self.select(Bounds(KeyRange.only(key)), index)
        return found[0] if found else None

    def _unindex(self, primary: Encoded, value: Record) -> None:
        for index, entries in self._indexes.values():
            for key in keys_at(value, index):
                entry = (encode(key), primary)
                del entries[bisect_left(entries, entry)]
