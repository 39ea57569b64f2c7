"""The history checker itself: every rule has a history that breaks it and one that only looks like it."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tabhelm.fencing import FencingToken
from tabhelm.testing.history import History
from tabhelm.testing.verdict import Verdict


def token(epoch: int = 1, seq: int = 1, owner: str = "a", stream: str = "lane-0") -> FencingToken:
    return FencingToken("d", "r", epoch, stream, seq, owner)


def grant(history: History, *owners: str) -> None:
    for epoch, owner in enumerate(owners, 1):
        history.granted(domain="d", resource="r", epoch=epoch, owner=owner)


def judged(fill: Callable[[History], None], *owners: str) -> Verdict:
    history = History()
    grant(history, *(owners or ("a", "b")))
    fill(history)
    return history.check()


def test_a_good_run() -> None:
    def fill(history: History) -> None:
        for number in range(3):
            history.acknowledged(f"op{number}", tab="t")
        history.shown(token())
        history.shown(token(seq=2))
        history.accepted("op0", token(seq=2))
        history.accepted("op1", token(seq=2))  # a batch: one token, several effects
        history.accepted("op2", token(epoch=2, owner="b"))

    verdict = judged(fill)
    assert verdict.ok and verdict.violations == []
    assert (verdict.acknowledged, verdict.accepted, verdict.grants) == (3, 3, 2)
    assert str(verdict) == "every promise held (3 acknowledged, 3 applied, 2 grants)"
    verdict.require()


def lost(history: History) -> None:
    history.acknowledged("op")


def doubled(history: History) -> None:
    history.accepted("op", token())
    history.accepted("op", token(seq=2))


def stale_epoch(history: History) -> None:
    history.shown(token(epoch=2, owner="b"))
    history.accepted("op", token())


def stale_owner(history: History) -> None:
    history.granted(domain="d", resource="r", epoch=1, owner="x", store="a cloned profile")
    history.accepted("op", token())
    history.accepted("op2", token(owner="x", seq=2))


def ungranted(history: History) -> None:
    history.accepted("op", token(epoch=3, owner="c"))


def overtaken(history: History) -> None:
    history.shown(token(seq=2))
    history.shown(token(seq=2))


def leaked(history: History) -> None:
    history.began(token(epoch=2, owner="b"), at=10.0)
    history.accepted("op", token(), at=11.0)


def shared(history: History) -> None:
    history.granted(domain="d", resource="r", epoch=2, owner="c")


def fallen(history: History) -> None:
    history.granted(domain="d", resource="r", epoch=4, owner="c")
    history.granted(domain="d", resource="r", epoch=3, owner="d")


def disordered_in_a_tab(history: History) -> None:
    history.acknowledged("op1", tab="t")
    history.acknowledged("op2", tab="t")
    history.accepted("op2", token())
    history.accepted("op1", token(seq=2))


def disordered_across_tabs(history: History) -> None:
    history.acknowledged("op1", tab="t", asked_at=1.0, at=2.0)
    history.acknowledged("op2", tab="u", asked_at=3.0, at=4.0)
    history.accepted("op2", token())
    history.accepted("op1", token(seq=2))


def lost_though_something_was_wiped_once(history: History) -> None:
    # No times: nobody says that it was there when the storage went.
    history.wiped(at=1.0)
    history.acknowledged("op")


def lost_after_the_wipe(history: History) -> None:
    history.wiped(at=1.0)
    history.acknowledged("op", asked_at=2.0, at=3.0)


def disordered_without_times(history: History) -> None:
    history.wiped(at=1.0)
    disordered_in_a_tab(history)


@pytest.mark.parametrize(
    ("rule", "fill"),
    [
        ("lost", lost),
        ("lost", lost_though_something_was_wiped_once),
        ("lost", lost_after_the_wipe),
        ("disordered", disordered_without_times),
        ("doubled", doubled),
        ("stale", stale_epoch),
        ("stale", stale_owner),
        ("ungranted", ungranted),
        ("overtaken", overtaken),
        ("leaked", leaked),
        ("shared_epochs", shared),
        ("fallen_epochs", fallen),
        ("disordered", disordered_in_a_tab),
        ("disordered", disordered_across_tabs),
    ],
)
def test_each_rule_is_found_alone(rule: str, fill: Callable[[History], None]) -> None:
    verdict = judged(fill)
    assert list(verdict.broken) == [rule]
    assert len(verdict.violations) == 1 and verdict.violations[0].startswith(f"{rule}: ")
    with pytest.raises(AssertionError, match="seed 7: 1 violations"):
        verdict.require("seed 7")
    assert verdict.as_dict()["ok"] is False


def dead(history: History) -> None:
    history.acknowledged("op")
    history.event({"type": "operation-died", "queue": "q", "operation": "op", "reason": "rejected"})


def wiped(history: History) -> None:
    history.acknowledged("op", asked_at=1.0, at=3.0)
    history.wiped(at=2.0)


def wiped_between_two_calls_for_it(history: History) -> None:
    # The page that asked first is no more; its successor's call is answered after the wipe, from before it.
    step_began = 1.0
    history.acknowledged("op", asked_at=step_began, at=3.0)
    history.wiped(at=2.0)


def rested_before_the_wipe(history: History) -> None:
    history.acknowledged("op1", asked_at=1.0, at=2.0)
    history.rested(at=3.0)
    history.acknowledged("op2", asked_at=4.0, at=5.0)
    history.wiped(at=6.0)


def other_partition(history: History) -> None:
    for op_id, partition in (("op1", "a"), ("op2", "b")):
        history.acknowledged(op_id, tab="t", partition=partition)
    history.accepted("op2", token(), partition="b")
    history.accepted("op1", token(seq=2), partition="a")


def at_the_same_time(history: History) -> None:
    history.acknowledged("op1", tab="t", asked_at=1.0, at=3.0)
    history.acknowledged("op2", tab="u", asked_at=2.0, at=4.0)
    history.accepted("op2", token())
    history.accepted("op1", token(seq=2))


def late_but_before_the_barrier(history: History) -> None:
    history.accepted("op", token(), at=9.0)
    history.began(token(epoch=2, owner="b"), at=10.0)


def repeated_event(history: History) -> None:
    event = {"type": "epoch-issued", "domain": "d", "resource": "r", "epoch": 2, "owner": "b", "authority": "x"}
    history.event(event)
    history.event({"type": "leadership-changed"})


def forgotten_by_a_wiped_store(history: History) -> None:
    history.wiped(at=1.0)
    history.granted(domain="d", resource="r", epoch=1, owner="c")


def stored_again_after_a_wipe(history: History) -> None:
    history.acknowledged("op1", tab="t", asked_at=1.0, at=2.0)
    history.acknowledged("op2", tab="t", asked_at=4.0, at=5.0)
    history.wiped(at=3.0)
    history.accepted("op2", token(), at=6.0)
    history.accepted("op1", token(seq=2), at=7.0)


def other_streams(history: History) -> None:
    history.shown(token(seq=5))
    history.shown(token(seq=1, stream="page"))


@pytest.mark.parametrize(
    "fill",
    [
        dead, wiped, wiped_between_two_calls_for_it, other_partition, at_the_same_time, late_but_before_the_barrier,
        repeated_event, forgotten_by_a_wiped_store, stored_again_after_a_wipe, other_streams,
    ],
)  # fmt: skip
def test_what_only_looks_like_a_violation_is_none(fill: Callable[[History], None]) -> None:
    judged(fill).require()


def test_dead_and_wiped_operations_are_reported() -> None:
    assert judged(dead).dead == ["op"]
    assert judged(wiped).wiped == ["op"]


def test_what_is_gone_from_a_queue_that_said_it_was_empty_is_lost() -> None:
    verdict = judged(rested_before_the_wipe)
    assert verdict.wiped == ["op2"] and len(verdict.lost) == 1 and "'op1'" in verdict.lost[0]


def test_the_effects_that_a_server_lists_are_taken_as_they_are() -> None:
    history = History(grants_known=False)
    effect = {
        "op_id": "op", "partition": "p", "payload": {"n": 1}, "domain": "d", "resource": "r", "epoch": 2,
        "stream": "lane-0", "seq": 1, "owner": "b", "accepted_at_ms": 5_000,
    }  # fmt: skip
    history.effects([effect, {**effect, "op_id": "op2"}, {**effect, "op_id": "op3", "epoch": 1, "owner": "a"}])
    verdict = history.check()
    assert list(verdict.broken) == ["stale"] and verdict.accepted == 3
    assert "epoch 1 was accepted after epoch 2 had been seen" in verdict.stale[0]


def test_a_receiver_with_the_epoch_guard_keeps_no_order_within_a_stream() -> None:
    history = History(sequences=False)
    grant(history, "a")
    overtaken(history)
    history.check().require()
