"""A page's calls: each is answered once, with a result or an error."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

from tabhelm.errors import MalformedMessage, TabhelmError
from tabhelm.host.wire import Message, Post, field
from tabhelm.ports.database import Opaque
from tabhelm.tasks import Tasks


@dataclass(frozen=True, slots=True)
class WithValues:
    """The result of a call, and the values that go beside it."""

    result: dict[str, Any]
    values: list[Opaque]


class PageCalls:
    """Those of one session, by ``methods``. ``handlers`` is what it makes of the page's messages."""

    def __init__(self, methods: dict[str, Callable[[Message], Awaitable[Any]]], post: Post, tasks: Tasks) -> None:
        self._methods = methods
        self._post = post
        self._tasks = tasks
        self.handlers: dict[str, Callable[[Message], None]] = {"call": self._call}

    def _call(self, message: Message) -> None:
        self._tasks.start(self._answer(message), "call")

    async def _answer(self, message: Message) -> None:
        number = field(message, "id", int)
        try:
            method = field(message, "method", str)
            call = self._methods.get(method)
            if call is None:
                raise MalformedMessage(f"call: method {method!r} is unknown")
            result = await call(field(message, "params", dict, {}))
            values = result.values if isinstance(result, WithValues) else ()
            result = result.result if isinstance(result, WithValues) else result
            self._post({"type": "answer", "id": number, "result": result}, values)
        except TabhelmError as error:
            self._post({"type": "answer", "id": number, "error": {"code": error.code, "message": str(error)}})
        except Exception as error:
            problem = {"code": "internal-error", "message": f"{type(error).__name__}: {error}"}
            self._post({"type": "answer", "id": number, "error": problem})
            raise
