"""Numbers that JSON can hold and no float: a page's message with one is refused like any other that is wrong."""

from __future__ import annotations

import pytest

from tabhelm.election import LeadershipPolicy
from tabhelm.errors import InvalidPolicy, MalformedMessage
from tabhelm.host.wire import milliseconds
from tabhelm.json_text import is_number

HUGE = 10**400
WRONG = [HUGE, -HUGE, float("nan"), float("inf"), True, "1", None]


@pytest.mark.parametrize("value", WRONG)
def test_what_is_no_number(value: object) -> None:
    assert not is_number(value)


@pytest.mark.parametrize("value", [0, -1, 1.5, 2**53, 1.7e308])
def test_what_is_one(value: object) -> None:
    assert is_number(value)


@pytest.mark.parametrize("value", WRONG[:-1])
def test_a_time_of_a_page(value: object) -> None:
    with pytest.raises(MalformedMessage, match="stallAfterMs"):
        milliseconds({"type": "hello", "stallAfterMs": value}, "stallAfterMs", 1.0)


@pytest.mark.parametrize("key", ["graceMs", "maxHoldMs", "takeoverAfterMs", "actingAlarmMs"])
def test_a_time_of_a_policy(key: str) -> None:
    with pytest.raises(InvalidPolicy, match=key):
        LeadershipPolicy.from_wire({key: HUGE})
