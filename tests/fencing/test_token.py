"""What a token may hold, and what a refusal says."""

from __future__ import annotations

import dataclasses
import json
from typing import Any

import pytest

from tabhelm.errors import MalformedToken
from tabhelm.fencing.refusal import STALE_TOKEN, overtaken, refused_high_water
from tabhelm.fencing.token import MAX_NUMBER, MAX_TEXT, FencingToken, HighWater
from tabhelm.ports import HttpAnswer

TOKEN = FencingToken("d0", "app:job", 7, "lane", 12, "ann")


@pytest.mark.parametrize("name", ["domain", "resource", "stream", "owner_id"])
@pytest.mark.parametrize("value", ["", "x" * (MAX_TEXT + 1), "grün", "a\nb", "\x7f", None, 7, b"x"])
def test_texts_are_checked_by_name(name: str, value: Any) -> None:
    with pytest.raises(MalformedToken, match=name):
        dataclasses.replace(TOKEN, **{name: value})


@pytest.mark.parametrize("name", ["epoch", "seq"])
@pytest.mark.parametrize("value", [0, -1, MAX_NUMBER + 1, 1.0, "1", True, None])
def test_numbers_are_checked_by_name(name: str, value: Any) -> None:
    with pytest.raises(MalformedToken, match=name):
        dataclasses.replace(TOKEN, **{name: value})


def test_the_widest_values_are_allowed() -> None:
    FencingToken("~" * MAX_TEXT, " ", MAX_NUMBER, '"', MAX_NUMBER, "\\")
    HighWater(1, 0, "ann")


def refusal(status: int = 409, **body: Any) -> HttpAnswer:
    problem = {"type": STALE_TOKEN, "high_water": {"epoch": 8, "seq": 3, "owner": "bob"}, **body}
    return HttpAnswer(status, {"content-type": "application/problem+json"}, json.dumps(problem))


def test_a_refusal_gives_its_high_water() -> None:
    assert refused_high_water(refusal()) == HighWater(8, 3, "bob")
    assert refused_high_water(refusal(title="more", detail="members")) == HighWater(8, 3, "bob")


@pytest.mark.parametrize(
    "answer",
    [
        refusal(status=200),
        refusal(type="about:blank"),
        refusal(high_water=None),
        refusal(high_water={"epoch": 8, "seq": 3}),
        refusal(high_water={"epoch": "8", "seq": 3, "owner": "bob"}),
        refusal(high_water={"epoch": True, "seq": 3, "owner": "bob"}),
        refusal(high_water={"epoch": 8, "seq": -1, "owner": "bob"}),
        refusal(high_water={"epoch": 8, "seq": 3, "owner": ""}),
        HttpAnswer(409, {}, "<!doctype html>"),
        HttpAnswer(409, {}, ""),
        HttpAnswer(409, {}, "[]"),
        HttpAnswer(409, {}, "null"),
        HttpAnswer(409, {}, "[" * 100_000),
    ],
)
def test_anything_else_is_no_refusal(answer: HttpAnswer) -> None:
    assert refused_high_water(answer) is None


def test_overtaken_is_at_ones_own_epoch_and_owner() -> None:
    assert overtaken(TOKEN, HighWater(7, 20, "ann"))
    assert not overtaken(TOKEN, HighWater(7, 20, "bob"))
    assert not overtaken(TOKEN, HighWater(8, 1, "ann"))
