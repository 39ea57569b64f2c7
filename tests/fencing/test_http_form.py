"""Tokens as Structured Fields, compared with a complete implementation of RFC 9651."""

from __future__ import annotations

from typing import TypeVar

import pytest
from http_sfv.item import Item
from hypothesis import example, given
from hypothesis import strategies as st

from tabhelm.errors import MalformedToken
from tabhelm.fencing.http_form import (
    MAX_HEADER,
    idempotency_key_header,
    parse_idempotency_key,
    parse_token_header,
    read_token_fields,
    token_fields,
    token_header,
)
from tabhelm.fencing.token import MAX_NUMBER, MAX_TEXT, FencingToken

TOKEN = FencingToken("d0", "regcase:offline-queue:mutations", 7, "case-42", 12, "tab/1")
HEADER = '"regcase:offline-queue:mutations";domain="d0";epoch=7;stream="case-42";seq=12;owner="tab/1"'

T = TypeVar("T")

texts = st.text(st.characters(min_codepoint=0x20, max_codepoint=0x7E), min_size=1, max_size=40)
numbers = st.integers(1, MAX_NUMBER)
tokens = st.builds(FencingToken, texts, texts, numbers, texts, numbers, texts)


def by_library(text: str) -> Item:
    item = Item()
    item.parse(text.encode())
    return item


def test_the_header_is_the_documented_one() -> None:
    assert token_header(TOKEN) == HEADER
    assert parse_token_header(HEADER) == TOKEN


def test_as_json_it_has_the_fields_of_a_javascript_token() -> None:
    fields = {"domain": "d0", "resource": "regcase:offline-queue:mutations", "epoch": 7}
    assert token_fields(TOKEN) == fields | {"stream": "case-42", "seq": 12, "owner": "tab/1"}
    assert read_token_fields(token_fields(TOKEN)) == TOKEN
    with pytest.raises(KeyError):
        read_token_fields(fields)


@given(tokens)
@example(FencingToken("\\", '"', 1, '\\"', MAX_NUMBER, ";epoch=9"))
@example(FencingToken(" ", " lead", 1, "trail ", 1, "="))
def test_a_token_survives_the_journey(token: FencingToken) -> None:
    assert parse_token_header(token_header(token)) == token


@given(tokens)
def test_the_library_reads_what_we_write(token: FencingToken) -> None:
    item = by_library(token_header(token))
    assert item.value == token.resource
    assert dict(item.params) == {
        "domain": token.domain,
        "epoch": token.epoch,
        "stream": token.stream,
        "seq": token.seq,
        "owner": token.owner_id,
    }


@given(tokens)
def test_we_read_what_the_library_writes(token: FencingToken) -> None:
    item = Item(token.resource)
    item.params.update(owner=token.owner_id, seq=token.seq, stream=token.stream, epoch=token.epoch, domain=token.domain)
    assert parse_token_header(str(item)) == token


def test_the_longest_token_fits() -> None:
    long = '"' * MAX_TEXT
    token = FencingToken(long, long, MAX_NUMBER, long, MAX_NUMBER, long)
    assert parse_token_header(token_header(token)) == token


@pytest.mark.parametrize(
    "more",
    [
        ";new",
        ";new=?1",
        ";new=1.5",
        ";new=-3",
        ";new=tok*en:/x",
        ';new="text"',
        ";new=:aGk=:",
        ";new=@1659578233",
        ';new=%"f%c3%bc"',
        ";  spaced=1",
        ";*=1;a.b-c_d*=2",
        "  ",
    ],
)
def test_what_is_not_known_is_ignored(more: str) -> None:
    assert parse_token_header(f"  {HEADER}{more}") == TOKEN


