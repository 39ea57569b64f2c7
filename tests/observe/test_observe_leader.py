"""What followers see of a leader: hints, never authority."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kit import Member, join, one_leader
from tabhelm.election import Takeover
from tabhelm.leadership import LeaderContext
from tabhelm.messages import MAX_WORD, Beacon, Ignored, LeaderNote, decode, encode
from tabhelm.names import Resource, leader_lock, queue_resource
from tabhelm.simulated import World

NOTE = LeaderNote("app:r", "t-1", "c-1", "d", 3, 1.0, "web-locks", "ok", "row 7", 2.5)
BEACON = Beacon("e1", 7, 15.0, (), (NOTE,), "b1")


def beats(member: Member) -> int:
    return member.services.beaconer.said


@pytest.mark.parametrize("seed", range(3))
def test_progress_goes_out_with_the_beats_and_health_at_once(seed: int) -> None:
    with World(seed) as world:

        async def main() -> None:
            leader, follower = join(world, "a", version="7.1"), join(world, "b")
            well = [True]

            async def loop(context: LeaderContext) -> None:
                context.health(lambda: well[0], every=0.5, failures=100)
                for row in range(100_000):
                    context.progress(row)
                    await context.sleep(0.01)

            leader.lead(loop=loop)
            await world.until(lambda: leader.leading)
            election = follower.lead()
            await world.sleep(10.0)
            before = beats(leader)
            await world.sleep(20.0)
            assert beats(leader) - before <= 5, "two thousand steps are no news"
            seen = follower.call(election.leader)
            assert isinstance(seen.progress, int) and seen.progress > 2000
            assert seen.progress_age < 6.5 and seen.health == "ok" and seen.version == "7.1"
            well[0] = False
            await world.sleep(1.0)
            assert follower.call(election.leader).health == "failing"

        world.run(main())


def test_a_leader_that_says_nothing_of_itself_has_neither() -> None:
    with World(1) as world:

        async def main() -> None:
            member = join(world, "a")
            election = member.lead()
            await one_leader(world, [member])
            seen = member.call(election.leader)
            assert (seen.health, seen.progress, seen.progress_age) == ("", None, None)

        world.run(main())


def test_a_note_of_an_older_engine_is_read() -> None:
    message = json.loads(encode(BEACON))
    del message["build"]
    for name in ("authority", "health", "progress", "progress_age"):
        del message["leaders"][0][name]
    read = decode(json.dumps(message))
    assert isinstance(read, Beacon)
    assert read.leaders == (LeaderNote("app:r", "t-1", "c-1", "d", 3, 1.0),) and read.build == ""
    assert decode(encode(BEACON)) == BEACON


values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=MAX_WORD + 20),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=3), inner, max_size=2),
    max_leaves=4,
)


@given(st.sampled_from(["authority", "health", "progress", "progress_age"]), values)
def test_one_wrong_field_is_ignored_or_harmless(field: str, value: object) -> None:
    message = json.loads(encode(BEACON))
    message["leaders"][0][field] = value
    try:
        read = decode(json.dumps(message))
    except Ignored as ignored:
        assert ignored.reason in ("malformed", "not-json")
    else:
        assert isinstance(read, Beacon)
        encode(read)


def test_the_lock_that_a_leader_holds_is_named_as_it_is_asked_for() -> None:
    for resource, protocol in (
        (Resource("app", "r"), 3),
        (Resource("app", "r", "user:1"), 3),
        (queue_resource("app", "mutations"), 3),
        (queue_resource("app", "mutations", "user:1"), 3),
    ):
        assert leader_lock(resource.token_resource, protocol) == resource.lock(protocol)


def test_who_is_silent_is_doubted_and_not_believed_for_ever() -> None:
    with World(1) as world:

        async def main() -> None:
            leader, follower = join(world, "a"), join(world, "b")
            leader.lead()
            await world.until(lambda: leader.leading)
            election = follower.lead(takeover=Takeover.never)
            await world.sleep(2.0)
            leader.agent.hang(300.0)
            seen = []
            for _ in range(60):
                found = follower.call(election.leader)
                seen.append(found.liveness if found else "nobody")
                await world.sleep(1.0)
            words = list(dict.fromkeys(seen))
            assert words == ["alive", "suspect", "nobody"]

        world.run(main())
