"""Asking through a page's session: what crosses the port, and what a page's misbehaviour costs."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable
from typing import Any

from kit import Member, join
from tabhelm.host.engine import EngineHost
from tabhelm.leadership import LeaderContext
from tabhelm.leadership.serving import Call
from tabhelm.simulated import SimulatedAgent, World


class PageSide:
    """The engine's JavaScript and its one page, ``c1``, as far as Python sees them."""

    def __init__(self, world: World, name: str = "e") -> None:
        self.world = world
        self.said: list[dict[str, Any]] = []
        self.info = json.dumps({"engine": name, "app": "app", "protocol": 1, "from": "plain", "bootMs": 1})
        self.agent: SimulatedAgent = world.agent(name)
        self.ports = world.ports(self.agent)
        self.ports.locks.admit("c1")
        self.agent.start(self.ports.locks.acquire(f"app:v1:engine:{name}"))
        self.host = self.agent.call(lambda: EngineHost(self, self.ports))
        self.say("hello", tab="t1", session="c1", generation=1, lifecycle="active", version="3")

    def post(self, session: str, text: str) -> None:
        message = json.loads(text)
        self.said.append(message)
        if message["type"] == "grant":
            self.agent.post(lambda: self.say("ack", election=message["election"], grant=message["grant"]))

    def say(self, kind: str, **fields: Any) -> None:
        self.agent.call(lambda: self.host.deliver("c1", json.dumps({"type": kind, **fields})))

    def all(self, kind: str) -> list[dict[str, Any]]:
        return [message for message in self.said if message["type"] == kind]

    async def next(self, kind: str, count: int = 1) -> dict[str, Any]:
        await self.world.until(lambda: len(self.all(kind)) >= count, within=70.0)
        return self.all(kind)[count - 1]

    async def leads(self) -> dict[str, Any]:
        self.say("lead", election="e1", resource="r", policy={})
        lead = await self.next("lead")
        return {"election": "e1", "grant": lead["grant"]}

    def ask(self, number: int, method: str, args: Any = None, **params: Any) -> None:
        given = {"election": "e1", "id": f"q{number}", "method": method, "args": json.dumps(args), "leftMs": 60_000}
        self.say("call", id=number, method="ask", params={**given, "fresh": True, **params})

    async def answer(self, number: int) -> dict[str, Any]:
        await self.world.until(lambda: any(each["id"] == number for each in self.all("answer")), within=70.0)
        told = next(each for each in self.all("answer") if each["id"] == number)
        result: dict[str, Any] = told.get("result") or told
        return result


def simulate(test: Callable[[World], Awaitable[None]]) -> None:
    with World(1) as world:
        world.run(test(world))  # type: ignore[arg-type]


def test_a_page_serves_asks_itself_and_publishes() -> None:
    async def main(world: World) -> None:
        page = PageSide(world)
        grant = await page.leads()
        page.say("serve", **grant, methods=["m", "n"], idempotent=["n"])
        page.ask(1, "m", {"n": 1}, key="mine")
        asked = await page.next("asked")
        assert (asked["method"], asked["args"]) == ("m", {"n": 1})
        assert asked["from"] == {
            "tabId": "t1",
            "connectionId": "c1",
            "version": "3",
            "capabilities": [],
            "idempotencyKey": "mine",
        }
        page.say("replied", **grant, call=asked["call"], value='{"done": true}')
        assert await page.answer(1) == {"value": {"done": True}}
        for number, error, told in (
            (2, {"name": "RangeError", "message": "no", "code": None}, "handler-failed"),
            (3, {"name": "AskRefused", "message": "no", "code": "ask-refused", "refused": True}, "ask-refused"),
            (4, {"name": "AskRefused", "message": "another's", "code": "ask-refused"}, "handler-failed"),
        ):
            page.ask(number, "m")
            asked = await page.next("asked", number)
            page.say("replied", **grant, call=asked["call"], error=error)
            assert (await page.answer(number))["error"]["code"] == told
        handler = {"name": "RangeError", "message": "no", "code": None}
        assert (await page.answer(2))["error"]["handler"] == handler
        page.ask(5, "nothing")
        assert (await page.answer(5))["error"]["code"] == "no-handler"
        page.say("publish", **grant, value="[1, 2]")
        state = (await page.next("state"))["state"]
        assert (state["value"], state["tabId"], state["number"], state["current"]) == ([1, 2], "t1", 1, True)

    simulate(main)


