"""The lease service: who gets it, for how long, with which token; clocks that are set; what it refuses to read."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

import httpx
import pytest
from lease_server_kit import Leases, MakeLeases, Times, leases, make_leases

from tabhelm.fencing.http_form import parse_token_header
from tabhelm.fencing.token import MAX_NUMBER
from tabhelm.server import LeaseKey, LeaseService, MemoryLeaseStore, StoreBusy

__all__ = ["leases", "make_leases"]


# -- who gets it ------------------------------------------------------------------------------------------------------


async def test_one_candidate_holds_it_and_every_token_is_greater(leases: Leases) -> None:
    assert await leases.granted("a") == (1, 1)
    assert await leases.held("b") == ("a", 15_000)
    leases.times.go(5.0)
    assert await leases.granted("a") == (1, 2), "a renewal"
    leases.times.go(14.0)
    assert await leases.held("b") == ("a", 1_000)
    leases.times.go(1.0)
    assert await leases.granted("b") == (2, 1)
    assert await leases.held("a") == ("b", 15_000)
    assert await leases.release("a") is False, "it is not a's to give back"
    assert await leases.release("b") is True
    assert await leases.release("b") is False
    assert await leases.granted("b") == (3, 1), "what was given back is a new grant"


async def test_who_comes_late_but_first_still_has_it(leases: Leases) -> None:
    await leases.granted("a")
    leases.times.go(100.0)
    assert await leases.granted("a") == (1, 2)
    assert await leases.held("b") == ("a", 15_000)


async def test_the_token_is_a_fencing_token_of_the_services_own_domain(leases: Leases) -> None:
    answer = await leases.ask("tab-1:c-1/9")
    body = answer.json()
    token = parse_token_header(answer.headers["fencing-token"])
    assert body["token"] == {
        "domain": token.domain,
        "resource": "app:job",
        "epoch": 1,
        "stream": "lease",
        "seq": 1,
        "owner": "tab-1:c-1/9",
    }
    assert body["expires_in_ms"] == 15_000 and token.owner_id == "tab-1:c-1/9"
    assert answer.headers["cache-control"] == "no-store"


async def test_leases_of_two_subjects_never_meet_nor_do_their_tokens(leases: Leases) -> None:
    mine, yours = await leases.ask("a", user="me"), await leases.ask("a", user="you")
    assert (mine.status_code, yours.status_code) == (200, 200)
    assert mine.json()["token"]["domain"] != yours.json()["token"]["domain"]
    assert await leases.release("a", user="you") is True
    assert await leases.held("b", user="me") == ("a", 15_000)
    again = await leases.ask("a", resource="app:other", user="me")
    assert again.json()["token"]["domain"] == mine.json()["token"]["domain"]


async def test_the_holder_may_go_on_above_a_receivers_mark(leases: Leases) -> None:
    await leases.granted("a")
    assert await leases.granted("a", above=41) == (42, 1)
    assert await leases.granted("a", above=41) == (42, 2), "it is above already"
    assert await leases.held("b", above=100) == ("a", 15_000)
    await leases.release("a")
    assert await leases.granted("b") == (43, 1)


async def test_who_only_renews_gets_nothing_that_is_not_its_own(leases: Leases) -> None:
    """A renewal that comes after the lease was given back, by whatever way, must not take it again."""
    answer = await leases.ask("a", renew=True)
    assert answer.status_code == 409
    assert (answer.json()["holder"], answer.json()["expires_in_ms"]) == (None, 0)
    await leases.granted("a")
    assert await leases.granted("a", renew=True) == (1, 2)
    await leases.release("a")
    assert (await leases.ask("a", renew=True)).json()["holder"] is None
    await leases.granted("b")
    assert await leases.held("a", renew=True) == ("b", 15_000)
    leases.times.go(20.0)
    assert await leases.held("a", renew=True, wait_ms=5_000) == ("b", 0)
    assert await leases.granted("b", renew=True) == (2, 2)


async def test_no_epoch_beyond_what_a_token_can_carry(leases: Leases) -> None:
    assert await leases.granted("a", above=MAX_NUMBER - 2) == (MAX_NUMBER - 1, 1)
    await leases.release("a")
    answer = await leases.ask("b")
    assert (answer.status_code, answer.json()["type"]) == (422, "urn:tabhelm:epochs-exhausted")
    assert leases.service.metrics.snapshot()["totals"]["refused"] == 1


# -- clocks -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("jump", [-1e9, -3600.0, 3600.0, 1e9])
async def test_a_clock_that_is_set_neither_shortens_nor_lengthens_what_this_process_gave(
    leases: Leases, jump: float
) -> None:
    await leases.granted("a")
    leases.times.wall += jump
    assert await leases.held("b") == ("a", 15_000)
    leases.times.go(14.5)
    assert await leases.held("b") == ("a", 500)
    leases.times.go(0.5)
    assert await leases.granted("b") == (2, 1)


async def test_a_clock_that_was_set_back_keeps_a_lease_no_longer_than_once_more_its_length(
    make_leases: MakeLeases,
) -> None:
    """Seen by another process than the one that gave it, which knows the database's clock alone."""
    first = make_leases()
    await first.granted("a")
    times = Times()
    times.wall = first.times.wall - 1e6
    store = MemoryLeaseStore(clock=lambda: times.wall)
    store.records = first.service._store.records  # type: ignore[attr-defined]
    second = make_leases(times, store)
    assert await second.held("b") == ("a", 15_000)
    times.go(14.9)
    assert (await second.held("b"))[0] == "a"
    times.go(0.1)
    assert await second.granted("b") == (2, 1)


