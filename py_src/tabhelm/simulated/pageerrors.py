"""Errors as a page knows them: those of its client alone, and those that its engine sends."""

from __future__ import annotations

from typing import Any

from tabhelm.errors import TabhelmError


class Refused(TabhelmError):
    """The engine will never have this page. A code of the page client alone."""

    code = "refused"


class NoAnswer(TabhelmError):
    """A living engine owed an answer for too long; the outcome is unknown. A code of the page client alone."""

    code = "no-answer"


def wire_error(error: dict[str, Any]) -> TabhelmError:
    """The error of the tree with this code (its message as sent)."""
    kinds: list[type[TabhelmError]] = [TabhelmError]
    for kind in kinds:
        kinds.extend(kind.__subclasses__())
        if kind.code == error.get("code"):
            made = kind.__new__(kind)
            Exception.__init__(made, str(error.get("message")))
            return made
    return TabhelmError(f"{error.get('code')}: {error.get('message')}")
