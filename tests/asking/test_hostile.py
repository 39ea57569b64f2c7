"""Whatever a stranger says on the channel is ignored and counted: nothing is answered by it, nothing begins twice."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from test_asking import Team, raises

from kit import APP, join
from tabhelm.errors import AskTimeout, LeaderChanged
from tabhelm.messages import MAX_BODY, Accepted, Ignored, Reply, Request, Resync, StateNote, decode, encode
from tabhelm.names import channel_name
from tabhelm.simulated import World

REQUEST = Request("e1", "q-1", "app:r", "c-1", 3, "m", "[1]", "t-2", "c-2", "1.0", ("x",), "k", 9.5, True)
MESSAGES = [
    REQUEST,
    Accepted("e1", "e2", "q-1", "c-1", 3, True, False),
    Reply("e1", "e2", "q-1", "c-1", 3, "value", '{"a":1}'),
    StateNote("e1", "app:r", "c-1", "t-1", 3, 7, "null"),
    StateNote("e1", "app:r", "c-1", "t-1", 3, 7, ""),
    Resync("e1", "app:r", "c-1"),
]


@pytest.mark.parametrize("message", MESSAGES, ids=lambda message: type(message).__name__)
def test_they_round_trip(message: Any) -> None:
    assert decode(encode(message)) == message


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)


@given(st.sampled_from(MESSAGES), st.data(), json_values)
def test_one_wrong_field_never_raises_anything_else(message: Any, data: st.DataObject, value: object) -> None:
    parts = json.loads(encode(message))
    parts[data.draw(st.sampled_from(sorted(parts)))] = value
    try:
        decode(json.dumps(parts))
    except Ignored:
        pass


@pytest.mark.parametrize(
    "wrong",
    [{"args": "{"}, {"args": '"' + "x" * MAX_BODY + '"'}, {"args": ""}, {"left": -1}, {"fresh": 1}, {"epoch": 1.5}],
)
def test_wrong_requests_are_malformed(wrong: dict[str, Any]) -> None:
    with pytest.raises(Ignored) as ignored:
        decode(json.dumps({**json.loads(encode(REQUEST)), **wrong}))
    assert ignored.value.reason == "malformed"


def simulate(test: Callable[[World], Awaitable[None]]) -> None:
    with World(1) as world:
        world.run(test(world))  # type: ignore[arg-type]


def test_answers_that_nobody_asked_for_and_those_of_others_settle_nothing() -> None:
    async def main(world: World) -> None:
        team = Team(world, "a", "b")
        leader, other = await team.settled()
        asking = team.ask(other, "wait", timeout=20.0)
        await world.until(lambda: len(team.begun) == 1)
        (question,) = team.members[other].services.exchange.asking._open.values()
        at = question.at
        assert at is not None

        def say(message: Accepted | Reply) -> None:
            world.channel_hub.post(channel_name(APP, 1), encode(message))

        say(Reply("e-x", f"e-{other}", "q-guessed", at.leader, at.epoch, "value", '"false"'))
        say(Reply("e-x", f"e-{other}", question.id, at.leader, at.epoch - 1, "value", '"stale"'))
        say(Reply("e-x", f"e-{other}", question.id, "c-x", at.epoch, "value", '"of another"'))
        say(Reply("e-x", "e-x", question.id, at.leader, at.epoch, "value", '"to another"'))
        say(Accepted("e-x", f"e-{other}", question.id, "c-x", at.epoch, True, True))
        await world.sleep(1.0)
        assert not asking.done()
        assert team.members[other].services.events.ignored_counts["late-answer"] == 4
        team.gate = True
        assert await asking == leader

    simulate(main)


def test_requests_to_nobody_and_to_past_tenures_begin_nothing() -> None:
    async def main(world: World) -> None:
        team = Team(world, "a", "b")
        leader, other = await team.settled()
        epoch = team.members[leader].services.exchange.serving.tenures()[0].epoch

        def say(**changes: Any) -> None:
            given = {"resource": "app:r", "leader": f"c-{leader}", "epoch": epoch, "method": "echo", **changes}
            message = Request(**{**{name: getattr(REQUEST, name) for name in REQUEST.__slots__}, **given})
            world.channel_hub.post(channel_name(APP, 1), encode(message))

        for changes in ({"leader": "c-nobody"}, {"resource": "app:other"}, {"epoch": epoch + 1}, {"epoch": epoch - 1}):
            say(call=f"q-{changes}"[:40], **changes)
        await world.sleep(1.0)
        assert team.begun == []
        for _ in range(5):
            say(call="q-1")  # well-formed, and so it is done: the channel proves nobody's identity. But once
        await world.sleep(1.0)
        assert len(team.begun) == 1

    simulate(main)


def test_a_flood_of_requests_costs_bounded_memory_and_real_ones_are_answered_again() -> None:
    async def main(world: World) -> None:
        team = Team(world, "a", "b")
        leader, other = await team.settled()
        epoch = team.members[leader].services.exchange.serving.tenures()[0].epoch
        base = {name: getattr(REQUEST, name) for name in REQUEST.__slots__}
        for number in range(3_000):
            about = {"call": f"q-{number}", "leader": f"c-{leader}", "epoch": epoch, "method": "wait"}
            world.channel_hub.post(channel_name(APP, 1), encode(Request(**{**base, **about})))
        await world.sleep(1.0)
        assert len(team.begun) == 256
        serving = team.members[leader].services.exchange.serving
        assert len(serving._records) <= 1_024 + 256
        team.gate = True
        await world.sleep(1.0)
        assert (await team.ask(other, "echo", 1))["args"] == 1

    simulate(main)


def test_a_leader_that_declines_and_none_that_follows() -> None:
    async def main(world: World) -> None:
        team = Team(world, "a", serve=False)
        leader = await team.leader()
        bystander = join(world, "z")
        election = bystander.lead(requires={"nobody-has-it"})
        await world.until(lambda: election.leader() is not None)
        asking = bystander.agent.start(election.ask("echo", timeout=5.0))
        await world.sleep(0.5)
        team.members[leader].call(team.elections[leader].stop)
        assert (await raises(LeaderChanged, asking)).outcome == "not-sent"
        assert team.begun == []

    simulate(main)


def test_a_leader_whose_answers_are_all_lost_costs_a_timeout() -> None:
    async def main(world: World) -> None:
        team = Team(world, "a", "b")
        leader, other = await team.settled()
        services = team.members[leader].services
        services.exchange.to_asker = lambda message: None  # type: ignore[method-assign]
        began = world.loop.time()
        await raises(AskTimeout, team.ask(other, "echo", timeout=9.0))
        assert 8.9 < world.loop.time() - began < 9.1
        assert len(team.begun) == 1

    simulate(main)
