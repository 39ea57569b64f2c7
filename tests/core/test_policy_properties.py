"""Properties of the policy and of the table of states, whatever is drawn."""

from __future__ import annotations

from dataclasses import FrozenInstanceError, fields, replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tabhelm.election import LeadershipPolicy, ineligible
from tabhelm.election import policy as policy_module
from tabhelm.errors import InvalidPolicy
from tabhelm.leadership.states import TRANSITIONS
from tabhelm.presence import TabInfo

TAB = TabInfo("t-1", "c-1", 1, "e", "active", True, True, "1", frozenset({"a"}), frozenset({"app:r"}), 0.0, "alive")
KEYS = sorted(policy_module._WIRE)
words = st.sampled_from(["a", "b", "c"])
numbers = st.one_of(st.integers(-10, 100_000), st.floats(), st.booleans())
values = st.recursive(
    st.one_of(st.none(), numbers, st.text(max_size=8), st.sampled_from(["any", "prefer", "require", "never"])),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(st.text(max_size=3), inner, max_size=2)),
    max_leaves=5,
)
# Half of what is drawn is likely to be right, so that both ways are gone often.
likely: dict[str, st.SearchStrategy[Any]] = {
    "requires": st.lists(words, max_size=2),
    "prefers": st.lists(words, max_size=2),
    "visible": st.sampled_from(["any", "prefer", "require"]),
    "online": st.booleans(),
    "newest": st.booleans(),
    "session": st.sampled_from([None, "any", "user", "user:1"]),
    "fence": st.sampled_from([None, "/api/operations"]),
    "authorities": st.lists(st.sampled_from(["web-locks", "indexeddb-lease", "broadcast"]), min_size=1, unique=True),
}
wire = st.fixed_dictionaries(
    {},
    optional={key: st.one_of(values, likely.get(key, st.integers(10_000, 60_000))) for key in KEYS},
)
good = st.fixed_dictionaries({}, optional={key: likely.get(key, st.integers(10_000, 60_000)) for key in KEYS})
tabs = st.builds(
    replace,
    st.just(TAB),
    lifecycle=st.sampled_from(["active", "hidden", "restored", "frozen", "stalled", "closing", "unknown"]),
    visible=st.booleans(),
    online=st.booleans(),
    capabilities=st.frozensets(words),
    liveness=st.sampled_from(["alive", "suspect", "expired"]),
)


def made(value: dict[str, Any]) -> LeadershipPolicy | None:
    """The policy, or None where the draw contradicts itself (which is another test's matter)."""
    try:
        return LeadershipPolicy.from_wire(value)
    except InvalidPolicy:
        return None


def names(text: str) -> bool:
    """Whether an error's text begins with a key, as the page writes it."""
    return text.split()[0].strip("':") in KEYS


@given(wire)
def test_whatever_a_page_sends_is_a_policy_or_an_error_that_names_a_key(value: dict[str, Any]) -> None:
    try:
        policy = LeadershipPolicy.from_wire(value)
    except InvalidPolicy as error:
        assert names(str(error)), error
    else:
        assert policy == LeadershipPolicy.from_wire(dict(value))
        assert not policy.requires & policy.prefers
        assert policy.backoff <= policy.max_backoff


@given(good, st.text(min_size=1, max_size=12).filter(lambda key: key not in KEYS), values)
def test_an_unknown_key_is_refused_by_its_name(value: dict[str, Any], key: str, item: Any) -> None:
    with pytest.raises(InvalidPolicy) as refused:
        LeadershipPolicy.from_wire({**value, key: item})
    assert repr(key) in str(refused.value)


@given(good)
def test_a_policy_cannot_be_changed(value: dict[str, Any]) -> None:
    if (policy := made(value)) is not None:
        for field in fields(policy):
            with pytest.raises(FrozenInstanceError):
                setattr(policy, field.name, None)


@given(good, tabs)
def test_asking_for_less_shuts_nobody_out(value: dict[str, Any], tab: TabInfo) -> None:
    policy = made(value)
    if policy is None or ineligible(policy, tab) is not None:
        return
    for less in ({"requires": frozenset()}, {"visible": "any"}, {"online": False}, {"session": None}):
        assert ineligible(replace(policy, **less), tab) is None  # type: ignore[arg-type]


@given(good, tabs)
def test_whoever_is_shut_out_hears_one_short_word(value: dict[str, Any], tab: TabInfo) -> None:
    policy = made(value)
    reason = None if policy is None else ineligible(policy, tab)
    assert reason is None or (reason and len(reason) < 40 and " " not in reason)


def reachable(start: str, table: dict[str, frozenset[str]]) -> set[str]:
    seen, left = {start}, [start]
    while left:
        for after in table[left.pop()] - seen:
            seen.add(after)
            left.append(after)
    return seen


def test_the_table_of_steps_has_no_way_around_stepping_down() -> None:
    assert reachable("idle", TRANSITIONS) == set(TRANSITIONS), "every state can be reached"
    assert all("stopped" in reachable(state, TRANSITIONS) for state in TRANSITIONS), "and every one can end"
    assert TRANSITIONS["stopped"] == frozenset(), "for good"
    assert [state for state in TRANSITIONS if "leading" in TRANSITIONS[state]] == ["waiting"], "who leads has asked"
    without = {state: after - {"stepping-down"} for state, after in TRANSITIONS.items()}
    assert reachable("leading", without) == {"leading"}, "and whoever leads steps down first"
