"""What becomes of operations: each once, each in its savepoint, partitions in order."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import AsyncIterator, Iterator
from typing import Any

import psycopg
import pytest
from databases import insert
from receiver_kit import POSTGRES, SQLITE, Client, MakeClient, operation, token

from tabhelm.server import Effect, Reject, Retry
from tabhelm.server.retention import STEP


async def test_results_come_in_the_order_of_the_operations(client: Client) -> None:
    sent = [operation(op_id, partition=partition) for op_id, partition in (("c", "1"), ("a", "2"), ("b", "1"))]
    assert await client.statuses(token(), *sent) == ["committed"] * 3
    assert client.applied() == ["c", "a", "b"]


async def test_repeated_operation_is_a_duplicate(client: Client) -> None:
    assert await client.statuses(token(1, 1), operation("a", {"x": 1, "y": 2})) == ["committed"]
    assert await client.statuses(token(1, 2), operation("a", {"y": 2, "x": 1})) == ["duplicate"]
    assert await client.statuses(token(2, 1), operation("a", {"x": 1, "y": 2}, "elsewhere")) == ["duplicate"]
    assert client.applied() == ["a"]


async def test_repeated_within_one_batch(client: Client) -> None:
    assert await client.statuses(token(), operation("a", 1), operation("a", 1)) == ["committed", "duplicate"]
    assert client.applied() == ["a"]


@pytest.mark.parametrize(
    ("payload", "status"),
    [({"reject": "no"}, "rejected"), ({"retry": "later", "after": None}, "retry"), ("bug", "retry")],
)
async def test_partition_stops_at_its_first_failure(client: Client, payload: object, status: str) -> None:
    sent = [
        operation("a1", partition="a"),
        operation("a2", payload, partition="a"),
        operation("b1", partition="b"),
        operation("a3", partition="a"),
        operation("b2", partition="b"),
    ]
    assert await client.statuses(token(), *sent) == ["committed", status, "committed", "skipped", "committed"]
    assert client.applied() == ["a1", "b1", "b2"], "what the failed one wrote is undone"
    assert await client.statuses(token(1, 2), sent[3]) == ["committed"], "a skipped operation was not remembered"


async def test_known_rejection_stops_its_partition_too(client: Client) -> None:
    await client.statuses(token(1, 1), operation("a", {"reject": "no"}))
    assert await client.statuses(token(1, 2), operation("a", {"reject": "no"}), operation("b")) == [
        "rejected",
        "skipped",
    ]


async def test_final_rejection_is_remembered(make_client: MakeClient) -> None:
    calls: list[str] = []

    def apply(effect: Effect, connection: Any) -> None:
        calls.append(effect.op_id)
        raise Reject(f"the {len(calls)}. time", final=effect.payload)

    client = make_client(apply=apply)
    for seq, payload, op_id, detail in (
        (1, True, "final", "the 1. time"),
        (2, True, "final", "the 1. time"),
        (3, False, "open", "the 2. time"),
        (4, False, "open", "the 3. time"),
    ):
        answer = (await client.batch(token(1, seq), operation(op_id, payload))).json()
        assert answer["results"] == [{"op_id": op_id, "status": "rejected", "detail": detail}]
    assert calls == ["final", "open", "open"]


async def test_retry_carries_its_reason_and_wait(client: Client) -> None:
    answer = await client.batch(token(), operation("a", {"retry": "the archive is closed", "after": 2.5}))
    assert answer.json()["results"] == [
        {"op_id": "a", "status": "retry", "detail": "the archive is closed", "retry_after": 2.5}
    ]


@pytest.mark.parametrize("after", [-1.0, float("nan"), float("inf")])
def test_retry_refuses_waits_that_mean_nothing(after: float) -> None:
    with pytest.raises(ValueError, match="after="):
        Retry("later", after)


async def test_mistake_of_the_application_is_logged_and_not_told(
    client: Client, caplog: pytest.LogCaptureFixture
) -> None:
    answer = await client.batch(token(), operation("a", "bug"), operation("b", partition="other"))
    assert [each["status"] for each in answer.json()["results"]] == ["retry", "committed"]
    assert "secret" not in answer.text
    assert "a secret of the application" in caplog.text
    assert client.applied() == ["b"]


async def test_other_payload_under_a_known_id_in_a_batch(client: Client) -> None:
    await client.statuses(token(1, 1), operation("a", {"x": 1}))
    answer = await client.batch(token(1, 2), operation("a", {"x": 2}), operation("b"))
    first, second = answer.json()["results"]
    assert first["status"] == "rejected" and first["detail"].startswith("urn:tabhelm:key-reused")
    assert second["status"] == "skipped"
    assert await client.statuses(token(1, 3), operation("a", {"x": 1})) == ["duplicate"], "the first one stands"


@pytest.mark.parametrize(("one", "other"), [(1, True), (1, "1"), (0, None), ([], {}), ({"a": 1}, {"a": 1, "b": None})])
async def test_payloads_that_differ_by_little(client: Client, one: object, other: object) -> None:
    await client.statuses(token(1, 1), operation("a", one))
    assert await client.statuses(token(1, 2), operation("a", other)) == ["rejected"]


async def test_ids_are_forgotten_after_the_retention_in_small_steps(make_client: MakeClient) -> None:
    now = 1_000_000.0
    client = make_client(clock=lambda: now, retention=100)
    sent = [operation(f"op{n:03}", partition=str(n)) for n in range(600)]
    await client.statuses(token(1, 1), *sent)
    now += 99
    assert await client.statuses(token(1, 2), sent[0]) == ["duplicate"]
    now += 2
    left = []
    for seq in range(3, 6):
        more = [operation(f"later{seq}-{n}", partition=str(n)) for n in range(STEP // 2)]
        await client.statuses(token(1, seq), *more)
        left.append(client.query("SELECT count(*) FROM tabhelm_operations WHERE op_id LIKE 'op%'")[0][0])
    assert left == [100, 0, 0], "each operation takes two with it, once they are worth a transaction"
    assert await client.statuses(token(1, 6), sent[0]) == ["committed"]


async def test_ids_are_forgotten_faster_than_they_come(make_client: MakeClient) -> None:
    now = 1_000_000.0
    client = make_client(clock=lambda: now, retention=10)
    for seq in range(1, 13):
        await client.statuses(token(1, seq), *(operation(f"{seq}-{n}", partition=str(n)) for n in range(200)))
        now += 11
    assert client.query("SELECT count(*) FROM tabhelm_operations")[0][0] <= 200 + STEP


async def test_clock_that_is_set_back_forgets_nothing_early_and_takes_nothing_back(make_client: MakeClient) -> None:
    now = 1_000_000.0
    client = make_client(clock=lambda: now, retention=100)
    many = [operation(f"{n}", partition=str(n)) for n in range(STEP)]
    await client.statuses(token(2, 1), operation("before", 1))
    now -= 5_000
    assert await client.statuses(token(2, 2), operation("before", 1)) == ["duplicate"]
    await client.statuses(token(2, 3), *many)
    assert (await client.batch(token(1, 9, owner="old"))).status_code == 409
    now += 50
    assert await client.statuses(token(2, 4), *many, operation("before", 1)) == ["duplicate"] * (STEP + 1)
    now = 1_000_000.0 + 99  # right again
    await client.statuses(token(2, 5), *(operation(f"later-{n}", partition=str(n)) for n in range(STEP)))
    assert await client.statuses(token(2, 6), *many, operation("before", 1)) == ["duplicate"] * (STEP + 1)
    now += 100 + 2
    await client.statuses(token(2, 7), *(operation(f"last-{n}", partition=str(n)) for n in range(STEP)))
    left = client.query("SELECT count(*) FROM tabhelm_operations WHERE op_id NOT LIKE 'la%'")
    assert left == [(0,)], "in the end they are forgotten like all others"


async def test_processes_that_decide_little_forget_all_the_same(make_client: MakeClient) -> None:
    """Restarted each day, none of them would ever have paid for a step."""
    for day in range(5):
        client = make_client(clock=lambda day=day: 1_000_000.0 + 86_400 * day, retention=10)
        await client.statuses(token(day + 1), *(operation(f"{day}-{n}", partition=f"{n}") for n in range(10)))
    assert client.query("SELECT count(*) FROM tabhelm_operations") == [(10,)]


async def test_who_is_not_let_in_moves_nothing(make_client: MakeClient) -> None:
    client = make_client(retention=10)
    assert (await client.http.get("/")).status_code == 405
    with pytest.raises((sqlite3.OperationalError, psycopg.errors.UndefinedTable)):
        client.query("SELECT count(*) FROM tabhelm_operations")


async def test_effect_tells_what_there_is(make_client: MakeClient) -> None:
    seen: list[Effect] = []
    client = make_client(apply=lambda effect, connection: seen.append(effect), clock=lambda: 12.5)
    await client.statuses(token(3, 4), operation("a", {"x": [1, 2.5, "é\U0001f600"]}, "case-42"))
    assert seen == [Effect("a", "case-42", {"x": [1, 2.5, "é\U0001f600"]}, token(3, 4), "public", 12.5)]


# -- apply and the receiver's transaction ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "payload",
    [
        {"call": "commit", "arguments": []},
        {"call": "rollback", "arguments": []},
        {"call": "close", "arguments": []},
        {"call": "__enter__", "arguments": []},
        {"sql": "SELECT nothing FROM nowhere"},
    ],
    ids=str,
)
async def test_what_apply_may_not_do_concerns_its_operation_alone(
    client: Client, payload: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    for seq in (1, 2):
        sent = [
            operation(f"first{seq}", partition="1"),
            operation("bad", payload),
            operation(f"third{seq}", partition="3"),
        ]
        assert await client.statuses(token(1, seq), *sent) == ["committed", "retry", "committed"]
    assert client.applied() == ["first1", "third1", "first2", "third2"]
    assert len(client.query("SELECT * FROM tabhelm_operations")) == 4
    if "call" in payload:
        assert "the receiver commits" in caplog.text


@POSTGRES
async def test_failed_statement_that_apply_hides_is_a_failure_all_the_same(client: Client) -> None:
    """PostgreSQL does nothing more until it is undone; SQLite goes on as if nothing had been."""
    sent = [operation("a", {"swallowed": "SELECT * FROM nowhere"}, "1"), operation("b", partition="2")]
    assert await client.statuses(token(), *sent) == ["retry", "committed"]
    assert client.applied() == ["b"]


@SQLITE
@pytest.mark.parametrize(
    "payload",
    [
        {"call": "executescript", "arguments": ["SELECT 1"]},
        {"sql": "COMMIT"},
        {"sql": "END"},
        {"sql": "ROLLBACK"},
        {"sql": "RELEASE Tabhelm_Operation"},
        {"sql": "ROLLBACK TO tabhelm_operation"},
        {"sql": "SAVEPOINT tabhelm_operation"},
    ],
    ids=str,
)
async def test_sql_that_ends_the_transaction_is_not_prepared_by_sqlite(
    client: Client, payload: object, caplog: pytest.LogCaptureFixture
) -> None:
    for seq in (1, 2):  # the second time, SQLite's statements are prepared already
        sent = [
            operation(f"first{seq}", partition="1"),
            operation("bad", payload),
            operation(f"third{seq}", partition="3"),
        ]
        assert await client.statuses(token(1, seq), *sent) == ["committed", "retry", "committed"]
    assert client.applied() == ["first1", "third1", "first2", "third2"]
    assert len(client.query("SELECT * FROM tabhelm_operations")) == 4
    assert "the receiver commits" in caplog.text or "not authorized" in caplog.text


@POSTGRES
@pytest.mark.parametrize("how", ["sql", "swallowed"])
@pytest.mark.parametrize(
    "statement",
    [
        "COMMIT",
        "END",
        "COMMIT AND CHAIN",
        "SELECT 1; COMMIT; SELECT 2",
        "/* hidden */ cOmMiT",
        "SET CONSTRAINTS ALL IMMEDIATE; COMMIT",
        "ROLLBACK",
        "ABORT",
        "ROLLBACK AND CHAIN",
        "ROLLBACK; BEGIN; SAVEPOINT mine",
        "RELEASE tabhelm_operation",
        "PREPARE TRANSACTION 'x'",
    ],
)
async def test_sql_that_ends_the_transaction_ends_the_request_in_postgresql(
    client: Client, how: str, statement: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Nothing of the request stands, whether or not ``apply`` hides it; the other requests go on."""
    await client.statuses(token(1, 1), operation("before", partition="1"))
    sent = [operation("first", partition="1"), operation("bad", {how: statement}), operation("third", partition="3")]
    answer = await client.batch(token(1, 2), *sent)
    if answer.status_code == 200:  # refused without harm to the transaction
        assert [each["status"] for each in answer.json()["results"]] == ["committed", "retry", "committed"]
        assert client.applied() == ["before", "first", "third"]
    else:
        assert (answer.status_code, answer.json()["type"]) == (500, "urn:tabhelm:failed")
        assert client.applied() == ["before"]
        assert client.query("SELECT op_id FROM tabhelm_operations") == [("before",)]
        assert await client.statuses(token(1, 2), operation("first", partition="1")) == ["committed"]


