"""Locks and single flights of pages, with the real engine in a simulated browser: order, trouble, hostile messages."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tabhelm.errors import FlightFailed, LockLost, LockTimeout, LockUnavailable, NotJoined
from tabhelm.host.engine import EngineHost, start
from tabhelm.host.page_locks import MOST_OPEN
from tabhelm.simulated import Settings, SimulatedAgent, SimulatedBrowser, SimulatedPage, World
from tabhelm.simulated.locks import SimulatedLocks
from tabhelm.simulated.pagelocks import PageLock, PageRequest

NAME = "app:v1:mutation:case"
HOSTS = ["shared", "window"]
SEEDS = range(5)


def names(world: World, name: str = NAME) -> tuple[int, int]:
    """How many hold and how many wait for it."""
    snapshot = world.lock_manager.snapshot()
    return (
        sum(info.name == name for info in snapshot.held),
        sum(info.name == name for info in snapshot.pending),
    )


class Holder:
    """A page's body that holds the lock until told."""

    def __init__(self, page: SimulatedPage, **options: Any) -> None:
        self.page = page
        self.inside = False
        self._ending = page.agent.loop.create_future()
        self.request: PageRequest = page.lock("case", self._body, **options)

    async def _body(self, lock: PageLock) -> str:
        self.inside = True
        try:
            await self._ending
        finally:
            self.inside = False
        return self.page.name

    @property
    def holds(self) -> bool:
        return self.page.alive and self.inside and self.request.acting

    def end(self) -> None:
        self._ending.set_result(None)


async def pages(world: World, *hosts: str, **options: Any) -> list[SimulatedPage]:
    browser = SimulatedBrowser(world, start)
    opened = [browser.open(f"p{n}", Settings(host=host, **options)) for n, host in enumerate(hosts)]
    for page in opened:
        await page.join()
    return opened


@pytest.mark.parametrize("host", HOSTS)
@pytest.mark.parametrize("seed", SEEDS)
def test_bodies_run_in_order_and_give_their_value(seed: int, host: str) -> None:
    with World(seed) as world:

        async def main() -> None:
            holders = []
            for place, page in enumerate(await pages(world, host, "shared", "window")):
                holders.append(Holder(page))
                await world.until(lambda place=place: sum(names(world)) == place + 1)  # type: ignore[misc]
            for holder in holders:
                await world.until(lambda holder=holder: holder.holds)  # type: ignore[misc]
                assert [each.holds for each in holders].count(True) == 1
                holder.end()
                assert await holder.request.outcome == holder.page.name
            await world.until(lambda: names(world) == (0, 0))

        world.run(main())


@pytest.mark.parametrize("host", HOSTS)
def test_timeouts_and_what_is_not_available(host: str) -> None:
    with World(1) as world:

        async def main() -> None:
            a, b = await pages(world, "shared", host)
            holder = Holder(a)
            await world.until(lambda: holder.holds)
            with pytest.raises(LockTimeout, match=f"tab {a.tab_id!r} has held it"):
                await Holder(b, timeoutMs=1500).request.outcome
            with pytest.raises(LockUnavailable):
                await Holder(b, ifAvailable=True).request.outcome
            with pytest.raises(Exception, match="timeoutMs"):
                await Holder(b, timeoutMs=-3).request.outcome
            assert names(world) == (1, 0)
            shared = [Holder(page, shared=True) for page in (a, b)]
            await world.until(lambda: names(world) == (1, 2))
            holder.end()
            await world.until(lambda: all(each.holds for each in shared))

        world.run(main())


@pytest.mark.parametrize("host", HOSTS)
@pytest.mark.parametrize("ms", [0, 1])
def test_a_free_lock_is_had_within_no_time(host: str, ms: int) -> None:
    with World(1) as world:

        async def main() -> None:
            a, b = await pages(world, host, "shared")
            world.faults.lock_delay = (0.002, 0.005)
            holder = Holder(a, timeoutMs=ms)
            await world.until(lambda: holder.holds or holder.request.outcome.done())
            assert holder.holds
            with pytest.raises(LockTimeout):
                await Holder(b, timeoutMs=ms).request.outcome
            with pytest.raises(Exception, match="timeoutMs"):
                await Holder(b, timeoutMs=False).request.outcome

        world.run(main())


