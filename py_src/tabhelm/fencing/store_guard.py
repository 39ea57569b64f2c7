"""The guard of an app's own data: may this token still write, asked inside the app's own transaction.

The marks of each (domain, resource) are one record of an object store that the app's database keeps for them. They are
raised in the very transaction that holds the effect, so that both are written or neither is. ``guard.mjs`` does the
same for JavaScript, with the same records.

In memory, for what lives no longer than its interpreter: :class:`MemoryGuard`, and :func:`apply_if_current`.
"""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable
from typing import Any, Literal, Protocol, TypeVar, overload

from tabhelm.errors import DatabaseError, InvalidOptions, NotFenced, StaleOwner
from tabhelm.fencing.guard import EpochGuard, Marks, StrictGuard, Verdict
from tabhelm.fencing.token import MAX_NUMBER, FencingToken
from tabhelm.ports.database import Record, Store, Transaction

T = TypeVar("T")
U = TypeVar("U")
Rule = Literal["strict", "epoch"]

FENCE = Store("fence", key_path=("domain", "resource"))
"""A store for the marks, for the schema of an app's database."""

_RULES: dict[Rule, StrictGuard] = {"strict": StrictGuard(), "epoch": EpochGuard()}


async def check(transaction: Transaction, store: str, token: FencingToken, *, rule: Rule = "strict") -> None:
    """Raise the marks in ``store`` to ``token``, in a transaction that writes what the token protects as well.

    ``rule``: ``epoch`` lets the writes of one owner come in any order (each then needs a key by which a repeated one is
    known). What the body wrote before is undone with the transaction, which the exception aborts: do not catch it
    inside.

    Raises:
        StaleOwner: a newer owner was seen, or (``overtaken``) a later token of the same stream.
        DatabaseError: the transaction cannot write to the store, or the store holds something else.
        InvalidOptions: there is no such rule.
    """
    guard = _guard(rule)
    record = await transaction.get(store, [token.domain, token.resource])
    marks = None if record is None else read_marks(store, record)
    raised = accepted(guard.judge(marks, token), token)
    key = await transaction.put(store, {**(record or {}), **write_marks(token, raised)})
    if list(key if isinstance(key, list | tuple) else [key]) != [token.domain, token.resource]:
        # Written where nobody finds it: every token would be accepted.
        raise DatabaseError(f"store {store!r}: its key path must be ('domain', 'resource'), as FENCE has it")


def _guard(rule: str) -> StrictGuard:
    for name, guard in _RULES.items():
        if name == rule:
            return guard
    raise InvalidOptions(f"rule {rule!r:.60} is not valid: 'strict' or 'epoch' is expected")


def write_marks(token: FencingToken, marks: Marks) -> Record:
    """The record of the marks for the domain and resource of ``token``."""
    where = {"domain": token.domain, "resource": token.resource}
    return {**where, "epoch": marks.epoch, "owner": marks.owner_id, "streams": dict(marks.streams)}


def read_marks(store: str, record: Record) -> Marks:
    """The marks in a record.

    Raises:
        DatabaseError: it is no record of marks; nothing may be written past it.
    """
    epoch, owner, streams = record.get("epoch"), record.get("owner"), record.get("streams")
    sound = _is_number(epoch, 1) and isinstance(owner, str) and owner != "" and isinstance(streams, dict)
    if not sound or not all(_is_number(seq, 0) for seq in streams.values()):  # type: ignore[union-attr]
        where = f"{record.get('domain')!r}, {record.get('resource')!r}"
        raise DatabaseError(f"store {store!r} holds a record for ({where}) that is none of marks: {str(record)[:200]}")
    return Marks(epoch, owner, streams)  # type: ignore[arg-type]


def accepted(verdict: Verdict, token: FencingToken) -> Marks:
    """The marks to be written.

    Raises:
        StaleOwner: the token may not write.
    """
    if verdict.marks is not None:
        return verdict.marks
    mark = verdict.high_water
    assert mark is not None
    overtaken = verdict.kind == "overtaken"
    if overtaken:
        what = f"was overtaken: {mark.seq} was seen in stream {token.stream!r} of epoch {token.epoch}"
    else:
        what = f"is stale: epoch {mark.epoch} of owner {mark.owner_id!r} was seen"
    raise StaleOwner(
        f"token {token.epoch}/{token.seq} of owner {token.owner_id!r} for {token.resource!r} {what}",
        resource=token.resource,
        epoch=mark.epoch,
        owner_id=mark.owner_id,
        seq=mark.seq,
        overtaken=overtaken,
    )


def _is_number(value: object, least: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and least <= value <= MAX_NUMBER


class MemoryGuard:
    """Marks in memory: for state that is gone when this interpreter is, and for nothing else.

    Raises:
        InvalidOptions: there is no such rule.
    """

    def __init__(self, rule: Rule = "strict") -> None:
        self._rule = _guard(rule)
        self._marks: dict[tuple[str, str], Marks] = {}

    def check(self, token: FencingToken) -> None:
        """Raise the marks to ``token``.

        Raises:
            StaleOwner: see :func:`check`.
        """
        key = (token.domain, token.resource)
        self._marks[key] = accepted(self._rule.judge(self._marks.get(key), token), token)

    def is_current(self, token: FencingToken) -> bool:
        """Whether no newer owner was seen since; order within the stream does not matter."""
        marks = self._marks.get((token.domain, token.resource))
        return marks is None or (marks.epoch, marks.owner_id) == (token.epoch, token.owner_id)

    async def apply_if_current(self, token: FencingToken, work: Callable[[], T | Awaitable[T]]) -> T:
        """Check the token, do ``work``, and give its result if no newer owner was seen meanwhile.

        Raises:
            StaleOwner: before ``work`` or after it; its result is dropped.
        """
        self.check(token)
        result = await _settled(work())
        if not self.is_current(token):
            accepted(self._rule.judge(self._marks[token.domain, token.resource], token), token)
        return result


class Holder(Protocol):
    """Whoever leads: a ``LeaderContext``."""

    def next_token(self) -> FencingToken: ...


@overload
async def apply_if_current(holder: Holder, work: Callable[[], Awaitable[T]]) -> T: ...
@overload
async def apply_if_current(holder: Holder, work: Callable[[], T]) -> T: ...
@overload
async def apply_if_current(holder: Holder, work: Callable[[], Awaitable[T]], apply: Callable[[T], U]) -> U: ...
@overload
async def apply_if_current(holder: Holder, work: Callable[[], T], apply: Callable[[T], U]) -> U: ...
async def apply_if_current(
    holder: Holder, work: Callable[[], Any], apply: Callable[[Any], Any] = lambda result: result
) -> Any:
    """Do ``work``, which may be async, and apply its result if ``holder`` leads still: for local state.

    ``apply(result)`` is called in the same step in which that was seen, so it must not be async. Returns what it
    returns; without it, the result itself.

    Raises:
        LeadershipLost: before ``work`` or after it; nothing was applied.
    """
    _ensure(holder)
    result = await _settled(work())
    _ensure(holder)
    return apply(result)


def _ensure(holder: Holder) -> None:
    try:
        holder.next_token()  # it doubts itself, too: after a hang nobody has told it yet
    except NotFenced:
        pass  # it leads, without tokens


async def _settled(result: T | Awaitable[T]) -> T:
    return await result if inspect.isawaitable(result) else result
