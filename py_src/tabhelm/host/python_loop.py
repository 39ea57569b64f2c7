"""Leader loops named by a page: ``package.module:function``, imported in the engine."""

from __future__ import annotations

import importlib
import inspect
import re

from tabhelm.errors import LoopNotFound
from tabhelm.leadership import LeaderLoop

_REFERENCE = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_]\w*\Z")


def load_loop(reference: str) -> LeaderLoop:
    """Import the ``async def`` that ``reference`` names.

    Raises:
        LoopNotFound: it cannot be imported, is missing, or is no coroutine function.
    """
    if not _REFERENCE.match(reference):
        raise LoopNotFound(f"Python loop {reference[:80]!r} is not valid: 'package.module:function' is expected")
    module_name, _, name = reference.partition(":")
    try:
        module = importlib.import_module(module_name)
    except Exception as error:  # whatever the module's own code raises at import
        raise LoopNotFound(
            f"Python loop {reference!r}: importing {module_name!r} failed: {type(error).__name__}: {error}. "
            "Is its wheel named in join({python: {wheels}})?"
        ) from error
    function = getattr(module, name, None)
    if not inspect.iscoroutinefunction(function):
        raise LoopNotFound(f"Python loop {reference!r}: {name!r} is not an async function of {module_name!r}")
    loop: LeaderLoop = function
    return loop
