"""Names are built and parsed in one place, and bad parts are named."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tabhelm.errors import InvalidName
from tabhelm.names import (
    KINDS,
    LockName,
    Resource,
    channel_name,
    database_name,
    engine_lock,
    lifeline_lock,
    queue_resource,
    tab_lock,
)

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
