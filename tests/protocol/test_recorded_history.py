"""A history recorded in real tabs holds; with the marks of any one fault in it, it does not.

``recorded_history.jsonl`` is what ``e2e/offline_queue/test_history.py`` saves, of a short run: tabs killed, frozen,
stopped and offline, a receiver that failed, was silent, got requests twice and late, and a wiped database.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tabhelm.testing.recording import Recording

Entries = list[dict[str, Any]]
_FILE = Path(__file__).with_name("recorded_history.jsonl")


def entries() -> Entries:
    return Recording.load(_FILE).entries


def effects(found: Entries) -> Entries:
    return [entry for entry in found if entry["log"] == "effect"]


def broken(found: Entries) -> set[str]:
    return set(Recording(found).history().check().broken)


def test_the_run_held() -> None:
    verdict = Recording(entries()).history().check()
    verdict.require()
    assert verdict.acknowledged > 200 and verdict.grants > 3 and verdict.dead and verdict.wiped


def test_what_was_saved_is_read_as_it_was(tmp_path: Path) -> None:
    recording = Recording(entries())
    recording.save(tmp_path / "again.jsonl")
    assert Recording.load(tmp_path / "again.jsonl").entries == recording.entries
    assert recording.count("effect") == len(effects(entries()))


def asked_after_the_wipe(found: Entries) -> dict[str, str]:
    """Operations that no wipe excuses, with the tab of each."""
    wiped = max(entry["at"] for entry in found if entry["log"] == "wiped")
    return {e["op_id"]: e["tab"] for e in found if e["log"] == "ack" and (e["asked_at"] or 0) > wiped}


def test_any_effect_that_is_missing_is_found() -> None:
    # A queue that forgets an operation, or believes an answer that was none.
    found = entries()
    known = asked_after_the_wipe(found)
    missing = [effect for effect in effects(found) if effect["op_id"] in known]
    assert len(missing) > 50
    for effect in missing[::7]:
        assert broken([entry for entry in found if entry is not effect]) == {"lost"}


def test_any_effect_that_comes_again_is_found() -> None:
    # A receiver without its duplicate check, a queue that sends what was settled.
    found = entries()
    newest = effects(found)[-1]
    for number, effect in enumerate(effects(found)[::7], 1):
        again = {**newest, "op_id": effect["op_id"], "partition": effect["partition"], "seq": newest["seq"] + number}
        assert "doubled" in broken([*found, again])


def test_any_two_effects_of_one_tab_and_partition_that_change_places_are_found() -> None:
    # A queue that does not wait for the first of a partition before it sends the second.
    found = entries()
    tabs = asked_after_the_wipe(found)
    last: dict[tuple[str, str], int] = {}
    pairs = 0
    for place, entry in enumerate(found):
        if entry["log"] != "effect" or entry["op_id"] not in tabs:
            continue
        line = (tabs[entry["op_id"]], entry["partition"])
        before = last.get(line)
        last[line] = place
        if before is None:
            continue
        pairs += 1
        if pairs % 5 == 0:
            mutant = list(found)
            mutant[before] = {**found[before], "op_id": entry["op_id"]}
            mutant[place] = {**entry, "op_id": found[before]["op_id"]}
            assert broken(mutant) == {"disordered"}
    assert pairs > 50


def a_stale_leader_gets_through(found: Entries) -> Entries:
    epochs = sorted({effect["epoch"] for effect in effects(found)})
    late = [effect for effect in effects(found) if effect["epoch"] == epochs[-2]][-1]
    return [*(entry for entry in found if entry is not late), late]


def an_owner_without_its_epoch(found: Entries) -> Entries:
    last = effects(found)[-1]
    return [*found[:-1], {**last, "owner": "somebody else", "seq": last["seq"] + 1}]


def a_grant_that_was_never_durable(found: Entries) -> Entries:
    epoch = effects(found)[-1]["epoch"]
    return [entry for entry in found if not (entry.get("type") == "epoch-issued" and entry["epoch"] == epoch)]


def a_request_that_is_taken_again(found: Entries) -> Entries:
    # The same token for two requests: others came between.
    last = effects(found)[-1]
    request = [effect for effect in effects(found) if effect["epoch"] == last["epoch"] and effect["seq"] < last["seq"]][
        -1
    ]
    return [*(entry for entry in found if entry is not last), {**last, "seq": request["seq"]}]


def an_epoch_granted_twice(found: Entries) -> Entries:
    grant = next(entry for entry in found if entry.get("type") == "epoch-issued")
    return [grant, {**grant, "owner": "somebody else"}, *(entry for entry in found if entry is not grant)]


def a_dead_letter_that_nobody_told(found: Entries) -> Entries:
    return [entry for entry in found if entry.get("type") != "operation-died"]


def a_wipe_that_never_was(found: Entries) -> Entries:
    return [entry for entry in found if entry["log"] != "wiped"]


def lost_before_the_wipe(found: Entries) -> Entries:
    """Gone, though the queue had said that it was empty: the wipe is no excuse."""
    rest = next(place for place, entry in enumerate(found) if entry["log"] == "rested")
    before = {entry["op_id"] for entry in found[:rest] if entry["log"] == "ack"}
    gone = next(effect for effect in effects(found) if effect["op_id"] in before)
    return [entry for entry in found if entry is not gone]


def lost_without_a_time(found: Entries) -> Entries:
    """Gone, and nobody knows when it was asked for nor when it was stored: no wipe is an excuse for that."""
    known = asked_after_the_wipe(found)
    gone = next(effect for effect in effects(found) if effect["op_id"] in known)
    timeless = {"asked_at": None, "at": None}
    return [
        entry | timeless if entry["log"] == "ack" and entry["op_id"] == gone["op_id"] else entry
        for entry in found
        if entry is not gone
    ]


@pytest.mark.parametrize(
    ("mutant", "rule"),
    [
        (a_stale_leader_gets_through, "stale"),
        (an_owner_without_its_epoch, "stale"),
        (a_grant_that_was_never_durable, "ungranted"),
        (a_request_that_is_taken_again, "overtaken"),
        (an_epoch_granted_twice, "shared_epochs"),
        (a_dead_letter_that_nobody_told, "lost"),
        (a_wipe_that_never_was, "lost"),
        (lost_before_the_wipe, "lost"),
        (lost_without_a_time, "lost"),
    ],
)
def test_each_fault_is_found(mutant: Callable[[Entries], Entries], rule: str) -> None:
    assert rule in broken(mutant(entries()))


def told(*operations: int) -> Entries:
    return [{"log": "event", "type": "queue-lost", "queue": "q", "operations": each} for each in operations]


def test_what_the_queue_reports_as_gone_is_counted_once_for_each_wipe() -> None:
    wiped, rested = {"log": "wiped", "at": 1.0}, {"log": "rested", "at": 2.0}
    # Three tabs of one engine say the same, and another engine knew of less; it may come before the wipe is over.
    assert Recording([*told(7), wiped, *told(7, 7, 2), rested]).told_lost() == [7]
    assert Recording([wiped, *told(7), rested, wiped, *told(3)]).told_lost() == [7, 3]
    assert Recording([wiped, rested]).told_lost() == [0], "it said nothing"
    assert Recording([wiped, *told(7), rested, *told(7)]).told_lost() == [7, 7], "nothing was wiped then"


def test_what_may_have_been_in_the_storage_is_what_was_asked_for_and_not_applied() -> None:
    found = Recording(entries())
    (waiting,) = found.waiting_when_wiped()
    verdict = found.history().check()
    assert len(verdict.wiped) <= waiting < verdict.acknowledged / 4, "some were on their way, and some were dead"
    asked, applied = {"asked_at": 2.0, "at": 3.0, "partition": "p", "tab": "a"}, {"log": "effect"}
    assert Recording(
        [
            {"log": "rested", "at": 1.0},
            *({"log": "ack", "op_id": each, **asked} for each in ("sent", "late", "never")),
            {"log": "ack", "op_id": "before", **asked, "asked_at": 0.1, "at": 0.2},
            {"log": "ack", "op_id": "after", **asked, "asked_at": 4.1, "at": 4.2},
            {"log": "event", "type": "operation-died", "operation": "dead"},
            {"log": "wiped", "at": 4.0},
            {"log": "event", "type": "operation-died", "operation": "later"},
            {**applied, "op_id": "sent", "accepted_at_ms": 3_500},
            {**applied, "op_id": "late", "accepted_at_ms": 4_500},
        ]
    ).waiting_when_wiped() == [3], "late, never, dead"