def test_the_last_of_two_counts() -> None:
    assert parse_token_header(f"{HEADER};seq=13;seq=14").seq == 14
    with pytest.raises(MalformedToken, match="'seq' must be an integer"):
        parse_token_header(f'{HEADER};seq="14"')


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", "a value is expected at character 0"),
        ("regcase", "the item must be a string"),
        ("7" + HEADER[HEADER.index(";") :], "the item must be a string"),
        ('"open', "a value is expected at character 0"),
        ('"bad \\escape"', "a value is expected at character 0"),
        ('"tab\there"', "a value is expected at character 0"),
        ('"grün"', "a value is expected at character 0"),
        ('"r"', "parameter 'domain' must be a string"),
        (HEADER.replace('"d0"', "d0"), "parameter 'domain' must be a string"),
        (HEADER.replace("epoch=7", "epoch"), "parameter 'epoch' must be an integer"),
        (HEADER.replace("epoch=7", "epoch=7.0"), "parameter 'epoch' must be an integer"),
        (HEADER.replace("epoch=7", "epoch=?1"), "parameter 'epoch' must be an integer"),
        (HEADER.replace("epoch=7", 'epoch="7"'), "parameter 'epoch' must be an integer"),
        (HEADER.replace("epoch=7", "epoch=0"), "epoch 0 is not valid"),
        (HEADER.replace("epoch=7", "epoch=-7"), "epoch -7 is not valid"),
        (HEADER.replace("epoch=7", "epoch=9999999999999999"), "a value is expected"),
        (HEADER.replace("epoch=7", "epoch=٣"), "a value is expected"),
        (HEADER.replace("epoch=7", "epoch="), "a value is expected"),
        (HEADER.replace("epoch=7", "epoch= 7"), "a value is expected"),
        (HEADER.replace("epoch=7", "Epoch=7"), "a parameter is expected"),
        (HEADER.replace('owner="tab/1"', 'owner=""'), "owner_id '' is not valid"),
        (HEADER.replace(";epoch", " ;epoch"), "a parameter is expected"),
        (HEADER + ";", "a parameter is expected"),
        (HEADER + ", " + HEADER, "a parameter is expected"),
        (HEADER + " junk", "a parameter is expected"),
        (HEADER + "\r\n", "a parameter is expected"),
        (f'"{"r" * (MAX_TEXT + 1)}"' + HEADER[HEADER.index(";") :], "resource 'rrr"),
        ('"' + "r" * MAX_HEADER, f"at most {MAX_HEADER} are read"),
    ],
)
def test_what_is_malformed_is_named(text: str, expected: str) -> None:
    with pytest.raises(MalformedToken) as raised:
        parse_token_header(text)
    message = str(raised.value)
    assert expected in message
    assert len(message) < 400 and message.isascii() and message.isprintable(), "fit for a log and for a header"


pieces = st.sampled_from(
    ['"', "\\", ";", "=", " ", ",", "a", "epoch", "A", "*", "-", "1", "12.", ".5", "?1", "?", ":", "YQ==", "@1", "é"]
)
near_items = st.one_of(
    st.text(max_size=30),
    st.lists(pieces, max_size=8).map("".join),
    st.lists(pieces, max_size=6).map(lambda parts: HEADER + "".join(parts)),
    st.tuples(st.integers(0, len(HEADER)), st.lists(pieces, max_size=3).map("".join)).map(
        lambda cut: HEADER[: cut[0]] + cut[1] + HEADER[cut[0] :]
    ),
)


@given(near_items)
@example('"r";a=1.')
@example('"r";a=1234567890123.5')
@example("  ")
def test_whatever_comes_we_read_it_as_the_library_does_or_name_it(text: str) -> None:
    try:
        item = by_library(text)
        known = dict(item.params)
        expected = FencingToken(
            _typed(str, known["domain"]),
            _typed(str, item.value),
            _typed(int, known["epoch"]),
            _typed(str, known["stream"]),
            _typed(int, known["seq"]),
            _typed(str, known["owner"]),
        )
    except (ValueError, KeyError):
        expected = None
    try:
        found = parse_token_header(text)
    except MalformedToken:
        found = None
    if expected is not None or ":" not in text.replace(HEADER, ""):  # base64 that nobody asked for is not decoded
        assert found == expected


def _typed(kind: type[T], value: object) -> T:
    if type(value) is not kind:
        raise ValueError(value)
    return value


@given(texts)
@example('"\\;=')
def test_an_idempotency_key_survives_the_journey(key: str) -> None:
    assert parse_idempotency_key(idempotency_key_header(key)) == key
    assert by_library(idempotency_key_header(key)).value == key


@pytest.mark.parametrize("key", ["", "grün", "line\nbreak", "nul\0"])
def test_a_key_that_no_header_can_carry_is_refused(key: str) -> None:
    with pytest.raises(MalformedToken, match="idempotency key"):
        idempotency_key_header(key)


@pytest.mark.parametrize("text", ["", '""', "token", "7", '"open', '"a" "b"', '"a", "b"', "?1"])
def test_a_key_that_is_no_string_is_refused(text: str) -> None:
    with pytest.raises(MalformedToken, match="Idempotency-Key"):
        parse_idempotency_key(text)
