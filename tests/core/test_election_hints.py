"""Policies are checked when they are made; ranking is the same for every observer."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kit import join
from tabhelm.election import LeadershipPolicy, ineligible, rank
from tabhelm.errors import InvalidPolicy
from tabhelm.leadership import Idle
from tabhelm.observe import TaskFailed
from tabhelm.presence import TabInfo
from tabhelm.simulated import World

TAB = TabInfo("t-1", "c-1", 1, "e", "active", True, True, "1", frozenset({"a"}), frozenset({"app:r"}), 0.0, "alive")


@pytest.mark.parametrize(
    ("value", "named"),
    [
        ({"grace": 5}, "'grace' is unknown"),
        ({"graceMs": "5"}, "graceMs"),
        ({"graceMs": -1}, "graceMs -1 is not valid.*milliseconds"),
        ({"maxHoldMs": 0}, "maxHoldMs 0 "),
        ({"actingAlarmMs": -5}, "actingAlarmMs -5 "),
        ({"backoffMs": float("inf")}, "backoffMs inf "),
        ({"maxBackoffMs": 100}, "maxBackoffMs 100 is shorter than backoffMs 250"),
        ({"visible": "maybe"}, "visible"),
        ({"online": 1}, "online"),
        ({"requires": "offline"}, "requires"),
        ({"requires": [""]}, "requires"),
        ({"fence": ""}, "fence"),
        ({"stallAfterMs": 0}, "stallAfterMs 0 "),
        ({"coolDownMs": -1}, "coolDownMs -1 "),
        ({"healthEveryMs": 0}, "healthEveryMs 0 "),
        ({"session": ""}, "session"),
        ({"session": 7}, "session"),
        ({"newest": "yes"}, "newest"),
        ({"requires": ["a"], "prefers": ["a"]}, "prefers 'a'"),
        ({"eligible": True}, "'eligible' True is not valid: a function"),
        ([], "an object is expected"),
    ],
)
def test_bad_policies_name_the_key(value: object, named: str) -> None:
    with pytest.raises(InvalidPolicy, match=named):
        LeadershipPolicy.from_wire(value)


def test_a_policy_from_a_page() -> None:
    policy = LeadershipPolicy.from_wire(
        {"requires": ["x"], "visible": "prefer", "online": True, "maxHoldMs": 60_000, "graceMs": 0, "fence": None}
    )
    assert policy == LeadershipPolicy(
        requires=frozenset({"x"}), visible="prefer", online=True, max_hold=60.0, grace=0.0
    )


@pytest.mark.parametrize(
    ("policy", "change", "reason"),
    [
        ({}, {}, None),
        ({}, {"lifecycle": "hidden", "visible": False}, None),
        ({}, {"lifecycle": "frozen"}, "frozen"),
        ({}, {"lifecycle": "stalled"}, "stalled"),
        ({}, {"lifecycle": "closing"}, "closing"),
        ({}, {"liveness": "suspect"}, "suspect"),
        ({"visible": "require"}, {"visible": False}, "hidden"),
        ({"online": True}, {"online": False}, "offline"),
        ({"requires": frozenset({"b"})}, {}, "capability-missing"),
        ({"requires": frozenset({"a"})}, {}, None),
    ],
)
def test_eligibility_says_why_not(policy: dict[str, object], change: dict[str, object], reason: str | None) -> None:
    assert ineligible(LeadershipPolicy(**policy), replace(TAB, **change)) == reason  # type: ignore[arg-type]


tabs = st.lists(
    st.builds(
        replace,
        st.just(TAB),
        tab_id=st.sampled_from([f"t-{n}" for n in range(9)]),
        lifecycle=st.sampled_from(["active", "hidden", "restored", "frozen", "unknown"]),
        visible=st.booleans(),
        age=st.floats(0, 1e5),
        liveness=st.sampled_from(["alive", "suspect"]),
    ),
    unique_by=lambda tab: tab.tab_id,
)


@given(tabs, st.randoms())
def test_ranking_does_not_depend_on_the_observers_order(found: list[TabInfo], random: object) -> None:
    policy = LeadershipPolicy(visible="prefer")
    shuffled = list(found)
    random.shuffle(shuffled)  # type: ignore[attr-defined]
    ranked = rank(policy, "app:r", found)
    assert ranked == rank(policy, "app:r", shuffled)
    assert all(ineligible(policy, tab) is None for tab in ranked)
    assert [tab.visible for tab in ranked] == sorted((tab.visible for tab in ranked), reverse=True)
    assert rank(policy, "app:other", found) == []


@pytest.mark.parametrize("key", ["eligible", "score"])
def test_an_async_function_is_refused_by_its_name(key: str) -> None:
    async def later(tab: TabInfo) -> bool:
        return True

    with pytest.raises(InvalidPolicy, match=f"{key} .* is not valid: .*async"):
        LeadershipPolicy(**{key: later})  # type: ignore[arg-type]


@pytest.mark.parametrize("key", ["eligible", "score"])
@pytest.mark.filterwarnings("error")
def test_an_answer_that_comes_later_is_told_by_its_name(key: str) -> None:
    """As of a lambda around an async function, which nobody can see from outside."""

    async def later() -> bool:
        return True

    with World(1) as world:

        async def main() -> None:
            member = join(world, "a")
            election = member.lead(**{key: lambda tab: later()})
            await world.sleep(2.0)
            told = [event for event in member.services.events.recent if isinstance(event, TaskFailed)]
            assert len(told) == 1 and key in told[0].task and "at once" in told[0].error, told
            assert election.status == (Idle("eligible-failed") if key == "eligible" else election.status)
            assert member.leading == (key == "score")

        world.run(main())
