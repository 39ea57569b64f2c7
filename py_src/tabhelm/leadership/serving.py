"""What a leader answers: its handlers, who asks them, and what it remembers of each question."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, NoReturn

from tabhelm.errors import AskRefused, TabhelmError
from tabhelm.json_text import loads
from tabhelm.leadership.bodies import body
from tabhelm.leadership.tenure import Tenure
from tabhelm.messages import MAX_BODY, Accepted, Reply, Request
from tabhelm.names import MAX_NAME
from tabhelm.ports import Timer

if TYPE_CHECKING:
    from tabhelm.leadership.exchange import Exchange

MOST_OPEN = 256
"""So many questions a tenure works on, or keeps for a loop that does not serve yet, at once."""
MOST_KEPT = 1024
"""So many finished ones an engine remembers, the newest."""
KEPT = 10.0
"""Seconds that an answer is kept beyond the time for which its asker waits."""
LONGEST = 2_000
"""Characters of an error's message."""


@dataclass(frozen=True, slots=True)
class Call:
    """Who asks, in its own words: a hint, no proof. Every page of the origin could say the same."""

    method: str
    tab_id: str
    connection_id: str
    version: str
    capabilities: frozenset[str]
    idempotency_key: str
    """The asker's own, or one drawn for this question: the same when it is put to the next leader."""

    def refuse(self, reason: str) -> NoReturn:
        """Do not do it for this tab: the asker gets ``AskRefused`` with this reason."""
        raise Refusal(reason)


class Refusal(AskRefused):
    """The handler's own word, not what another leader has said to it."""


Handler = Callable[[Any, Call], Awaitable[Any]]


class HandlerError(Exception):
    """What a page's handler threw, in its own words."""

    def __init__(self, name: str, message: str, code: str | None) -> None:
        super().__init__(message)
        self.name = name
        self.code = code


@dataclass(eq=False, slots=True)
class _Record:
    """One question at one tenure. ``last`` is what was said of it last."""

    request: Request
    last: Accepted | Reply | None = None
    begun: bool = False
    task: asyncio.Task[None] | None = None
    timer: Timer | None = None
    until: float = 0.0


