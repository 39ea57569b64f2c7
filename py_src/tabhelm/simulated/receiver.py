"""A fenced receiver in memory: the HTTP contract, atomic, with a log of accepted effects for history checkers.

``guard`` may be replaced, for instance by one with a fault, to see whether a test notices.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, Protocol

from tabhelm.fencing.guard import Marks, StrictGuard
from tabhelm.fencing.http_form import parse_token_header
from tabhelm.fencing.token import FencingToken, HighWater
from tabhelm.ports.http import HttpAnswer
from tabhelm.simulated.http import HttpRequest
from tabhelm.simulated.world import World

Verdict = Literal["committed", "rejected", "retry"]


@dataclass(frozen=True, slots=True)
class Effect:
    """One operation that took effect, in the order of ``SimulatedReceiver.accepted``."""

    op_id: str
    partition: str
    payload: Any
    token: FencingToken
    subject: str
    at: float
    """Virtual time."""


@dataclass(frozen=True, slots=True)
class _Known:
    payload: str
    at: float


class Guard(Protocol):
    def judge(self, subject: str, token: FencingToken) -> HighWater | None:
        """Raise the marks and return ``None``, or refuse and return the mark that the token does not exceed."""


class RememberingGuard:
    """The real rule, with the marks in memory."""

    def __init__(self, rule: StrictGuard | None = None) -> None:
        self._rule = rule or StrictGuard()
        self._marks: dict[tuple[str, str, str], Marks] = {}

    def judge(self, subject: str, token: FencingToken) -> HighWater | None:
        key = (subject, token.domain, token.resource)
        verdict = self._rule.judge(self._marks.get(key), token)
        if verdict.marks is not None:
            self._marks[key] = verdict.marks
        return verdict.high_water


class SimulatedReceiver:
    """Answers one URL prefix. ``apply`` decides on an operation's effect; ``subject`` names who sends a request.

    Operation ids are forgotten after ``retention`` virtual seconds, which it advertises.
    """

    def __init__(
        self,
        world: World,
        prefix: str,
        *,
        guard: Guard | None = None,
        apply: Callable[[dict[str, Any]], Verdict] = lambda operation: "committed",
        subject: Callable[[HttpRequest], str] = lambda request: "user",
        retention: float = 30 * 86_400.0,
    ) -> None:
        self.guard = guard or RememberingGuard()
        self.accepted: list[Effect] = []
        self.tokens: list[FencingToken] = []
        """Every token that was not refused, barriers included."""
        self.refused: list[FencingToken] = []
        self.on_judged: Callable[[FencingToken, bool], None] | None = None
        """Called with each token and whether it was accepted."""
        self._world = world
        self._apply = apply
        self._subject = subject
        self._retention = retention
        self._known: dict[tuple[str, str], _Known] = {}
        world.network.route(prefix, self.handle)

    async def handle(self, request: HttpRequest) -> HttpAnswer:
        """Fence check, duplicate check and effects happen in one step: nothing else runs in between."""
        try:
            token = parse_token_header(request.headers["fencing-token"])
            operations, single = _operations(request)
        except (ValueError, KeyError, TypeError) as error:
            return _problem(400, "urn:tabhelm:malformed", {"detail": str(error)})
        self._forget()
        subject = self._subject(request)
        mark = self.guard.judge(subject, token)
        (self.tokens if mark is None else self.refused).append(token)
        if self.on_judged is not None:
            self.on_judged(token, mark is None)
        if mark is not None:
            self._world.note("receiver", f"refused {token.resource} {token.epoch}.{token.seq} of {token.owner_id}")
            high_water = {"epoch": mark.epoch, "seq": mark.seq, "owner": mark.owner_id}
            return _problem(409, "urn:tabhelm:stale-token", {"high_water": high_water})
        self._world.note("receiver", f"took {token.resource} {token.epoch}.{token.seq} of {token.owner_id}")
        results = self._perform(subject, token, operations)
        if single and results[0].get("detail") == "urn:tabhelm:key-reused":
            return _problem(422, "urn:tabhelm:key-reused", {})
        headers = {"content-type": "application/json", "tabhelm-retention": f"{self._retention:.0f}"}
        return HttpAnswer(200, headers, json.dumps({"results": results}))

    def _perform(self, subject: str, token: FencingToken, operations: list[dict[str, Any]]) -> list[dict[str, Any]]:
        stopped: set[str] = set()
        results: list[dict[str, Any]] = []
        for operation in operations:
            result = {"op_id": operation["op_id"], "status": "skipped"}
            if operation["partition"] not in stopped:
                result |= self._one(subject, token, operation)
                if result["status"] not in ("committed", "duplicate"):
                    stopped.add(operation["partition"])
            results.append(result)
        return results

    def _one(self, subject: str, token: FencingToken, operation: dict[str, Any]) -> dict[str, str]:
        key = (subject, operation["op_id"])
        payload = json.dumps(operation["payload"], sort_keys=True)
        if key in self._known:
            if self._known[key].payload != payload:
                return {"status": "rejected", "detail": "urn:tabhelm:key-reused"}
            return {"status": "duplicate"}
        verdict = self._apply(operation)
        if verdict == "committed":
            self._known[key] = _Known(payload, self._world.loop.time())
            effect = Effect(
                operation["op_id"],
                operation["partition"],
                operation["payload"],
                token,
                subject,
                self._world.loop.time(),
            )
            self.accepted.append(effect)
        return {"status": verdict}

    def _forget(self) -> None:
        """What is older than the retention comes first: ids are added in the order of time and never again."""
        oldest = self._world.loop.time() - self._retention
        while self._known and self._known[key := next(iter(self._known))].at < oldest:
            del self._known[key]


def _operations(request: HttpRequest) -> tuple[list[dict[str, Any]], bool]:
    body = json.loads(request.body or "{}")
    identifier = request.headers.get("idempotency-key")
    if identifier is not None:
        return [{"op_id": json.loads(identifier), "partition": "default", "payload": body}], True
    operations = body["operations"]
    for operation in operations:
        if not isinstance(operation["op_id"], str) or not isinstance(operation["partition"], str):
            raise ValueError("op_id and partition must be texts")
        operation["payload"]  # must be there
    return operations, False


def _problem(status: int, kind: str, more: dict[str, Any]) -> HttpAnswer:
    body = json.dumps({"type": kind, "title": kind, "status": status, **more})
    return HttpAnswer(status, {"content-type": "application/problem+json"}, body)