async def test_apply_may_have_savepoints_of_its_own(make_client: MakeClient) -> None:
    def apply(effect: Effect, connection: Any) -> None:
        insert(connection, "kept")
        connection.execute("SAVEPOINT mine")
        insert(connection, "undone")
        connection.execute("ROLLBACK TO mine")
        connection.execute("RELEASE mine")

    client = make_client(apply=apply)
    assert await client.statuses(token(), operation("a")) == ["committed"]
    assert client.applied() == ["kept"]


@POSTGRES
async def test_apply_may_use_psycopgs_own_nested_transactions(make_client: MakeClient) -> None:
    def apply(effect: Effect, connection: Any) -> None:
        with connection.transaction():
            insert(connection, "kept")
        try:
            with connection.transaction():
                insert(connection, "undone")
                raise LookupError
        except LookupError:
            pass

    client = make_client(apply=apply)
    assert await client.statuses(token(), operation("a")) == ["committed"]
    assert client.applied() == ["kept"]


async def test_failed_statement_of_apply_concerns_its_operation_alone(client: Client) -> None:
    sent = [operation("a", {"sql": "INSERT INTO nowhere VALUES (1)"}), operation("b", partition="other")]
    assert await client.statuses(token(), *sent) == ["retry", "committed"]
    assert client.applied() == ["b"]


