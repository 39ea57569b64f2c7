"""Devices that compete at a lease service: handovers, cut off and thawed owners, clocks, answers that come late."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace
from typing import Any

import pytest
from device_kit import RECEIVER, SERVER, Devices, hold_of, troubles
from lease_kit import reasons

from tabhelm.errors import LeadershipLost, Unreachable
from tabhelm.fencing.http_form import token_header
from tabhelm.leadership import BackingOff
from tabhelm.observe import EpochIssued
from tabhelm.ports import HttpAnswer
from tabhelm.simulated import HttpRequest, NextAnswer, World

SEEDS = range(6)


# -- who leads --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("how", ["step-down", "stop", "leave", "die"])
def test_one_device_leads_and_the_other_follows(seed: int, how: str) -> None:
    with World(seed) as world:
        devices = Devices(world)

        async def main() -> None:
            receiver = devices.receiver()
            first = devices.one.join()
            election = devices.one.lead(first, fence=RECEIVER)
            await devices.crew.led(first)
            second = devices.two.standing(fence=RECEIVER)
            await world.sleep(world.rng.uniform(20.0, 40.0))
            assert first.leading and second.led == []
            late = first.call(devices.crew.contexts[0][1].next_token)
            match how:
                case "step-down":
                    first.call(election.step_down)
                case "stop":
                    first.call(election.stop)
                case "leave":
                    await first.agent.start(first.tab.leave("left"))
                case _:
                    first.agent.die()
            took = await devices.crew.led(second)
            assert took < 0.5 if how != "die" else 9.0 < took < 15.5, took
            assert (first.led, second.led) == ([1], [2])
            grants = [*first.grants, *second.grants]
            assert {grant.authority for grant in grants} == {"server-lease"} and len({g.domain for g in grants}) == 1
            request = HttpRequest("POST", RECEIVER, {"fencing-token": token_header(late)}, '{"operations": []}', "late")
            assert (await receiver.handle(request)).status == 409, "the old one's late write is refused"

        world.run(main())
        assert devices.crew.both == []


def test_many_devices_lead_in_turn_and_every_grant_has_a_higher_epoch() -> None:
    with World(3) as world:
        devices = Devices(world)

        async def main() -> None:
            members = [devices.one.standing(), devices.two.standing()]
            for _ in range(10):
                await world.until(lambda: any(member.leading for member in members))
                leader = next(member for member in members if member.leading)
                leader.call(leader.tab.elections["app:r"].step_down)
                await world.until(lambda leader=leader: not leader.leading)  # type: ignore[misc]
            epochs = sorted(epoch for member in members for epoch in member.led)
            assert epochs == list(range(1, len(epochs) + 1)) and len(epochs) >= 10

        world.run(main())
        assert devices.crew.both == []


def test_of_the_tabs_of_a_device_one_asks() -> None:
    with World(1) as world:
        devices = Devices(world)

        async def main() -> None:
            first = devices.one.standing()
            await devices.crew.led(first)
            agent = devices.two.join("many")
            others = [agent]
            devices.two.lead(agent)
            for n in range(4):
                others.append(devices.two.join(f"many-{n}"))
                devices.two.lead(others[-1])
            await world.sleep(30.0)
            asked = len(world.network.requests)
            await world.sleep(60.0)
            holder, waiting = 60 / 5, 5 * 60 / 10
            assert len(world.network.requests) - asked <= 1.3 * (holder + waiting)
            assert not any(other.leading for other in others)

        world.run(main())


def test_of_several_tabs_of_one_engine_one_asks() -> None:
    with World(1) as world:
        devices = Devices(world)

        async def main() -> None:
            first = devices.one.standing()
            await devices.crew.led(first)
            second = devices.two.join()
            others = [second, *(devices.two.beside(second, f"x{n}") for n in range(4))]
            for other in others:
                devices.two.lead(other)
            await world.sleep(30.0)
            asked = sum(request.sender == "d2-tab" for request in world.network.requests)
            await world.sleep(60.0)
            asked = sum(request.sender == "d2-tab" for request in world.network.requests) - asked
            assert asked <= 8, "one request that waits for ten seconds at a time"
            first.agent.die()
            await world.until(lambda: any(other.leading for other in others))

        world.run(main())


@pytest.mark.parametrize("delay", [0.5, 1.0])
def test_it_is_believed_in_from_before_the_request_was_sent(delay: float) -> None:
    with World(1) as world:
        devices = Devices(world)

        async def main() -> None:
            world.faults.http_delay = (delay, delay)
            first = devices.one.standing()
            await devices.crew.led(first)
            devices.one.cut_off()
            await world.until(lambda: not first.leading)
            given = devices.record.renewed_at - 1.8e9
            assert world.loop.time() - given < 10.05 - delay, "the time of the way is not given to the holder"

        world.run(main())


# -- cut off, hung, late ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", SEEDS)
def test_who_is_cut_off_gives_up_before_another_takes_it_and_says_so(seed: int) -> None:
    with World(seed) as world:
        devices = Devices(world)

        async def main() -> None:
            first, second = devices.one.standing(), None
            await devices.crew.led(first)
            second = devices.two.standing()
            await world.sleep(world.rng.uniform(0.0, 20.0))
            devices.one.cut_off()
            cut = world.loop.time()
            await world.until(lambda: not first.leading)
            assert world.loop.time() - cut < 10.5
            assert reasons(first) == ["lease-renewal-failed"]
            assert await devices.crew.led(second) < 15.5
            assert troubles(first)[-1] is not None and "no answer" in str(troubles(first)[-1])
            devices.one.cut_off(False)
            await world.sleep(60.0)
            assert second.leading and second.led == [2] and not first.leading
            assert troubles(first)[-1] is None, "it answers again"
            second.agent.die()
            assert await devices.crew.led(first) < 15.5

        world.run(main())
        assert devices.crew.both == []


@pytest.mark.parametrize("seed", SEEDS)
def test_a_service_that_hangs_and_answers_when_it_is_too_late(seed: int) -> None:
    with World(seed) as world:
        devices = Devices(world)

        async def main() -> None:
            first = devices.one.standing()
            await devices.crew.led(first)
            await world.sleep(world.rng.uniform(0.0, 5.0))
            # What arrives is answered, much later: the lease is renewed there all the time.
            world.faults.http_delay = (13.0, 25.0)
            await world.until(lambda: not first.leading, within=30.0)
            assert reasons(first) == ["lease-renewal-failed"]
            context = devices.crew.contexts[-1][1]
            await world.sleep(40.0)
            with pytest.raises(LeadershipLost):
                first.call(context.next_token)
            world.faults.http_delay = (0.001, 0.05)
            await devices.crew.led(first)
            assert len(first.led) == 2

        world.run(main())
        assert devices.crew.both == []


@pytest.mark.parametrize("seed", SEEDS)
def test_answers_that_get_lost_cost_no_leadership_while_one_in_time_arrives(seed: int) -> None:
    with World(seed) as world:
        devices = Devices(world)

        async def main() -> None:
            first = devices.one.standing()
            await devices.crew.led(first)
            for _ in range(10):
                world.network.script.append(NextAnswer(lose_answer=True))
                await world.sleep(world.rng.uniform(15.0, 20.0))
                world.network.script.clear()
            assert first.leading and first.led == [1]

        world.run(main())


@pytest.mark.parametrize("seed", SEEDS)
def test_an_owner_frozen_within_its_tenure_never_renews_and_knows_at_its_first_instruction(seed: int) -> None:
    with World(seed) as world:
        devices = Devices(world)

        async def main() -> None:
            first = devices.one.standing()
            await devices.crew.led(first)
            second = devices.two.standing()
            await world.sleep(world.rng.uniform(0.0, 12.0))
            context, hold = devices.crew.contexts[0][1], hold_of(devices, first)
            first.agent.freeze()
            await world.sleep(1.0)
            renewed = devices.record.seq
            assert await devices.crew.led(second) < 15.5
            assert devices.record.holder is not None and devices.record.holder.startswith("t-d2-tab:")
            first.agent.thaw()
            with pytest.raises(LeadershipLost, match="lease-renewal-failed"):
                first.call(context.next_token)
            assert hold.lost == "lease-renewal-failed" and devices.record.epoch == 2 and renewed >= 1
            await world.sleep(30.0)
            assert second.leading and second.led == [2] and not first.leading

        world.run(main())
        assert devices.crew.both == []


def test_a_page_that_its_engine_dropped_is_given_back_and_not_renewed() -> None:
    """Frozen, but its engine lives on (another page of it runs): the lease is given back at once."""
    with World(1) as world:
        devices = Devices(world)

        async def main() -> None:
            first = devices.one.standing()
            await devices.crew.led(first)
            second = devices.two.standing()
            await world.sleep(7.0)
            first.call(lambda: first.ports.locks.drop(first.tab.identity.connection_id))
            first.set(lifecycle="frozen")
            assert await devices.crew.led(second) < 1.0
            assert reasons(first) == ["frozen"]

        world.run(main())
        assert devices.crew.both == []


@pytest.mark.parametrize("seed", SEEDS)
def test_a_device_whose_monotonic_clock_slept_with_it(seed: int) -> None:
    """A laptop whose lid was closed: its monotonic clock stood still, its wall clock is right when it wakes."""
    with World(seed) as world:
        devices = Devices(world)

        async def main() -> None:
            first = devices.one.standing()
            await devices.crew.led(first)
            second = devices.two.standing()
            await world.sleep(world.rng.uniform(5.0, 15.0))
            context = devices.crew.contexts[0][1]
            first.agent.freeze()
            await devices.crew.led(second)
            await world.sleep(300.0)
            first.agent.clock._offset -= 315.0 * first.agent.clock._rate
            first.agent.thaw()
            with pytest.raises(LeadershipLost, match="lease-renewal-failed"):
                first.call(context.next_token)
            await world.sleep(30.0)
            assert second.leading and not first.leading

        world.run(main())
        assert devices.crew.both == []


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("asleep", [8.0, 60.0])
def test_a_device_that_slept_while_its_grant_was_on_the_way_does_not_believe_in_it(seed: int, asleep: float) -> None:
    """The answer is read after the sleep, and by the monotonic clock, which slept too, it came at once."""
    with World(seed) as world:
        devices = Devices(world)

        async def main() -> None:
            first = devices.one.standing()
            await world.until(lambda: bool(devices.store.records), within=30.0)
            first.agent.freeze()
            second = devices.two.standing()
            await world.sleep(asleep)
            first.agent.clock._offset -= asleep * first.agent.clock._rate
            first.agent.thaw()
            await world.sleep(30.0)
            assert first.leading != second.leading

        world.run(main())
        assert devices.crew.both == []


def test_a_device_that_slept_while_its_renewal_was_on_the_way_counts_from_before_it() -> None:
    with World(1) as world:
        devices = Devices(world)

        async def main() -> None:
            first = devices.one.standing()
            await devices.crew.led(first)
            await world.until(lambda: devices.record.seq == 2, within=10.0)
            await world.sleep(0.2)
            context = devices.crew.contexts[0][1]
            first.agent.call(lambda: first.agent.loop.create_task(context.check()))  # long before its time
            await world.until(lambda: devices.record.seq == 3, within=1.0)
            renewed = world.loop.time()
            first.agent.freeze()
            await world.sleep(9.0)
            first.agent.clock._offset -= 9.0 * first.agent.clock._rate
            first.agent.thaw()
            devices.one.cut_off()
            await world.sleep(renewed + 15.0 - world.loop.time())
            with pytest.raises(LeadershipLost):
                first.call(context.next_token)

        world.run(main())


# -- clocks -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("skew", [-1e6, -600.0, 600.0, 1e6])
def test_wall_clocks_of_devices_and_service_need_not_agree(skew: float) -> None:
    with World(1) as world:
        devices = Devices(world)

        async def main() -> None:
            first = devices.one.join()
            first.agent.clock.wall_offset += skew
            devices.one.lead(first)
            await devices.crew.led(first)
            second = devices.two.join()
            second.agent.clock.wall_offset -= skew
            devices.two.lead(second)
            await world.sleep(120.0)
            assert first.leading and first.led == [1] and second.led == []

        world.run(main())
        assert devices.crew.both == []


@pytest.mark.parametrize("jump", [-1e6, 1e6])
@pytest.mark.parametrize("restarted", [False, True])
def test_the_services_clock_is_set(jump: float, restarted: bool) -> None:
    with World(1) as world:
        devices = Devices(world)

        async def main() -> None:
            first = devices.one.standing()
            await devices.crew.led(first)
            second = devices.two.standing()
            await world.sleep(20.0)
            devices.wall += jump
            if restarted:
                devices.restart()  # it knows by its database's clock alone when the lease was renewed
            await world.sleep(60.0)
            epochs = sorted(first.led + second.led)
            assert sum(member.leading for member in (first, second)) == 1
            if not restarted or jump < 0:
                assert epochs == [1] and devices.crew.both == []
            else:
                # Nothing tells that from time that passed. For a while both believe: receivers tell them apart.
                assert epochs == [1, 2] and reasons(first) == ["newer-epoch"]
            leader = first if first.leading else second
            leader.agent.die()
            assert await devices.crew.led(second if leader is first else first) < 31.0

        world.run(main())


@pytest.mark.parametrize("seed", SEEDS)
def test_clocks_of_different_speeds(seed: int) -> None:
    with World(seed) as world:
        devices = Devices(world)

        async def main() -> None:
            first, second = devices.one.join(), devices.two.join()
            first.agent.clock._rate, second.agent.clock._rate = 0.75, 1.3
            devices.one.lead(first)
            await devices.crew.led(first)
            devices.two.lead(second)
            for _ in range(4):
                await world.sleep(world.rng.uniform(5.0, 25.0))
                devices.one.cut_off()
                await world.sleep(world.rng.uniform(2.0, 30.0))
                devices.one.cut_off(False)
            await world.sleep(60.0)
            assert len(devices.crew.believers()) == 1

        world.run(main())
        assert devices.crew.both == []


@pytest.mark.parametrize("hidden", [False, True])
def test_a_hidden_page_that_runs_python_has_a_longer_lease(hidden: bool) -> None:
    with World(1) as world:
        devices = Devices(world)

        async def main() -> None:
            first = devices.one.join(in_page=True)
            devices.one.lead(first)
            await devices.crew.led(first)
            second = devices.two.standing()
            await world.sleep(10.0)
            if hidden:
                first.set(visible=False, lifecycle="hidden")
                first.agent.clock.throttled, first.agent.clock.throttle = True, 60.0
                await world.sleep(600.0)
                assert first.leading and first.led == [1] and devices.record.ttl == 200.0
            else:
                await world.sleep(60.0)
                assert devices.record.ttl == 15.0
            first.agent.die()
            took = await devices.crew.led(second, within=300.0)
            assert (took > 100.0) == hidden and took < (201.0 if hidden else 16.0)

        world.run(main())
        assert devices.crew.both == []


# -- a storm ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(20))
def test_whatever_happens_two_never_believe_and_one_leads_at_the_end(seed: int) -> None:
    """Cut off, frozen, thawed, killed service processes, lost and late answers; the service's clock is not set."""
    with World(seed) as world:
        devices = Devices(world)

        async def main() -> None:
            members = {"one": devices.one.standing(), "two": devices.two.standing()}
            rng = world.stream("storm")
            for _ in range(25):
                await world.sleep(rng.uniform(0.0, 12.0))
                name = rng.choice(["one", "two"])
                device, member = getattr(devices, name), members[name]
                match rng.randrange(7):
                    case 0:
                        device.cut_off()
                    case 1:
                        device.cut_off(False)
                    case 2 if not member.agent.frozen:
                        member.agent.freeze()
                    case 3 if member.agent.frozen:
                        member.agent.thaw()
                    case 4:
                        devices.restart()
                    case 5:
                        world.faults.http_lose_answer = rng.choice([0.0, 0.3])
                        world.faults.http_delay = rng.choice([(0.001, 0.05), (0.5, 6.0)])
                    case 6:
                        member.agent.clock.wall_offset += rng.uniform(-3600.0, 3600.0)
            world.faults.http_lose_answer, world.faults.http_delay = 0.0, (0.001, 0.05)
            for name, member in members.items():
                getattr(devices, name).cut_off(False)
                if member.agent.frozen:
                    member.agent.thaw()
            await world.until(lambda: sum(m.leading for m in members.values()) == 1, within=60.0)
            epochs = [epoch for member in members.values() for epoch in member.led]
            assert len(set(epochs)) == len(epochs)

        world.run(main())
        assert devices.crew.both == []


# -- what check() and receivers say -----------------------------------------------------------------------------------


def test_check_asks_the_service() -> None:
    with World(1) as world:
        devices = Devices(world)

        async def main() -> None:
            first = devices.one.standing()
            await devices.crew.led(first)
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
            first = devices.one.standing()
            await devices.crew.led(first)
            (key,) = devices.store.records
            devices.store.records[key] = replace(devices.record, epoch=2, seq=1, holder="somebody")
            await world.until(lambda: not first.leading, within=5.5)
            assert reasons(first) == ["newer-epoch"]

        world.run(main())


def test_a_service_that_lost_its_database_begins_a_domain_of_its_own() -> None:
    with World(1) as world:
        devices = Devices(world)

        async def main() -> None:
            first = devices.one.standing()
            await devices.crew.led(first)
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
            first = devices.one.standing()
            await devices.crew.led(first)
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
            first = devices.one.standing()
            await devices.crew.led(first)
            (event,) = [event for event in first.services.events.recent if isinstance(event, EpochIssued)]
            assert (event.authority, event.epoch) == (SERVER[0], 1)
            assert event.owner.startswith("t-d1-tab:c-d1-tab/")

        world.run(main())
