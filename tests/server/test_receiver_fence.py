"""Who may write: epochs, owners, streams, barriers, subjects."""

from __future__ import annotations

import pytest
from receiver_kit import Client, MakeClient, operation, token

from tabhelm.fencing.guard import EpochGuard, Marks, StrictGuard
from tabhelm.fencing.token import FencingToken


async def refusal(client: Client, shown: FencingToken, op_id: str = "late") -> dict[str, object]:
    answer = await client.batch(shown, operation(op_id))
    assert answer.status_code == 409
    assert answer.headers["content-type"] == "application/problem+json"
    problem = answer.json()
    assert problem["type"] == "urn:tabhelm:stale-token" and problem["status"] == 409
    assert op_id not in client.applied()
    high_water: dict[str, object] = problem["high_water"]
    return high_water


async def test_lower_epoch_is_refused_for_ever(client: Client) -> None:
    assert await client.statuses(token(5, 1, owner="old"), operation("a")) == ["committed"]
    assert await client.statuses(token(6, 1, owner="new"), operation("b")) == ["committed"]
    for seq in (2, 1000):
        assert await refusal(client, token(5, seq, owner="old")) == {"epoch": 6, "seq": 1, "owner": "new"}
    assert client.applied() == ["a", "b"]


async def test_stale_owner_gets_no_duplicate_answer(client: Client) -> None:
    """What it had committed it may not learn this way: the refusal comes first, and the outcome is the successor's."""
    await client.statuses(token(1, 1, owner="old"), operation("a"))
    await client.statuses(token(2, 1, owner="new"))
    assert (await client.batch(token(1, 2, owner="old"), operation("a"))).status_code == 409
    assert await client.statuses(token(2, 2, owner="new"), operation("a")) == ["duplicate"]


async def test_equal_epochs_of_two_owners(client: Client) -> None:
    assert await client.statuses(token(3, 1, owner="first"), operation("a")) == ["committed"]
    assert await refusal(client, token(3, 9, owner="second")) == {"epoch": 3, "seq": 1, "owner": "first"}
    assert await client.statuses(token(3, 2, owner="first"), operation("b")) == ["committed"]


async def test_overtaken_is_told_by_its_own_epoch_and_owner(client: Client) -> None:
    assert await client.statuses(token(1, 5), operation("a")) == ["committed"]
    for seq in (4, 5):
        assert await refusal(client, token(1, seq)) == {"epoch": 1, "seq": 5, "owner": "tab-a"}
    assert await client.statuses(token(1, 6), operation("late")) == ["committed"], "a new token will do"


async def test_streams_do_not_overtake_each_other(client: Client) -> None:
    assert await client.statuses(token(1, 9, stream="lane-0"), operation("a")) == ["committed"]
    assert await client.statuses(token(1, 1, stream="lane-1"), operation("b")) == ["committed"]
    assert (await refusal(client, token(1, 1, stream="lane-1")))["seq"] == 1
    assert (await refusal(client, token(1, 9, stream="lane-0")))["seq"] == 9


async def test_new_epoch_forgets_the_streams_of_the_old_one(client: Client) -> None:
    for stream in ("lane-0", "lane-1"):
        await client.statuses(token(1, 50, stream=stream))
    assert await client.statuses(token(2, 1, stream="lane-0"), operation("a")) == ["committed"]
    assert client.query("SELECT stream, seq FROM tabhelm_streams") == [("lane-0", 1)]
    assert await client.statuses(token(2, 1, stream="lane-1"), operation("b")) == ["committed"]


async def test_barrier_shuts_the_old_leader_out_before_the_first_write(client: Client) -> None:
    await client.statuses(token(1, 1, owner="old"), operation("a"))
    answer = await client.batch(token(2, 1, owner="new", stream="barrier"))
    assert (answer.status_code, answer.json()) == (200, {"results": []})
    assert await refusal(client, token(1, 2, owner="old")) == {"epoch": 2, "seq": 0, "owner": "new"}
    assert (await client.batch(token(2, 1, owner="new", stream="barrier"))).status_code == 409, (
        "a barrier is a write too"
    )