async def test_a_clock_that_was_set_forward_gives_it_early_but_with_a_higher_epoch(make_leases: MakeLeases) -> None:
    """Seen by another process: nothing can tell it from time that has passed. The late holder's token is refused."""
    first = make_leases()
    await first.granted("a")
    times = Times()
    times.wall = first.times.wall + 1e6
    store = MemoryLeaseStore(clock=lambda: times.wall)
    store.records = first.service._store.records  # type: ignore[attr-defined]
    assert await make_leases(times, store).granted("b") == (2, 1)
    assert await first.held("a") == ("b", 15_000)


# -- waiting ----------------------------------------------------------------------------------------------------------


async def test_who_waits_is_answered_the_moment_that_it_is_given_back(
    make_leases: MakeLeases, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tabhelm.server.lease_waiting._LOOK_EVERY", 60.0)
    leases = make_leases(max_waiting=1)
    await leases.granted("a")
    waiting = asyncio.create_task(leases.ask("b", wait_ms=60_000))
    while not leases.service.metrics.waiting:
        await asyncio.sleep(0)
    assert await leases.held("c", wait_ms=60_000) == ("a", 15_000), "only so many wait"
    assert not waiting.done()
    await leases.release("a")
    answer = await asyncio.wait_for(waiting, 10)  # before the next look of its own
    assert answer.status_code == 200 and answer.json()["token"]["epoch"] == 2
    assert leases.service.metrics.waiting == 0


async def test_who_waits_in_vain_is_told_at_the_end_of_its_patience(make_leases: MakeLeases) -> None:
    leases = make_leases(max_wait=0.5)
    await leases.granted("a")
    ticking = asyncio.create_task(_tick(leases.times))
    try:
        began = leases.times.monotonic
        assert (await leases.held("b", wait_ms=60_000))[0] == "a"
        assert 0.5 <= leases.times.monotonic - began < 5.0
    finally:
        ticking.cancel()


async def test_who_waits_is_answered_when_the_lease_expires(make_leases: MakeLeases) -> None:
    leases = make_leases(min_ttl=0.01)
    answer = await leases.ask("a", ttl_ms=50)
    assert answer.status_code == 200
    ticking = asyncio.create_task(_tick(leases.times))
    try:
        answer = await asyncio.wait_for(leases.ask("b", wait_ms=5_000), 5.0)
    finally:
        ticking.cancel()
    assert answer.status_code == 200 and answer.json()["token"]["epoch"] == 2


async def _tick(times: Times) -> None:
    """Let the test's clocks go with the real one."""
    while True:
        await asyncio.sleep(0.005)
        times.go(0.005)


async def test_a_client_that_goes_away_while_it_waits_gets_nothing(make_leases: MakeLeases) -> None:
    leases = make_leases()
    await leases.granted("a")
    gone = asyncio.Event()
    sent: list[Any] = []
    bodies = [{"type": "http.request", "body": b'{"candidate": "b", "ttl_ms": 15000, "wait_ms": 9000}'}]

    async def receive() -> Any:
        if bodies:
            return bodies.pop()
        await gone.wait()
        return {"type": "http.disconnect"}

    async def send(message: Any) -> None:
        sent.append(message)

    headers = [(b"content-type", b"application/json"), (b"x-user", b"u")]
    scope = {"type": "http", "method": "POST", "path": "/leases/app:job", "headers": headers}
    asking = asyncio.create_task(leases.service(scope, receive, send))
    while not leases.service.metrics.waiting:
        await asyncio.sleep(0)
    gone.set()
    await asyncio.wait_for(asking, 2.0)
    assert await leases.release("a") is True
    assert await leases.granted("c") == (2, 1), "nobody else has got it"


async def test_a_client_that_goes_away_at_the_very_moment_of_its_grant_gets_nothing(make_leases: MakeLeases) -> None:
    written, told = asyncio.Event(), asyncio.Event()

    class Slow(MemoryLeaseStore):
        """What is granted to ``b`` is durable for a while before anybody hears of it."""

        async def change(self, key: LeaseKey, decide: Any, most: int) -> Any:
            result = await super().change(key, decide, most)
            if self.records[key].holder == "b" and not told.is_set():
                written.set()
                await told.wait()
            return result

    leases = make_leases(store=Slow())
    await leases.granted("a")
    gone = asyncio.Event()
    bodies = [{"type": "http.request", "body": b'{"candidate": "b", "ttl_ms": 15000, "wait_ms": 9000}'}]

    async def receive() -> Any:
        if bodies:
            return bodies.pop()
        await gone.wait()
        return {"type": "http.disconnect"}

    async def send(message: Any) -> None: ...

    headers = [(b"content-type", b"application/json"), (b"x-user", b"u")]
    scope = {"type": "http", "method": "POST", "path": "/leases/app:job", "headers": headers}
    asking = asyncio.create_task(leases.service(scope, receive, send))
    while not leases.service.metrics.waiting:
        await asyncio.sleep(0)
    await leases.release("a")
    await written.wait()
    gone.set()
    for _ in range(5):
        await asyncio.sleep(0)
    told.set()
    await asyncio.wait_for(asking, 2.0)
    assert await leases.granted("c") == (3, 1), "what b was given is free again"


async def test_who_takes_its_request_back_waits_no_more(make_leases: MakeLeases) -> None:
    leases = make_leases()
    await leases.granted("a")
    waiting = asyncio.create_task(leases.ask("b", wait_ms=60_000))
    while not leases.service.metrics.waiting:
        await asyncio.sleep(0)
    assert await leases.release("b") is False
    assert (await asyncio.wait_for(waiting, 2.0)).status_code == 409
    await leases.release("a")
    assert await leases.granted("c") == (2, 1)


async def test_a_service_that_closes_answers_who_waits(make_leases: MakeLeases) -> None:
    leases = make_leases()
    await leases.granted("a")
    waiting = asyncio.create_task(leases.ask("b", wait_ms=60_000))
    while not leases.service.metrics.waiting:
        await asyncio.sleep(0)
    await leases.service.close()
    assert (await asyncio.wait_for(waiting, 2.0)).status_code == 409


# -- what it refuses --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("body", "says"),
    [
        (b"", "not JSON"),
        (b"[1]", "candidate"),
        (b'{"ttl_ms": 15000}', "candidate"),
        (b'{"candidate": 7, "ttl_ms": 15000}', "candidate"),
        (b'{"candidate": "", "ttl_ms": 15000}', "owner"),
        (b'{"candidate": "\\u00fc", "ttl_ms": 15000}', "owner"),
        (b'{"candidate": "a\\nb", "ttl_ms": 15000}', "owner"),
        (b'{"candidate": "a"}', "ttl_ms"),
        (b'{"candidate": "a", "ttl_ms": true}', "ttl_ms"),
        (b'{"candidate": "a", "ttl_ms": 999}', "1000 to 600000"),
        (b'{"candidate": "a", "ttl_ms": 600001}', "1000 to 600000"),
        (b'{"candidate": "a", "ttl_ms": NaN}', "ttl_ms"),
        (b'{"candidate": "a", "ttl_ms": 15000, "wait_ms": -1}', "wait_ms"),
        (b'{"candidate": "a", "ttl_ms": 15000, "above": 1.5}', "above"),
        (b'{"candidate": "a", "ttl_ms": 15000, "renew": 1}', "renew"),
        (b'{"candidate": "a", "ttl_ms": 15000, "above": 1e300}', "above"),
        (b"\xff", "not JSON"),
        (b"[" * 3000, "JSON"),
    ],
)
async def test_what_cannot_be_read_is_refused_by_name(leases: Leases, body: bytes, says: str) -> None:
    headers = {"content-type": "application/json", "x-user": "u"}
    answer = await leases.http.post("/api/leases/app:job", content=body, headers=headers)
    assert (answer.status_code, answer.json()["type"]) == (400, "urn:tabhelm:malformed"), answer.text
    assert says in answer.json()["detail"]
    assert leases.service.metrics.snapshot()["totals"]["malformed"] == 1
    assert await leases.granted("a") == (1, 1)


