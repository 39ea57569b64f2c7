"""The stores of an app's database ``tabhelm:app``: shared by all protocols and bundles, so version 1 for ever.

Records only ever gain fields. A breaking change gets a new database name and drains the old one.
"""

from __future__ import annotations

from tabhelm.ports.database import Index, Schema, Store

FENCING = "fencing"
"""``{key: "domain", …}`` and ``{key: "epoch:<token resource>", …}``: who may write. One record a key."""
OPERATIONS = "operations"
"""What is still to be sent, and dead letters: one record an operation, ordered by ``ordinal`` (order of enqueueing)."""
RECEIPTS = "receipts"
"""Operations that were committed, for a while: the same id enqueued again is recognised."""
COUNTERS = "counters"
"""Running totals, one record a key."""

LINE = "line"
"""Index of ``operations``: ``[queue, state, ordinal]``."""
IDENTIFIER = "identifier"
"""Unique index of ``operations``: ``[queue, op_id]``."""
SETTLED = "settled"
"""Index of ``receipts``: ``[queue, settled_at]``, for forgetting them in time."""

SCHEMA = Schema(
    version=1,
    stores=(
        Store(FENCING, key_path="key"),
        Store(
            OPERATIONS,
            key_path="ordinal",
            auto_increment=True,
            indexes=(
                Index(LINE, ("queue", "state", "ordinal")),
                Index(IDENTIFIER, ("queue", "op_id"), unique=True),
            ),
        ),
        Store(RECEIPTS, key_path=("queue", "op_id"), indexes=(Index(SETTLED, ("queue", "settled_at")),)),
        Store(COUNTERS, key_path="key"),
    ),
)
