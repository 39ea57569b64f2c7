"""The records that say where to look for work. A hint: what holds is read from the operations themselves.

A record with ``ready`` is looked at by the next claim, one with ``due`` when its time has come, one with neither (its
partition waits for a person) by none. Whoever enqueues writes ``ready`` without a look, which is cheap, and may say too
much; the claim that looks then writes what is true. A claim that takes all there is deletes the record; what comes back
brings it along. So nobody ever needs to walk through operations that cannot be sent.
"""

from __future__ import annotations

from tabhelm.ports.database import Record


def ready(queue: str, partition: str) -> Record:
    return {"queue": queue, "partition": partition, "ready": partition}


def waiting(queue: str, partition: str, due: float, since: float) -> Record:
    """``since`` is when the wait began: a clock that shows less was set back, and the wait is over."""
    return {"queue": queue, "partition": partition, "due": due, "since": since}


def blocked(queue: str, partition: str) -> Record:
    return {"queue": queue, "partition": partition}
