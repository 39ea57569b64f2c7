"""What the receiver hands to an application's ``apply``, and what ``apply`` may answer by raising."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Literal

from tabhelm.fencing.token import FencingToken


@dataclass(frozen=True, slots=True)
class Effect:
    """One operation whose token was accepted and whose id is new: apply it, inside the transaction given with it.

    ``payload`` is the decoded JSON value; ``subject`` is who ``authenticate`` said the sender is; ``accepted_at`` is
    in seconds since 1970.
    """

    op_id: str
    partition: str
    payload: Any
    token: FencingToken
    subject: str
    accepted_at: float


class Reject(Exception):
    """Raise it from ``apply``: this operation can never be applied. What it wrote is undone.

    ``reason`` is shown to the sender. A final rejection is remembered like a commit: the same operation id gets the
    same answer again without a call of ``apply``. With ``final=False`` a repetition is judged afresh, for reasons
    that may pass (a dead letter that somebody retries after mending its cause).
    """

    def __init__(self, reason: str, *, final: bool = True) -> None:
        super().__init__(reason)
        self.reason = str(reason)  # whoever raises it with the error that was the reason means its text
        self.final = final


class Retry(Exception):
    """Raise it from ``apply``: not now, the same operation may be sent again. What it wrote is undone.

    ``after`` is a hint in seconds for the sender; it must be finite and not negative (``ValueError``).
    """

    def __init__(self, reason: str, after: float | None = None) -> None:
        super().__init__(reason)
        if after is not None and not 0 <= after < math.inf:
            raise ValueError(f"after={after!r} is not valid: seconds, finite and not negative")
        self.reason = str(reason)
        self.after = after


class Denied(Exception):
    """Raise it from ``authenticate``: 401, not signed in, or 403, signed in but not allowed."""

    def __init__(self, status: Literal[401, 403], reason: str) -> None:
        super().__init__(reason)
        self.status = status
        self.reason = str(reason)