@SQLITE
@pytest.mark.parametrize("swallowed", [False, True])
async def test_statement_that_rolls_everything_back(make_client: MakeClient, swallowed: bool) -> None:
    """``OR ROLLBACK`` ends the whole transaction: no operation of the request may count as done."""

    def apply(effect: Effect, connection: Any) -> None:
        try:
            statement = "INSERT OR ROLLBACK INTO applied (n, op_id) VALUES (?, ?)"
            connection.execute(statement, (effect.payload, effect.op_id))
        except sqlite3.IntegrityError:
            if not swallowed:
                raise

    client = make_client(apply=apply)
    await client.statuses(token(1, 1), operation("before", 1))
    answer = await client.batch(token(1, 2), operation("a", 2, "1"), operation("clash", 1, "2"))
    assert (answer.status_code, answer.json()["type"]) == (500, "urn:tabhelm:failed")
    assert client.applied() == ["before"]
    assert await client.statuses(token(1, 2), operation("a", 2, "1")) == ["committed"]
    assert client.query("SELECT op_id FROM tabhelm_operations ORDER BY op_id") == [("a",), ("before",)]


@SQLITE
@pytest.mark.parametrize("way", ["execute", "executemany", "cursor", "executescript"])
async def test_after_a_statement_that_rolls_everything_back_nothing_more_is_written(
    make_client: MakeClient, way: str
) -> None:
    """There is no transaction any more: SQLite would commit what comes next, at each repetition."""

    def apply(effect: Effect, connection: Any) -> None:
        statement, values = "INSERT INTO applied (op_id) VALUES (?)", (effect.op_id,)
        if effect.payload is None:  # now it is prepared, so no authorizer is asked again
            connection.execute(statement, values)
            connection.cursor().execute("SELECT 1")
            return
        try:
            connection.execute("INSERT OR ROLLBACK INTO applied (n, op_id) VALUES (1, 'clash')")
        except sqlite3.IntegrityError:
            pass
        match way:
            case "execute":
                connection.execute(statement, values)
            case "executemany":
                connection.executemany(statement, [values])
            case "cursor":
                connection.cursor().execute(statement, values)
            case _:
                connection.cursor().executescript("INSERT INTO applied (op_id) VALUES ('x')")

    client = make_client(apply=apply)
    await client.statuses(token(1, 1), operation("before"))
    for _ in range(2):
        answer = await client.batch(token(1, 2), operation("a", "odd"))
        assert (answer.status_code, answer.json()["type"]) == (500, "urn:tabhelm:failed")
    assert client.applied() == ["before"]
    assert await client.statuses(token(1, 2), operation("a")) == ["committed"]


