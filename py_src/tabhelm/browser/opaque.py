"""Records with ``Opaque`` fields, to JavaScript and back.

Such a field is stored as a ``Map`` of one entry. ``JSON.stringify`` writes any ``Map`` as ``{}``, never looking inside:
so a whole answer still crosses the bridge as one text, whatever its values are (large, cyclic, a BigInt), and only the
values themselves are fetched, each as it is. A stored ``Map`` cannot be anything else: the rest of a record is JSON.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from importlib import import_module
from typing import Any

from tabhelm.browser._js import js, js_exception
from tabhelm.json_text import TooDeep, loads
from tabhelm.ports.database import Opaque, Record

_ENTRY = "value"
_EMPTY = ":{}"
"""What the text of an answer contains if one of its fields is a ``Map``."""


class StoredOpaque(Opaque):
    """One that was read: its value is JavaScript's."""

    __slots__ = ()

    def python(self) -> Any:
        value = self.value
        return _plain(value.to_py()) if hasattr(value, "to_py") else _plain(value)


def to_js_records(records: Sequence[Record]) -> Any:
    """A JavaScript array of new objects equal to ``records``. One bridge crossing, and one for each ``Opaque``.

    Raises:
        TypeError, ValueError: a record holds something that JSON cannot, or an ``Opaque`` deeper than a field of its
            own, or one whose value is no data (a function, an object of a class).
    """
    return _made(records, lambda made, at: made[at])


def to_js_arguments(records: Sequence[Record]) -> Any:
    """The same, each in an argument list of its own, for ``call_all``."""
    return _made([[record] for record in records], lambda made, at: made[at][0], records)


def call_all(function: Any, this: Any, arguments: Any) -> Any:
    """Call a function of the browser with each of some argument lists; an array of what it returned. One bridge
    crossing for all: a loop in Python costs one for each call."""
    return arguments.map(js().Reflect.apply.bind(None, function, this))


def _made(values: Sequence[Any], place: Callable[[Any, int], Any], records: Sequence[Record] | None = None) -> Any:
    held: list[Opaque] = []

    def hold(value: object) -> dict[str, object]:
        if not isinstance(value, Opaque):
            raise TypeError(f"Object of type {type(value).__name__} is not JSON serializable")
        held.append(value)
        return {}

    made = js().JSON.parse(json.dumps(values, allow_nan=False, default=hold))
    if held:
        found = 0
        for at, record in enumerate(values if records is None else records):
            for name, value in record.items():
                if isinstance(value, Opaque):
                    found += 1
                    js().Reflect.set(place(made, at), name, _wrapped(value.value))
        if found != len(held):
            raise TypeError("an Opaque value may only be a field of a record, not inside one")
    return made


def to_python_records(answer: Any) -> Any:
    """What a request found, a record or an array of them, as Python data; ``None`` for nothing, and for what cannot be
    read."""
    if answer is None:
        return None
    try:
        text = js().JSON.stringify(answer)
        found = loads(text) if isinstance(text, str) else None
    except (js_exception(), TooDeep):  # written by somebody else
        return None
    if isinstance(text, str) and _EMPTY in text:
        if isinstance(found, list):
            for at, record in enumerate(found):
                _fill(record, answer, at)
        else:
            _fill(found, [answer], 0)
    return found


def _fill(record: Any, stored: Any, at: int) -> None:
    """Put the ``Opaque`` fields of ``stored[at]`` into its ``record``."""
    if not isinstance(record, dict):
        return
    for name, value in record.items():
        if value == {} and isinstance(value, dict):
            held = js().Reflect.get(stored[at], name)
            if js().Object.prototype.toString.call(held) == "[object Map]":
                record[name] = StoredOpaque(held.get(_ENTRY))


def to_js_opaque(value: object) -> Any:
    """The value of an ``Opaque``, for JavaScript.

    Raises:
        TypeError: it is no data (a function, an object of a class).
    """
    ffi = import_module("pyodide.ffi")
    try:
        return ffi.to_js(value, create_pyproxies=False)  # plain objects for dicts, cycles and all
    except ffi.ConversionError as error:
        raise TypeError(f"an Opaque value cannot be given to JavaScript: {error}") from None


def _wrapped(value: object) -> Any:
    wrapped = js().Map.new()
    wrapped.set(_ENTRY, to_js_opaque(value))
    return wrapped


def _plain(value: Any, seen: set[int] | None = None) -> Any:
    """``bytes`` for a buffer and ``None`` for JavaScript's null, in place where it can be."""
    if isinstance(value, memoryview):
        return value.tobytes()
    if type(value).__name__ == "JsNull":
        return None
    seen = set() if seen is None else seen
    if not isinstance(value, dict | list) or id(value) in seen:
        return value
    seen.add(id(value))
    for at, item in list(value.items() if isinstance(value, dict) else enumerate(value)):
        value[at] = _plain(item, seen)
    return value