@pytest.mark.parametrize("name", ["", "app job", "-a", "a:", ":a", "a::b", "a%2Fb", "%00", "ü", "a" * 513, "'; DROP"])
async def test_what_is_no_name_is_refused(leases: Leases, name: str) -> None:
    answer = await leases.ask("a", resource=name)
    assert (answer.status_code, answer.json()["type"]) in [(400, "urn:tabhelm:malformed")], answer.text


async def test_what_is_no_request_of_the_contract(leases: Leases) -> None:
    url, user = "/api/leases/app:job", {"x-user": "u"}
    got = await leases.http.get(url, headers=user)
    assert got.status_code == 405 and got.headers["allow"] == "POST, DELETE"
    plain = await leases.http.post(url, content=b"{}", headers={**user, "content-type": "text/plain"})
    assert plain.status_code == 415
    long = await leases.http.post(url, json={"candidate": "a" * 5000}, headers=user)
    assert long.status_code == 413
    packed = await leases.http.post(url, json={}, headers={**user, "content-encoding": "gzip"})
    assert packed.status_code == 415
    for query in ("", "?candidate=a&candidate=b"):
        assert (await leases.http.delete(f"{url}{query}", headers=user)).status_code == 400
    assert leases.service.metrics.snapshot()["totals"]["malformed"] == 5


