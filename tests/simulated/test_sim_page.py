"""The page and engine models, with a core of a few lines that only joins and answers."""

from __future__ import annotations

import itertools
import json
from typing import Any

import pytest

from tabhelm.errors import EngineLost
from tabhelm.ports import Ports
from tabhelm.simulated import PageContext, Settings, SimulatedBrowser, SimulatedPage, SimulatedReceiver, World
from tabhelm.simulated.engine import Bridge, Deliver
from tabhelm.simulated.pageerrors import NoAnswer, Refused
from tabhelm.simulated.pagesession import Session

SEEDS = range(12)


class TinyCore:
    """Welcomes everybody, answers calls, and notes what it was told."""

    def __init__(self) -> None:
        self.heard: list[tuple[str, str]] = []
        self.bridges: list[Bridge] = []
        self.calls: list[dict[str, Any]] = []
        self.silent = False
        self.refusal = ""
        """Code with which every hello is refused."""

    async def start(self, bridge: Bridge, ports: Ports) -> Deliver:
        self.bridges.append(bridge)

        def deliver(session: str, text: str) -> None:
            message = json.loads(text)
            self.heard.append((session, message["type"]))
            if message["type"] == "hello" and self.refusal:
                error = {"code": self.refusal, "message": "not this page"}
                bridge.post(session, json.dumps({"type": "refused", "error": error}))
            elif message["type"] == "hello":
                bridge.post(session, json.dumps({"type": "joined", "from": "snapshot", "bootMs": 1}))
            elif message["type"] == "call":
                self.calls.append(message)
                if not self.silent:
                    bridge.post(session, json.dumps({"type": "answer", "id": message["id"], "result": "done"}))

        return deliver

    def told(self, kind: str) -> int:
        return sum(1 for _, each in self.heard if each == kind)


class Stage:
    def __init__(self, seed: int) -> None:
        self.world = World(seed)
        self.core = TinyCore()
        self.browser = SimulatedBrowser(self.world, self.core.start)

    async def joined(self, *names: str) -> list[SimulatedPage]:
        pages = [self.browser.open(name) for name in names]
        for page in pages:
            page.begin_join()
        for page in pages:
            await page.join()
        return pages

    def up(self, *pages: SimulatedPage) -> bool:
        return all(page.session.up for page in pages)


@pytest.fixture(params=SEEDS)
def stage(request: pytest.FixtureRequest) -> Any:
    stage = Stage(request.param)
    yield stage
    stage.world.close()


def test_all_pages_join_one_engine(stage: Stage) -> None:
    async def main() -> None:
        pages = await stage.joined("a", "b", "c")
        assert len(stage.browser.engines) == 1
        assert len({page.tab_id for page in pages}) == 3
        assert [page.session.generation for page in pages] == [1, 1, 1]
        await stage.world.sleep(60)
        assert stage.up(*pages) and stage.core.told("stalled") == 0

    stage.world.run(main())


def test_a_closed_or_crashed_page_is_gone_within_milliseconds(stage: Stage) -> None:
    async def main() -> None:
        pages = await stage.joined("a", "b", "c")
        b, c = (page for page in pages if page.agent is not stage.browser.engines[0].creator)
        await stage.world.sleep(1)
        b.close()
        await stage.world.sleep(0.02)
        assert stage.core.told("gone") == 1
        c.crash()
        await stage.world.sleep(0.02)
        assert stage.core.told("gone") == 2

    stage.world.run(main())


def test_the_engines_death_is_noticed_and_the_pages_join_the_next(stage: Stage) -> None:
    async def main() -> None:
        a, b, c = await stage.joined("a", "b", "c")
        stage.core.silent = True
        pending = b.agent.start(b.session.call("enqueue", {"x": 1}))
        checking = b.agent.start(b.session.call("check", {}, once=True))
        await stage.world.sleep(1)
        first = b.session.connection_id
        stage.core.silent = False
        creator = next(page for page in (a, b, c) if page.agent is stage.browser.engines[0].creator)
        if creator is b:
            stage.browser.engines[0].engine.agent.die()
        else:
            creator.crash()
        with pytest.raises(EngineLost):
            await checking
        assert await pending == "done", "an unanswered call is sent again to the next engine"
        assert [call["id"] for call in stage.core.calls if call["method"] == "enqueue"] == [1, 1]
        assert len(stage.browser.living_engines()) == 1
        assert b.session.connection_id != first and b.session.generation == 2

    stage.world.run(main())


def test_a_refusal_that_can_pass_is_tried_again_ever_more_slowly(stage: Stage) -> None:
    async def main() -> None:
        (a,) = await stage.joined("a")
        await stage.world.sleep(20)
        stage.core.silent = True
        pending = a.agent.start(a.session.call("stats", {}))
        stage.core.refusal = "wheel"
        stage.browser.engines[0].engine.agent.die()
        with pytest.raises(EngineLost):
            await pending
        before = stage.core.told("hello")
        await stage.world.sleep(30)
        assert 3 <= stage.core.told("hello") - before <= 5
        stage.core.refusal, stage.core.silent = "", False
        assert await a.agent.start(a.session.call("stats", {})) == "done"

    stage.world.run(main())


