"""What a history proves or refutes, for people and for programs."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any

_RULES = {
    "lost": "acknowledged and lost",
    "doubled": "applied more than once",
    "disordered": "out of order within a partition",
    "stale": "accepted from a stale owner",
    "ungranted": "accepted without a durable grant",
    "overtaken": "accepted out of order within a stream",
    "leaked": "accepted behind a barrier",
    "shared_epochs": "epochs granted twice",
    "fallen_epochs": "epochs that did not increase",
}


@dataclass
class Verdict:
    """Counts, facts, and a list of violations for each rule: one sentence each."""

    acknowledged: int = 0
    accepted: int = 0
    grants: int = 0
    dead: list[str] = field(default_factory=list)
    """Acknowledged operations that are dead letters: told, not lost."""
    wiped: list[str] = field(default_factory=list)
    """Acknowledged operations that went with the storage."""
    lost: list[str] = field(default_factory=list)
    doubled: list[str] = field(default_factory=list)
    disordered: list[str] = field(default_factory=list)
    stale: list[str] = field(default_factory=list)
    ungranted: list[str] = field(default_factory=list)
    overtaken: list[str] = field(default_factory=list)
    leaked: list[str] = field(default_factory=list)
    shared_epochs: list[str] = field(default_factory=list)
    fallen_epochs: list[str] = field(default_factory=list)

    @property
    def broken(self) -> dict[str, list[str]]:
        """The rules that were broken, each with its violations."""
        return {rule: found for rule in _RULES if (found := getattr(self, rule))}

    @property
    def violations(self) -> list[str]:
        """All violations, each with its rule's name in front."""
        return [f"{rule}: {text}" for rule, found in self.broken.items() for text in found]

    @property
    def ok(self) -> bool:
        return not self.broken

    def require(self, context: str = "") -> None:
        """Raise ``AssertionError`` with the whole verdict unless all held; ``context`` (a seed) goes in front."""
        if not self.ok:
            raise AssertionError(f"{context}: {self}" if context else str(self))

    def as_dict(self) -> dict[str, Any]:
        """Plain data, for JSON."""
        return {**asdict(self), "ok": self.ok}

    def __str__(self) -> str:
        told = [f"{len(self.dead)} dead letters"] if self.dead else []
        told += [f"{len(self.wiped)} wiped with the storage"] if self.wiped else []
        counts = ", ".join([f"{self.acknowledged} acknowledged, {self.accepted} applied, {self.grants} grants", *told])
        if self.ok:
            return f"every promise held ({counts})"
        lines = [f"{sum(map(len, self.broken.values()))} violations ({counts})"]
        for rule, found in self.broken.items():
            lines += [f"  {_RULES[rule]}:", *(f"    {text}" for text in found[:20])]
            lines += [f"    … and {len(found) - 20} more"] if len(found) > 20 else []
        return "\n".join(lines)
