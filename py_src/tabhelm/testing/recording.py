"""The logs of a run as they came in: kept in a file, judged as often as wanted.

A line of the file is one entry, ``{"log": "ack" | "event" | "rested" | "wiped" | "effect", …}``, in the order in which
they were noted. What a run in real browsers left behind can so be judged again, by a later checker, or with a mutation
that the checker must find.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from tabhelm.testing.history import History

_TOLD = ("epoch-issued", "operation-died", "queue-lost")
"""The events that say something about a history."""


class Recording:
    """Entries of one run. Times are seconds of the machine's wall clock."""

    def __init__(self, entries: Iterable[Mapping[str, Any]] = ()) -> None:
        self.entries: list[dict[str, Any]] = [dict(entry) for entry in entries]
        self._grants = {_grant(entry) for entry in self.entries if entry.get("type") == "epoch-issued"}

    @classmethod
    def load(cls, path: Path) -> Recording:
        """Read what ``save`` wrote."""
        return cls(json.loads(line) for line in path.read_text(encoding="utf-8").splitlines())

    def save(self, path: Path) -> None:
        """Write one JSON object a line."""
        path.write_text("".join(f"{json.dumps(entry)}\n" for entry in self.entries), encoding="utf-8")

    def acknowledged(
        self, op_id: str, *, partition: str, tab: str, asked_at: float | None = None, at: float | None = None
    ) -> None:
        """``enqueue()`` resolved; see ``History.acknowledged``."""
        self._note("ack", op_id=op_id, partition=partition, tab=tab, asked_at=asked_at, at=at)

    def event(self, event: Mapping[str, Any]) -> None:
        """An event of any tab; a grant is told by every tab, and the first to tell it counts."""
        if event.get("type") not in _TOLD:
            return
        if event["type"] == "epoch-issued":
            if _grant(event) in self._grants:
                return
            self._grants.add(_grant(event))
        self._note("event", **event)

    def wiped(self, *, at: float) -> None:
        """The storage is gone; ``at`` is when that was certain."""
        self._note("wiped", at=at)

    def rested(self, *, at: float) -> None:
        """The queue said that it is empty."""
        self._note("rested", at=at)

    def effects(self, effects: Iterable[Mapping[str, Any]]) -> None:
        """What the receiver accepted, in its order."""
        for effect in effects:
            self._note("effect", **effect)

    def count(self, log: str) -> int:
        """How many entries one log has."""
        return sum(entry["log"] == log for entry in self.entries)

    def told_lost(self) -> list[int]:
        """For each wipe, how many operations the queue itself reported as gone: the most that any tab was told.

        Every tab tells what its engine told it, and one engine may know of less than another. What is told before the
        queue says again that it is empty belongs to the wipe; a report without a wipe counts as one more.
        """
        found: list[int] = []
        told, wiped = 0, False
        for entry in [*self.entries, {"log": "rested"}]:
            if entry.get("type") == "queue-lost":
                told = max(told, entry["operations"])
            elif entry["log"] == "wiped":
                wiped = True
            elif entry["log"] == "rested":
                if wiped or told:
                    found.append(told)
                told, wiped = 0, False
        return found

    def waiting_when_wiped(self) -> list[int]:
        """For each wipe, the most acknowledged operations that may have been in the storage: asked for since the queue
        was empty and not applied by then, or dead."""
        applied = {entry["op_id"]: entry["accepted_at_ms"] / 1000 for entry in self.entries if entry["log"] == "effect"}
        found = []
        for place, wipe in enumerate(self.entries):
            if wipe["log"] != "wiped":
                continue
            before = self.entries[:place]
            empty = max((entry["at"] for entry in before if entry["log"] == "rested"), default=0.0)
            waiting = {
                entry["op_id"]
                for entry in self.entries
                if entry["log"] == "ack"
                and entry["at"] > empty
                and (entry["asked_at"] or entry["at"]) <= wipe["at"] < applied.get(entry["op_id"], math.inf)
            }
            dead = {entry["operation"] for entry in before if entry.get("type") == "operation-died"}
            found.append(len(waiting | dead))
        return found

    def history(self, *, grants_known: bool = True) -> History:
        """The entries as a history to be checked."""
        history = History(grants_known=grants_known)
        for entry in self.entries:
            fields = {key: value for key, value in entry.items() if key != "log"}
            match entry["log"]:
                case "ack":
                    history.acknowledged(fields.pop("op_id"), **fields)
                case "event":
                    history.event(fields)
                case "wiped":
                    history.wiped(at=fields["at"])
                case "rested":
                    history.rested(at=fields["at"])
                case "effect":
                    history.effect(fields)
        return history

    def _note(self, log: str, **fields: Any) -> None:
        self.entries.append({"log": log, **fields})


def _grant(event: Mapping[str, Any]) -> tuple[Any, ...]:
    return tuple(event[name] for name in ("domain", "resource", "epoch", "owner"))
