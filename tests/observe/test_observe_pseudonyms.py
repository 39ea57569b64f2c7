"""What may leave the browser: no id, no scope, no lock of somebody else's."""

from __future__ import annotations

import json

from hypothesis import given
from hypothesis import strategies as st

from tabhelm.observe import Pseudonyms

A, B = Pseudonyms("salt-a"), Pseudonyms("salt-b")


def test_the_same_id_is_the_same_word_in_one_report_and_in_no_other() -> None:
    assert A.hide("t-1") == Pseudonyms("salt-a").hide("t-1") != A.hide("t-2")
    assert A.hide("t-1") != B.hide("t-1")
    assert A.owner("t-1:c-1") == f"{A.hide('t-1')}:{A.hide('c-1')}"
    assert A.hide("") == ""
    # As the page's JavaScript does it: ~ and ten hex digits of SHA-256 over "salt:text".
    assert Pseudonyms("00ff").hide("t-1") == "~7bc8cbb52e"


def test_resources_keep_their_name_and_lose_their_scope() -> None:
    user = f"{A.hide('user')}:{A.hide('123')}"
    assert A.resource("sync") == "sync"
    assert A.resource("sync:user:123") == f"sync:{user}"
    assert A.resource("app:sync:user:123", "app") == f"app:sync:{user}"
    assert A.resource("app:offline-queue:mutations:user:123", "app") == f"app:offline-queue:mutations:{user}"
    assert A.resource("offline-queue:mutations") == "offline-queue:mutations"


def test_locks_tell_what_they_are_for_and_not_whose() -> None:
    assert A.lock("app:v1:leader:job", "app") == "app:v1:leader:job"
    assert A.lock("app:v1:leader:job:user:1", "app") == f"app:v1:leader:job:{A.owner('user:1')}"
    assert A.lock("app:v2:lifeline:t-1:c-1", "app") == f"app:v2:lifeline:{A.owner('t-1:c-1')}"
    assert A.lock("app:v1:engine:e-1", "app") == f"app:v1:engine:{A.hide('e-1')}"
    for foreign in ("case of Mr. Smith", "other:v1:leader:job", "", "app:v1:coup:x"):
        assert A.lock(foreign, "app") == A.hide(foreign)


def test_fields_that_hold_ids_are_hidden_wherever_they_are() -> None:
    report = {
        "presence": [{"tabId": "t-1", "engineId": "e-1", "stands": ["app:r:user:1"], "version": "1.0", "n": 3}],
        "events": [{"type": "tab-joined", "tab": "t-1", "owner": "t-1:c-1", "resource": "app:r", "lock": "x"}],
        "domain": "d",
        "none": None,
    }
    cleaned = A.cleaned(report, "app")
    assert cleaned["presence"][0]["tabId"] == cleaned["events"][0]["tab"] == A.hide("t-1")
    assert cleaned["events"][0]["resource"] == "app:r" and cleaned["presence"][0]["version"] == "1.0"
    text = json.dumps(cleaned)
    for secret in ('"t-1', "c-1", '"e-1"', '"d"', "user"):
        assert secret not in text


def test_what_is_hidden_somewhere_is_hidden_in_every_text_of_the_report() -> None:
    report = {
        "tabs": [{"tabId": "t-one", "connectionId": "c-one", "stands": ["app:sync:user:bob"], "version": "bob"}],
        "events": [
            {"type": "task-failed", "task": "election app:sync:user:bob", "error": "KeyError: 'bob' of t-one (c-one)"},
            {
                "type": "loop-failed",
                "resource": "app:sync:user:bob",
                "error": "no sync:user:bob, no user:bob, no bobby",
            },
            {"lock": "app:v1:mutation:case:7", "error": "case:7 was not free for 7 s: app:v1:mutation:case:7"},
        ],
        "status": {"error": {"message": ["t-one:c-one", {"deep": "…t-one…"}]}},
    }
    user, bob = A.hide("user"), A.hide("bob")
    cleaned = Pseudonyms("salt-a").cleaned(report, "app")
    first, second, third = cleaned["events"]
    assert first["task"] == f"election app:sync:{user}:{bob}"
    assert first["error"] == f"KeyError: '{bob}' of {A.hide('t-one')} ({A.hide('c-one')})"
    assert second["error"] == f"no sync:{user}:{bob}, no {user}:{bob}, no bobby"
    seven = A.hide("7")
    assert third["error"] == f"case:{seven} was not free for 7 s: app:v1:mutation:case:{seven}", "figures stay"
    assert cleaned["status"]["error"]["message"] == [A.owner("t-one:c-one"), {"deep": f"…{A.hide('t-one')}…"}]
    assert cleaned["tabs"][0]["version"] == "bob", "words of ours and versions are no place for names"


def test_a_part_of_a_scope_that_is_the_name_of_something_else_stays_that_name() -> None:
    report = {
        "elections": [
            {"resource": "app:sync:app:sync:case"},
            {"lockName": "app:v1:leader:case"},
            {"resource": "app:case"},
        ],
        "events": [{"type": "case", "error": "app:case failed a case of app:sync"}],
    }
    cleaned = Pseudonyms("salt-a").cleaned(report, "app")
    assert cleaned["elections"][0]["resource"] == f"app:sync:{A.owner('app:sync:case')}"
    assert cleaned["elections"][1:] == report["elections"][1:]
    case, sync = A.hide("case"), A.hide("sync")
    assert cleaned["events"][0] == {"type": "case", "error": f"app:case failed a {case} of app:{sync}"}


def test_random_ids_are_hidden_in_texts_though_nobody_knows_them_any_more() -> None:
    gone = "t-00ffa1b2c3d4e5f6"
    text = f"held by tab '{gone}' of 0123456789abcdef0123; build 0123456789ab; 1764370000000 ms"
    assert Pseudonyms("salt-a").cleaned({"error": text}, "app")["error"] == (
        f"held by tab '{A.hide(gone)}' of {A.hide('0123456789abcdef0123')}; build 0123456789ab; 1764370000000 ms"
    )


names = st.text(st.characters(codec="utf-8"), max_size=30)


@given(names, names)
def test_no_name_breaks_it_and_none_is_shown(lock: str, tab: str) -> None:
    assert isinstance(A.lock(lock, "app"), str)
    assert isinstance(A.resource(lock, "app"), str)
    hidden = A.cleaned({"tab": tab}, "app")["tab"]
    assert all(part == "" or part.startswith("~") for part in hidden.split(":"))
