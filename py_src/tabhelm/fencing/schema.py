"""The stores of an app's database ``tabhelm:app``: shared by all protocols and bundles, so version 1 for ever.

Records only ever gain fields. A breaking change gets a new database name and drains the old one.
"""

from __future__ import annotations

from tabhelm.ports.database import Index, Schema, Store

FENCING = "fencing"
"""``{key: "domain", …}`` and ``{key: "epoch:<token resource>", …}``: who may write. One record a key."""
OPERATIONS = "operations"
"""What is still to be sent: one record an operation, under ``[queue, partition, ordinal]``, the order of sending:
one request deletes what was sent of a partition. Ordinals number a queue's operations as they were enqueued."""
DEAD_LETTERS = "dead-letters"
"""Operations that need a person, each with its reason, under their old numbers."""
PARTITIONS = "partitions"
"""Where to look for work: one record for each partition that may hold operations. A hint that may say too much and
never too little; what holds is in ``operations``."""
CLAIMS = "claims"
"""What is in flight: one record a claim, naming the operations that it took."""
RECEIPTS = "receipts"
"""Operations that were committed, for a while: the same id enqueued again is recognised. One record a settlement."""
COUNTERS = "counters"
"""Running totals, one record a queue."""

ORDER = "order"
"""Index of ``operations``: ``[queue, ordinal]``, the order of enqueueing."""
IDENTIFIER = "identifier"
"""Index of ``operations``, ``dead-letters`` and ``receipts``: ``[queue, op_id]``; unique in the first two."""
READY = "ready"
"""Index of ``partitions``: ``[queue, ready]``, where ``ready`` is the name of a partition that nothing holds back."""
DUE = "due"
"""Index of ``partitions``: ``[queue, due]``, where ``due`` is the time at which a waiting partition goes on."""
SETTLED = "settled"
"""Index of ``receipts``: ``[queue, settled_at]``, for forgetting them in time."""

SCHEMA = Schema(
    version=1,
    stores=(
        Store(FENCING, key_path="key"),
        Store(
            OPERATIONS,
            key_path=("queue", "partition", "ordinal"),
            indexes=(
                Index(ORDER, ("queue", "ordinal")),
                Index(IDENTIFIER, ("queue", "op_id"), unique=True),
            ),
        ),
        Store(
            DEAD_LETTERS,
            key_path=("queue", "ordinal"),
            indexes=(Index(IDENTIFIER, ("queue", "op_id"), unique=True),),
        ),
        Store(
            PARTITIONS,
            key_path=("queue", "partition"),
            indexes=(Index(READY, ("queue", "ready")), Index(DUE, ("queue", "due"))),
        ),
        Store(CLAIMS, key_path=("queue", "claim")),
        Store(
            RECEIPTS,
            key_path=("queue", "ordinal"),
            indexes=(
                Index(SETTLED, ("queue", "settled_at")),
                Index(IDENTIFIER, "identifiers", multi_entry=True),
            ),
        ),
        Store(COUNTERS, key_path="key"),
    ),
)