class Served:
    """One tenure's answers. Until ``serve`` is called for the first time, questions wait: its loop only begins."""

    def __init__(self, serving: Serving, resource: str, tenure: Tenure, tab: str, connection: str) -> None:
        self.resource = resource
        self.tenure = tenure
        self.tab = tab
        self.connection = connection
        self.epoch = tenure.epoch or 0
        """As announced. The tenure may rise above it, but remains the same."""
        self._serving = serving
        self._handlers: dict[str, Handler] = {}
        self._idempotent: set[str] = set()
        self._serves = False
        self._open: dict[_Record, None] = {}
        tenure.on_revoked(self._over)

    def serve(self, handlers: Mapping[str, Handler], idempotent: Iterable[str] = ()) -> None:
        """Answer these methods too; see ``LeaderContext.serve``."""
        names = frozenset((idempotent,) if isinstance(idempotent, str) else idempotent)
        for name, handler in handlers.items():
            check_method(name)
            if not callable(handler):
                raise TypeError(f"the handler of {name!r} is a {type(handler).__name__}: an async function is expected")
        if unknown := names - handlers.keys():
            raise ValueError(f"idempotent names {sorted(unknown)[0]!r}, which is not among the handlers given")
        self.tenure.ensure()
        self._handlers.update(handlers)
        self._idempotent = (self._idempotent - handlers.keys()) | names
        self._serves = True
        now = self._serving.exchange.clock.monotonic()
        for record in [record for record in self._open if not record.begun]:
            if now < record.until - KEPT:
                self._begin(record)
            else:
                self.forget(record)  # the timer that would is late: nobody waits any more

    def publish(self, value: Any) -> None:
        """Let every follower see this value; see ``LeaderContext.publish``."""
        text = body("the published value", value)
        self.tenure.ensure()
        self._serving.exchange.publishing.publish(self, text)

    # -- questions ----------------------------------------------------------------------------------------------------

    def is_under(self, epoch: int) -> bool:
        """Whether this tenure is, or was announced, under this epoch."""
        return self.epoch <= epoch <= (self.tenure.epoch or 0)

    @property
    def busy(self) -> bool:
        return len(self._open) >= MOST_OPEN

    def take(self, record: _Record) -> None:
        """A question that this tenure has not seen yet."""
        self._open[record] = None
        if self._serves:
            self._begin(record)
        else:
            self._say_accepted(record, idempotent=False)
            give_up = self._serving.exchange.clock.call_later(record.request.left, lambda: self._open.pop(record, None))
            record.timer = give_up

    def forget(self, record: _Record) -> None:
        """It is given up before it was begun."""
        self._open.pop(record, None)
        if record.timer is not None:
            record.timer.cancel()

    def _begin(self, record: _Record) -> None:
        request = record.request
        if record.timer is not None:
            record.timer.cancel()
        handler = self._handlers.get(request.method)
        if handler is None:
            serves = ", ".join(sorted(self._handlers)) or "nothing"
            lacks = f"the leader of {self.resource!r} serves no {request.method!r}"
            self._say(record, "no-handler", f"{lacks}; it serves: {serves}")
            return
        idempotent = request.method in self._idempotent
        if not request.fresh and not idempotent:
            self._say(record, "over")  # an earlier tenure may have begun: nobody knows, and it may not be done twice
            return
        record.begun = True
        self._say_accepted(record, idempotent=idempotent)
        name = f"answer {request.method} of {self.resource}"
        record.task = self._serving.exchange.tasks.start(self._run(record, handler), name)

    async def _run(self, record: _Record, handler: Handler) -> None:
        request = record.request
        asker = (request.tab, request.connection, request.version, frozenset(request.capabilities))
        try:
            result = await handler(loads(request.args), Call(request.method, *asker, request.key))
            outcome, value = "value", body(f"the answer of {request.method!r}", result)
        except Refusal as refused:
            outcome, value = "refused", _told(str(refused))
        except asyncio.CancelledError:
            self._say(record, "over")
            raise
        except Exception as error:
            outcome, value = "error", _error(error)  # also when it has lost another resource
        if self.tenure.ended is not None:
            outcome, value = "over", "null"  # what a leader says that leads no more is not believed
        self._say_text(record, outcome, value)

    def _over(self) -> None:
        for record in list(self._open):
            task = record.task
            self._say(record, "over" if record.begun else "declined")
            if task is not None and task is not asyncio.current_task():
                task.cancel()
        self._serving.closed(self)

    # -- words --------------------------------------------------------------------------------------------------------

    def _say_accepted(self, record: _Record, *, idempotent: bool) -> None:
        request = record.request
        exchange = self._serving.exchange
        record.last = Accepted(
            exchange.engine_id, request.sender, request.call, request.leader, request.epoch, record.begun, idempotent
        )
        exchange.to_asker(record.last)

    def _say(self, record: _Record, outcome: str, text: str | None = None) -> None:
        self._say_text(record, outcome, "null" if text is None else _told(text))

    def _say_text(self, record: _Record, outcome: str, value: str) -> None:
        if record not in self._open:
            return  # it was said already
        del self._open[record]
        if record.timer is not None:
            record.timer.cancel()
        record.task = None
        self._serving.reply(record, outcome, value)