async def test_only_who_is_let_in_may_ask(leases: Leases) -> None:
    for user, status in (("banned", 403), ("", 401)):
        headers = {"x-user": user} if user else {}
        answer = await leases.http.post("/leases/app:job", json={}, headers=headers)
        assert answer.status_code == status and answer.headers["content-type"] == "application/problem+json"
        assert (await leases.http.delete("/leases/app:job?candidate=a", headers=headers)).status_code == status
    assert leases.service.metrics.snapshot()["totals"]["denied"] == 4


async def test_a_lease_of_one_user_is_not_given_to_another(make_leases: MakeLeases) -> None:
    leases = make_leases(owns=lambda subject, resource: resource.endswith(f":user:{subject}"))
    anns = "app:export:user:ann"
    assert await leases.granted("a", resource=anns, user="ann") == (1, 1)
    answer = await leases.ask("a", resource=anns, user="bob", renew=True)
    assert (answer.status_code, answer.json()["type"]) == (403, "urn:tabhelm:not-owner")
    url = f"/api/leases/{anns}"
    answer = await leases.http.delete(url, params={"candidate": "a"}, headers={"x-user": "bob"})
    assert answer.status_code == 403
    assert await leases.release("a", resource=anns, user="ann") is True
    assert leases.service.metrics.snapshot()["resources"][anns]["denied"] == 2


async def test_a_subject_cannot_fill_the_database(make_leases: MakeLeases) -> None:
    leases = make_leases(max_leases=2)
    for n in range(2):
        await leases.granted("a", resource=f"app:{n}")
    answer = await leases.ask("a", resource="app:2")
    assert (answer.status_code, answer.json()["type"]) == (403, "urn:tabhelm:too-many-leases")
    assert await leases.granted("a", resource="app:2", user="other") == (1, 1)


