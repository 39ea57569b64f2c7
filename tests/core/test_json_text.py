"""JSON of strangers is read like any other, only never so deep that the browser's stack overflows."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tabhelm.json_text import MAX_DEPTH, TooDeep, loads

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text('[]{}"\\,:a\n\u2028'),
    lambda inner: st.lists(inner) | st.dictionaries(st.text('[{"\\x'), inner),
    max_leaves=50,
)


@given(VALUES)
def test_reads_what_json_reads(value: object) -> None:
    # Many brackets side by side and in strings, so that the depth is really counted.
    many = [value, *[[]] * MAX_DEPTH, "[" * MAX_DEPTH, '\\"[{' * MAX_DEPTH, "\\"]
    assert loads(json.dumps(many)) == many


@pytest.mark.parametrize("opening", ["[", '{"a":', '[{"a":[', '["]",', '["\\"]",'])
def test_refuses_what_is_too_deep(opening: str) -> None:
    with pytest.raises(TooDeep):
        loads(opening * (MAX_DEPTH + 1))
    with pytest.raises(TooDeep):
        loads(opening * 100_000)


def test_the_limit_itself() -> None:
    fine = "[" * MAX_DEPTH + "]" * MAX_DEPTH
    assert json.dumps(loads(fine)) == fine
    assert loads(f"[{','.join(['[' * 9 + ']' * 9] * 200)}]")[0] == [[[[[[[[[]]]]]]]]]
    with pytest.raises(TooDeep):
        loads(f"[{fine}]")


@pytest.mark.parametrize("text", ["", "[", "[" * MAX_DEPTH, '"', "]" * 1000, '[]"[' * 500])
def test_no_json_is_a_value_error(text: str) -> None:
    with pytest.raises(ValueError, match=r"."):
        loads(text)


@pytest.mark.parametrize("end", ["", "\\", '"', "]" * 600])
def test_a_text_without_an_end_is_read_once(end: str) -> None:
    """Quadratic, this would take minutes."""
    with pytest.raises(ValueError):
        loads("[[]," + "[]," * MAX_DEPTH + '"' + '\\"' * 100_000 + end)
