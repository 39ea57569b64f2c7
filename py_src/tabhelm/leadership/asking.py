"""Ask whoever leads: from the first word to an answer, an error, or the end of the time given.

A question is put to one tenure at a time. It is put to the next one only when the last one cannot have begun with it,
or when its handler is declared idempotent; else its asker learns that nobody knows what became of it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from tabhelm.errors import (
    AskRefused,
    AskTimeout,
    ElectionStopped,
    HandlerFailed,
    LeaderChanged,
    NoHandler,
    NoLeader,
    TabhelmError,
    TooManyCalls,
)
from tabhelm.json_text import is_number, loads
from tabhelm.leadership.bodies import Address
from tabhelm.messages import Accepted, Reply, Request
from tabhelm.ports import Timer
from tabhelm.presence import TabInfo

if TYPE_CHECKING:
    from tabhelm.leadership.exchange import Exchange

MOST_ASKED = 256
"""So many questions of one engine's tabs may be open at once."""
PAUSES = (0.5, 8.0)
"""Seconds after which a question is put again to a tenure from which nothing was heard: first and longest, doubling."""
TIMEOUT = 10.0
LONGEST = 86_400.0


@dataclass(eq=False, slots=True)
class Question:
    """One question, until it is settled. ``may_have_begun``: some earlier tenure may have worked on it."""

    id: str
    resource: str
    method: str
    args: str
    asker: TabInfo
    key: str
    timeout: float
    deadline: float
    may_have_begun: bool
    at: Address | None = None
    """Whom it was put to last, as long as that one is said to lead."""
    accepted: Accepted | None = None
    put: bool = False
    """Whether it was ever put to anybody."""
    declined: set[Address] = field(default_factory=set)
    newest: Address | None = None
    """The highest epoch that it was put to: never to one before it."""
    settled: bool = False
    value: str = "null"
    error: TabhelmError | None = None
    pause: float = PAUSES[0]
    end: Timer | None = None
    """When nobody waits any more."""
    again: Timer | None = None
    """When it is said again: one chain at a time, whoever leads."""
    waiting: list[Callable[[], None]] = field(default_factory=list)

    def on_settled(self, callback: Callable[[], None]) -> None:
        """Call back when it is settled, at once if it is."""
        if self.settled:
            callback()
        else:
            self.waiting.append(callback)

    def result(self) -> Any:
        """The answer.

        Raises:
            TabhelmError: there is none.
        """
        if self.error is not None:
            raise self.error
        return loads(self.value)


