"""The contract's letter: what is understood, what is refused and how."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Iterator, MutableMapping
from pathlib import Path
from typing import Any

import httpx
import pytest
from receiver_kit import SQLITE, Client, MakeClient, operation, token
from starlette.applications import Starlette
from starlette.routing import Route

from tabhelm.fencing.http_form import token_header
from tabhelm.server import Denied
from tabhelm.server.asgi import Scope

pytestmark = SQLITE
GOOD = {"Fencing-Token": token_header(token()), "Content-Type": "application/json"}


def problem(answer: httpx.Response, status: int, kind: str = "about:blank") -> str:
    """Check the form of a problem; its detail."""
    assert answer.status_code == status, answer.text
    assert answer.headers["content-type"] == "application/problem+json"
    assert int(answer.headers["tabhelm-retention"]) > 0
    body = answer.json()
    assert (body["type"], body["status"]) == (kind, status)
    assert body["title"]
    detail: str = body.get("detail", "")
    return detail


async def test_retention_is_told_with_every_answer(make_client: MakeClient) -> None:
    client = make_client()
    assert (await client.batch(token())).headers["tabhelm-retention"] == str(30 * 86_400)
    assert (await client.http.get("/")).headers["tabhelm-retention"] == str(30 * 86_400)
    assert (await make_client(retention=77).batch(token(1, 2))).headers["tabhelm-retention"] == "77"


@pytest.mark.parametrize("method", ["GET", "HEAD", "PUT", "DELETE", "OPTIONS", "PATCH"])
async def test_other_methods(client: Client, method: str) -> None:
    answer = await client.http.request(method, "/")
    assert answer.status_code == 405
    assert answer.headers["allow"] == "POST"


@pytest.mark.parametrize("media_type", ["text/plain", "application/x-www-form-urlencoded", "", "application/jsonx"])
async def test_other_media_types(client: Client, media_type: str) -> None:
    """Among them those that a foreign page may send without asking first."""
    problem(await client.http.post("/", content='{"operations":[]}', headers=GOOD | {"Content-Type": media_type}), 415)


async def test_media_type_with_parameters(client: Client) -> None:
    headers = GOOD | {"Content-Type": "Application/JSON; charset=utf-8"}
    assert (await client.http.post("/", content='{"operations":[]}', headers=headers)).status_code == 200


async def test_compressed_body(client: Client) -> None:
    problem(await client.http.post("/", content=b"x", headers=GOOD | {"Content-Encoding": "gzip"}), 415)


@pytest.mark.parametrize(
    ("header", "named"),
    [
        (None, "missing"),
        ("", "value"),
        ("7", "must be a string"),
        ('"r"', "'domain'"),
        ('"r";domain="d";epoch=7.5;stream="s";seq=1;owner="o"', "'epoch'"),
        ('"r";domain="d";epoch=0;stream="s";seq=1;owner="o"', "epoch 0"),
        ('"r";domain="d";epoch=1;stream="s";seq=-1;owner="o"', "seq -1"),
        ('"r";domain="d";epoch=1;stream="";seq=1;owner="o"', "stream"),
        ('"r";domain=d;epoch=1;stream="s";seq=1;owner="o"', "'domain'"),
        ('"r";domain="d";epoch=1;stream="s";seq=1;owner="o', "value"),
        ("x" * 10_000, "10000"),
    ],
)
async def test_malformed_token(client: Client, header: str | None, named: str) -> None:
    headers = {name: value for name, value in GOOD.items() if name != "Fencing-Token"}
    if header is not None:
        headers["Fencing-Token"] = header
    detail = problem(
        await client.http.post("/", json={"operations": []}, headers=headers), 400, "urn:tabhelm:malformed"
    )
    assert named in detail and len(detail) < 400


async def test_two_tokens_in_one_request(client: Client) -> None:
    headers = [*GOOD.items(), ("Fencing-Token", token_header(token(9, 9)))]
    problem(await client.http.post("/", content='{"operations":[]}', headers=headers), 400, "urn:tabhelm:malformed")


@pytest.mark.parametrize(
    "body",
    [
        "",
        "null",
        "[]",
        "{}",
        '{"operations":{}}',
        '{"operations":[null]}',
        '{"operations":[{"op_id":"a","partition":"p"}]}',
        '{"operations":[{"op_id":"","partition":"p","payload":1}]}',
        '{"operations":[{"op_id":1,"partition":"p","payload":1}]}',
        '{"operations":[{"op_id":"a","partition":null,"payload":1}]}',
        '{"operations":[{"op_id":"\\ud800","partition":"p","payload":1}]}',
        '{"operations":[{"op_id":"a\\u0000","partition":"p","payload":1}]}',
        '{"operations":[{"op_id":"' + "a" * 513 + '","partition":"p","payload":1}]}',
        '{"operations":[{"op_id":"a","partition":"p","payload":NaN}]}',
        '{"operations":[{"op_id":"a","partition":"p","payload":[-1e999]}]}',
        '{"operations":[{"op_id":"a","partition":"p","payload":' + "9" * 5000 + "}]}",
        '{"operations":' + "[" * 100_000,
        '{"operations":[{"op_id":"a","partition":"p","payload":' + "[" * 500 + "]" * 500 + "}]}",
        b'{"operations":[\xff]}',
        "<html>",
    ],
    ids=lambda body: repr(body[:60]),
)
async def test_malformed_body(client: Client, body: str | bytes) -> None:
    detail = problem(await client.http.post("/", content=body, headers=GOOD), 400, "urn:tabhelm:malformed")
    assert len(detail) < 400
    assert await client.statuses(token(), operation("a")) == ["committed"], "the token was not used up"


async def test_one_bad_operation_spoils_the_batch_before_anything_is_applied(client: Client) -> None:
    answer = await client.batch(token(), operation("a"), {"op_id": "b", "partition": "p"})
    assert "operations[1]" in problem(answer, 400, "urn:tabhelm:malformed")
    assert await client.statuses(token(), operation("a")) == ["committed"]


async def test_half_a_surrogate_in_a_payload_is_the_applications_to_judge(make_client: MakeClient) -> None:
    seen: list[object] = []
    client = make_client(apply=lambda effect, connection: seen.append(effect.payload))
    body = '{"operations":[{"op_id":"a","partition":"p","payload":"\\ud800"}]}'
    for seq, status in ((1, "committed"), (2, "duplicate")):
        headers = GOOD | {"Fencing-Token": token_header(token(1, seq))}
        answer = await client.http.post("/", content=body, headers=headers)
        assert answer.json()["results"][0]["status"] == status
    assert seen == ["\ud800"]


@pytest.mark.parametrize("announced", [True, False])
async def test_body_too_large(make_client: MakeClient, announced: bool) -> None:
    client = make_client(max_body=1000)
    content = json.dumps({"operations": [operation("a", "x" * 1000)]}).encode()

    async def parts() -> AsyncIterator[bytes]:
        for at in range(0, len(content), 100):
            yield content[at : at + 100]

    answer = await client.http.post("/", content=content if announced else parts(), headers=GOOD)
    assert "1000" in problem(answer, 413)
    assert await client.statuses(token(), operation("a")) == ["committed"]


async def test_too_many_operations(make_client: MakeClient) -> None:
    client = make_client(max_operations=3)
    problem(await client.batch(token(), *(operation(f"{n}") for n in range(4))), 413)
    assert await client.statuses(token(), *(operation(f"{n}") for n in range(3))) == ["committed"] * 3


async def test_large_batch(client: Client) -> None:
    sent = [operation(f"op{n}", "x" * 3000, str(n % 7)) for n in range(1000)]
    assert await client.statuses(token(), *sent) == ["committed"] * 1000
    assert await client.statuses(token(1, 2), *sent) == ["duplicate"] * 1000
    assert len(client.applied()) == 1000


# -- one operation with an idempotency key -----------------------------------------------------------------------------


async def test_single_operation(client: Client) -> None:
    for seq, status in ((1, "committed"), (2, "duplicate")):
        answer = await client.single(token(1, seq), "key-1", {"x": 1})
        assert (answer.status_code, answer.json()) == (200, {"results": [{"op_id": "key-1", "status": status}]})
    assert client.applied() == ["key-1"]


async def test_single_operation_and_batch_share_their_ids(client: Client) -> None:
    await client.single(token(1, 1), "key-1", {"x": 1})
    assert await client.statuses(token(1, 2), operation("key-1", {"x": 1})) == ["duplicate"]


async def test_single_key_reused(client: Client) -> None:
    await client.single(token(1, 1), "key-1", {"x": 1})
    problem(await client.single(token(1, 2), "key-1", {"x": 2}), 422, "urn:tabhelm:key-reused")
    assert client.applied() == ["key-1"]


async def test_single_rejected(client: Client) -> None:
    for seq in (1, 2):
        answer = await client.single(token(1, seq), "key-1", {"reject": "there is no case 42"})
        assert problem(answer, 422, "urn:tabhelm:rejected") == "there is no case 42"


@pytest.mark.parametrize(("after", "header"), [(None, "1"), (0, "0"), (2.1, "3")])
async def test_single_retry(client: Client, after: float | None, header: str) -> None:
    answer = await client.single(token(), "key-1", {"retry": "closed", "after": after})
    assert problem(answer, 503, "urn:tabhelm:retry") == "closed"
    assert answer.headers["retry-after"] == header


@pytest.mark.parametrize("key", ["key-1", '""', "7", '"a";b', '"a'])
async def test_malformed_key(client: Client, key: str) -> None:
    answer = await client.http.post("/", json={}, headers=GOOD | {"Idempotency-Key": key})
    if key == '"a";b':
        assert answer.status_code == 200  # parameters are allowed, and mean nothing here
    else:
        problem(answer, 400, "urn:tabhelm:malformed")


@pytest.mark.parametrize(
    "wrong",
    [
        {"retention": float("nan")},
        {"retention": float("inf")},
        {"retention": 0.5},
        {"max_body": 0},
        {"max_operations": 0},
        {"store": {"busy_timeout": float("nan")}},
        {"store": {"busy_timeout": -1}},
        {"store": {"max_waiting": 0}},
    ],
)
def test_limits_that_mean_nothing(make_client: MakeClient, wrong: dict[str, Any]) -> None:
    name = next(iter(wrong.get("store", wrong)))
    with pytest.raises(ValueError, match=rf"{name} .* is not valid: at least"):
        make_client(**wrong)


# -- who sends ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("status", [401, 403])
async def test_denied(make_client: MakeClient, status: int) -> None:
    async def authenticate(scope: Scope) -> str:
        raise Denied(status, "the session has ended")  # type: ignore[arg-type]

    client = make_client(authenticate=authenticate)
    assert problem(await client.batch(token(), operation("a")), status) == "the session has ended"
    assert not Path(client.database.address).exists()


async def test_authenticate_must_name_somebody(make_client: MakeClient) -> None:
    """An empty subject would put users together who must not meet."""

    def nobody(scope: Scope) -> Awaitable[str] | str:
        return ""

    with pytest.raises(TypeError, match="non-empty"):
        await make_client(authenticate=nobody).batch(token())


def by_user(scope: Scope) -> str:
    """Whoever is signed in: of all tabs of a browser, the last one."""
    return dict(scope["headers"])[b"x-user"].decode()  # type: ignore[no-any-return]


def own_scope(subject: str, resource: str) -> bool:
    return resource.endswith(f":user:{subject}")


async def own_scope_later(subject: str, resource: str) -> bool:
    await asyncio.sleep(0)
    return own_scope(subject, resource)


@pytest.mark.parametrize("owns", [own_scope, own_scope_later])
async def test_work_of_one_user_is_not_taken_from_another(make_client: MakeClient, owns: Any) -> None:
    """Its tab has not heard of the sign-in in another one, with which it shares its cookies."""
    client = make_client(authenticate=by_user, owns=owns)
    anns, bobs = (token(1, 1, resource=f"app:offline-queue:mutations:user:{name}") for name in ("ann", "bob"))
    for sent in ([operation("a")], []):  # the barrier as well
        answer = await client.batch(anns, *sent, **{"x-user": "bob"})
        assert "does not own app:offline-queue:mutations:user:ann" in problem(answer, 403, "urn:tabhelm:not-owner")
    assert not Path(client.database.address).exists(), "nothing was even looked up"
    for user, shown in (("ann", anns), ("bob", bobs)):
        answer = await client.batch(shown, operation("a"), **{"x-user": user})
        assert answer.json()["results"] == [{"op_id": "a", "status": "committed"}]
    assert client.receiver.metrics.snapshot()["resources"][anns.resource]["denied"] == 2


async def test_owns_may_say_more_and_has_to_say_something(make_client: MakeClient) -> None:
    def owns(subject: str, resource: str) -> bool:
        raise Denied(401, "sign in again")

    assert problem(await make_client(owns=owns).batch(token()), 401) == "sign in again"
    with pytest.raises(TypeError, match="owns must return True or False"):
        await make_client(owns=lambda subject, resource: None).batch(token())


# -- inside other applications -----------------------------------------------------------------------------------------


async def test_mounted_in_starlette(client: Client) -> None:
    app = Starlette(routes=[Route("/api/operations", client.receiver)])
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://app") as http:
        answer = await http.post("/api/operations", json={"operations": [operation("a")]}, headers=GOOD)
    assert answer.json() == {"results": [{"op_id": "a", "status": "committed"}]}


async def test_lifespan_closes_the_store(client: Client) -> None:
    await client.statuses(token(), operation("a"))
    said: list[str] = []
    heard: Iterator[dict[str, Any]] = iter([{"type": "lifespan.startup"}, {"type": "lifespan.shutdown"}])

    async def receive() -> MutableMapping[str, Any]:
        return next(heard)

    async def send(message: MutableMapping[str, Any]) -> None:
        said.append(message["type"])

    await client.receiver({"type": "lifespan"}, receive, send)
    assert said == ["lifespan.startup.complete", "lifespan.shutdown.complete"]
    assert not Path(f"{client.database.address}-wal").exists(), "the last connection is closed"


@pytest.mark.parametrize("refused", [False, True])
async def test_sender_that_goes_away_before_its_request_is_complete(client: Client, refused: bool) -> None:
    """Nobody hears the answer, but middleware takes silence for a failure. Some servers refuse it then."""
    begun = {"type": "http.request", "body": b'{"oper', "more_body": True}
    heard: Iterator[dict[str, Any]] = iter([begun, {"type": "http.disconnect"}])
    said: list[Any] = []

    async def receive() -> MutableMapping[str, Any]:
        return next(heard)

    async def send(message: object) -> None:
        said.append(message)
        if refused:
            raise OSError("the client has gone")

    raw = [(name.lower().encode(), value.encode()) for name, value in GOOD.items()]
    scope = {"type": "http", "method": "POST", "path": "/", "headers": raw}
    await client.receiver(scope, receive, send)
    assert said[0]["status"] == 400 and not Path(client.database.address).exists()


async def test_a_sender_that_goes_away_before_its_answer_is_no_failure(make_client: MakeClient) -> None:
    """What was decided stands, and what has expired is deleted all the same."""
    now = 1_000_000.0
    client = make_client(clock=lambda: now, retention=10)
    await client.statuses(token(1, 1), *(operation(f"{n}", partition=f"{n}") for n in range(300)))
    now += 20

    async def receive() -> MutableMapping[str, Any]:
        sent = [operation(f"later-{n}", partition=f"{n}") for n in range(300)]
        return {"type": "http.request", "body": json.dumps({"operations": sent}).encode()}

    async def send(message: object) -> None:
        raise ConnectionResetError("the client has gone")

    headers = GOOD | {"Fencing-Token": token_header(token(1, 2))}
    raw = [(name.lower().encode(), value.encode()) for name, value in headers.items()]
    await client.receiver({"type": "http", "method": "POST", "path": "/", "headers": raw}, receive, send)
    assert client.query("SELECT count(*) FROM tabhelm_operations") == [(300,)], "the later ones"


# -- counters ----------------------------------------------------------------------------------------------------------


async def test_metrics(client: Client) -> None:
    await client.statuses(token(2, 1))
    await client.statuses(token(2, 2), operation("a"), operation("b", {"reject": "no"}), operation("c"))
    await client.statuses(token(2, 3, resource='app:"x"'), operation("a"), operation("d", {"retry": "no", "after": 1}))
    await client.batch(token(2, 2))
    await client.batch(token(1, 1, owner="old"))
    await client.http.post("/", json={}, headers=GOOD)
    await client.http.post("/", json={})
    snapshot = client.receiver.metrics.snapshot()
    others = {what: count for what, count in snapshot["totals"].items() if count != 1}
    assert others == {"malformed": 2, "denied": 0, "busy": 0, "failed": 0}
    assert len(snapshot["totals"]) == 12
    assert snapshot["resources"]["app:queue"]["malformed"] == 1
    assert snapshot["resources"]["(unknown)"]["malformed"] == 1


async def test_metrics_do_not_grow_with_what_senders_invent(make_client: MakeClient) -> None:
    client = make_client()
    for n in range(1010):
        client.receiver.metrics.count("stale", f"r{n}")
    assert len(client.receiver.metrics.snapshot()["resources"]) == 1001
    assert client.receiver.metrics.snapshot()["totals"]["stale"] == 1010
