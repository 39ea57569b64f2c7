"""Names are built and parsed in one place, and bad parts are named."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tabhelm.errors import InvalidName
from tabhelm.fencing import FencingToken
from tabhelm.names import (
    KINDS,
    LockName,
    Resource,
    channel_name,
    database_name,
    engine_lock,
    lifeline_lock,
    queue_channel,
    queue_resource,
    tab_lock,
)
from tabhelm.presence import Identity
from tabhelm.tab import TabFacts

parts = st.from_regex(r"[A-Za-z0-9][A-Za-z0-9._-]{0,12}", fullmatch=True)
scopes = st.none() | st.lists(parts, min_size=1, max_size=3).map(":".join)


@given(parts, st.integers(1, 9999), st.sampled_from(sorted(KINDS)), parts, scopes)
def test_lock_names_round_trip(app: str, version: int, kind: str, resource: str, scope: str | None) -> None:
    name = LockName(app, version, kind, resource, scope)  # type: ignore[arg-type]
    assert LockName.parse(str(name)) == name


def test_the_names_of_the_design() -> None:
    assert Resource("regcase", "auth-refresh", "user:123").lock(3) == "regcase:v3:leader:auth-refresh:user:123"
    queue = queue_resource("regcase", "mutations", "user:123")
    assert queue.lock(3) == "regcase:v1:leader:offline-queue:mutations:user:123"
    assert queue.token_resource == "regcase:offline-queue:mutations:user:123"
    assert channel_name("regcase", 3) == "tabhelm:regcase:v3"
    assert queue_channel("regcase") == "tabhelm:regcase:data-v1"
    assert database_name("regcase") == "tabhelm:regcase"
    assert lifeline_lock("a", 1, "t-1", "c-1") == "a:v1:lifeline:t-1:c-1"
    assert tab_lock("a", 1, "t-1") == "a:v1:tab:t-1"
    assert engine_lock("a", 1, "e1") == "a:v1:engine:e1"


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("a:v1:leader", "app:vN:kind"),
        ("a:1:leader:r", "version '1'"),
        ("a:v0:leader:r", "version 'v0'"),
        ("a:v1:boss:r", "kind 'boss'"),
        ("a b:v1:leader:r", "app 'a b'"),
        ("a:v1:leader:-r", "resource '-r'"),
        ("a:v1:leader:r:", "scope ''"),
        ("a:v1:leader:r:x::y", "scope 'x::y'"),
    ],
)
def test_bad_lock_names_name_the_part(text: str, named: str) -> None:
    with pytest.raises(InvalidName, match=named.replace("(", r"\(")):
        LockName.parse(text)


@pytest.mark.parametrize("value", ["", " ", "a:b", "ä", None, 7, "x" * 600, "a\n"])
def test_bad_parts_are_refused(value: object) -> None:
    with pytest.raises(InvalidName, match="resource"):
        Resource("app", value)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("app", "name", "scope", "named"),
    [("a" * 500, "r" * 20, None, "app"), ("a", "r" * 512, None, "resource"), ("a", "r", "s" * 509, "scope")],
)
def test_a_resource_that_no_token_can_carry_is_refused(app: str, name: str, scope: str | None, named: str) -> None:
    with pytest.raises(InvalidName, match=f"^{named} .* at most 512"):
        Resource(app, name, scope)
    FencingToken("d", Resource("a", "r", "s" * 508).token_resource, 1, "s", 1, "o")  # one less fits


def test_an_owner_that_no_token_can_carry_is_refused() -> None:
    with pytest.raises(InvalidName, match="^connection id .* at most 512"):
        Identity("t", "c" * 511, 1)
    FencingToken("d", "r", 1, "s", 1, Identity("t", "c" * 510, 1).owner_id)


@pytest.mark.parametrize("generation", [-1, 2**53])
def test_a_generation_that_no_beacon_can_carry_is_refused(generation: int) -> None:
    with pytest.raises(InvalidName, match="generation"):
        Identity("t", "c", generation)


@pytest.mark.parametrize(
    ("facts", "named"),
    [
        ({"version": "v" * 513}, "version"),
        ({"capabilities": frozenset({"c" * 513})}, "capability 'c"),
        ({"capabilities": frozenset({""})}, "capability ''"),
        ({"capabilities": frozenset(map(str, range(1001)))}, "1001 capabilities"),
    ],
)
def test_facts_that_no_beacon_can_carry_are_refused(facts: dict[str, Any], named: str) -> None:
    with pytest.raises(InvalidName, match=named):
        TabFacts(**facts)