def test_a_final_refusal_is_told_to_every_call(stage: Stage) -> None:
    async def main() -> None:
        (a,) = await stage.joined("a")
        stage.core.silent = True
        pending = a.agent.start(a.session.call("stats", {}))
        stage.core.refusal = "wrong-wire"
        stage.browser.engines[0].engine.agent.die()
        with pytest.raises(Refused):
            await pending
        told = stage.core.told("hello")
        await stage.world.sleep(100)
        assert stage.core.told("hello") == told
        with pytest.raises(Refused):
            await a.session.call("stats", {})

    stage.world.run(main())


def test_engines_that_fail_once_joined_are_replaced_ever_more_slowly(stage: Stage) -> None:
    async def main() -> None:
        (a,) = await stage.joined("a")
        incarnations = []
        for _ in range(6):
            incarnations.append(a.session.worker_incarnation)
            stage.browser.living_engines()[-1].engine.fail("engine-crashed", "told to")
            await stage.world.until(lambda: not a.session.up)
            await stage.world.until(lambda: a.session.up)
        # Its lock may be heard of before its last message: then the next engine is asked for under the same name.
        steps = [(after - before) % 4 for before, after in itertools.pairwise(incarnations)]
        assert set(incarnations) <= {1, 2, 3, 4} and set(steps) <= {0, 1}, incarnations
        assert stage.world.loop.time() > 1 + 2 + 4 + 8 + 16
        await stage.world.sleep(20)  # longer than stall_after: this engine has proved itself
        began = stage.world.loop.time()
        stage.browser.living_engines()[-1].engine.fail("engine-crashed", "told to")
        await stage.world.until(lambda: not a.session.up)
        await stage.world.until(lambda: a.session.up)
        assert stage.world.loop.time() - began < 2

    stage.world.run(main())


def test_a_call_that_a_living_engine_never_answers_is_given_up(stage: Stage) -> None:
    async def main() -> None:
        (a,) = await stage.joined("a")
        stage.core.silent = True
        began = stage.world.loop.time()
        with pytest.raises(NoAnswer):
            await a.agent.start(a.session.call("stats", {}))
        assert 60 <= stage.world.loop.time() - began < 63
        stage.core.silent = False
        assert a.session.up and await a.agent.start(a.session.call("stats", {})) == "done"

    stage.world.run(main())


def test_a_hung_page_is_stalled_and_doubts_itself(stage: Stage) -> None:
    async def main() -> None:
        a, b = await stage.joined("a", "b")
        hung = b if stage.browser.engines[0].creator is a.agent else a
        await stage.world.sleep(5)
        assert not hung.session.doubts(10.0)
        hung.hang(15.0)
        await stage.world.sleep(13.0)
        assert stage.core.told("stalled") == 1
        assert hung.session.doubts(10.0)
        await stage.world.sleep(3.0)
        assert stage.core.told("answering") == 1
        await stage.world.sleep(5.0)
        assert not hung.session.doubts(10.0) and stage.up(a, b)

    stage.world.run(main())


def test_a_frozen_page_is_dropped_at_once_and_comes_back(stage: Stage) -> None:
    async def main() -> None:
        _a, b = await stage.joined("a", "b")
        engine = stage.browser.engines[0].engine
        session = b.session.connection_id
        b.freeze()
        await stage.world.sleep(0.01)
        assert not engine.ports.locks.admitted(session)
        await stage.world.sleep(100)
        assert stage.core.told("stalled") == 0 and stage.core.told("gone") == 0
        b.thaw()
        assert b.session.doubts(10.0), "what was queued before the thaw says nothing about now"
        await stage.world.sleep(0.1)
        assert engine.ports.locks.admitted(session)
        assert stage.core.told("resume") == 1 and b.session.able(), "the engine says at once that it has heard it"

    stage.world.run(main())


def test_a_lone_page_in_the_bfcache_suspends_its_engine_and_returns(stage: Stage) -> None:
    async def main() -> None:
        (a,) = await stage.joined("a")
        engine = stage.browser.engines[0].engine
        tab, connection = a.tab_id, a.session.connection_id
        await stage.world.sleep(1)
        a.navigate_away()
        await stage.world.sleep(0.1)
        assert engine.agent.state == "stopped"
        snapshot = stage.world.lock_manager.snapshot()
        assert [info for info in snapshot.held if info.client_id == "a"] == [], "a cached page holds locks"
        await stage.world.sleep(100)
        a.back()
        await stage.world.until(lambda: a.session.up)
        assert engine.agent.state == "running"
        assert a.tab_id == tab and a.session.connection_id != connection and a.session.generation == 2

    stage.world.run(main())