async def test_rejected_operations_raise_the_marks_all_the_same(client: Client) -> None:
    assert await client.statuses(token(2, 1, owner="new"), operation("a", {"reject": "no"})) == ["rejected"]
    assert (await client.batch(token(1, 9, owner="old"))).status_code == 409


async def test_refused_write_leaves_no_trace(client: Client) -> None:
    await client.statuses(token(2, 5, owner="new"), operation("a"))
    before = client.query("SELECT * FROM tabhelm_marks"), client.query("SELECT * FROM tabhelm_streams")
    for shown in (token(1, 9, owner="old"), token(2, 9, owner="other", stream="x"), token(2, 5, owner="new")):
        await refusal(client, shown)
    assert (client.query("SELECT * FROM tabhelm_marks"), client.query("SELECT * FROM tabhelm_streams")) == before
    assert client.query("SELECT op_id FROM tabhelm_operations") == [("a",)]


@pytest.mark.parametrize("other", [{"domain": "d2"}, {"resource": "app:other"}])
async def test_marks_of_other_domains_and_resources_are_their_own(client: Client, other: dict[str, str]) -> None:
    await client.statuses(token(7, 7, owner="a"), operation("a"))
    assert await client.statuses(token(1, 1, owner="b", **other), operation("b")) == ["committed"]
    assert (await client.batch(token(6, 9, owner="a"))).status_code == 409


async def test_subjects_never_meet(make_client: MakeClient) -> None:
    def authenticate(scope: dict[str, object]) -> str:
        return dict(scope["headers"])[b"x-user"].decode()  # type: ignore[call-overload, no-any-return]

    client = make_client(authenticate=authenticate)
    one = await client.batch(token(9, 1, owner="a"), operation("same", 1), **{"X-User": "one"})
    two = await client.batch(token(1, 1, owner="b"), operation("same", 2), **{"X-User": "two"})
    assert [each.json()["results"][0]["status"] for each in (one, two)] == ["committed", "committed"]
    assert client.query("SELECT subject, op_id FROM applied ORDER BY n") == [("one", "same"), ("two", "same")]


async def test_epoch_guard_takes_writes_in_any_order(make_client: MakeClient) -> None:
    client = make_client(guard=EpochGuard())
    for seq, op_id in ((3, "c"), (1, "a"), (2, "b"), (2, "b")):
        assert (await client.single(token(1, seq), op_id, {})).status_code == 200
    assert client.applied() == ["c", "a", "b"]
    await client.statuses(token(2, 1, owner="new"))
    assert (await client.single(token(1, 4), "d", {})).status_code == 409
    assert client.applied() == ["c", "a", "b"]


async def test_marks_outlive_the_receiver(make_client: MakeClient) -> None:
    first = make_client()
    await first.statuses(token(4, 4), operation("a"))
    await first.receiver.close()
    second = make_client()
    assert await refusal(second, token(4, 4)) == {"epoch": 4, "seq": 4, "owner": "tab-a"}
    assert await second.statuses(token(4, 5), operation("a")) == ["duplicate"]


class NotStrict(StrictGuard):
    def in_order(self, seen: int, token: FencingToken) -> bool:
        return token.seq >= seen


class OwnerBlind(StrictGuard):
    def current(self, marks: Marks, token: FencingToken) -> bool:
        return token.epoch == marks.epoch


@pytest.mark.parametrize(
    ("guard", "shown"), [(NotStrict(), token(1, 1)), (OwnerBlind(), token(1, 2, owner="second"))], ids=["seq", "owner"]
)
async def test_a_faulty_guard_lets_the_write_through(
    make_client: MakeClient, guard: StrictGuard, shown: FencingToken
) -> None:
    """The receiver rests on its guard alone: what the tests above refuse is refused by these very comparisons."""
    client = make_client(guard=guard)
    await client.statuses(token(1, 1), operation("a"))
    assert await client.statuses(shown, operation("b")) == ["committed"]
