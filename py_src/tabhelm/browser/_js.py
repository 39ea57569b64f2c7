"""The one door to JavaScript: everything untyped of this room passes through here.

Modules are resolved when they are used. Two reasons: these files are imported on CPython (types, tests), where neither
``js`` nor ``pyodide`` exists, and into a memory snapshot made under Node.js, where a JavaScript object kept at module
level would be one of another world after the restore.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from importlib import import_module
from typing import Any, NamedTuple

from tabhelm.json_text import TooDeep, loads


def js() -> Any:
    """JavaScript's global scope."""
    return sys.modules.get("js") or import_module("js")  # the first is several times as fast


def js_exception() -> type[Exception]:
    """The class of what JavaScript throws; use it in ``except`` clauses (evaluated only when something was raised)."""
    return import_module("pyodide.ffi").JsException  # type: ignore[no-any-return]


def create_proxy(function: Callable[..., Any]) -> Any:
    """A JavaScript function that calls ``function`` until ``.destroy()``; whoever makes one destroys it."""
    return (sys.modules.get("pyodide.ffi") or import_module("pyodide.ffi")).create_proxy(function)


def to_js_value(value: object) -> Any:
    """A fresh JavaScript value equal to ``value``, which JSON must be able to hold. One bridge crossing.

    Raises:
        TypeError, ValueError: ``value`` holds something that JSON cannot (or NaN, or an infinity).
    """
    return js().JSON.parse(json.dumps(value, allow_nan=False))


def to_python_value(value: Any) -> Any:
    """Plain Python data equal to a JavaScript value; ``None`` for undefined, null and what JSON cannot hold, or what is
    nested too deep to be read."""
    if value is None or isinstance(value, str | bool | int | float):
        return value
    try:
        text = js().JSON.stringify(value)
    except js_exception():  # cyclic, or a BigInt inside
        return None
    try:
        return loads(text) if isinstance(text, str) else None
    except TooDeep:
        return None


class Thrown(NamedTuple):
    """What is worth keeping of a JavaScript error. Decide by ``name``: texts differ from engine to engine."""

    name: str
    message: str

    @classmethod
    def of(cls, error: Any) -> Thrown:
        """Read ``error``, an exception or an error object; anything missing becomes ``""``."""
        return cls(*(str(getattr(error, field, None) or "") for field in ("name", "message")))

    def __str__(self) -> str:
        return f"{self.name or 'Error'}: {self.message}" if self.message else self.name or "an unnamed error"


class Rejected(Exception):
    """A promise was rejected; ``thrown`` says with what."""

    def __init__(self, thrown: Thrown) -> None:
        super().__init__(str(thrown))
        self.thrown = thrown


async def outcome(function: Any, this: Any = None, *arguments: Any) -> Any:
    """Call a function of the browser that gives a promise, and await that.

    Awaited directly, some rejections never arrive: an error that WebKit makes where no script runs (a fetch whose
    connection broke) has no ``stack``, Pyodide takes it for a plain object, and no future can be ended with that.

    Raises:
        Rejected: the promise was rejected.
    """
    # Called inside ``map``, since Pyodide makes a future of whatever promise a call returns.
    promises = js().Array.of(0).map(function.bind(this, *arguments))
    (settled,) = await js().Promise.allSettled(promises)
    if settled.status == "rejected":
        raise Rejected(Thrown.of(settled.reason))
    return settled.value
