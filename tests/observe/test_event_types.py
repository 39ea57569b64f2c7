"""``tabhelm.d.ts`` tells the events and error codes that there are: neither can change without the other."""

from __future__ import annotations

import inspect
import re
import types
from dataclasses import fields
from pathlib import Path
from typing import Union, get_args, get_origin, get_type_hints

from tabhelm import errors
from tabhelm.observe import Event
from tabhelm.observe.events import _camel

ROOT = Path(__file__).resolve().parents[2]
TYPES = (ROOT / "web" / "tabhelm.d.ts").read_text("utf-8")
SCRIPTS = {path.name: path.read_text("utf-8") for path in (ROOT / "web").glob("*.mjs")}
OF_THE_PAGE = {"host-fallback", "queue-failed", "engine-error"}
"""Made by JavaScript."""
OF_THE_SESSION = {"boot-fallback", "refused"}
"""Told to one page by its engine, and counted nowhere."""
WORDS = {"StateName", 'TabInfo["lifecycle"]', "ErrorCode"}
"""Types of texts."""
OF_PYTHON_ALONE = {"tabhelm", "not-in-browser"}
"""No page can meet it: the base of all, and a Python that runs elsewhere."""


def union(name: str) -> str:
    """The text of an exported union, without its comments."""
    found = re.search(rf"export type {name} =\n(.*?);\n\n", TYPES, re.DOTALL)
    assert found is not None, name
    return re.sub(r"/\*\*.*?\*/|//.*", "", found[1])


def kind(text: str) -> str:
    """``text``, ``number`` or ``boolean``, with a ``?`` where it may be null."""
    parts = [part.strip() for part in text.split(" | ")]
    kinds = {
        "text" if part in WORDS or part == "string" or re.fullmatch(r'"[a-z-]+"', part) else part
        for part in parts
        if part != "null"
    }
    assert len(kinds) == 1, text
    return kinds.pop() + "?" * ("null" in parts)


def declared() -> dict[str, dict[str, str]]:
    """The fields of each event of ``tabhelm.d.ts``."""
    events = {}
    for body in re.findall(r"\{ (.*?) \}", union("TabEvent")):
        (_, name), *rest = [part.split(": ", 1) for part in body.split("; ")]
        events[name.strip('"')] = {field: kind(text) for field, text in rest}
    return events


def emitted() -> dict[str, dict[str, str]]:
    """The fields of each event of ``events.py``, as on the wire."""
    kinds = {str: "text", int: "number", float: "number", bool: "boolean"}
    events = {}
    for each in get_args(Event):
        hints = get_type_hints(each)
        told = {}
        for one in fields(each):
            hint = hints[one.name]
            optional = get_origin(hint) in (Union, types.UnionType)
            (plain,) = [part for part in get_args(hint) if part is not type(None)] if optional else [hint]
            told[_camel(one.name)] = kinds[plain] + "?" * optional
        events[re.sub(r"(?<!^)(?=[A-Z])", "-", each.__name__).lower()] = told
    return events


def test_every_event_is_declared_with_its_fields() -> None:
    told = declared()
    assert {name: told[name] for name in told if name not in OF_THE_PAGE | OF_THE_SESSION} == emitted()


def test_what_the_page_and_its_session_tell_is_declared() -> None:
    told = declared()
    assert set(told) - set(emitted()) == OF_THE_PAGE | OF_THE_SESSION
    made = "".join(SCRIPTS.values())
    session = (ROOT / "py_src" / "tabhelm" / "host" / "engine.py").read_text("utf-8")
    for name in OF_THE_PAGE:
        assert re.search(rf'type: "{name}"', made), name
    for name in OF_THE_SESSION:
        assert re.search(rf'"event": \{{"type": "{name}"', session), name


def test_every_code_of_an_error_is_declared() -> None:
    codes = set(re.findall(r'"([a-z-]+)"', union("ErrorCode")))
    ours = {each.code for _, each in inspect.getmembers(errors, inspect.isclass) if hasattr(each, "code")}
    assert ours - codes == OF_PYTHON_ALONE
    hosts = (ROOT / "py_src" / "tabhelm" / "host").glob("*.py")
    made = "".join([*SCRIPTS.values(), *(each.read_text("utf-8") for each in hosts)])
    for code in codes - ours:
        assert f'"{code}"' in made, f"nothing raises {code!r}"
    for name, script in SCRIPTS.items():
        for code in re.findall(r'(?:TabhelmError\(|code: )"([a-z-]+)"', script):
            assert code in codes or name in ("boot.mjs", "engine.mjs", "offline.mjs", "keeper.mjs"), f"{name}: {code}"
