"""How fast to send, and what to make of a failure: is it the receiver, or one operation?

A failure of many operations says nothing of any of them: the next batch is half as large, until one fails alone. What
fails alone, though others got through since it last did, is a *suspect*: its failures count as its own, and it is sent
by itself from then on. Where nothing else could be sent meanwhile, an empty batch tells the two apart. While nothing
gets through, the receiver is to blame: everything waits, and nobody is counted out.
"""

from __future__ import annotations

from collections.abc import Sequence

from tabhelm.election import Backoff
from tabhelm.ports import Clock, Entropy
from tabhelm.queue.options import QueueOptions
from tabhelm.queue.records import Operation, Outcome
from tabhelm.queue.transports import Sent

_SUSPECTS = 16


class Pace:
    """Of one flusher: all its lanes wait together when the endpoint asks for it."""

    def __init__(self, clock: Clock, entropy: Entropy, options: QueueOptions) -> None:
        self.size = options.batch
        """Operations in the next claim."""
        self.alone: dict[str, str] = {}
        """Suspects, each to be sent by itself, with their partitions."""
        self._most = options.batch
        """What ``size`` grows to: less once the receiver would not take as many."""
        self._clock = clock
        self._entropy = entropy
        self._options = options
        self._backoff = Backoff(entropy, options.base_delay, options.max_delay)
        self._until = 0.0
        self._answers = 0
        """Sends that were answered."""
        self._answers_at: dict[str, int] = {}
        """As of the last failure of each suspect."""
        self._failures = 0
        """Of the app's own sender, in a row."""
        self._felled = ""
        """The operation after which the endpoint took no empty batch either, if nothing was answered since."""
        self._fruitless = Backoff(entropy, options.base_delay, options.max_delay)
        """For operations of which it is said that nothing happened, for no reason."""

    @property
    def pause(self) -> float:
        """Seconds to wait before anything is sent again."""
        return max(0.0, self._until - self._clock.monotonic())

    def wait(self, seconds: float) -> None:
        """Send nothing for so long."""
        self._until = max(self._until, self._clock.monotonic() + seconds)

    def storage_failed(self) -> float:
        """Seconds to wait before the database is asked again."""
        return self._backoff.next()

    def answered(self, operations: Sequence[Operation]) -> None:
        """It works: forget failures, and send more at a time."""
        self.reached()
        self._answers += 1
        self._felled = ""
        self.size = min(self._most, self.size * 2)
        for operation in operations:
            self._clear(operation)

    def reached(self) -> None:
        """The receiver answers."""
        self._backoff.reset()
        self._failures = 0

    def unfit(self, operations: Sequence[Operation]) -> None:
        """The receiver will not take these in one request, now or ever: fewer at a time, in this tenure. Unless one is
        refused alone: it may have been why others were refused with it."""
        if len(operations) == 1:
            self._most = self._options.batch
        else:
            self._most = self.size = max(1, min(self._most, len(operations) // 2))

    def not_reached(self, sent: Sent) -> None:
        """Nothing can be sent now, whatever it is."""
        self.wait(max(self._backoff.next(), sent.retry_after or 0.0))

    def passed_by(self, operation: Operation) -> bool:
        """Whether others were answered since it failed last."""
        return self._answers > self._answers_at.get(operation.op_id, self._answers)

    def failed(
        self, operations: Sequence[Operation], sent: Sent, *, well: bool = False
    ) -> tuple[dict[str, Outcome], dict[str, float]]:
        """A send of unknown outcome: what to write down of each operation, and for how long it waits. ``well``: the
        endpoint took an empty batch right after it."""
        if len(operations) > 1:
            self.size = max(1, len(operations) // 2)
            calm = self._entropy.uniform(self._options.base_delay / 2, self._options.base_delay)
            self.wait(max(self._backoff.next() if sent.silent else calm, sent.retry_after or 0.0))
            return {item.op_id: Outcome(item.op_id, "unknown", sent.detail) for item in operations}, {}
        (operation,) = operations
        failed = {operation.op_id: Outcome(operation.op_id, "failed", sent.detail, sent.retry_after)}
        guilty = sent.kind == "failed" or self.passed_by(operation)
        self._suspect(operation)
        if guilty:
            self._failures += 1
            if self._failures > 1:
                self.wait(self._backoff.next())
            return self.judged([operation], failed)
        # Nothing gets through: no faster than to a receiver that is down. The other partitions go first.
        self.not_reached(sent)
        # The endpoint took an empty batch before this was sent again, and takes none after it, again: it dies of it.
        felled_again = self._felled == operation.op_id and not sent.offline
        self._felled = "" if well else operation.op_id
        if not well and not felled_again:
            unknown = Outcome(operation.op_id, "unknown", sent.detail)
            return {operation.op_id: unknown}, {operation.op_id: self.pause * 2}
        outcomes, delays = self.judged([operation], failed)
        return outcomes, {op_id: max(delay, self.pause * 2) for op_id, delay in delays.items()}

    def judged(
        self, operations: Sequence[Operation], outcomes: dict[str, Outcome]
    ) -> tuple[dict[str, Outcome], dict[str, float]]:
        """Outcomes, with those dead that failed too often, and for how long the others wait."""
        delays: dict[str, float] = {}
        stopped: set[str] = set()
        if any(outcome.done for outcome in outcomes.values()):
            self._fruitless.reset()
        for operation in operations:
            outcome = outcomes.get(operation.op_id)
            if outcome is None or outcome.status not in ("retry", "failed"):
                # Not tried, or who knows, though nothing before it failed: soon again, but not at once.
                if outcome is not None and not outcome.done and operation.partition not in stopped:
                    if outcome.status in ("skipped", "unknown"):
                        delays[operation.op_id] = self._fruitless.next()
                    stopped.add(operation.partition)
                continue
            stopped.add(operation.partition)
            most = self._options.max_attempts
            if operation.attempts + 1 >= most:
                detail = f"gave up after {most} attempts: {outcome.detail}"
                outcomes[operation.op_id] = Outcome(operation.op_id, "rejected", detail)
                self._clear(operation)
            else:
                delays[operation.op_id] = self._delay(operation, outcome)
        return outcomes, delays

    def _delay(self, operation: Operation, outcome: Outcome) -> float:
        full = min(self._options.max_delay, self._options.base_delay * 2.0 ** min(operation.attempts, 30))
        return max(self._entropy.uniform(full / 2, full), outcome.retry_after or 0.0)

    def _suspect(self, operation: Operation) -> None:
        self._clear(operation)
        self._answers_at[operation.op_id] = self._answers
        self.alone[operation.op_id] = operation.partition
        while len(self.alone) > _SUSPECTS:
            self.alone.pop(known := next(iter(self.alone)))
            self._answers_at.pop(known)

    def _clear(self, operation: Operation) -> None:
        self.alone.pop(operation.op_id, None)
        self._answers_at.pop(operation.op_id, None)
