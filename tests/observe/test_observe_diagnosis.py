"""A support ticket: everything that helps, and nobody's id."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest

from kit import Member, join, one_leader
from tabhelm.errors import LockTimeout, TabhelmError
from tabhelm.host.diagnosis import diagnosis
from tabhelm.host.engine import start
from tabhelm.leadership import LeaderContext, Leading
from tabhelm.observe import LoopFailed, Pseudonyms, TaskFailed
from tabhelm.simulated import Settings, SimulatedBrowser, World


async def report(member: Member, salt: str = "salt") -> dict[str, Any]:
    found: dict[str, Any] = await member.agent.start(diagnosis(member.tab, salt))
    return found


async def pair(world: World) -> tuple[Member, Member]:
    async def work(context: LeaderContext) -> None:
        await context.sleep(1000.0)

    first, second = join(world, "first", version="1.0"), join(world, "second", version="2.0")
    for member in (first, second):
        member.call(lambda member=member: member.tab.lead("sync", work, scope="user:123"))
    await one_leader(world, [first, second])
    await world.sleep(3.0)
    return first, second


def test_a_report_has_everything_and_shows_no_id() -> None:
    with World(1) as world:

        async def main() -> None:
            member, _ = await pair(world)
            found = await report(member)
            text = json.dumps(found)
            for secret in ("t-first", "c-first", "e-first", "t-second", "c-second", "e-second", "user", "123"):
                assert secret not in text.replace(str(found["history"][0]["beganMs"]), ""), secret
            domain = member.services.memory.domain
            assert domain is not None and domain not in text
            assert found["app"] == "app" and found["database"]["epochs"] == 1 and "error" not in found["database"]
            assert {tab["liveness"] for tab in found["presence"]["tabs"]} == {"alive"}
            assert [heard["silentForMs"] < 20_000 for heard in found["channel"]["heard"]] == [True]
            kinds = {lock["name"].split(":")[2] for lock in found["locks"]["held"]}
            assert {"leader", "engine"} <= kinds
            (key,) = found["elections"]
            assert key.startswith("app:sync:~") and found["elections"][key]["state"] in ("leading", "waiting")
            assert key in found["metrics"]["resources"]
            assert [entry["reason"] for entry in found["history"]] == [None]

        world.run(main())


def test_one_id_is_one_word_all_over_a_report_and_another_in_the_next() -> None:
    with World(1) as world:

        async def main() -> None:
            first, second = await pair(world)
            found = await report(first)
            (leader,) = found["presence"]["leaders"].values()
            tabs = {tab["tabId"] for tab in found["presence"]["tabs"]}
            assert len(tabs) == 2 and leader["tabId"] in tabs and found["history"][0]["tabId"] == leader["tabId"]
            assert leader["lockName"] in {lock["name"] for lock in found["locks"]["held"]}
            assert found["channel"]["heard"][0]["engineId"] in {tab["engineId"] for tab in found["presence"]["tabs"]}
            same = await report(second)
            assert {tab["tabId"] for tab in same["presence"]["tabs"]} == tabs, (
                "two reports under one salt can be joined"
            )
            other = await report(first, "another")
            assert tabs.isdisjoint(tab["tabId"] for tab in other["presence"]["tabs"])

        world.run(main())


def test_a_database_that_hangs_is_told_and_delays_the_report_by_a_few_seconds() -> None:
    with World(1) as world:

        async def main() -> None:
            member, _ = await pair(world)
            blocker = world.agent("blocker")
            ports = world.ports(blocker)

            async def hold() -> None:
                from tabhelm.fencing.schema import FENCING, SCHEMA

                async def body(tx: Any) -> None:
                    await tx.get(FENCING, "x")
                    blocker.freeze()
                    await tx.get(FENCING, "x")

                await ports.databases.database("tabhelm:app", SCHEMA).transaction([FENCING], "readwrite", body)

            blocker.start(hold())
            await world.until(lambda: blocker.frozen)
            began = world.loop.time()
            found = await report(member)
            assert world.loop.time() - began < 4.0
            assert found["database"]["error"] == "no-answer"
            assert len(found["presence"]["tabs"]) == 2

        world.run(main())


def test_a_page_gets_figures_history_and_a_diagnosis_of_its_engine() -> None:
    with World(1) as world:
        browser = SimulatedBrowser(world, start)

        async def main() -> None:
            page = await browser.open("a", Settings()).join()

            async def loop(ctx: Any) -> None:
                while True:
                    await ctx.sleep(0.5)

            election = page.lead("job", loop)
            await world.until(lambda: election.acting)
            await world.sleep(2.0)

            async def call(method: str, **params: Any) -> Any:
                return await page.agent.start(page.session.call(method, params, once=True))

            figures = await call("metrics")
            (resource,) = figures["resources"]
            assert resource.endswith(":job")
            assert figures["resources"][resource]["acquisitions"] == 1
            assert figures["resources"][resource]["leadersActing"] == 1
            text = await call("metrics", format="prometheus")
            assert "tabhelm_leaders_acting{" in text and page.tab_id not in text
            history = await call("history", count=5)
            assert [(entry["tabId"], entry["endedMs"]) for entry in history] == [(page.tab_id, None)]
            found = await call("diagnose", salt="00ff")
            assert page.tab_id not in json.dumps(found)
            assert found["elections"][resource]["state"] == "leading" and "told" not in found
            told = json.dumps({"hostReason": None, "statuses": [f"of {page.tab_id}"]})
            found = await call("diagnose", salt="00ff", told=told)
            message = f"of {Pseudonyms('00ff').owner(page.tab_id)}"
            assert json.loads(found["told"]) == {"hostReason": None, "statuses": [message]}
            for wrong in ("{", "[" * 1000):
                with pytest.raises(TabhelmError, match="told"):
                    await call("diagnose", told=wrong)

        world.run(main())


def test_an_error_s_text_shows_no_id_and_no_scope() -> None:
    with World(1) as world:

        async def main() -> None:
            first, second = join(world, "first"), join(world, "second")
            await world.sleep(1.0)

            async def hold() -> None:
                async with first.tab.lock("case", scope="desk:bob"):
                    await first.ports.clock.sleep(1000.0)

            async def loop(context: LeaderContext) -> None:
                try:
                    async with second.tab.lock("case", scope="desk:bob", timeout=2.0):
                        pass
                except LockTimeout as error:
                    raise RuntimeError(f"for desk:bob (bob), user:123, by c-second: {error}") from error

            first.agent.start(hold())
            await world.until(lambda: first.services.locks.count == 1)
            second.call(lambda: second.tab.lead("sync", loop, scope="user:123"))
            second.services.events.emit(TaskFailed("election app:sync:user:123", "ValueError: e-first"))
            await world.until(lambda: any(isinstance(e, LoopFailed) for e in second.services.events.recent))
            other = second.lead()
            await world.until(lambda: isinstance(other.status, Leading))
            second.call(lambda: other.step_down("no more of bob"))
            await world.sleep(2.0)
            found = await report(second)
            text = json.dumps(found)
            for secret in ("t-first", "c-second", "e-first", "desk", "bob", "user", "123"):
                bare = re.sub(r"[0-9.]{6,}", "", text)  # clocks
                assert secret not in re.sub(r"~[0-9a-f]{10}", "", bare), secret
            (failed,) = [event for event in found["events"] if event["type"] == "loop-failed"]
            holder = next(tab["tabId"] for tab in found["presence"]["tabs"] if not tab["self"])
            assert holder in failed["error"], "what is the same is the same word"
            (reason,) = found["metrics"]["resources"]["app:r"]["stepDowns"]
            assert reason.startswith("no more of ~")

        world.run(main())


def test_what_the_page_tells_is_cleaned_by_what_the_engine_knows() -> None:
    with World(1) as world:

        async def main() -> None:
            _, second = await pair(world)
            told = {"hostReason": None, "statuses": [{"error": {"message": "t-first in user:123"}}]}
            found = await second.agent.start(diagnosis(second.tab, "salt", told))
            hidden = Pseudonyms("salt")
            message = f"{hidden.hide('t-first')} in {hidden.owner('user:123')}"
            assert found["told"] == {"hostReason": None, "statuses": [{"error": {"message": message}}]}
            assert "told" not in await report(second)

        world.run(main())
