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


names = st.text(st.characters(codec="utf-8"), max_size=30)


@given(names, names)
def test_no_name_breaks_it_and_none_is_shown(lock: str, tab: str) -> None:
    assert isinstance(A.lock(lock, "app"), str)
    assert isinstance(A.resource(lock, "app"), str)
    hidden = A.cleaned({"tab": tab}, "app")["tab"]
    assert all(part == "" or part.startswith("~") for part in hidden.split(":"))