class Serving:
    """The tenures of one engine, and what they have been asked."""

    def __init__(self, exchange: Exchange) -> None:
        self.exchange = exchange
        self._served: dict[tuple[str, str], Served] = {}
        self._records: dict[tuple[str, str, int], _Record] = {}
        """By question, connection and epoch. Kept until nobody can put the question again."""

    def open(self, resource: str, tenure: Tenure, tab: str, connection: str) -> Served:
        served = self._served[resource, connection] = Served(self, resource, tenure, tab, connection)
        return served

    def closed(self, served: Served) -> None:
        if self._served.get((served.resource, served.connection)) is served:
            del self._served[served.resource, served.connection]

    def tenures(self) -> list[Served]:
        """Those that stand."""
        return list(self._served.values())

    def asked(self, request: Request) -> None:
        """A question has arrived, perhaps not for the first time, perhaps for others."""
        key = (request.call, request.leader, request.epoch)
        record = self._records.get(key)
        if not request.left:
            self._given_up(key, request)
            return
        if record is not None:
            self._repeat(record, request.sender)
            return
        served = self._served.get((request.resource, request.leader))
        if served is None or not served.is_under(request.epoch) or served.tenure.ended is not None:
            if served is not None or self.exchange.own(request.leader):
                self.reply(_Record(request), "declined", "null")
            return
        if served.busy:
            self.reply(_Record(request), "busy", _told(f"{MOST_OPEN} questions to {request.resource!r} are open"))
            return
        self._purge()
        record = self._records[key] = _Record(request)
        record.until = self.exchange.clock.monotonic() + request.left + KEPT
        served.take(record)

    def reply(self, record: _Record, outcome: str, value: str) -> None:
        record.last = self._reply(record.request, outcome, value)
        self.exchange.to_asker(record.last)

    def _reply(self, request: Request, outcome: str, value: str = "null") -> Reply:
        return Reply(
            self.exchange.engine_id, request.sender, request.call, request.leader, request.epoch, outcome, value
        )

    def _repeat(self, record: _Record, sender: str) -> None:
        """Say it again, also to an asker that has gone to another engine meanwhile: what follows goes there too."""
        record.request = replace(record.request, sender=sender)
        if record.last is not None:
            record.last = replace(record.last, to=sender)
            self.exchange.to_asker(record.last)

    def _given_up(self, key: tuple[str, str, int], request: Request) -> None:
        """Its asker wants it no more. What has begun goes on; else it shall not begin, should it come only now."""
        served = self._served.get((request.resource, request.leader))
        if served is None or not served.is_under(request.epoch):
            return
        record = self._records.get(key)
        if record is None:
            self._purge()
            record = self._records[key] = _Record(request, until=self.exchange.clock.monotonic() + KEPT)
        if not record.begun and record.request.sender == request.sender:
            served.forget(record)
            record.last = self._reply(request, "declined")

    def _purge(self) -> None:
        now = self.exchange.clock.monotonic()
        surplus = len(self._records) - MOST_KEPT
        for key, record in list(self._records.items()):
            if record.until < now or (surplus > 0 and isinstance(record.last, Reply)):
                del self._records[key]
                surplus -= 1


def check_method(name: object) -> None:
    """A method's name: 1 to 512 characters.

    Raises:
        ValueError: it is not.
    """
    if not isinstance(name, str) or not 1 <= len(name) <= MAX_NAME:
        raise ValueError(f"method {name!r:.80} is not valid: a text of 1 to {MAX_NAME} characters is expected")


def check_key(key: object) -> None:
    """An idempotency key: nothing, or 1 to 512 characters.

    Raises:
        ValueError: it is neither.
    """
    if key is not None and (not isinstance(key, str) or not 1 <= len(key) <= MAX_NAME):
        raise ValueError(f"idempotency key {key!r:.80} is not valid: a text of 1 to {MAX_NAME} characters is expected")


def _told(text: str) -> str:
    return json.dumps(text[:LONGEST])


def _error(error: Exception) -> str:
    if isinstance(error, HandlerError):
        parts = {"name": error.name, "message": str(error), "code": error.code}
    else:
        code = error.code if isinstance(error, TabhelmError) else None
        parts = {"name": type(error).__name__, "message": str(error), "code": code}
    text = json.dumps({name: part and part[:LONGEST] for name, part in parts.items()})
    assert len(text) <= MAX_BODY
    return text
