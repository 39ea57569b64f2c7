"""What every protected write carries: who writes, under which grant, and where in which order."""

from __future__ import annotations

from dataclasses import dataclass

from tabhelm.errors import MalformedToken

MAX_TEXT = 512
MAX_NUMBER = 999_999_999_999_999
"""The greatest integer of a Structured Field (RFC 9651): epochs and sequence numbers travel as such."""


@dataclass(frozen=True, slots=True)
class FencingToken:
    """One protected write of one tenure.

    ``domain`` names the set of epochs that may be compared, ``resource`` what is protected, ``epoch`` the grant,
    ``owner_id`` its holder. ``stream`` has one issuer and one order, in which ``seq`` grows with each write.

    Raises:
        MalformedToken: a field is of a wrong type or out of range; names it.
    """

    domain: str
    resource: str
    epoch: int
    stream: str
    seq: int
    owner_id: str

    def __post_init__(self) -> None:
        for name in ("domain", "resource", "stream", "owner_id"):
            _check_text(name, getattr(self, name))
        for name in ("epoch", "seq"):
            _check_number(name, getattr(self, name), least=1)


@dataclass(frozen=True, slots=True)
class HighWater:
    """The highest mark that a receiver has seen: of a (subject, domain, resource) and, there, of a stream."""

    epoch: int
    seq: int
    owner_id: str

    def __post_init__(self) -> None:
        _check_number("epoch", self.epoch, least=1)
        _check_number("seq", self.seq, least=0)
        _check_text("owner", self.owner_id)


def _check_text(name: str, value: object) -> None:
    if not isinstance(value, str) or not 1 <= len(value) <= MAX_TEXT or not value.isascii() or not value.isprintable():
        raise MalformedToken(f"{name} {repr(value)[:80]} is not valid: 1 to {MAX_TEXT} printable ASCII characters")


def _check_number(name: str, value: object, *, least: int) -> None:
    if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= MAX_NUMBER:
        raise MalformedToken(f"{name} {repr(value)[:40]} is not valid: a whole number of {least} to {MAX_NUMBER}")