@pytest.mark.parametrize("reason", [ValueError("no such case"), None, {"title": 1}, 7])
async def test_reasons_that_are_no_texts_concern_their_operation_alone(make_client: MakeClient, reason: Any) -> None:
    def apply(effect: Effect, connection: Any) -> None:
        if effect.payload == "reject":
            raise Reject(reason)
        if effect.payload == "retry":
            raise Retry(reason)

    sent = [operation(each, each, each) for each in ("reject", "retry", "fine")]
    results = (await make_client(apply=apply).batch(token(), *sent)).json()["results"]
    assert [result["status"] for result in results] == ["rejected", "retry", "committed"]
    assert [result["detail"] for result in results[:2]] == [str(reason)] * 2


@pytest.mark.parametrize("raised", [SystemExit(1), asyncio.CancelledError(), StopIteration()])
async def test_an_apply_that_wants_to_end_the_server_does_not(make_client: MakeClient, raised: BaseException) -> None:
    """Argument parsers do it, for instance. The event loop would take it as its own end."""

    def apply(effect: Effect, connection: Any) -> None:
        insert(connection, effect.op_id)
        if effect.payload == "bad":
            raise raised

    client = make_client(apply=apply)
    assert await client.statuses(token(), operation("a", "bad"), operation("b", None, "q")) == ["retry", "committed"]
    assert client.applied() == ["b"]