def test_what_happens_to_a_tab_s_locks_is_told_to_its_own_page_alone() -> None:
    with World(1) as world:
        agent, host, bridge, say = session(world)
        heard: dict[str, list[tuple[str, str]]] = {"c1": [], "c2": []}

        def post(session: str, text: str) -> None:
            message = json.loads(text)
            if message["type"] == "event" and "lock" in message["event"]:
                heard[session].append((message["event"]["type"], message["event"]["tab"]))
            Bridge.post(bridge, session, text)

        bridge.post = post  # type: ignore[method-assign]

        async def main() -> None:
            say({"type": "hello", "tab": "t2", "session": "c2", "generation": 1, "lifecycle": "active"}, "c2")
            say({"type": "lock", "lock": "one", "name": "x"})
            await world.until(lambda: bridge.of("one"), within=1.0)
            say({"type": "lock", "lock": "two", "name": "x", "timeoutMs": 300}, "c2")
            await world.until(lambda: bridge.of("two"), within=1.0)
            agent.call(lambda: host.services.ports.locks.drop("c1"))
            await world.sleep(1.0)
            assert heard == {"c1": [("held-lock-lost", "t1")], "c2": [("lock-timed-out", "t2")]}

        world.run(main())


@pytest.mark.parametrize("trouble", ["freeze", "hang", "crash", "close", "away", "leave", "engine"])
@pytest.mark.parametrize("seed", SEEDS)
def test_a_holder_that_stops_lets_go_and_hears_of_it(seed: int, trouble: str) -> None:
    with World(seed) as world:

        async def main() -> None:
            first, holds, waits = await pages(world, "shared", "shared", "window")
            holder = Holder(holds)
            await world.until(lambda: holder.holds)
            other = Holder(waits)
            await world.until(lambda: names(world) == (1, 1))
            began = world.loop.time()
            _stop(holds, trouble)
            assert trouble in ("hang", "engine", "leave") or not holder.holds
            await world.until(lambda: other.holds)
            assert world.loop.time() - began < (13.0 if trouble == "hang" else 1.0)
            assert not holder.holds
            _go_on(holds, trouble)
            if trouble not in ("crash", "close"):
                with pytest.raises(LockLost):
                    await holder.request.outcome
            assert other.holds
            other.end()
            await world.until(lambda: names(world) == (0, 0))

        world.run(main())


@pytest.mark.parametrize("trouble", ["freeze", "hang", "crash", "close", "away", "leave", "engine"])
@pytest.mark.parametrize("seed", SEEDS)
def test_a_waiter_that_stops_is_passed_over_and_asks_again(seed: int, trouble: str) -> None:
    with World(seed) as world:

        async def main() -> None:
            holds, waits, behind = await pages(world, "window", "shared", "window")
            holder = Holder(holds)
            await world.until(lambda: holder.holds)
            waiter = Holder(waits)
            await world.until(lambda: names(world) == (1, 1))
            _stop(waits, trouble)
            await world.until(lambda: names(world) == (1, 0) or trouble == "engine")
            other = Holder(behind)
            await world.until(lambda: names(world)[1] >= 1)
            await world.sleep(0.5)
            holder.end()
            if trouble != "engine":
                await world.until(lambda: other.holds)
                assert not waiter.holds
                other.end()
            _go_on(waits, trouble)
            if trouble in ("crash", "close"):
                return
            if trouble == "leave":
                with pytest.raises(NotJoined):
                    await waiter.request.outcome
                return
            if trouble == "engine":
                await world.until(lambda: other.holds or waiter.holds)
                (other if other.holds else waiter).end()
                await world.until(lambda: other.request.outcome.done() or waiter.request.outcome.done())
                if not waiter.request.outcome.done():
                    await world.until(lambda: waiter.holds)
                    waiter.end()
                elif not other.request.outcome.done():
                    await world.until(lambda: other.holds)
                    other.end()
            else:
                await world.until(lambda: waiter.holds)
                waiter.end()
            assert await waiter.request.outcome == waits.name

        world.run(main())


def _stop(page: SimulatedPage, trouble: str) -> None:
    if trouble == "freeze":
        page.freeze()
    elif trouble == "hang":
        page.hang(30.0)
    elif trouble == "crash":
        page.crash()
    elif trouble == "close":
        page.close()
    elif trouble == "away":
        page.navigate_away()
    elif trouble == "leave":
        page.leave("logout")
    else:
        assert page.engine is not None
        page.engine.agent.die()


def _go_on(page: SimulatedPage, trouble: str) -> None:
    if trouble == "freeze":
        page.thaw()
    elif trouble == "away":
        page.back()


