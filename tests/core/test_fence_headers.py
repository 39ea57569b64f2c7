"""A policy's barrier at a receiver that wants to know who writes, and the app's own headers that say so."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

import pytest

from kit import join, one_leader
from tabhelm.app_headers import ask
from tabhelm.election import LeadershipPolicy
from tabhelm.errors import InvalidPolicy, NoHeaders
from tabhelm.host.status import status_message
from tabhelm.leadership import BackingOff
from tabhelm.observe import LeadershipChanged, as_dict
from tabhelm.ports.http import HttpAnswer
from tabhelm.simulated import SimulatedReceiver, World
from tabhelm.simulated.http import HttpRequest

URL = "https://receiver.example/operations"
GOOD = "Bearer good"


class Walled:
    """A receiver that answers 401 without the right bearer token. ``shown``: what each request carried."""

    def __init__(self, world: World, good: str = GOOD) -> None:
        self.good = good
        self.shown: list[str | None] = []
        self.receiver = SimulatedReceiver(world, URL)
        world.network.route(URL, self.handle)

    async def handle(self, request: HttpRequest) -> HttpAnswer:
        self.shown.append(request.headers.get("authorization"))
        if self.shown[-1] != self.good:
            return HttpAnswer(401, {}, "")
        return await self.receiver.handle(request)


@pytest.mark.parametrize("kind", ["mapping", "function", "async"])
def test_the_barrier_carries_the_apps_own_headers(kind: str) -> None:
    with World(1) as world:
        walled = Walled(world)
        asked = 0

        def headers() -> Mapping[str, str]:
            nonlocal asked
            asked += 1
            return {"Authorization": GOOD}

        async def later() -> Mapping[str, str]:
            await a.ports.clock.sleep(0.2)
            return headers()

        a = join(world, "a")
        given: Any = {"mapping": {"Authorization": GOOD}, "function": headers, "async": later}[kind]

        async def main() -> None:
            election = a.lead(fence=URL, fence_headers=given)
            await one_leader(world, [a])
            a.call(election.step_down)
            await world.until(lambda: len(a.led) == 2)
            assert (
                walled.shown == [GOOD, GOOD] and [token.stream for token in walled.receiver.tokens] == ["barrier"] * 2
            )
            assert asked == (0 if kind == "mapping" else 2)

        world.run(main())


def test_without_them_it_says_what_the_receiver_answered() -> None:
    with World(1) as world:
        walled = Walled(world)
        a = join(world, "a")

        async def main() -> None:
            election = a.lead(fence=URL)
            await world.until(lambda: isinstance(election.status, BackingOff))
            status = election.status
            assert isinstance(status, BackingOff) and status.reason == "unreachable" and a.led == []
            assert "HTTP 401" in (status.detail or "") and "fence_headers" in (status.detail or "")
            assert status_message(status)["detail"] == status.detail
            (event,) = [
                event
                for event in a.services.events.recent
                if isinstance(event, LeadershipChanged) and event.after == "backing-off"
            ]
            assert as_dict(event)["detail"] == status.detail
            walled.good = None  # type: ignore[assignment]
            await one_leader(world, [a])

        world.run(main())


def test_a_resource_that_is_not_the_users_is_told_as_that_with_the_way_out() -> None:
    """Neither a header nor signing in would help: what the receiver says is passed on, as plain text."""
    with World(1) as world:
        problem = {"type": "urn:tabhelm:not-owner", "detail": "does not own inspections\n\x1b[31m" + "x" * 9_000}

        async def handle(request: HttpRequest) -> HttpAnswer:
            return HttpAnswer(403, {"content-type": "application/problem+json"}, json.dumps(problem))

        world.network.route(URL, handle)
        a = join(world, "a")

        async def main() -> None:
            election = a.lead(fence=URL)
            await world.until(lambda: isinstance(election.status, BackingOff))
            detail = getattr(election.status, "detail", None) or ""
            assert "(HTTP 403 urn:tabhelm:not-owner does not own inspections  [31mxxx" in detail
            assert 'scope: "user:' in detail and "fence_headers" not in detail
            assert detail.isprintable() and len(detail) < 1_000

        world.run(main())


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        (lambda: 1 / 0, "the fence_headers function failed: ZeroDivisionError"),
        (lambda: {"Content-type": "text/plain"}, "tabhelm's own"),
        (lambda: {"Fencing-Token": "mine"}, "tabhelm's own"),
        (lambda: asyncio.get_running_loop().create_future(), "the fence_headers function failed: TimeoutError"),
    ],
    ids=["raises", "content-type", "token", "hangs"],
)
def test_headers_that_cannot_be_had_keep_its_tab_from_leading_and_nobody_else(
    wrong: Callable[[], Any], said: str
) -> None:
    with World(1) as world:
        walled = Walled(world)
        a, b = join(world, "a"), join(world, "b")

        async def main() -> None:
            election = a.lead(fence=URL, fence_headers=wrong)
            await world.until(lambda: isinstance(election.status, BackingOff), within=15.0)
            status = election.status
            assert isinstance(status, BackingOff) and status.reason == "no-headers" and said in (status.detail or "")
            assert walled.shown == [] and a.led == []
            b.lead(fence=URL, fence_headers={"authorization": GOOD})
            assert await one_leader(world, [a, b], within=60.0) is b

        world.run(main())


def test_an_own_accept_stands_instead_of_ours() -> None:
    with World(1) as world:
        seen: list[Mapping[str, str]] = []
        receiver = SimulatedReceiver(world, URL)

        async def handle(request: HttpRequest) -> HttpAnswer:
            seen.append(request.headers)
            return await receiver.handle(request)

        world.network.route(URL, handle)
        a = join(world, "a")

        async def main() -> None:
            a.lead(fence=URL, fence_headers={"Accept": "application/problem+json"})
            await one_leader(world, [a])
            assert seen[0]["accept"] == "application/problem+json"

        world.run(main())


def test_who_asks_is_cancelled_and_what_is_asked_is_told_apart() -> None:
    """An app's function whose own task was cancelled has failed; a request that nobody wants any more ends."""
    with World(1) as world:
        clock = world.ports(world.agent("a")).clock

        async def main() -> None:
            async def cancelled() -> Mapping[str, str]:
                raise asyncio.CancelledError

            with pytest.raises(NoHeaders, match="the headers function was cancelled"):
                await ask(cancelled, clock, 5.0, "headers")

            waiting: Awaitable[Mapping[str, str]] = asyncio.get_running_loop().create_future()
            asking = asyncio.get_running_loop().create_task(ask(lambda: waiting, clock, 5.0, "headers"))
            await world.sleep(1.0)
            asking.cancel()
            with pytest.raises(asyncio.CancelledError):
                await asking

        world.run(main())


@pytest.mark.parametrize(
    ("policy", "says"),
    [
        ({"fenceHeaders": {"a": "b"}}, "fenceHeaders are given without fence"),
        ({"fence": URL, "fenceHeaders": ["a"]}, "fenceHeaders of type list"),
        ({"fence": URL, "fenceHeaders": {"a": 1}}, "fenceHeaders: 'a' is not valid"),
        ({"fence": URL, "fenceHeaders": {"Content-Type": "x"}}, "fenceHeaders: 'Content-Type' is tabhelm's own"),
        ({"fence": URL, "fenceHeaders": True}, "fenceHeaders of type bool"),
    ],
)
def test_what_a_policy_may_not_say_is_named(policy: dict[str, Any], says: str) -> None:
    with pytest.raises(InvalidPolicy, match=says):
        LeadershipPolicy.from_wire(policy)
    with pytest.raises(InvalidPolicy, match=says.replace("fenceHeaders", "fence_headers")):
        LeadershipPolicy(**{{"fenceHeaders": "fence_headers"}.get(key, key): value for key, value in policy.items()})