class Asking:
    """The open questions of one engine's tabs."""

    def __init__(self, exchange: Exchange) -> None:
        self._exchange = exchange
        self._open: dict[str, Question] = {}
        self._closed = False

    def put(
        self,
        resource: str,
        method: str,
        args: str,
        asker: TabInfo,
        timeout: float,
        key: str | None = None,
        *,
        call: str | None = None,
        fresh: bool = True,
    ) -> Question:
        """Put a question, without waiting. ``fresh``: it was not put before, by another engine, under the id ``call``.

        Raises:
            TooManyCalls: too many are open.
            ElectionStopped: this engine has ended.
            NotCloneable: it is too long for a message.
        """
        if call is not None and call in self._open:
            return self._open[call]
        if self._closed:
            raise ElectionStopped(resource, "closed")
        if len(self._open) >= MOST_ASKED:
            raise TooManyCalls(f"{MOST_ASKED} questions of this engine's tabs are open: await some of them first")
        clock = self._exchange.clock
        name = call or f"q-{self._exchange.entropy.token_bytes(10).hex()}"
        question = Question(
            name, resource, method, args, asker, key or name, timeout, clock.monotonic() + timeout, not fresh
        )
        self._exchange.check_length(self._request(question, Address("", 0, ""), timeout))
        self._open[name] = question
        question.end = clock.call_later(timeout, lambda: self._timed_out(question))
        self._consider(question)
        return question

    def withdraw(self, question: Question) -> None:
        """Nobody waits any more."""
        if not question.settled:
            self._give_up(question, AskTimeout(question.resource, question.method, question.timeout))

    def _give_up(self, question: Question, error: TabhelmError) -> None:
        """Whoever was asked and has not begun yet is told; what a handler has begun goes on."""
        at, accepted = question.at, question.accepted
        self.settle(question, error=error)
        if at is not None and (accepted is None or not accepted.begun):
            question.args = "null"
            self._exchange.to_leader(self._request(question, at, 0.0))

    def settle(self, question: Question, value: str = "null", error: TabhelmError | None = None) -> None:
        """It is answered, or will not be."""
        if question.settled:
            return
        question.settled, question.value, question.error = True, value, error
        self._open.pop(question.id, None)
        for timer in (question.end, question.again):
            if timer is not None:
                timer.cancel()
        question.end = question.again = None
        waiting, question.waiting = question.waiting, []
        for callback in waiting:
            callback()

    def close(self) -> None:
        """The engine ends."""
        self._closed = True
        for question in list(self._open.values()):
            self.settle(question, error=ElectionStopped(question.resource, "closed"))

    # -- who leads ----------------------------------------------------------------------------------------------------

    def look(self) -> None:
        """The roster changed."""
        for question in list(self._open.values()):
            self._consider(question)

    def _consider(self, question: Question) -> None:
        leader = self._exchange.leader(question.resource)
        if question.at is not None and question.at != leader:
            late = leader is None and self._exchange.listed(question.resource, question.at)
            if late or not self._gone(question):
                return
        if question.at is None and leader is not None and self._may_ask(question, leader):
            question.at = question.newest = leader
            question.accepted = None
            question.put = True
            question.pause = PAUSES[0]
            self._say(question)

    def _gone(self, question: Question) -> bool:
        """The tenure that it was put to is not the leader's any more; false if that settles it."""
        accepted = question.accepted
        question.at = question.accepted = None
        if accepted is not None and accepted.begun and not accepted.idempotent:
            self.settle(question, error=LeaderChanged(question.resource, question.method, "unknown"))
            return False
        question.may_have_begun = True
        return True

    @staticmethod
    def _may_ask(question: Question, leader: Address) -> bool:
        """Not one that has said no, nor one that led before it."""
        newest = question.newest
        older = newest is not None and leader.domain == newest.domain and leader.epoch < newest.epoch
        return not older and leader not in question.declined

    def _say(self, question: Question) -> None:
        at = question.at
        clock = self._exchange.clock
        if question.again is not None:
            question.again.cancel()  # of another tenure, if one was asked before this one
            question.again = None
        if at is None or question.settled:
            return
        question.again = clock.call_later(question.pause, lambda: self._say(question))
        question.pause = min(2 * question.pause, PAUSES[1])
        self._exchange.to_leader(self._request(question, at, max(0.0, question.deadline - clock.monotonic())))

    def _request(self, question: Question, at: Address, left: float) -> Request:
        """``left`` is in seconds; 0: it is given up."""
        asker = question.asker
        return Request(
            sender=self._exchange.engine_id,
            call=question.id,
            resource=question.resource,
            leader=at.leader,
            epoch=at.epoch,
            method=question.method,
            args=question.args,
            tab=asker.tab_id,
            connection=asker.connection_id,
            version=asker.version,
            capabilities=tuple(sorted(asker.capabilities)),
            key=question.key,
            left=left,
            fresh=not question.may_have_begun,
        )

    # -- what is heard ------------------------------------------------------------------------------------------------

    def accepted(self, message: Accepted) -> None:
        question = self._asked(message)
        if question is not None and (question.accepted is None or not question.accepted.begun):
            question.accepted = message

    def replied(self, message: Reply) -> None:
        question = self._asked(message)
        if question is None:
            return
        resource, method = question.resource, question.method
        told = loads(message.value)
        match message.outcome:
            case "value":
                self.settle(question, message.value)
            case "error":
                self.settle(question, error=_failure(resource, method, told))
            case "refused":
                self.settle(question, error=AskRefused(str(told)))
            case "no-handler":
                self.settle(question, error=NoHandler(str(told)))
            case "busy":
                self.settle(question, error=TooManyCalls(str(told)))
            case _:
                self._not_this_one(question, begun=message.outcome == "over")

    def _asked(self, message: Accepted | Reply) -> Question | None:
        """The open question that was put to the very tenure that speaks."""
        question = self._open.get(message.call)
        at = question.at if question is not None else None
        if at is None or (at.leader, at.epoch) != (message.leader, message.epoch):
            self._exchange.events.ignored("late-answer")
            return None
        return question

    def _not_this_one(self, question: Question, *, begun: bool) -> None:
        """The tenure ended with it, or before it."""
        assert question.at is not None
        question.declined.add(question.at)
        accepted = question.accepted
        if begun and not (accepted is not None and accepted.idempotent):
            self.settle(question, error=LeaderChanged(question.resource, question.method, "unknown"))
            return
        question.at = question.accepted = None
        question.may_have_begun = question.may_have_begun or begun
        self._consider(question)

    def _timed_out(self, question: Question) -> None:
        error = self._unanswered(question)
        self._give_up(question, error or NoLeader(question.resource, question.timeout))

    @staticmethod
    def _unanswered(question: Question) -> TabhelmError | None:
        """What is to be said of a question that will not be answered; ``None`` if it was never put to anybody."""
        if question.at is not None:
            return AskTimeout(question.resource, question.method, question.timeout)
        if question.may_have_begun:
            return LeaderChanged(question.resource, question.method, "unknown")
        return LeaderChanged(question.resource, question.method, "not-sent") if question.put else None


def check_timeout(timeout: object) -> float:
    """Seconds to wait for an answer.

    Raises:
        ValueError: it is no positive number of at most a day.
    """
    if not is_number(timeout) or not 0 < timeout <= LONGEST:
        raise ValueError(f"timeout {timeout!r:.80} is not valid: a number of seconds, up to a day, is expected")
    return float(timeout)


def _failure(resource: str, method: str, told: Any) -> HandlerFailed:
    parts = told if isinstance(told, dict) else {}
    code = parts.get("code")
    return HandlerFailed(
        resource,
        method,
        str(parts.get("name", "Error")),
        str(parts.get("message", "")),
        code if isinstance(code, str) else None,
    )