@pytest.mark.parametrize("seed", range(8))
def test_one_page_flies_for_all(seed: int) -> None:
    with World(seed) as world:
        ran: list[str] = []

        async def main() -> None:
            crew = await pages(world, "shared", "shared", "window", "window")

            def fly(page: SimulatedPage, *, error: bool = False) -> PageRequest:
                async def work(_: PageLock) -> Any:
                    ran.append(page.name)
                    await page.ports.clock.sleep(1.0)
                    if error:
                        raise ConnectionError("no route")
                    return {"from": page.name}

                return page.single_flight("catalog", work)

            flights = [fly(page) for page in crew for _ in range(2)]
            assert {(await flight.outcome)["from"] for flight in flights} == set(ran)
            assert len(ran) == 1
            ran.clear()
            first = fly(crew[1], error=True)
            await world.until(lambda: ran == ["p1"])
            others = [fly(page, error=True) for page in (crew[0], crew[3])]
            with pytest.raises(ConnectionError):
                await first.outcome
            for other in others:
                with pytest.raises(FlightFailed, match="no route"):
                    await other.outcome
            assert ran == ["p1"]
            ran.clear()
            lost = fly(crew[0])
            await world.until(lambda: ran == ["p0"])
            others = [fly(page) for page in crew[1:]]
            await world.sleep(0.5)
            crew[0].freeze()
            assert {(await flight.outcome)["from"] for flight in others} == {ran[1]} and len(ran) == 2
            crew[0].thaw()
            with pytest.raises(LockLost):
                await lost.outcome

        world.run(main())


# -- what a page may say ----------------------------------------------------------------------------------------------


class Bridge:
    """The engine's JavaScript, as far as Python sees it."""

    def __init__(self) -> None:
        self.said: list[dict[str, Any]] = []
        self.info = json.dumps({"engine": "e", "app": "app", "protocol": 1, "from": "plain", "bootMs": 1})

    def post(self, session: str, text: str) -> None:
        self.said.append(json.loads(text))

    def of(self, handle: str) -> list[dict[str, Any]]:
        return [message for message in self.said if message["type"] == "lock" and message["lock"] == handle]


def session(world: World) -> tuple[SimulatedAgent, EngineHost, Bridge, Any]:
    agent = world.agent("e")
    ports = world.ports(agent)
    for name in ("c1", "c2"):
        ports.locks.admit(name)
    bridge = Bridge()
    host = agent.call(lambda: EngineHost(bridge, ports))

    def say(message: dict[str, Any], by: str = "c1") -> None:
        agent.call(lambda: host.deliver(by, json.dumps(message)))

    say({"type": "hello", "tab": "t1", "session": "c1", "generation": 1, "lifecycle": "active"})
    return agent, host, bridge, say


def test_hostile_messages_cost_nobody_anything() -> None:
    with World(1) as world:
        _, host, bridge, say = session(world)

        async def main() -> None:
            for handle, message in enumerate(
                [
                    {"name": "a b"},
                    {"name": "x", "scope": ":"},
                    {"name": "x" * 400, "scope": "y" * 400},
                    {"name": "x", "timeoutMs": "soon"},
                    {"name": "x", "shared": "yes"},
                    {"name": "x", "ifAvailable": 1},
                    {"name": "f", "flight": True, "scope": ""},
                ]
            ):
                say({"type": "lock", "lock": f"bad{handle}", **message})
                await world.until(lambda handle=handle: bridge.of(f"bad{handle}"), within=1.0)  # type: ignore[misc]
                assert bridge.of(f"bad{handle}")[0]["state"] == "refused", message
            before = dict(host.services.events.ignored_counts)
            for message in ({"lock": 3, "name": "x"}, {"name": "x"}, {"lock": "n", "name": 3, "flight": "x"}):
                say({"type": "lock", **message})
            say({"type": "unlock"})
            say({"type": "unlock", "lock": "never-heard-of", "outcome": {"value": "1"}})
            assert host.services.events.ignored_counts.get("malformed-message", 0) >= 3, before
            say({"type": "lock", "lock": "one", "name": "x"})
            await world.until(lambda: bridge.of("one"), within=1.0)
            say({"type": "lock", "lock": "one", "name": "y"})
            assert len(bridge.of("one")) == 1 and names(world, "app:v1:mutation:y") == (0, 0)
            say({"type": "unlock", "lock": "one"})
            await world.until(lambda: names(world, "app:v1:mutation:x") == (0, 0), within=1.0)

        world.run(main())


def test_a_page_may_not_open_locks_without_end() -> None:
    with World(1) as world:
        _, host, bridge, say = session(world)

        async def main() -> None:
            for number in range(MOST_OPEN + 3):
                say({"type": "lock", "lock": f"h{number}", "name": "one"})
            await world.sleep(1.0)
            refused = [message for message in bridge.said if message.get("state") == "refused"]
            assert [message["error"]["code"] for message in refused] == ["too-many-locks"] * 3
            say({"type": "gone", "reason": "closed"})
            await world.sleep(1.0)
            assert names(world, "app:v1:mutation:one") == (0, 0) and len(host.services.tasks) == 0

        world.run(main())