def test_a_page_that_is_revoked_answers_nothing_any_more() -> None:
    async def main(world: World) -> None:
        page = PageSide(world)
        grant = await page.leads()
        page.say("serve", **grant, methods=["m"], idempotent=[])
        page.ask(1, "m")
        asked = await page.next("asked")
        page.say("step-down", election="e1", reason="enough")
        told = (await page.answer(1))["error"]
        assert (told["code"], told["outcome"]) == ("leader-changed", "unknown")
        page.say("replied", **grant, call=asked["call"], value="1")  # too late: nobody minds
        page.say("serve", **grant, methods=["m"], idempotent=[])
        page.say("publish", **grant, value="1")
        await page.next("revoke")
        page.say("ended", **grant, error=None)
        await page.next("lead", 2)
        assert page.all("state") == []
        assert page.host.services.events.counts["task-failed"] == 0

    simulate(main)


def test_a_page_asks_on_while_its_question_is_open_and_a_settled_one_is_kept_for_it() -> None:
    async def main(world: World) -> None:
        page = PageSide(world)
        grant = await page.leads()
        page.say("serve", **grant, methods=["m"], idempotent=[])
        page.ask(1, "m")
        asked = await page.next("asked")
        assert await page.answer(1) == {"pending": True}
        page.say("replied", **grant, call=asked["call"], value='"late"')
        await world.sleep(1.0)
        page.ask(2, "m", id="q1", fresh=False)
        assert await page.answer(2) == {"value": "late"}
        assert len(page.all("asked")) == 1
        page.say("stop", election="e1", reason="done")
        await world.sleep(0.1)
        page.ask(3, "m")
        assert (await page.answer(3))["error"]["code"] == "election-stopped"
        page.ask(4, "m", resource="the case")
        assert "'the case'" in (await page.answer(4))["error"]["message"]

    simulate(main)


def test_what_makes_no_sense_is_refused_and_costs_nothing_else() -> None:
    async def main(world: World) -> None:
        page = PageSide(world)
        grant = await page.leads()
        page.say("serve", **grant, methods="m")
        page.say("serve", **grant, methods=[""], idempotent=[])
        page.say("serve", **grant, methods=["m"], idempotent=["n"])
        page.say("publish", **grant, value="{")
        page.say("replied", **grant, call="1")
        page.say("replied", **grant, call=1, value="1")
        page.say("publish", election="e9", grant=1, value="1")
        refused = [event for event in page.all("event") if event["event"]["type"] == "refused"]
        assert [each["event"]["code"] for each in refused] == ["malformed-message"] * 5
        page.ask(1, "m", leftMs=-5)
        page.ask(2, "")
        page.ask(3, "m", key=7)
        for number in (1, 2, 3):
            assert (await page.answer(number))["error"]["code"] == "malformed-message"
        page.say("serve", **grant, methods=["m"], idempotent=[])
        page.ask(4, "m")
        asked = await page.next("asked")
        page.say("replied", **grant, call=asked["call"], value="0")
        assert await page.answer(4) == {"value": 0}

    simulate(main)


def test_a_page_that_stands_still_is_told_the_newest_state_afterwards() -> None:
    async def main(world: World) -> None:
        contexts: list[LeaderContext] = []
        other: Member = join(world, "o")

        async def loop(context: LeaderContext) -> None:
            async def echo(args: Any, call: Call) -> Any:
                return [args, call.tab_id]

            context.serve({"echo": echo})
            contexts.append(context)
            await context.sleep(1e6)

        other.lead(loop=loop)
        await world.until(lambda: bool(contexts))
        page = PageSide(world)
        page.say("lead", election="e1", resource="r", policy={"requires": ["nobody-has-it"]})
        await page.next("leader")
        page.ask(1, "echo", "hello")
        assert await page.answer(1) == {"value": ["hello", "t1"]}
        other.call(lambda: contexts[0].publish(1))
        await page.next("state")
        page.say("freeze")
        for value in (2, 3):
            other.call(lambda value=value: contexts[0].publish(value))
        await world.sleep(1.0)
        assert len(page.all("state")) == 1
        page.say("resume", lifecycle="active")
        assert (await page.next("state", 2))["state"]["value"] == 3
        await world.sleep(1.0)
        assert len(page.all("state")) == 2

    simulate(main)
