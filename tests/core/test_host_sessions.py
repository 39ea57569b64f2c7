"""A page's session in the engine: what it is told, what it may ask, and what its misbehaviour costs the others."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest

from tabhelm.host.engine import EngineHost, start
from tabhelm.observe import LoopFailed
from tabhelm.simulated import Settings, SimulatedAgent, SimulatedBrowser, World


class Bridge:
    """The engine's JavaScript, as far as Python sees it."""

    def __init__(self) -> None:
        self.said: list[dict[str, Any]] = []
        self.info = json.dumps({"engine": "e", "app": "app", "protocol": 1, "from": "plain", "bootMs": 1})

    def post(self, session: str, text: str) -> None:
        self.said.append(json.loads(text))


Say = Callable[[dict[str, Any]], None]


def session(world: World) -> tuple[SimulatedAgent, EngineHost, Bridge, Say]:
    """An engine with one page, ``c1``; the last item says something in the page's name."""
    agent = world.agent("e")
    ports = world.ports(agent)
    ports.locks.admit("c1")
    bridge = Bridge()
    host = agent.call(lambda: EngineHost(bridge, ports))

    def say(message: dict[str, Any]) -> None:
        agent.call(lambda: host.deliver("c1", json.dumps(message)))

    say({"type": "hello", "tab": "t1", "session": "c1", "generation": 1, "lifecycle": "active"})
    return agent, host, bridge, say


async def answer(world: World, bridge: Bridge, say: Say, method: str, **params: Any) -> dict[str, Any]:
    number = len(bridge.said) + 1
    say({"type": "call", "id": number, "method": method, "params": params})
    await world.until(lambda: any(m["type"] == "answer" and m["id"] == number for m in bridge.said), within=5.0)
    return next(m for m in bridge.said if m["type"] == "answer" and m["id"] == number)


@pytest.mark.parametrize("still", [{"type": "stalled"}, {"type": "freeze"}])
def test_a_page_that_stands_still_gets_no_pile_and_the_news_afterwards(still: dict[str, Any]) -> None:
    with World(1) as world:
        agent, host, bridge, say = session(world)

        async def main() -> None:
            say({"type": "queue", "queue": "q1", "name": "m", "options": {}})
            queue = agent.call(lambda: host.sessions["c1"].tab.queue("m"))
            await world.sleep(1.0)
            say(still)
            await world.sleep(1.0)
            bridge.said.clear()
            for n in range(50):
                await agent.start(queue.enqueue(n))
                await world.sleep(0.1)
            assert Counter(message["type"] for message in bridge.said) == {}
            say({"type": "answering"} if still["type"] == "stalled" else {"type": "resume", "lifecycle": "active"})
            await world.sleep(1.0)
            stats = [message["stats"] for message in bridge.said if message["type"] == "queue-stats"]
            assert stats and stats[-1]["queued"] == 50
            assert any(message["type"] == "presence" for message in bridge.said)

        world.run(main())


def test_a_queue_that_could_not_be_opened_says_why_to_every_call() -> None:
    with World(1) as world:
        _, _, bridge, say = session(world)

        async def main() -> None:
            say({"type": "queue", "queue": "q1", "name": "m", "options": {"endpoint": "/ops", "sendTimeoutMs": -1}})
            told = await answer(world, bridge, say, "stats", queue="q1")
            assert "sendTimeoutMs -1 is not valid" in told["error"]["message"]
            say({"type": "queue", "queue": "q2", "name": "m", "options": {"endpoint": "/ops", "sendTimeoutMs": 1500.5}})
            assert "result" in await answer(world, bridge, say, "stats", queue="q2")

        world.run(main())


def test_a_page_loop_that_ignores_its_signal_costs_the_others_no_patience() -> None:
    with World(1) as world:
        browser = SimulatedBrowser(world, start)

        async def main() -> None:
            pages = [await browser.open(name, Settings()).join() for name in ("a", "b", "c")]

            async def stubborn(_: Any) -> None:
                await pages[0].ports.clock.sleep(10_000.0)

            async def good(ctx: Any) -> None:
                while True:
                    await ctx.sleep(0.2)

            first = pages[0].lead("job", stubborn, {"graceMs": 100})
            await world.until(lambda: first.acting)
            rest = [page.lead("job", good) for page in pages[1:]]
            await world.sleep(3.0)
            pages[0].agent.call(first.step_down)
            await world.until(lambda: any(election.acting for election in rest), within=30.0)
            for _ in range(4):
                await world.sleep(20.0)
                led = next(index for index, election in enumerate(rest) if election.acting)
                pages[led + 1].agent.call(rest[led].step_down)
                await world.until(lambda led=led: not rest[led].acting, step=0.001)
                began = world.loop.time()
                await world.until(lambda: any(election.acting for election in rest), within=30.0, step=0.002)
                assert world.loop.time() - began < 1.0

        world.run(main())


