"""What a page says of its candidacies: its own functions' word on each, and how its loop does while it leads."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tabhelm.election.eligibility import MAX_REASON
from tabhelm.errors import MalformedMessage
from tabhelm.host.page_loop import PageLoop
from tabhelm.host.wire import Message, field, optional_text
from tabhelm.json_text import is_number
from tabhelm.leadership import Election
from tabhelm.ports import Clock

HEALTH = ("ok", "failing")


class PageStanding:
    """``handlers``: the page's messages about it, by type."""

    def __init__(
        self,
        clock: Clock,
        election: Callable[[str], Election | None],
        loop: Callable[[Message], PageLoop | None],
    ) -> None:
        self._clock = clock
        self._election = election
        self._loop = loop
        self.handlers: dict[str, Callable[[Message], None]] = {
            "candidacy": self.candidacy,
            "progress": self._progress,
        }

    def candidacy(self, message: Message) -> None:
        """What the page's ``eligible`` and ``score`` say now.

        Raises:
            MalformedMessage: the score is no number.
        """
        election = self._election(field(message, "election", str))
        unfit = optional_text(message, "unfit")
        score: Any = message.get("score", 0)
        if not is_number(score):
            raise MalformedMessage(f"{message.get('type')!r} message: score {score!r:.60} is no number")
        if election is not None:  # else it has just ended
            election.page_says(unfit[:MAX_REASON] or "ineligible" if unfit is not None else None, float(score))

    def _progress(self, message: Message) -> None:
        loop = self._loop(message)
        tenure = loop.tenure(field(message, "grant", int)) if loop is not None else None
        health = optional_text(message, "health")
        if health is not None and health not in HEALTH:
            raise MalformedMessage(f"'progress' message: health {health!r:.60} is not one of {', '.join(HEALTH)}")
        if tenure is None:
            return  # it was over when this came
        if health is not None:
            tenure.set_health(health)
        if "progress" in message:
            tenure.report(message["progress"], self._clock.monotonic())
