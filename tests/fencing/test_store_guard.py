"""The guard inside an app's own transaction, in simulated storage; and its relatives in memory."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from tests.fencing.vectors import MALFORMED_RECORDS, MALFORMED_TOKENS, SEQUENCES, token

from tabhelm import guard
from tabhelm.errors import (
    DatabaseError,
    InvalidName,
    InvalidOptions,
    LeadershipLost,
    MalformedToken,
    NotFenced,
    NotInBrowser,
    StaleOwner,
)
from tabhelm.fencing.token import FencingToken
from tabhelm.ports import Database, Schema, Store, Transaction
from tabhelm.simulated import World

SCHEMA = Schema(1, (guard.FENCE, Store("cases", key_path="id")))
NAMES = [each["name"] for each in SEQUENCES]


def simulated(main: Callable[[Database], Awaitable[None]]) -> None:
    with World(1) as world:
        agent = world.agent("a")
        database = world.ports(agent).databases.database("cases", SCHEMA)
        world.run(main(database))


async def stored(database: Database, store: str) -> list[dict[str, Any]]:
    async def body(transaction: Transaction) -> list[dict[str, Any]]:
        return await transaction.get_all(store)

    return await database.transaction([store], "readonly", body)


async def write(database: Database, shown: FencingToken, case: str, rule: guard.Rule = "strict") -> None:
    """An effect before the check and one after it."""

    async def body(transaction: Transaction) -> None:
        await transaction.put("cases", {"id": f"{case} before"})
        await guard.check(transaction, "fence", shown, rule=rule)
        await transaction.put("cases", {"id": f"{case} after"})

    await database.transaction(["fence", "cases"], "readwrite", body)


@pytest.mark.parametrize("sequence", SEQUENCES, ids=NAMES)
def test_each_effect_is_written_with_its_marks_or_neither_is(sequence: dict[str, Any]) -> None:
    async def main(database: Database) -> None:
        effects = set()
        for number, step in enumerate(sequence["steps"]):
            shown = token(step["token"])
            where = {"domain": shown.domain, "resource": shown.resource}
            if step["verdict"] == "accepted":
                await write(database, shown, str(number), sequence["rule"])
                effects |= {f"{number} before", f"{number} after"}
                records = await stored(database, "fence")
                assert [each for each in records if each.items() >= where.items()] == [{**where, **step["marks"]}]
            else:
                before = await stored(database, "fence")
                with pytest.raises(StaleOwner) as refused:
                    await write(database, shown, str(number), sequence["rule"])
                assert high_water(refused.value) == step["high_water"]
                assert refused.value.overtaken == (step["verdict"] == "overtaken")
                assert await stored(database, "fence") == before
            assert {each["id"] for each in await stored(database, "cases")} == effects

    simulated(main)


def high_water(error: StaleOwner) -> dict[str, Any]:
    return {"epoch": error.epoch, "seq": error.seq, "owner": error.owner_id}


@pytest.mark.parametrize("sequence", SEQUENCES, ids=NAMES)
def test_in_memory_it_is_the_same(sequence: dict[str, Any]) -> None:
    kept = guard.MemoryGuard(sequence["rule"])
    for step in sequence["steps"]:
        shown = token(step["token"])
        if step["verdict"] == "accepted":
            kept.check(shown)
            assert kept.is_current(shown)
        else:
            with pytest.raises(StaleOwner) as refused:
                kept.check(shown)
            assert high_water(refused.value) == step["high_water"]
            assert kept.is_current(shown) == (step["verdict"] == "overtaken")


@pytest.mark.parametrize("each", MALFORMED_TOKENS, ids=lambda each: each["name"])
def test_what_is_no_token_cannot_be_shown(each: dict[str, Any]) -> None:
    with pytest.raises(MalformedToken):
        token(each["token"])


@pytest.mark.parametrize("each", MALFORMED_RECORDS, ids=lambda each: each["name"])
def test_a_record_that_is_none_of_marks_lets_nothing_be_written(each: dict[str, Any]) -> None:
    async def main(database: Database) -> None:
        async def plant(transaction: Transaction) -> None:
            await transaction.put("fence", each["record"])

        await database.transaction(["fence"], "readwrite", plant)
        shown = FencingToken(each["record"]["domain"], each["record"]["resource"], 9, "loop", 1, "bob")
        with pytest.raises(DatabaseError, match="store 'fence' holds a record for"):
            await write(database, shown, "late")
        assert await stored(database, "fence") == [each["record"]]
        assert await stored(database, "cases") == []

    simulated(main)


def test_what_a_later_release_adds_to_a_record_stays() -> None:
    async def main(database: Database) -> None:
        first = FencingToken("d", "app:job", 1, "loop", 1, "ann")
        await write(database, first, "first")

        async def add(transaction: Transaction) -> None:
            record = await transaction.get("fence", ["d", "app:job"])
            assert record is not None
            await transaction.put("fence", {**record, "since": 7})

        await database.transaction(["fence"], "readwrite", add)
        await write(database, FencingToken("d", "app:job", 2, "loop", 1, "bob"), "second")
        (record,) = await stored(database, "fence")
        assert (record["since"], record["epoch"], record["owner"]) == (7, 2, "bob")

    simulated(main)


def test_marks_cannot_be_raised_where_nothing_can_be_written() -> None:
    async def main(database: Database) -> None:
        async def body(transaction: Transaction) -> None:
            await guard.check(transaction, "fence", FencingToken("d", "app:job", 1, "loop", 1, "ann"))

        with pytest.raises(DatabaseError):
            await database.transaction(["fence"], "readonly", body)

    simulated(main)


@pytest.mark.parametrize("key_path", [("resource", "domain"), "domain", "id"])
def test_marks_are_not_kept_where_nobody_finds_them_again(key_path: str | tuple[str, ...]) -> None:
    """In a store with another key every token, however late, would be the first."""
    schema = Schema(1, (Store("fence", key_path=key_path, auto_increment=key_path == "id"),))

    async def main(database: Database) -> None:
        async def body(transaction: Transaction) -> None:
            await guard.check(transaction, "fence", FencingToken("d", "app:job", 1, "loop", 1, "ann"))

        with pytest.raises(DatabaseError):
            await database.transaction(["fence"], "readwrite", body)
        assert await stored(database, "fence") == []

    with World(1) as world:
        world.run(main(world.ports(world.agent("a")).databases.database("cases", schema)))


def test_a_check_that_changes_no_mark_needs_a_transaction_that_writes_too() -> None:
    async def main(database: Database) -> None:
        shown = FencingToken("d", "app:job", 1, "loop", 1, "ann")
        await write(database, shown, "first", "epoch")

        async def body(transaction: Transaction) -> None:
            await guard.check(transaction, "fence", shown, rule="epoch")

        with pytest.raises(DatabaseError):
            await database.transaction(["fence"], "readonly", body)

    simulated(main)


# -- apply_if_current --------------------------------------------------------------------------------------------------


class Leading:
    """As much of a context as is looked at."""

    def __init__(self) -> None:
        self.lost = False

    def next_token(self) -> FencingToken:
        if self.lost:
            raise LeadershipLost("app:job", "frozen")
        return FencingToken("d", "app:job", 1, "loop", 1, "ann")


async def test_a_result_is_applied_while_the_tenure_stands() -> None:
    shown: list[str] = []

    async def load() -> str:
        await asyncio.sleep(0)
        return "cases"

    assert await guard.apply_if_current(Leading(), load, shown.append) is None
    assert shown == ["cases"]
    assert await guard.apply_if_current(Leading(), lambda: 7) == 7


async def test_a_result_that_comes_after_it_ended_is_dropped() -> None:
    leading = Leading()
    shown: list[str] = []

    async def load() -> str:
        leading.lost = True
        return "late"

    with pytest.raises(LeadershipLost, match="frozen"):
        await guard.apply_if_current(leading, load, shown.append)
    with pytest.raises(LeadershipLost):  # and is not even begun
        await guard.apply_if_current(leading, lambda: shown.append("begun"))
    assert shown == []


async def test_a_holder_that_finds_out_only_when_asked_for_a_token_applies_nothing() -> None:
    """After a hang nobody has told it yet that it leads no more."""

    class Hung(Leading):
        hung = False

        def next_token(self) -> FencingToken:
            self.lost = self.hung
            return super().next_token()

    holder = Hung()

    async def load() -> str:
        holder.hung = True
        return "late"

    shown: list[str] = []
    with pytest.raises(LeadershipLost):
        await guard.apply_if_current(holder, load, shown.append)
    assert shown == []


async def test_who_leads_without_tokens_applies_its_results_too() -> None:
    class Unfenced:
        def next_token(self) -> FencingToken:
            raise NotFenced("no epochs")

    assert await guard.apply_if_current(Unfenced(), lambda: 7) == 7


def test_an_unknown_rule_is_refused_by_name() -> None:
    with pytest.raises(InvalidOptions, match="rule 'loose' is not valid"):
        guard.MemoryGuard("loose")  # type: ignore[arg-type]

    async def main(database: Database) -> None:
        with pytest.raises(InvalidOptions, match="rule 'loose'"):
            await write(database, FencingToken("d", "app:job", 1, "loop", 1, "ann"), "x", "loose")  # type: ignore[arg-type]
        assert await stored(database, "cases") == []

    simulated(main)


async def test_what_a_token_protects_is_applied_unless_a_newer_owner_was_seen_meanwhile() -> None:
    kept = guard.MemoryGuard()
    old, new = (FencingToken("d", "app:job", epoch, "loop", 1, f"o{epoch}") for epoch in (1, 2))

    async def slow() -> str:
        kept.check(new)
        return "late"

    with pytest.raises(StaleOwner, match="epoch 2 of owner 'o2' was seen"):
        await kept.apply_if_current(old, slow)
    with pytest.raises(StaleOwner):
        await kept.apply_if_current(old, lambda: "not begun")
    assert await kept.apply_if_current(FencingToken("d", "app:job", 2, "loop", 2, "o2"), lambda: "in time") == "in time"


# -- an app's own database ---------------------------------------------------------------------------------------------


def test_an_own_database_needs_a_browser_and_a_name_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    import tabhelm

    with pytest.raises(NotInBrowser, match="tabhelm.database"):
        tabhelm.database("cases", [guard.FENCE])
    monkeypatch.setattr("sys.platform", "emscripten")
    for name in ("", "tabhelm:regcase"):
        with pytest.raises(InvalidName):
            tabhelm.database(name, [guard.FENCE])
    assert tabhelm.database("cases", [guard.FENCE]).name == "cases"