async def test_a_database_that_is_busy_or_broken(make_leases: MakeLeases, caplog: pytest.LogCaptureFixture) -> None:
    failure: Exception = StoreBusy("locked")

    class Broken(MemoryLeaseStore):
        async def change(self, key: LeaseKey, decide: Any, most: int) -> Any:
            raise failure

    leases = make_leases(store=Broken())
    answer = await leases.ask("a")
    assert (answer.status_code, answer.headers["retry-after"]) == (503, "1")
    failure = KeyError("a secret of the database")
    with caplog.at_level(logging.ERROR):
        answer = await leases.ask("a")
    assert answer.status_code == 500 and "secret" not in answer.text and "secret" in caplog.text
    totals = leases.service.metrics.snapshot()["totals"]
    assert (totals["busy"], totals["failed"]) == (1, 1)


@pytest.mark.parametrize(
    "wrong",
    [
        {"max_ttl": float("inf")},
        {"max_wait": float("nan")},
        {"max_waiting": -1},
        {"max_leases": 0},
        {"max_body": 0},
    ],
)
def test_limits_that_mean_nothing(wrong: dict[str, Any]) -> None:
    (name,) = wrong
    with pytest.raises(ValueError, match=rf"{name} .* is not valid: at least"):
        LeaseService(MemoryLeaseStore(), **wrong)


def test_times_that_contradict_each_other() -> None:
    with pytest.raises(ValueError, match="min_ttl"):
        LeaseService(MemoryLeaseStore(), min_ttl=10, max_ttl=5)


# -- what it counts ---------------------------------------------------------------------------------------------------


async def test_what_is_counted(leases: Leases) -> None:
    await leases.granted("a")
    await leases.granted("a")
    await leases.held("b")
    leases.times.go(15.0)
    await leases.granted("b")
    await leases.release("b")
    await leases.granted("b")
    snapshot = leases.service.metrics.snapshot()
    counts = {what: count for what, count in snapshot["resources"]["app:job"].items() if count}
    assert counts == {"granted": 2, "renewed": 1, "refused": 1, "taken-over": 1, "released": 1}
    text = leases.service.metrics.prometheus()
    assert 'tabhelm_lease_taken_over_total{resource="app:job"} 1\n' in text
    assert "tabhelm_lease_waiting 0\n" in text


async def test_metrics_do_not_grow_with_names_that_candidates_choose(make_leases: MakeLeases) -> None:
    leases = make_leases(max_leases=5000)
    for n in range(1100):
        await leases.granted("a", resource=f"app:{n}")
    assert len(leases.service.metrics.snapshot()["resources"]) == 1001


async def test_it_lives_with_its_web_server(make_leases: MakeLeases) -> None:
    leases = make_leases()
    messages = [{"type": "lifespan.shutdown"}, {"type": "lifespan.startup"}]
    said: list[str] = []

    async def receive() -> Any:
        return messages.pop()

    async def send(message: Any) -> None:
        said.append(message["type"])

    await leases.service({"type": "lifespan"}, receive, send)
    assert said == ["lifespan.startup.complete", "lifespan.shutdown.complete"]
    assert isinstance(await leases.ask("a"), httpx.Response)


@pytest.mark.parametrize("subject", ["", None, 7, "a\0", "\ud800"])
async def test_a_subject_that_no_database_takes_is_a_mistake_of_the_application(subject: Any) -> None:
    service = LeaseService(MemoryLeaseStore(), authenticate=lambda scope: subject)
    async with httpx.AsyncClient(transport=httpx.ASGITransport(service), base_url="http://leases") as http:
        with pytest.raises(TypeError, match="authenticate must return"):
            await http.post("/app:job", json={"candidate": "a", "ttl_ms": 15_000})


@pytest.mark.parametrize("unsure", [False, True])
async def test_what_a_busy_database_leaves_open_is_said_and_forges_no_log(
    make_leases: MakeLeases, caplog: pytest.LogCaptureFixture, unsure: bool
) -> None:
    class Busy(MemoryLeaseStore):
        async def change(self, key: LeaseKey, decide: Any, most: int) -> Any:
            raise StoreBusy("lost\n2026-11-30 CRITICAL forged", unsure=unsure)

    answer = await make_leases(store=Busy()).ask("a")
    assert (answer.status_code, answer.headers["retry-after"]) == (503, "1")
    assert ("may have been changed" in answer.json()["detail"]) == unsure
    assert len(caplog.records) == 1 and "\n" not in caplog.text.rstrip("\n")
