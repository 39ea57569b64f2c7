"""One request against one transaction: judge the token, then each operation in its own savepoint. No I/O of its own."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TypeVar

from tabhelm.fencing.guard import StrictGuard
from tabhelm.server.contract import KEY_REUSED, Operation, Result, Write, stale
from tabhelm.server.effects import Effect, Reject, Retry
from tabhelm.server.store import FenceTransaction, Key, Known, StoreBusy, TransactionBroken

T = TypeVar("T")
_FORGET_AT_ONCE = 20
_MAX_DETAIL = 500
_log = logging.getLogger("tabhelm.server")


class Refused(Exception):
    """The guard refused the token; ``problem`` is the answer, ``kind`` is ``stale`` or ``overtaken``."""

    def __init__(self, write: Write, kind: str, problem: Exception) -> None:
        super().__init__(str(problem))
        self.write = write
        self.kind = kind
        self.problem = problem


def perform(
    transaction: FenceTransaction[T],
    write: Write,
    subject: str,
    guard: StrictGuard,
    apply: Callable[[Effect, T], object],
    now: float,
    retention: float,
) -> list[Result]:
    """Judge and apply; the results are in the order of the operations. The caller commits.

    Raises:
        Refused: the token is stale or overtaken. Nothing was written.
        StoreBusy, TransactionBroken: the transaction is lost. Nothing was written.
    """
    token = write.token
    key = Key(subject, token.domain, token.resource)
    marks = transaction.marks(key, token.stream)
    verdict = guard.judge(marks, token)
    if verdict.marks is None:
        assert verdict.high_water is not None
        raise Refused(write, verdict.kind, stale(token, verdict.high_water, verdict.kind))
    transaction.raise_marks(key, marks, verdict.marks, token.stream)
    transaction.forget(now, _FORGET_AT_ONCE + 2 * len(write.operations))  # faster than they come
    stopped: set[str] = set()
    results = []
    for operation in write.operations:
        if operation.partition in stopped:
            result = Result(operation.op_id, "skipped")
        else:
            effect = Effect(operation.op_id, operation.partition, operation.payload, token, subject, now)
            result = _one(transaction, operation, effect, apply, now + retention)
            if result.status not in ("committed", "duplicate"):
                stopped.add(operation.partition)
        results.append(result)
    return results


def _one(
    transaction: FenceTransaction[T],
    operation: Operation,
    effect: Effect,
    apply: Callable[[Effect, T], object],
    expires_at: float,
) -> Result:
    op_id = operation.op_id
    known = transaction.known(effect.subject, op_id)
    if known is not None:
        if known.digest != operation.digest:
            detail = f"{KEY_REUSED}: this operation id came before with another payload"
            return Result(op_id, "rejected", detail, key_reused=True)
        return Result(op_id, "duplicate") if known.status == "committed" else Result(op_id, "rejected", known.detail)
    try:
        with transaction.savepoint():
            apply(effect, transaction.application)
            transaction.remember(effect.subject, op_id, Known(operation.digest, "committed", "", expires_at))
        return Result(op_id, "committed")
    except Reject as rejection:
        detail = rejection.reason[:_MAX_DETAIL]
        if rejection.final:
            transaction.remember(effect.subject, op_id, Known(operation.digest, "rejected", detail, expires_at))
        return Result(op_id, "rejected", detail)
    except Retry as retry:
        return Result(op_id, "retry", retry.reason[:_MAX_DETAIL], retry.after)
    except (StoreBusy, TransactionBroken):
        raise
    except Exception:
        # A mistake of the application: the sender may not lose its operation for it, nor learn its insides.
        _log.exception("apply failed on operation %r of %r", op_id, effect.token.resource)
        return Result(op_id, "retry", "the receiver failed on this operation; its log says why")
