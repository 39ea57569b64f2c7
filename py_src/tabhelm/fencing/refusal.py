"""What a fenced receiver's refusal says: ``409`` ``urn:tabhelm:stale-token`` with its high water (RFC 9457)."""

from __future__ import annotations

from tabhelm.fencing.token import FencingToken, HighWater
from tabhelm.json_text import loads
from tabhelm.ports import HttpAnswer

STALE_TOKEN = "urn:tabhelm:stale-token"


def refused_high_water(answer: HttpAnswer) -> HighWater | None:
    """The high water of a refusal; ``None`` if the answer is no well-formed refusal of ours."""
    if answer.status != 409:
        return None
    try:
        problem = loads(answer.body)
        if problem["type"] != STALE_TOKEN:
            return None
        mark = problem["high_water"]
        return HighWater(epoch=mark["epoch"], seq=mark["seq"], owner_id=mark["owner"])
    except (ValueError, TypeError, KeyError):
        return None


def overtaken(token: FencingToken, high_water: HighWater) -> bool:
    """Whether the refusal is at the token's own epoch and owner: nothing is lost, a new token will do."""
    return (high_water.epoch, high_water.owner_id) == (token.epoch, token.owner_id)
