"""web/guard.mjs on the vectors of its Python twin, in Node.js: what needs no storage."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tests.fencing.vectors import MALFORMED_TOKENS, SEQUENCES

from tabhelm_build.bundle import WEB
from tabhelm_build.node import run_node

HERE = Path(__file__).parent


@pytest.fixture(scope="module")
def told() -> dict[str, Any]:
    arguments = [str(HERE / "guard_script.mjs"), str(WEB / "guard.mjs"), str(HERE / "guard_vectors.json")]
    found: dict[str, Any] = json.loads(run_node(arguments, cwd=WEB, what="playing the vectors").splitlines()[-1])
    return found


@pytest.mark.parametrize("number", range(len(SEQUENCES)), ids=[each["name"] for each in SEQUENCES])
def test_it_judges_as_python_does(told: dict[str, Any], number: int) -> None:
    for step, played in zip(SEQUENCES[number]["steps"], told["played"][number], strict=True):
        expected = {key: value for key, value in step.items() if key != "token"}
        assert played["judged"] == expected
        memory = {key: value for key, value in expected.items() if key != "marks"}
        assert played["memory"] == memory
        assert played["current"] == (step["verdict"] != "stale")


def test_what_is_no_token_is_refused(told: dict[str, Any]) -> None:
    assert told["refused"] == [{"verdict": "TypeError"}] * len(MALFORMED_TOKENS)


def test_results_are_applied_while_the_tenure_stands_alone(told: dict[str, Any]) -> None:
    assert (told["inTime"], told["byItself"]) == (42, "no token is needed")
    assert told["applied"] == ["begun", "leadership-lost", "leadership-lost"]


def test_a_worker_answers_stale_owners_in_a_typed_way(told: dict[str, Any]) -> None:
    first, second, late, again, none, long, bad = told["answers"]
    assert (first, second) == ({"ok": True, "value": ["a", True]}, {"ok": True, "value": ["b", True]})
    stale = {"ok": False, "error": "STALE_OWNER"}
    assert late == {**stale, "highWater": {"epoch": 2, "seq": 1, "owner": "o2"}, "overtaken": False}
    assert again == {**stale, "highWater": {"epoch": 2, "seq": 1, "owner": "o2"}, "overtaken": True}
    assert (none["ok"], none["error"]) == (False, "MALFORMED_TOKEN")
    assert long == {"ok": True, "value": ["long", False]}, "a newer owner came while it worked"
    assert bad == "RangeError", "an error of the job is no answer of the guard"
