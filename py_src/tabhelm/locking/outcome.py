"""What a single flight gave, in a form that can go to other tabs."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from tabhelm.errors import FlightFailed, NotCloneable, TabhelmError
from tabhelm.json_text import exact_text, loads

MAX_RESULT = 200_000
"""Characters of a result's JSON text, as it is quoted in a message: with its name it must fit into one."""
MAX_REASON = 2_000


@dataclass(frozen=True, slots=True)
class Outcome:
    """``value`` is JSON text (``None``: nothing was given), unless ``error``, the name of an error, says that it
    failed."""

    value: str | None = None
    error: str = ""
    reason: str = ""
    code: str = ""

    @classmethod
    def of_error(cls, error: Exception) -> Outcome:
        """How it failed, for those who did not run it."""
        if isinstance(error, FlightFailed):  # from the page that ran it
            return cls(None, error.kind, error.reason, error.origin)
        code = error.code if isinstance(error, TabhelmError) else ""
        return cls(None, type(error).__name__, str(error)[:MAX_REASON], code)

    def get(self, key: str) -> Any:
        """The value, read anew.

        Raises:
            FlightFailed: it failed.
        """
        if self.error:
            raise FlightFailed(key, self.error, self.reason, self.code)
        return None if self.value is None else loads(self.value)


def check_size(text: str | None, key: str) -> str | None:
    """Return the JSON text of a result.

    Raises:
        NotCloneable: it is too large for one message.
    """
    if text is not None and (size := len(json.dumps(text))) > MAX_RESULT:
        raise NotCloneable(
            f"the result of {key!r} is {size:,} characters long as quoted JSON; at most {MAX_RESULT:,} can go to other "
            "tabs: store it, and give them where it is"
        )
    return text


def result_text(value: object, key: str) -> str:
    """A result as JSON text.

    Raises:
        NotCloneable: JSON cannot hold it, or it is too large; names the place.
    """
    text = exact_text("result", value)
    check_size(text, key)
    return text