def test_a_duplicated_tab_draws_its_own_id_and_a_reload_keeps_it(stage: Stage) -> None:
    async def main() -> None:
        a, _b = await stage.joined("a", "b")
        twin = a.duplicate("twin")
        await twin.join()
        assert twin.tab_id != a.tab_id
        again = a.reload("again")
        await again.join()
        assert again.tab_id == twin.tab_id or again.tab_id != "", "joined"
        assert again.session.generation >= 1
        if again.tab_id == a.tab_id:
            assert again.session.generation > a.session.generation

    stage.world.run(main())


def test_a_page_that_finds_a_hung_creator_takes_the_next_incarnation(stage: Stage) -> None:
    async def main() -> None:
        (a,) = await stage.joined("a")
        await stage.world.sleep(1)
        a.hang(30.0)
        (b,) = await stage.joined("b")
        assert stage.world.loop.time() < 12.0
        assert b.session.worker_incarnation == 2

    stage.world.run(main())


def test_a_failing_boot_is_told_and_the_next_engine_is_asked() -> None:
    stage = Stage(1)
    attempts = 0

    async def flaky(bridge: Bridge, ports: Ports) -> Deliver:
        nonlocal attempts
        attempts += 1
        if attempts == 1:
            raise RuntimeError("no wasm")
        return await stage.core.start(bridge, ports)

    stage.browser.factory = flaky

    async def main() -> None:
        (a,) = await stage.joined("a")
        assert attempts == 2 and a.session.worker_incarnation == 2

    stage.world.run(main())
    assert "no wasm" in stage.world.loop.errors.pop()
    stage.world.close()


def grant(stage: Stage, page: SimulatedPage, number: int, epoch: int) -> None:
    """What the real core would do for a leader."""
    bridge = stage.core.bridges[-1]
    token = {
        "domain": "d",
        "resource": "app:job",
        "epoch": epoch,
        "stream": "page",
        "owner": page.session.connection_id,
    }
    for message in ({"type": "grant"}, {"type": "lead", "token": token}):
        election = next(iter(page.elections))
        bridge.post(page.session.connection_id, json.dumps({**message, "election": election, "grant": number}))


def test_a_leader_writes_with_its_tokens_and_stops_at_the_freeze(stage: Stage) -> None:
    receiver = SimulatedReceiver(stage.world, "https://here/")

    async def loop(context: PageContext) -> None:
        number = 0
        while not context.signal.aborted:
            number += 1
            body = json.dumps({"operations": [{"op_id": f"{context.epoch}.{number}", "partition": "p", "payload": 1}]})
            await context.fetch("POST", "https://here/api", headers=context.headers(), body=body)
            await context.sleep(0.5)

    async def main() -> None:
        a, b = await stage.joined("a", "b")
        elections = [page.lead("job", loop) for page in (a, b)]
        await stage.world.sleep(0.1)
        grant(stage, a, 1, epoch=1)
        await stage.world.sleep(3.0)
        taken = len(receiver.accepted)
        assert 4 <= taken <= 7 and elections[0].acting
        a.freeze()
        grant(stage, b, 1, epoch=2)
        await stage.world.sleep(3.0)
        assert not elections[0].acting and elections[1].acting
        a.thaw()
        await stage.world.sleep(3.0)
        assert not elections[0].acting
        assert [failure for election in elections for failure in election.failures] == []
        epochs = [effect.token.epoch for effect in receiver.accepted]
        assert epochs == sorted(epochs) and set(epochs) == {1, 2}, f"accepted in the order {epochs}"

    stage.world.run(main())


def test_a_page_that_wakes_from_a_hang_may_not_write(stage: Stage) -> None:
    written: list[float] = []

    async def loop(context: PageContext) -> None:
        while True:
            context.next_token()
            written.append(stage.world.loop.time())
            await context.sleep(0.1)

    async def main() -> None:
        a, b = await stage.joined("a", "b")
        page = b if stage.browser.engines[0].creator is a.agent else a
        election = page.lead("job", loop)
        await stage.world.sleep(0.1)
        grant(stage, page, 1, epoch=1)
        await stage.world.sleep(2.0)
        assert written
        page.hang(20.0)
        start = stage.world.loop.time()
        await stage.world.sleep(25.0)
        assert [at for at in written if at >= start + 20.0] == [], "wrote after a hang without hearing from its engine"
        assert not election.acting

    stage.world.run(main())


def test_the_doubt_leaves_a_margin() -> None:
    with World(1) as world:
        browser = SimulatedBrowser(world, TinyCore().start)
        page = browser.open("a", Settings(stall_after=4.0))

        async def main() -> None:
            await page.join()
            session: Session = page.session
            await world.sleep(10.0)
            page.suspend()
            await world.sleep(1.5)
            assert not session.doubts(4.0)
            await world.sleep(2.2)
            assert session.doubts(4.0)

        world.run(main())
