"""One request against one transaction: judge the token, then each operation in its own savepoint. No I/O of its own."""

from __future__ import annotations

import inspect
from asyncio import CancelledError
from collections.abc import Callable
from typing import Literal, TypeVar

from tabhelm.fencing.guard import StrictGuard
from tabhelm.server.contract import KEY_REUSED, Operation, Result, Write, stale
from tabhelm.server.effects import Effect, Reject, Retry
from tabhelm.server.logs import log
from tabhelm.server.store import FenceTransaction, Key, Known, StoreBusy, TransactionBroken

T = TypeVar("T")
_MAX_DETAIL = 500


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
    if not write.operations:
        return []
    known = transaction.known(subject, [operation.op_id for operation in write.operations])
    # A clock that is behind now will be right again: nothing is to be forgotten before what was accepted earlier.
    expires_at = now + retention if len(known) == len(write.operations) else max(now + retention, transaction.newest())
    decided: dict[str, Known] = {}
    stopped: set[str] = set()
    results = []
    for operation in write.operations:
        op_id = operation.op_id
        if operation.partition in stopped:
            results.append(Result(op_id, "skipped"))
            continue
        before = known.get(op_id) or decided.get(op_id)
        if before is not None:
            result = _again(operation, before)
        else:
            effect = Effect(op_id, operation.partition, operation.payload, token, subject, now)
            result, final = _first(transaction, effect, apply)
            if final:
                status: Literal["committed", "rejected"] = "committed" if result.status == "committed" else "rejected"
                decided[op_id] = Known(operation.digest, status, result.detail, expires_at)
        if result.status not in ("committed", "duplicate"):
            stopped.add(operation.partition)
        results.append(result)
    if decided:
        transaction.remember(subject, decided)
    return results


def _again(operation: Operation, known: Known) -> Result:
    """The answer to an operation that was decided on before."""
    op_id = operation.op_id
    if known.digest != operation.digest:
        detail = f"{KEY_REUSED}: this operation id came before with another payload"
        return Result(op_id, "rejected", detail, key_reused=True)
    return Result(op_id, "duplicate") if known.status == "committed" else Result(op_id, "rejected", known.detail)


def _first(
    transaction: FenceTransaction[T], effect: Effect, apply: Callable[[Effect, T], object]
) -> tuple[Result, bool]:
    """Apply it; the result, and whether it is to be remembered."""
    op_id = effect.op_id
    try:
        with transaction.savepoint():
            _require_done(apply(effect, transaction.application))
        return Result(op_id, "committed"), True
    except Reject as rejection:
        return Result(op_id, "rejected", _told(rejection.reason)), rejection.final
    except Retry as retry:
        return Result(op_id, "retry", _told(retry.reason), retry.after), False
    except (StoreBusy, TransactionBroken):
        raise
    except (Exception, SystemExit, CancelledError):  # the last two would end the server, or leave without an answer
        # A mistake of the application: the sender may not lose its operation for it, nor learn its insides.
        log.exception("apply failed on operation %a of %a", op_id, effect.token.resource)
        return Result(op_id, "retry", "the receiver failed on this operation; its log says why"), False


def _require_done(returned: object) -> None:
    """What ``apply`` returns means nothing; but of a coroutine or generator nothing has been run yet, nor ever will be.

    Raises:
        TypeError: it is one.
    """
    if inspect.iscoroutine(returned) or inspect.isgenerator(returned):
        returned.close()
    elif not inspect.isawaitable(returned) and not inspect.isasyncgen(returned):
        return
    raise TypeError(f"apply must have done its work when it returns, it returned {type(returned).__name__}")


def _told(reason: str) -> str:
    """An application's reason may quote what a sender sent: NUL and halves of characters, which no database takes."""
    return reason[:_MAX_DETAIL].replace("\0", "\ufffd").encode("utf-16", "surrogatepass").decode("utf-16", "replace")
