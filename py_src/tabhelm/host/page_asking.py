"""Asking the leader, for a page: its questions, its handlers while it leads, what its elections' leaders publish."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

from tabhelm.errors import (
    AskTimeout,
    ElectionStopped,
    HandlerFailed,
    LeaderChanged,
    LeadershipLost,
    MalformedMessage,
    TabhelmError,
)
from tabhelm.host.wire import Message, field, milliseconds, optional_text, words
from tabhelm.json_text import loads
from tabhelm.leadership import Election, Stopped
from tabhelm.leadership.asking import MOST_ASKED, TIMEOUT, Question
from tabhelm.leadership.publishing import PublishedState
from tabhelm.leadership.questions import put
from tabhelm.leadership.serving import Call, Handler, HandlerError, Refusal, Served
from tabhelm.services import Services

PENDING_AFTER = 25.0
"""Seconds after which a page is told that its question is still open: a call that its engine owes for a minute would be
given up by the page."""


@dataclass(frozen=True, slots=True)
class Pages:
    """The session, as far as it is needed here."""

    post: Callable[[dict[str, Any]], None]
    services: Services
    election: Callable[[str], Election | None]
    served: Callable[[Message], Served | None]
    """What the tenure serves that the message is about; ``None`` if that one is over."""
    quiet: Callable[[], bool]


class PageAsking:
    """One page's part. ``handlers`` and ``calls`` are messages of the page, by type and by method."""

    def __init__(self, pages: Pages) -> None:
        self._pages = pages
        self._questions: dict[str, Question] = {}
        self._asked: dict[int, asyncio.Future[Any]] = {}
        self._last = 0
        self._states: dict[str, Election] = {}
        self.handlers: dict[str, Callable[[Message], None]] = {
            "serve": self._serve,
            "publish": self._publish,
            "replied": self._replied,
            "unask": self._unask,
        }
        self.calls: dict[str, Callable[[Message], Awaitable[Any]]] = {"ask": self._ask}

    # -- the page asks ------------------------------------------------------------------------------------------------

    async def _ask(self, params: Message) -> Any:
        """Put a question, or wait on for one that is open. Whatever comes of it is a result: errors have fields."""
        name = field(params, "id", str)
        if field(params, "abandoned", bool, False):
            self._withdraw(name)
            return {"value": None}  # to nobody
        question = self._questions.get(name)
        try:
            if question is None:
                question = self._questions[name] = self._put(name, params)
                self._forget_some()
            if not await self._settled(question):
                return {"pending": True}
            value = question.result()
        except TabhelmError as error:
            self._questions.pop(name, None)
            return {"error": _error_view(error)}
        except ValueError as error:
            raise MalformedMessage(str(error)) from None
        self._questions.pop(name, None)
        return {"value": value}

    def _put(self, name: str, params: Message) -> Question:
        handle = field(params, "election", str)
        election = self._pages.election(handle)
        if election is None:
            raise ElectionStopped(field(params, "resource", str, handle), "stopped")
        return put(
            self._pages.services.exchange,
            election,
            field(params, "method", str),
            _json(params, "args"),
            milliseconds(params, "leftMs", TIMEOUT),
            optional_text(params, "key"),
            call=name,
            fresh=field(params, "fresh", bool, False),
        )

    def _unask(self, message: Message) -> None:
        """Nobody in the page waits for it any more."""
        self._withdraw(field(message, "id", str))

    def _withdraw(self, name: str) -> None:
        question = self._questions.pop(name, None)
        if question is not None:
            self._pages.services.exchange.asking.withdraw(question)

    async def _settled(self, question: Question) -> bool:
        woken = asyncio.Event()
        question.on_settled(woken.set)
        timer = self._pages.services.ports.clock.call_later(PENDING_AFTER, woken.set)
        try:
            await woken.wait()
        finally:
            timer.cancel()
        return question.settled

    def _forget_some(self) -> None:
        """A page that never comes back for its answers costs no memory."""
        for name, question in list(self._questions.items()):
            if len(self._questions) <= MOST_ASKED:
                break
            if question.settled:
                del self._questions[name]

    # -- the page leads -----------------------------------------------------------------------------------------------

    def _serve(self, message: Message) -> None:
        served = self._pages.served(message)
        if served is None:
            return
        election, grant = field(message, "election", str), field(message, "grant", int)
        handlers = {name: self._forward(election, grant, name) for name in words(message, "methods")}
        try:
            served.serve(handlers, words(message, "idempotent"))
        except LeadershipLost:
            pass  # the page will hear of it
        except ValueError as error:
            raise MalformedMessage(f"'serve' message: {error}") from None

    def _forward(self, election: str, grant: int, method: str) -> Handler:
        async def handler(args: Any, call: Call) -> Any:
            self._last += 1
            number = self._last
            answer = self._asked[number] = asyncio.get_running_loop().create_future()
            asker = {
                "tabId": call.tab_id,
                "connectionId": call.connection_id,
                "version": call.version,
                "capabilities": sorted(call.capabilities),
                "idempotencyKey": call.idempotency_key,
            }
            about = {"election": election, "grant": grant, "call": number, "method": method}
            self._pages.post({"type": "asked", **about, "args": args, "from": asker})
            try:
                return await answer
            finally:
                del self._asked[number]

        return handler

    def _replied(self, message: Message) -> None:
        answer = self._asked.get(field(message, "call", int))
        if answer is None or answer.done():
            return  # the tenure is over, and nobody waits
        error = message.get("error")
        if not isinstance(error, dict):
            answer.set_result(_json(message, "value"))
            return
        name, text = field(error, "name", str, "Error"), field(error, "message", str, "")
        code = optional_text(error, "code")
        refused = field(error, "refused", bool, False)
        answer.set_exception(Refusal(text) if refused else HandlerError(name, text, code))

    def _publish(self, message: Message) -> None:
        served = self._pages.served(message)
        if served is None:
            return
        try:
            served.publish(_json(message, "value"))
        except LeadershipLost:
            pass

    # -- the page follows ---------------------------------------------------------------------------------------------

    def follow(self, handle: str, election: Election) -> None:
        """Tell the page what this election's leaders publish, from what there is already on."""
        self._states[handle] = election
        forget = election.on_state(lambda state: self._say(handle, state))

        def over(state: object) -> None:
            if isinstance(state, Stopped):
                forget()
                self._states.pop(handle, None)

        election.subscribe(over)
        self._say(handle, election.state)

    def say_all(self) -> None:
        """The page goes on after a standstill."""
        for handle, election in self._states.items():
            self._say(handle, election.state)

    def _say(self, handle: str, state: PublishedState | None) -> None:
        if state is None or self._pages.quiet():
            return  # the port of a page that stands still would keep them all
        view = {
            "value": state.value,
            "tabId": state.tab_id,
            "epoch": state.epoch,
            "number": state.number,
            "current": state.current,
            "missed": state.missed,
        }
        self._pages.post({"type": "state", "election": handle, "state": view})


def _json(message: Message, name: str) -> Any:
    try:
        return loads(field(message, name, str))
    except ValueError as error:
        raise MalformedMessage(f"field {name!r} is not JSON text: {error}") from None


def _error_view(error: TabhelmError) -> dict[str, Any]:
    view: dict[str, Any] = {"code": error.code, "message": str(error), "name": type(error).__name__}
    if isinstance(error, HandlerFailed):
        view["handler"] = {"name": error.name, "message": error.detail, "code": error.handler_code}
    if isinstance(error, (LeaderChanged, AskTimeout)):
        view["outcome"] = error.outcome
    return view
