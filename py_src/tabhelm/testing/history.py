"""Proves from the logs of a run that its promises held: nothing lost, nothing doubled, nothing from a stale owner.

Fill a :class:`History` from four logs, each in its own order, and ask for the verdict::

    history = History()
    history.acknowledged(op_id, partition="case-7", tab="A")    # as enqueue() resolved, in the order of the calls
    history.event(event)                                        # every event of every tab: grants and dead letters
    history.effects(server.effects())                           # what the receiver accepted, in its order
    history.check().require()                                   # raises AssertionError with one sentence a violation

It imports nothing but the token, so the same checker judges simulated runs, real tabs and ``demo --play``.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from tabhelm.fencing.token import FencingToken
from tabhelm.testing.verdict import Verdict

Stored = tuple[str, str, str, int]
"""Which store issued what: store, domain, resource, epoch."""


class AcceptedEffect(Protocol):
    """An accepted effect as receivers hand it out (the server's ``Effect``, the simulated one)."""

    @property
    def op_id(self) -> str: ...
    @property
    def partition(self) -> str: ...
    @property
    def token(self) -> FencingToken: ...
    @property
    def subject(self) -> str: ...


@dataclass(frozen=True, slots=True)
class _Ack:
    op_id: str
    partition: str
    tab: str
    store: str
    asked_at: float | None
    at: float | None


@dataclass(frozen=True, slots=True)
class _Grant:
    store: str
    domain: str
    resource: str
    epoch: int
    owner: str
    age: int
    """How often the store had been wiped."""


@dataclass(frozen=True, slots=True)
class _Shown:
    """The receiver accepted a token; with an operation, its effect."""

    token: FencingToken
    subject: str
    at: float | None
    op_id: str | None = None
    partition: str = ""


class History:
    """Logs of one run. Times are seconds of any one clock; leave them out where no clock is shared.

    ``grants_known``: every grant is in the log, so that an effect without one is a violation (off, where a crash may
    have taken an event with it). ``sequences``: the receiver keeps each stream in order (off for the epoch guard).
    """

    def __init__(self, *, grants_known: bool = True, sequences: bool = True) -> None:
        self._grants_known = grants_known
        self._sequences = sequences
        self._acks: list[_Ack] = []
        self._grants: list[_Grant] = []
        self._shown: list[_Shown] = []
        self._began: list[tuple[FencingToken, str, float]] = []
        self._dead: dict[str, str] = {}
        self._wipes: dict[str, list[float]] = {}
        self._rests: dict[str, list[float]] = {}

    # -- the logs -----------------------------------------------------------------------------------------------------

    def acknowledged(
        self,
        op_id: str,
        *,
        partition: str = "default",
        tab: str = "",
        store: str = "",
        asked_at: float | None = None,
        at: float | None = None,
    ) -> None:
        """``enqueue()`` resolved. Tell a tab's operations in the order of its calls.

        ``asked_at`` and ``at`` are when it was called and when it resolved: with them, an operation that was
        acknowledged before another one was asked for, even in another tab, must be applied first. Where nobody knows
        when it was first asked for, ``asked_at`` is a moment at which it surely had not been. An operation without
        times is excused by no wipe. ``store`` names the device's storage if there are several.
        """
        self._acks.append(_Ack(op_id, partition, tab, store, asked_at, at))

    def granted(self, *, domain: str, resource: str, epoch: int, owner: str, store: str = "") -> None:
        """An epoch was issued: its transaction is complete. Tell them in the order of issue; repetitions are one."""
        self._grants.append(_Grant(store, domain, resource, epoch, owner, len(self._wipes.get(store, []))))

    def event(self, event: Mapping[str, Any], *, store: str = "") -> None:
        """Take from a tab's event (``{"type": "epoch-issued", …}``) what is of use here; others are passed over."""
        if event.get("type") == "epoch-issued":
            self.granted(
                domain=event["domain"],
                resource=event["resource"],
                epoch=event["epoch"],
                owner=event["owner"],
                store=store,
            )
        elif event.get("type") == "operation-died":
            self.died(event["operation"], event.get("reason", ""))

    def began(self, token: FencingToken, *, subject: str = "user", at: float) -> None:
        """A leader loop that has a barrier began under this token's epoch.

        From then on the receiver must accept nothing older. ``at`` is on the clock of the effects' ``at``.
        """
        self._began.append((token, subject, at))

    def shown(self, token: FencingToken, *, subject: str = "user", at: float | None = None) -> None:
        """The receiver accepted a request with this token (a barrier, or the request of the effects told next)."""
        self._shown.append(_Shown(token, subject, at))

    def accepted(
        self,
        op_id: str,
        token: FencingToken,
        *,
        partition: str = "default",
        subject: str = "user",
        at: float | None = None,
    ) -> None:
        """An operation took effect. Tell them in the receiver's order."""
        self._shown.append(_Shown(token, subject, at, op_id, partition))

    def effect(self, effect: AcceptedEffect | Mapping[str, Any]) -> None:
        """An effect in the form in which a receiver lists it: an object, or an element of ``GET /api/effects``."""
        if not isinstance(effect, Mapping):
            at = getattr(effect, "at", getattr(effect, "accepted_at", None))
            self.accepted(effect.op_id, effect.token, partition=effect.partition, subject=effect.subject, at=at)
            return
        names = ("domain", "resource", "epoch", "stream", "seq")
        token = FencingToken(**{name: effect[name] for name in names}, owner_id=effect["owner"])
        at_ms = effect.get("accepted_at_ms")
        self.accepted(
            effect["op_id"],
            token,
            partition=effect["partition"],
            subject=effect.get("subject", "user"),
            at=None if at_ms is None else at_ms / 1000,
        )

    def effects(self, effects: Iterable[AcceptedEffect | Mapping[str, Any]]) -> None:
        """Many of them, in order."""
        for each in effects:
            self.effect(each)

    def died(self, op_id: str, reason: str) -> None:
        """An operation went to the dead letters (even if somebody retried it since)."""
        self._dead[op_id] = reason

    def wiped(self, *, store: str = "", at: float) -> None:
        """The storage was wiped: what was asked for before and not applied by then may be gone."""
        self._wipes.setdefault(store, []).append(at)

    def rested(self, *, store: str = "", at: float) -> None:
        """The queue said that it is empty: what was acknowledged before is no victim of a later wipe."""
        self._rests.setdefault(store, []).append(at)

    # -- the judgement ------------------------------------------------------------------------------------------------

    def check(self) -> Verdict:
        """Judge the run as it stands. Call it when everything has come to rest, or what is still queued counts as
        lost."""
        verdict = Verdict(acknowledged=len(self._acks), grants=len(set(self._grants)))
        self._check_grants(verdict)
        self._check_tokens(verdict)
        self._check_barriers(verdict)
        self._check_operations(verdict)
        self._check_order(verdict)
        return verdict

    def _check_grants(self, verdict: Verdict) -> None:
        owners: dict[tuple[Stored, int], str] = {}
        highest: dict[tuple[str, str, str, int], int] = {}
        for grant in dict.fromkeys(self._grants):
            line = (grant.store, grant.domain, grant.resource, grant.age)
            named = f"epoch {grant.epoch} of {grant.resource!r}"
            key = ((grant.store, grant.domain, grant.resource, grant.epoch), grant.age)
            if key in owners:
                verdict.shared_epochs.append(f"{named} was granted to {owners[key]!r} and to {grant.owner!r}")
            elif grant.epoch <= highest.get(line, 0):
                verdict.fallen_epochs.append(f"{named} was granted to {grant.owner!r} after epoch {highest[line]}")
            owners.setdefault(key, grant.owner)
            highest[line] = max(grant.epoch, highest.get(line, 0))

    def _check_tokens(self, verdict: Verdict) -> None:
        """What each (subject, domain, resource) accepted, in order: no epoch but the newest, no owner but its own."""
        granted = {(each.domain, each.resource, each.epoch, each.owner) for each in self._grants}
        marks: dict[tuple[str, str, str], tuple[int, str]] = {}
        streams: dict[tuple[str, str, str, int, str], int] = {}
        requests: dict[tuple[str, str, str], FencingToken] = {}
        for shown in self._shown:
            token = shown.token
            line = (shown.subject, token.domain, token.resource)
            if shown.op_id is not None and token == requests.get(line):
                continue  # one more operation of a request that was judged
            requests[line] = token
            what = f"a write of {token.owner_id!r} to {token.resource!r} with epoch {token.epoch}"
            epoch, owner = marks.get(line, (0, ""))
            if token.epoch < epoch:
                verdict.stale.append(f"{what} was accepted after epoch {epoch} had been seen")
            elif token.epoch == epoch and token.owner_id != owner:
                verdict.stale.append(f"{what} was accepted though that epoch had been seen from {owner!r}")
            else:
                marks[line] = (token.epoch, token.owner_id)
            if self._grants_known and (token.domain, token.resource, token.epoch, token.owner_id) not in granted:
                verdict.ungranted.append(f"{what} was accepted, but no such grant was ever durable")
            stream = (*line, token.epoch, token.stream)
            if self._sequences and token.seq <= streams.get(stream, 0):
                verdict.overtaken.append(
                    f"{what} was accepted with seq {token.seq} of stream {token.stream!r} after {streams[stream]}"
                )
            streams[stream] = max(token.seq, streams.get(stream, 0))

    def _check_barriers(self, verdict: Verdict) -> None:
        for begun, subject, at in self._began:
            for shown in self._shown:
                token = shown.token
                same = (shown.subject, token.domain, token.resource) == (subject, begun.domain, begun.resource)
                if same and token.epoch < begun.epoch and shown.at is not None and shown.at > at:
                    verdict.leaked.append(
                        f"a write of {token.owner_id!r} to {token.resource!r} with epoch {token.epoch} was accepted"
                        f" after the loop of epoch {begun.epoch} had begun"
                    )

    def _check_operations(self, verdict: Verdict) -> None:
        count: dict[tuple[str, str], int] = {}
        for shown in self._shown:
            if shown.op_id is not None:
                count[shown.subject, shown.op_id] = count.get((shown.subject, shown.op_id), 0) + 1
        verdict.accepted = sum(count.values())
        verdict.doubled += [f"{op_id!r} took effect {times} times" for (_, op_id), times in count.items() if times > 1]
        applied = {op_id for _, op_id in count}
        for ack in {each.op_id: each for each in self._acks}.values():
            if ack.op_id in applied:
                continue
            if ack.op_id in self._dead:
                verdict.dead.append(ack.op_id)
            elif self._may_be_wiped(ack):
                verdict.wiped.append(ack.op_id)
            else:
                by = f" by tab {ack.tab!r}" if ack.tab else ""
                verdict.lost.append(f"{ack.op_id!r} was acknowledged{by}, but it was neither applied nor dead-lettered")

    def _may_be_wiped(self, ack: _Ack, before: float | None = None) -> bool:
        """Whether the storage was wiped (``before`` then) after it was asked for, and before the queue said for the
        first time that it is empty: only then may it have been there and be gone."""
        asked = ack.asked_at if ack.asked_at is not None else ack.at
        if asked is None:
            return False
        rest = min(
            (at for at in self._rests.get(ack.store, []) if ack.at is not None and ack.at < at), default=math.inf
        )
        wipes = self._wipes.get(ack.store, [])
        return any(asked <= at < rest and (before is None or at < before) for at in wipes)

    def _check_order(self, verdict: Verdict) -> None:
        """Per partition: calls of one tab in their order; across tabs, what was acknowledged before another was asked.

        Not judged: operations that were dead for a while, those of two devices (none waits for the other), and those
        enqueued before and applied after a wipe (stored again by a repeated call, they have a new place)."""
        acks: dict[str, tuple[int, _Ack]] = {}
        for number, ack in enumerate(self._acks):
            acks.setdefault(ack.op_id, (number, ack))
        lines: dict[tuple[str, ...], list[tuple[int, _Ack]]] = {}
        for shown in self._shown:
            if shown.op_id in acks and shown.op_id not in self._dead:
                number, ack = acks[shown.op_id]
                if not self._may_be_wiped(ack, before=shown.at):
                    line = (shown.partition, shown.subject, shown.token.domain, shown.token.resource, ack.store)
                    lines.setdefault(line, []).append((number, ack))
        for (partition, *_), applied in lines.items():
            last: dict[str, tuple[int, _Ack]] = {}
            for number, ack in applied:
                if number < last.get(ack.tab, (number, ack))[0]:
                    verdict.disordered.append(_disorder(partition, ack, last[ack.tab][1]))
                last[ack.tab] = (number, ack)
            first: _Ack | None = None  # of those applied later, the one acknowledged first
            for _, ack in reversed(applied):
                if first is not None and ack.asked_at is not None and first.tab != ack.tab:
                    if first.at is not None and first.at < ack.asked_at:
                        verdict.disordered.append(_disorder(partition, first, ack))
                if ack.at is not None and (first is None or first.at is None or ack.at < first.at):
                    first = ack


def _disorder(partition: str, earlier: _Ack, later: _Ack) -> str:
    return f"in partition {partition!r}, {later.op_id!r} took effect before {earlier.op_id!r}, which was enqueued first"
