"""The receiver's rule: what each kind of token does to the marks, and that a faulty rule would be noticed."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tabhelm.fencing.guard import EpochGuard, Marks, StrictGuard, Verdict
from tabhelm.fencing.token import FencingToken, HighWater


def token(epoch: int, seq: int, owner: str = "ann", stream: str = "lane") -> FencingToken:
    return FencingToken("domain", "app:job", epoch, stream, seq, owner)


SEEN = Marks(5, "ann", {"lane": 7, "page": 2})


@pytest.mark.parametrize("guard", [StrictGuard(), EpochGuard()])
def test_the_first_token_sets_the_marks(guard: StrictGuard) -> None:
    assert guard.judge(None, token(3, 9)) == Verdict("accepted", Marks(3, "ann", {"lane": 9}))


@pytest.mark.parametrize("guard", [StrictGuard(), EpochGuard()])
def test_a_newer_epoch_is_accepted_and_forgets_the_streams(guard: StrictGuard) -> None:
    assert guard.judge(SEEN, token(6, 1, "bob")) == Verdict("accepted", Marks(6, "bob", {"lane": 1}))


@pytest.mark.parametrize("guard", [StrictGuard(), EpochGuard()])
@pytest.mark.parametrize("late", [token(4, 99), token(4, 99, "bob"), token(5, 99, "bob"), token(5, 99, "bob", "new")])
def test_an_older_epoch_and_an_equal_one_of_another_owner_are_stale(guard: StrictGuard, late: FencingToken) -> None:
    verdict = guard.judge(SEEN, late)
    assert verdict == Verdict("stale", high_water=HighWater(5, SEEN.streams.get(late.stream, 0), "ann"))


@pytest.mark.parametrize(("seq", "kind"), [(6, "overtaken"), (7, "overtaken"), (8, "accepted")])
def test_within_a_stream_each_seq_must_be_greater(seq: int, kind: str) -> None:
    verdict = StrictGuard().judge(SEEN, token(5, seq))
    assert verdict.kind == kind
    if kind == "accepted":
        assert verdict == Verdict("accepted", Marks(5, "ann", {"lane": 8, "page": 2}))
    else:
        assert verdict == Verdict("overtaken", high_water=HighWater(5, 7, "ann"))


def test_streams_do_not_overtake_each_other() -> None:
    assert StrictGuard().judge(SEEN, token(5, 1, stream="other")).kind == "accepted"


def test_the_epoch_guard_takes_any_order_and_never_lowers_a_mark() -> None:
    assert EpochGuard().judge(SEEN, token(5, 3)) == Verdict("accepted", SEEN)


def test_the_marks_given_are_left_as_they_are() -> None:
    streams = {"lane": 7}
    StrictGuard().judge(Marks(5, "ann", streams), token(5, 8))
    assert streams == {"lane": 7}


tokens = st.builds(
    token,
    epoch=st.integers(1, 4),
    seq=st.integers(1, 4),
    owner=st.sampled_from(["ann", "bob"]),
    stream=st.sampled_from(["lane", "page"]),
)


def accepted(guard: StrictGuard, shown: Sequence[FencingToken]) -> list[FencingToken]:
    marks: Marks | None = None
    kept = []
    for each in shown:
        verdict = guard.judge(marks, each)
        if verdict.marks is not None:
            marks = verdict.marks
            kept.append(each)
    return kept


def breaches(log: Sequence[FencingToken]) -> list[str]:
    """What is wrong with a log of accepted tokens, found without the marks: by comparing every pair."""
    found = []
    for at, later in enumerate(log):
        for earlier in log[:at]:
            if later.epoch < earlier.epoch:
                found.append("an older epoch was accepted")
            elif later.epoch == earlier.epoch and later.owner_id != earlier.owner_id:
                found.append("two owners in one epoch")
            elif later.epoch == earlier.epoch and later.stream == earlier.stream and later.seq <= earlier.seq:
                found.append("no growth within a stream")
    return found


@given(st.lists(tokens, max_size=12))
def test_whatever_is_shown_the_accepted_tokens_are_in_order(shown: list[FencingToken]) -> None:
    assert breaches(accepted(StrictGuard(), shown)) == []
    assert set(breaches(accepted(EpochGuard(), shown))) <= {"no growth within a stream"}


@given(st.lists(tokens, max_size=12))
def test_nothing_is_refused_without_a_reason(shown: list[FencingToken]) -> None:
    marks: Marks | None = None
    for each in shown:
        verdict = StrictGuard().judge(marks, each)
        if verdict.marks is None:
            mark = verdict.high_water
            assert mark is not None
            assert (mark.epoch, mark.owner_id) == (each.epoch, each.owner_id) or verdict.kind == "stale"
            assert (mark.epoch, mark.seq) >= (each.epoch, each.seq) or mark.owner_id != each.owner_id
        marks = verdict.marks or marks


class NotStrictlyGreater(StrictGuard):
    def in_order(self, seen: int, token: FencingToken) -> bool:
        return token.seq >= seen


class OwnerNotCompared(StrictGuard):
    def current(self, marks: Marks, token: FencingToken) -> bool:
        return token.epoch == marks.epoch


class EqualIsNewer(StrictGuard):
    def newer(self, marks: Marks, token: FencingToken) -> bool:
        return token.epoch >= marks.epoch


@pytest.mark.parametrize(
    ("faulty", "breach"),
    [
        (NotStrictlyGreater(), "no growth within a stream"),
        (OwnerNotCompared(), "two owners in one epoch"),
        (EqualIsNewer(), "two owners in one epoch"),
    ],
)
def test_the_comparison_of_pairs_finds_faulty_rules(faulty: StrictGuard, breach: str) -> None:
    shown = [token(1, 1), token(1, 2), token(1, 2), token(1, 3, "bob"), token(2, 1, "bob"), token(1, 4)]
    assert breach in breaches(accepted(faulty, shown))
    assert breaches(accepted(StrictGuard(), shown)) == []