def test_a_page_whose_loop_still_runs_takes_no_part_until_it_has_settled() -> None:
    with World(1) as world:
        browser = SimulatedBrowser(world, start)

        async def main() -> None:
            page = await browser.open("a", Settings()).join()
            goes_on = [True]

            async def stubborn(ctx: Any) -> None:
                while goes_on[0]:
                    await page.ports.clock.sleep(1.0)
                await ctx.sleep(1e6)

            election = page.lead("job", stubborn, {"graceMs": 100})
            await world.until(lambda: election.acting)
            epoch = election.status["epoch"]
            page.agent.call(election.step_down)
            await world.until(lambda: election.status == {"state": "idle", "reason": "loop-still-running"}, within=5.0)
            await world.sleep(60.0)
            assert election.status == {"state": "idle", "reason": "loop-still-running"}
            goes_on[0] = False
            await world.until(lambda: election.acting, within=5.0)
            assert election.status["epoch"] == epoch + 1
            page.agent.call(election.stop)
            await world.until(lambda: election.state == "stopped", within=5.0)

        world.run(main())


def test_a_page_loop_that_throws_while_it_is_stopped_is_told() -> None:
    with World(1) as world:
        _, host, bridge, say = session(world)

        async def main() -> None:
            def last(kind: str) -> dict[str, Any] | None:
                return next((m for m in reversed(bridge.said) if m["type"] == kind), None)

            async def led_and_revoked() -> dict[str, Any]:
                await world.until(lambda: last("grant") is not None)
                say({"type": "ack", "election": "e1", "grant": last("grant")["grant"]})  # type: ignore[index]
                await world.until(lambda: last("lead") is not None)
                say({"type": "step-down", "election": "e1", "reason": "enough"})
                await world.until(lambda: last("revoke") is not None)
                return {"type": "ended", "election": "e1", "grant": last("revoke")["grant"]}  # type: ignore[index]

            say({"type": "lead", "election": "e1", "resource": "job", "policy": {}})
            for error, told in (("LeadershipLost", []), ("TypeError", ["PageLoopFailed: TypeError: no tidying"])):
                ended = await led_and_revoked()
                bridge.said.clear()
                say({**ended, "error": {"name": error, "message": "no tidying"}})
                await world.sleep(0.05)
                failures = [e.error for e in host.services.events.recent if isinstance(e, LoopFailed)]
                assert failures == told

        world.run(main())


def test_nothing_is_kept_of_elections_that_have_stopped() -> None:
    """A page may stand and stop as often as it likes."""
    with World(1) as world:
        _, host, bridge, say = session(world)

        def sizes(of: object, name: str = "session") -> dict[str, int]:
            found: dict[str, int] = {}
            for key, item in vars(of).items():
                if isinstance(item, dict):
                    found[f"{name}.{key}"] = len(item)
                elif type(item).__module__.startswith("tabhelm.host") and hasattr(item, "__dict__"):
                    found |= sizes(item, f"{name}.{key}")
            return found

        async def stand_and_stop(handle: str) -> None:
            say({"type": "lead", "election": handle, "resource": "r"})
            say({"type": "stop", "election": handle})
            await world.until(
                lambda: (
                    bridge.said[-1].get("status", {}).get("state") == "stopped"
                    and not host.sessions["c1"].tab.elections
                )
            )
            await world.sleep(1.0)

        async def main() -> None:
            await stand_and_stop("first")
            before = sizes(host.sessions["c1"])
            assert any(name.endswith("._loops") for name in before), "it looks where they are"
            for number in range(3):
                await stand_and_stop(f"e{number}")
            assert sizes(host.sessions["c1"]) == before

        world.run(main())