@pytest.mark.parametrize("error", ["text", 7, {}, {"name": 3}, {"name": "E" * 9_000, "message": "m" * 99_000}, []])
def test_whatever_a_flight_ends_with_the_next_one_flies(error: Any) -> None:
    with World(1) as world:
        _, host, bridge, say = session(world)

        async def main() -> None:
            for number, outcome in enumerate(
                [{"error": error}, {"value": "x" * 300_000}, {"value": 5}, {"value": "{"}, {}]
            ):
                say({"type": "lock", "lock": f"f{number}", "name": "k", "flight": True})
                await world.until(lambda number=number: bridge.of(f"f{number}"), within=1.0)  # type: ignore[misc]
                say({"type": "unlock", "lock": f"f{number}", "outcome": outcome})
                await world.until(lambda: names(world, "app:v1:single-flight:k") == (0, 0), within=1.0)
            failures = [event for event in host.services.events.recent if type(event).__name__ == "TaskFailed"]
            assert failures == []

        world.run(main())


# -- any trouble ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(40))
def test_never_two_bodies_and_never_a_lock_that_nobody_gets(seed: int) -> None:
    """Pages of mixed hosts take the lock again and again while they freeze, hang, crash, come and go."""
    world = World(seed)
    rng = world.stream("trouble")
    world.faults.lock_delay = (0.0, rng.choice([0.003, 0.05]))
    world.faults.port_delay = (0.0, rng.choice([0.003, 0.1]))
    world.faults.channel_loss = rng.choice([0.0, 0.3])
    browser = SimulatedBrowser(world, start)
    crew: list[SimulatedPage] = []
    running: dict[PageLock, SimulatedPage] = {}
    grants = 0
    problems: list[str] = []

    def enter(page: SimulatedPage) -> None:
        crew.append(page)
        page.begin_join()

        async def body(lock: PageLock) -> None:
            nonlocal grants
            grants += 1
            running[lock] = page
            try:
                for _ in range(rng.randrange(1, 5)):
                    lock.check()
                    await page.ports.clock.sleep(rng.uniform(0.0, 1.0))
            finally:
                del running[lock]

        async def work() -> None:
            while True:
                request = page.lock("case", body)
                try:
                    await request.outcome
                except (LockLost, NotJoined):
                    pass
                await page.ports.clock.sleep(rng.uniform(0.0, 0.5))

        page.agent.start(work())

    def watch() -> None:
        acting = [page.name for lock, page in running.items() if lock.held and can_act(page)]
        if len(acting) > 1:
            problems.append(f"{world.loop.time():.6f}: two bodies {acting}")

    def can_act(page: SimulatedPage) -> bool:
        engine = page.engine
        if page.agent.state != "running" or engine is None or not engine.agent.alive:
            return False  # who stands still cannot act; whose engine died hears of it in a moment
        locks = engine.ports.locks
        return isinstance(locks, SimulatedLocks)

    def opened() -> None:
        settings = Settings(host=rng.choice(["shared", "shared", "window"]), stall_after=2.0)
        enter(browser.open(f"p{len(crew)}", settings))

    def some(state: str) -> SimulatedPage | None:
        fitting = [page for page in crew if page.agent.state == state and not page.cached]
        best = [page for page in fitting if page in running.values()]
        return rng.choice(best if best and rng.random() < 0.6 else fitting) if fitting else None

    async def main() -> None:
        for _ in range(4):
            opened()
        await world.sleep(2.0)
        for _ in range(25):
            what = rng.choice(["freeze", "freeze", "thaw", "thaw", "hang", "crash", "close", "away", "back", "engine"])
            page = some("frozen" if what == "thaw" else "running")
            cached = [each for each in crew if each.cached]
            if what == "back" and cached:
                rng.choice(cached).back()
            elif what == "engine":
                if engines := browser.living_engines():
                    rng.choice(engines).engine.agent.die()
            elif page is not None and what == "hang":
                page.hang(rng.choice([0.5, 3.0, 8.0]))
            elif page is not None and what == "thaw":
                page.thaw()
            elif page is not None and what != "back":
                _stop(page, what)
            while sum(each.alive for each in crew) < 3:
                opened()
            await world.sleep(rng.choice([0.0, 0.01, 0.3, 2.0, 4.0]))
        for page in crew:
            page.thaw()
            page.back()
        await world.until(lambda: not any(page.agent.state == "stopped" for page in crew), within=30.0)
        await world.sleep(15.0)
        before = grants
        await world.until(lambda: grants > before + 5, within=60.0)

    world.loop.after_step = watch
    try:
        world.run(main(), limit=3600)
    finally:
        world.close(check=False)
    assert problems == [] and world.loop.errors == []
    assert grants > 20
