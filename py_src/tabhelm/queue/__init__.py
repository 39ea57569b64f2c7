"""What is still to be sent? A durable queue that any tab fills and one fenced leader empties."""

from __future__ import annotations

from tabhelm.queue.batches import Batch, batches
from tabhelm.queue.flusher import flush
from tabhelm.queue.options import QueueOptions
from tabhelm.queue.queue import Queue
from tabhelm.queue.records import Item, NewOperation, Operation, Outcome, QueueStats, draw_operation_id
from tabhelm.queue.sending import BatchSender, Sender, Sending
from tabhelm.queue.shared import QueueHub, SharedQueue
from tabhelm.queue.store import QueueStore

__all__ = [
    "Batch",
    "BatchSender",
    "Item",
    "NewOperation",
    "Operation",
    "Outcome",
    "Queue",
    "QueueHub",
    "QueueOptions",
    "QueueStats",
    "QueueStore",
    "Sender",
    "Sending",
    "SharedQueue",
    "batches",
    "draw_operation_id",
    "flush",
]
