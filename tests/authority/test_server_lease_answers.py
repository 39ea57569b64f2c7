"""What a lease service says: to check(), in answers that are none, to apps that authenticate."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace
from typing import Any

import pytest
from device_kit import RECEIVER, SERVER, Devices, troubles
from lease_kit import reasons

from tabhelm.errors import LeadershipLost, Unreachable
from tabhelm.leadership import BackingOff
from tabhelm.observe import EpochIssued
from tabhelm.ports import HttpAnswer
from tabhelm.simulated import HttpRequest, World

# -- what check() and receivers say -----------------------------------------------------------------------------------


def test_check_asks_the_service() -> None:
    with World(1) as world:
        devices = Devices(world)

        async def main() -> None:
            first = await devices.one.leading()
            context = devices.crew.contexts[0][1]
            before = devices.record.seq
            await first.agent.start(context.check())
            assert devices.record.seq == before + 1, "a renewal"
            devices.one.cut_off()
            with pytest.raises(Unreachable):
                await first.agent.start(context.check())
            assert first.leading and not context.lost, "nothing is known, and nothing lost yet"
            devices.one.cut_off(False)
            (key,) = devices.store.records
            devices.store.records[key] = replace(devices.record, epoch=2, seq=1, holder="somebody")
            with pytest.raises(LeadershipLost, match="newer-epoch"):
                await first.agent.start(context.check())
            await world.until(lambda: not first.leading)
            assert reasons(first) == ["newer-epoch"]

        world.run(main())


def test_a_holder_whose_lease_somebody_else_has_is_told_at_its_next_renewal() -> None:
    with World(1) as world:
        devices = Devices(world)

        async def main() -> None:
            first = await devices.one.leading()
            (key,) = devices.store.records
            devices.store.records[key] = replace(devices.record, epoch=2, seq=1, holder="somebody")
            await world.until(lambda: not first.leading, within=5.5)
            assert reasons(first) == ["newer-epoch"]

        world.run(main())


def test_a_service_that_lost_its_database_begins_a_domain_of_its_own() -> None:
    with World(1) as world:
        devices = Devices(world)

        async def main() -> None:
            first = await devices.one.leading()
            devices.wipe()
            await world.until(lambda: not first.leading, within=5.5)
            assert reasons(first) == ["storage-wiped"]
            await devices.crew.led(first, within=30.0)
            domains = [grant.domain for grant in first.grants]
            assert len(set(domains)) == 2

        world.run(main())


def test_a_service_restored_from_a_backup_goes_on_above_what_receivers_saw() -> None:
    with World(1) as world:
        devices = Devices(world)

        async def main() -> None:
            receiver = devices.receiver()
            first = devices.one.join()
            election = devices.one.lead(first, fence=RECEIVER)
            await devices.crew.led(first)
            backup = dict(devices.store.records)
            for _ in range(5):
                first.call(election.step_down)
                await world.until(lambda: not first.leading)
                await devices.crew.led(first)
            assert receiver.tokens[-1].epoch == 6
            first.agent.die()
            devices.store.records = backup
            second = devices.two.join()
            devices.two.lead(second, fence=RECEIVER)
            await devices.crew.led(second)
            assert second.led == [7] and receiver.tokens[-1].epoch == 7
            await world.sleep(60.0)
            assert second.leading

        world.run(main())


# -- answers that are none --------------------------------------------------------------------------------------------


def token(**changes: Any) -> dict[str, Any]:
    fields = {"domain": "d", "resource": "app:r", "epoch": 1, "stream": "lease", "seq": 1, "owner": "me"}
    return {"token": {**fields, **changes}, "expires_in_ms": 15_000}


@pytest.mark.parametrize(
    ("status", "body"),
    [
        (200, "<html>Sign in</html>"),
        (200, "[]"),
        (200, "{}"),
        (200, '{"token": {}, "expires_in_ms": 1}'),
        (200, '{"token": {"domain": "d", "resource": "app:r", "epoch": 1, "stream": "s", "seq": 1, "owner": "other"}}'),
        (409, '{"type": "urn:tabhelm:lease-held"}'),
        (409, '{"type": "urn:tabhelm:stale-token"}'),
        (409, '{"type": "urn:tabhelm:lease-held", "holder": "x", "expires_in_ms": -1}'),
        (401, '{"title": "Sign in first"}'),
        (403, ""),
        (404, "not found"),
        (500, "{}"),
        (503, "null"),
        (204, ""),
    ],
)
def test_an_answer_that_is_none_leads_nobody_and_is_told(status: int, body: str) -> None:
    with World(1) as world:
        devices = Devices(world)

        async def handler(request: Any) -> HttpAnswer:
            return HttpAnswer(status, {}, body)

        async def main() -> None:
            world.network.route(devices.one.url, handler)
            first = devices.one.standing()
            await world.sleep(5.0)
            assert first.led == []
            status_now = first.tab.elections["app:r"].status
            assert isinstance(status_now, BackingOff) and status_now.reason == "lease-refused", status_now
            told = troubles(first)
            assert len(told) == 1 and f"HTTP {status}" in str(told[0])

        world.run(main())


def test_an_answer_for_another_candidate_or_resource_is_none() -> None:
    with World(1) as world:
        devices = Devices(world)
        answers = [token(owner="somebody"), token(resource="app:other"), token(epoch=0), token(domain="")]

        async def handler(request: Any) -> HttpAnswer:
            mine = json.loads(request.body or "{}").get("candidate", "")
            answer = answers.pop(0) if answers else token(owner=mine)
            if answer["token"]["owner"] == "me":
                answer["token"]["owner"] = mine
            return HttpAnswer(200, {}, json.dumps(answer))

        async def main() -> None:
            world.network.route(devices.one.url, handler)
            first = devices.one.standing()
            await devices.crew.led(first, within=30.0)
            assert answers == [] and first.led == [1]

        world.run(main())


def test_a_service_that_gives_less_time_is_believed_for_less() -> None:
    with World(1) as world:
        devices = Devices(world)

        async def handler(request: Any) -> HttpAnswer:
            mine = json.loads(request.body or "{}").get("candidate", "")
            return HttpAnswer(200, {}, json.dumps({**token(owner=mine), "expires_in_ms": 9_000}))

        async def main() -> None:
            world.network.route(devices.one.url, handler)
            first = await devices.one.leading()
            devices.one.cut_off()
            cut = world.loop.time()
            await world.until(lambda: not first.leading)
            assert world.loop.time() - cut < 6.1, "two thirds of nine seconds"

        world.run(main())


# -- the app's own authentication -------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["mapping", "function", "async"])
def test_the_apps_headers_go_with_every_request(kind: str) -> None:
    with World(1) as world:
        devices = Devices(world)
        fresh = 0

        def headers() -> dict[str, str]:
            nonlocal fresh
            fresh += 1
            return {"Authorization": f"Bearer {fresh}"}

        async def later() -> dict[str, str]:
            return headers()

        given: Any = {"mapping": {"Authorization": "Bearer 0"}, "function": headers, "async": later}[kind]

        async def main() -> None:
            first = devices.one.join()
            election = devices.one.lead(first, lease_headers=given)
            await devices.crew.led(first)
            await world.sleep(12.0)
            first.call(election.stop)
            await world.sleep(1.0)
            sent = [request.headers["authorization"] for request in world.network.requests]
            assert [request.method for request in world.network.requests][-1] == "DELETE"
            assert len(sent) >= 4
            if kind == "mapping":
                assert set(sent) == {"Bearer 0"}
            else:  # what may be sent in a page's last moment goes with those of the time before
                assert sent == [*(f"Bearer {n + 1}" for n in range(len(sent) - 1)), sent[-2]]

        world.run(main())


@pytest.mark.parametrize("body", ["Method Not Allowed", '{"detail": "Method Not Allowed"}'], ids=["text", "json"])
def test_what_is_no_lease_service_is_named_with_its_address_and_status(body: str) -> None:
    with World(1) as world:
        devices = Devices(world)

        async def handle(request: HttpRequest) -> HttpAnswer:
            return HttpAnswer(405, {}, body)

        world.network.route(devices.one.url, handle)

        async def main() -> None:
            first = devices.one.join()
            election = devices.one.lead(first)
            await world.until(lambda: isinstance(election.status, BackingOff), within=15.0)
            detail = str(getattr(election.status, "detail", None))
            assert f" {devices.one.url}/" in detail and "answered HTTP 405" in detail, detail
            assert "is a LeaseService there?" in detail

        world.run(main())


async def _cancelled() -> dict[str, str]:
    raise asyncio.CancelledError


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        (lambda: {}["no session"], "the lease_headers function failed: KeyError"),
        (_cancelled, "the lease_headers function was cancelled"),
        (lambda: {"content-type": "text/plain"}, "lease_headers: 'content-type' is tabhelm's own"),
        (lambda: asyncio.get_running_loop().create_future(), "the lease_headers function failed: TimeoutError"),
    ],
    ids=["raises", "cancelled", "ours", "hangs"],
)
def test_headers_that_cannot_be_had_are_told_and_do_not_keep_others_from_asking(wrong: Any, says: str) -> None:
    with World(1) as world:
        devices = Devices(world)

        async def main() -> None:
            first = devices.one.join()
            beside = devices.one.beside(first, "beside")
            election = devices.one.lead(first, lease_headers=wrong)
            await world.until(lambda: isinstance(election.status, BackingOff), within=15.0)
            status = election.status
            assert isinstance(status, BackingOff) and status.reason == "lease-refused" and says in str(status.detail)
            assert says in str(troubles(first)[0])
            assert world.network.requests == []
            devices.one.lead(beside)
            await devices.crew.led(beside)

        world.run(main())


def test_turns_are_forgotten_with_those_who_took_them() -> None:
    with World(1) as world:
        devices = Devices(world)

        async def main() -> None:
            first = devices.one.join()
            for number in range(5):
                election = devices.crew.lead(first, f"r{number}", authorities=SERVER, lease=devices.one.url)
                await world.until(lambda: first.leading)
                first.call(election.stop)
                await world.until(lambda: not first.leading)
            servers = first.services.elections.authorities._servers
            assert servers is not None and len(servers.turns) <= 1

        world.run(main())


def test_its_grants_are_told_as_all_grants_are() -> None:
    with World(1) as world:
        devices = Devices(world)

        async def main() -> None:
            first = await devices.one.leading()
            (event,) = [event for event in first.services.events.recent if isinstance(event, EpochIssued)]
            assert (event.authority, event.epoch) == (SERVER[0], 1)
            assert event.owner.startswith("t-d1-tab:c-d1-tab/")

        world.run(main())
