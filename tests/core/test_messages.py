"""Whatever arrives on the channel is read, or ignored for a reason; it never raises anything else."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tabhelm.messages import Beacon, Ignored, LeaderNote, LockAnswer, Nudge, TabNote, decode, encode

TAB = TabNote("t-1", "c-1", 1, "active", True, True, "1.0", ("x",), ("app:r",), 2.5)
BEACON = Beacon("e1", 7, 15.0, (TAB,), (LeaderNote("app:r", "t-1", "c-1", "d", 3, 1.0),))


def test_messages_round_trip() -> None:
    assert decode(encode(BEACON)) == BEACON
    nudge = Nudge("e1", "app:offline-queue:q", True)
    assert decode(encode(nudge)) == nudge


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (None, "not-text"),
        (42, "not-text"),
        ({"tabhelm": 1}, "not-text"),
        ("sched$x", "not-json"),
        ("[" * 100_000, "too-deep"),
        ("{}", "foreign"),
        ("[]", "foreign"),
        ('{"tabhelm": 2, "kind": "beacon"}', "version"),
        ('{"tabhelm": "1", "kind": "beacon"}', "version"),
        ('{"tabhelm": 1, "kind": "coup"}', "unknown-kind"),
        ('{"tabhelm": 1, "kind": ["beacon"]}', "unknown-kind"),
        ('{"tabhelm": 1, "kind": "beacon"}', "malformed"),
        ("x" * 5_000_000, "too-long"),
    ],
    ids=lambda value: str(value)[:24],
)
def test_hostile_and_old_messages_are_ignored_for_a_reason(data: object, reason: str) -> None:
    with pytest.raises(Ignored) as ignored:
        decode(data)
    assert ignored.value.reason == reason


HUGE = 10**400
"""JSON may say it, and no float can hold it."""
json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.just(HUGE) | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)


@given(st.sampled_from(sorted(json.loads(encode(BEACON)))), json_values)
def test_one_wrong_field_never_raises_anything_else(field: str, value: object) -> None:
    message = json.loads(encode(BEACON))
    message[field] = value
    try:
        decode(json.dumps(message))
    except Ignored:
        pass


@given(st.sampled_from(sorted(json.loads(encode(BEACON))["tabs"][0])), json_values)
def test_one_wrong_field_of_a_tab_never_raises_anything_else(field: str, value: object) -> None:
    message = json.loads(encode(BEACON))
    message["tabs"][0][field] = value
    try:
        decode(json.dumps(message))
    except Ignored:
        pass


@pytest.mark.parametrize("number", [HUGE, -HUGE], ids=["huge", "negative"])
@pytest.mark.parametrize(
    "path",
    [
        ("next",),
        ("number",),
        ("tabs", 0, "age"),
        ("tabs", 0, "scores", 0, 1),
        ("tabs", 0, "turns", 0, 1),
        ("leaders", 0, "age"),
        ("leaders", 0, "epoch"),
        ("leaders", 0, "progress"),
        ("leaders", 0, "progress_age"),
    ],
    ids=lambda path: ".".join(map(str, path)),
)
def test_a_number_that_no_float_holds_is_malformed(path: tuple[str | int, ...], number: int) -> None:
    tab = replace(TAB, scores=(("app:r", 1.0),), turns=(("app:r", 1),))
    message = place = json.loads(encode(replace(BEACON, tabs=(tab,))))
    for step in path[:-1]:
        place = place[step]
    place[path[-1]] = number
    with pytest.raises(Ignored, match="malformed"):
        decode(json.dumps(message))


def test_an_answer_about_a_lock_that_is_huge_is_malformed() -> None:
    message = json.loads(encode(LockAnswer("e1", "e2", 1, "app:v1:mutation:x", "t-1", 1.0, False)))
    message["age"] = HUGE
    with pytest.raises(Ignored, match="malformed"):
        decode(json.dumps(message))
