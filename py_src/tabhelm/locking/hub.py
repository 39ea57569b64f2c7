"""Which locks the tabs of this engine hold, and who else holds the one that somebody waits for.

The browser's ``query()`` names contexts, not tabs, and evicts cached pages. So engines ask each other on the channel,
and only for the message of a timeout: who it was that kept the lock, and for how long.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from tabhelm.messages import LockAnswer, LockAsk, encode
from tabhelm.observe import Events
from tabhelm.ports import Clock, Locks

if TYPE_CHECKING:
    from tabhelm.locking.lock import Lock

LONGEST_ASK = 2.0
"""Seconds before a timeout in which engines are asked for the holder (or half the time, if that is shorter)."""
MOST_ANSWERS = 8
"""Holders that one question is told of; a shared lock may have many."""


@dataclass(frozen=True, slots=True)
class Holder:
    """A tab that holds a lock. ``age``: seconds since it was granted."""

    tab: str
    age: float
    shared: bool


class LockHub:
    """One for all tabs of an engine. ``others``: whether other engines are known; ``post``: to their channel."""

    def __init__(
        self,
        locks: Locks,
        clock: Clock,
        events: Events,
        *,
        app: str,
        protocol: int,
        engine_id: str,
        post: Callable[[str], None],
        others: Callable[[], bool],
    ) -> None:
        self.locks = locks
        self.clock = clock
        self.events = events
        self.app = app
        self.protocol = protocol
        self.engine_id = engine_id
        self.post = post
        self.others = others
        self._held: dict[str, dict[Lock, None]] = {}
        self._asked: dict[int, _Question] = {}
        self._number = 0

    def add(self, lock: Lock) -> None:
        """A tab of ours was granted this lock."""
        self._held.setdefault(lock.name, {})[lock] = None

    def remove(self, lock: Lock) -> None:
        """It is held no more."""
        held = self._held.get(lock.name, {})
        held.pop(lock, None)
        if not held:
            self._held.pop(lock.name, None)

    def held(self, name: str) -> tuple[Lock, ...]:
        """Those of our tabs that hold it."""
        return tuple(lock for lock in self._held.get(name, ()) if lock.held)

    @property
    def count(self) -> int:
        """How many locks our tabs hold."""
        return sum(map(len, self._held.values()))

    # -- who is it that keeps us waiting? -----------------------------------------------------------------------------

    def ask(self, name: str, answered: Callable[[], None]) -> int:
        """Ask other engines who holds it; returns the number for ``holders``, ``hasten`` and ``forget``. ``answered``
        is called at the first answer, but only after ``hasten``."""
        self._number += 1
        self._asked[self._number] = _Question(name, answered)
        self.post(encode(LockAsk(self.engine_id, self._number, name)))
        return self._number

    def hasten(self, number: int | None) -> None:
        """The next answer is waited for."""
        question = self._asked.get(number or 0)
        if question is not None:
            question.waited_for = True

    def forget(self, number: int) -> None:
        """No answer is of interest any more."""
        self._asked.pop(number, None)

    def holders(self, name: str, number: int | None) -> list[Holder]:
        """Who holds it, as far as we know."""
        now = self.clock.monotonic()
        found = [Holder(lock.tab, now - lock.since, lock.shared) for lock in self.held(name)]
        question = self._asked.get(number or 0)
        for at, answer in question.answers if question is not None else ():
            found.append(Holder(answer.tab, answer.age + now - at, answer.shared))
        return found

    def asked(self, ask: LockAsk) -> None:
        """Another engine asks."""
        if ask.sender == self.engine_id:
            return
        now = self.clock.monotonic()
        for lock in self.held(ask.name)[:MOST_ANSWERS]:
            answer = LockAnswer(
                self.engine_id, ask.sender, ask.number, ask.name, lock.tab, max(0.0, now - lock.since), lock.shared
            )
            self.post(encode(answer))

    def answered(self, answer: LockAnswer) -> None:
        """An answer to one of us; what nobody asked for is dropped."""
        question = self._asked.get(answer.number)
        if question is None or answer.asked != self.engine_id or question.name != answer.name:
            return
        if len(question.answers) < MOST_ANSWERS:
            question.answers.append((self.clock.monotonic(), answer))
            if question.waited_for:
                question.answered()


@dataclass
class _Question:
    name: str
    answered: Callable[[], None]
    waited_for: bool = False
    answers: list[tuple[float, LockAnswer]] = field(default_factory=list)


def told(holders: Iterable[Holder], own_tab: str) -> str:
    """In words: who keeps the lock."""
    words = []
    for holder in holders:
        whose = "this tab itself" if holder.tab == own_tab else f"tab {holder.tab!r}"
        words.append(f"{whose} has held it{' (shared)' if holder.shared else ''} for {holder.age:.1f} s")
    if not words:
        return "its holder did not say who it is (a page that hangs, or code that uses no tabhelm)"
    if any(holder.tab == own_tab for holder in holders):
        words.append("a body that asks again for the lock that it holds waits for itself")
    return "; ".join(words)
