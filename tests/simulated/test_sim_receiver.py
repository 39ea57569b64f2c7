"""The simulated receiver keeps the HTTP contract; its guard agrees with one written independently."""

from __future__ import annotations

import json
from random import Random
from typing import Any

from tabhelm.fencing import FencingToken
from tabhelm.fencing.http_form import token_header
from tabhelm.ports import HttpAnswer
from tabhelm.simulated import HttpRequest, RememberingGuard, SimulatedReceiver, World

URL = "https://here/"


def token(epoch: int, seq: int, owner: str = "a", stream: str = "s") -> FencingToken:
    return FencingToken("domain", "app:job", epoch, stream, seq, owner)


def operation(op_id: str, partition: str = "p", payload: Any = 1) -> dict[str, Any]:
    return {"op_id": op_id, "partition": partition, "payload": payload}


class Sender:
    """Shows requests to a receiver directly: it answers without waiting for anything."""

    def __init__(self, **options: Any) -> None:
        with World(1) as world:
            self.receiver = SimulatedReceiver(world, URL, **options)

    def send(
        self, shown: FencingToken | None, *operations: dict[str, Any], headers: Any = None, body: Any = None
    ) -> HttpAnswer:
        sent = {} if shown is None else {"fencing-token": token_header(shown)}
        text = json.dumps({"operations": list(operations)} if body is None else body)
        handling = self.receiver.handle(HttpRequest("POST", URL, {**sent, **(headers or {})}, text, "tab"))
        try:
            handling.send(None)
        except StopIteration as stop:
            answer: HttpAnswer = stop.value
            return answer
        raise AssertionError("the receiver waited: its check and effect are not one step")

    def statuses(self, shown: FencingToken, *operations: dict[str, Any]) -> list[str]:
        return [result["status"] for result in json.loads(self.send(shown, *operations).body)["results"]]


def test_operations_take_effect_once_and_in_order() -> None:
    sender = Sender()
    assert sender.statuses(token(1, 1), operation("1"), operation("2", "q")) == ["committed", "committed"]
    assert sender.statuses(token(1, 2), operation("2", "q"), operation("3")) == ["duplicate", "committed"]
    assert [effect.op_id for effect in sender.receiver.accepted] == ["1", "2", "3"]


def test_a_partition_stops_at_its_first_failure() -> None:
    sender = Sender(apply=lambda item: item["payload"])
    batch = [operation("1", "p", "committed"), operation("2", "p", "retry"), operation("3", "q", "rejected")]
    batch += [operation("4", "p", "committed"), operation("5", "r", "committed")]
    assert sender.statuses(token(1, 1), *batch) == ["committed", "retry", "rejected", "skipped", "committed"]


def test_the_barrier_refuses_what_comes_late() -> None:
    sender = Sender()
    assert sender.send(token(2, 1, "b")).status == 200
    answer = sender.send(token(1, 9), operation("late"))
    assert answer.status == 409
    problem = json.loads(answer.body)
    assert problem["type"] == "urn:tabhelm:stale-token"
    assert problem["high_water"] == {"epoch": 2, "seq": 1, "owner": "b"}
    assert sender.receiver.accepted == [] and len(sender.receiver.refused) == 1


def test_bad_requests_and_reused_keys_are_named() -> None:
    sender = Sender()
    assert sender.send(None, operation("1")).status == 400
    assert sender.send(token(1, 1), body={"operations": [{"op_id": 1}]}).status == 400
    assert sender.send(token(1, 1), headers={"fencing-token": "?"}).status == 400
    single = {"idempotency-key": '"key"'}
    assert sender.send(token(1, 2), headers=single, body={"x": 1}).status == 200
    assert sender.send(token(1, 3), headers=single, body={"x": 1}).status == 200
    assert sender.send(token(1, 4), headers=single, body={"x": 2}).status == 422
    assert len(sender.receiver.accepted) == 1


def test_the_real_rule_agrees_with_an_independent_one() -> None:
    rng = Random(1)
    for _ in range(200):
        guard = RememberingGuard()
        highest, owner, streams = 0, "", dict[str, int]()
        for _ in range(40):
            shown = token(rng.randint(1, 4), rng.randint(1, 6), rng.choice("ab"), rng.choice("st"))
            fresh = shown.epoch > highest
            same = (shown.epoch, shown.owner_id) == (highest, owner)
            fits = fresh or (same and shown.seq > streams.get(shown.stream, 0))
            mark = guard.judge("user", shown)
            assert (mark is None) == fits, f"{shown} against {highest}, {owner}, {streams}"
            if fits:
                highest, owner = shown.epoch, shown.owner_id
                streams = {shown.stream: shown.seq} if fresh else {**streams, shown.stream: shown.seq}