class AsyncCallable:
    async def __call__(self, effect: Effect, connection: Any) -> None:
        insert(connection, effect.op_id)


async def inserted(effect: Effect, connection: Any) -> None:
    insert(connection, effect.op_id)


def generated(effect: Effect, connection: Any) -> Iterator[None]:
    insert(connection, effect.op_id)
    yield


async def generated_later(effect: Effect, connection: Any) -> AsyncIterator[None]:
    insert(connection, effect.op_id)
    yield


def half_done(effect: Effect, connection: Any) -> Any:
    insert(connection, effect.op_id)
    return inserted(effect, connection)


@pytest.mark.parametrize(
    "odd",
    [AsyncCallable(), lambda effect, connection: inserted(effect, connection), half_done, generated, generated_later],
)
async def test_an_apply_that_has_not_done_its_work_has_not_committed_it(
    make_client: MakeClient, caplog: pytest.LogCaptureFixture, odd: Any
) -> None:
    """Answered as committed, the operation would be lost: nobody runs what it returned."""

    def apply(effect: Effect, connection: Any) -> Any:
        return odd(effect, connection) if effect.payload == "odd" else insert(connection, effect.op_id)

    client = make_client(apply=odd if isinstance(odd, AsyncCallable) else apply)
    sent = [operation("a", "odd", "1")] + ([] if isinstance(odd, AsyncCallable) else [operation("b", None, "2")])
    assert await client.statuses(token(1, 1), *sent) == ["retry", "committed"][: len(sent)]
    assert client.applied() == ["b"][: len(sent) - 1] and "must have done its work" in caplog.text
    assert (await client.statuses(token(1, 2), sent[0])) == ["retry"], "it is not known"


@SQLITE
def test_async_apply_is_refused_at_once(make_client: MakeClient) -> None:
    async def apply(effect: Effect, connection: Any) -> None: ...

    with pytest.raises(TypeError, match="plain function"):
        make_client(apply=apply)
