"""A page's queue: own senders and headers over the wire, payloads that are no JSON, and what happens in mid-send."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Sequence
from typing import Any

import pytest

from tabhelm.errors import LeadershipLost, TabhelmError
from tabhelm.host.engine import start
from tabhelm.host.page_sender import PageFunctions
from tabhelm.ports.database import Opaque
from tabhelm.queue.records import draw_operation_id, drawn_at
from tabhelm.simulated import PageQueue, Settings, SimulatedBrowser, SimulatedPage, SimulatedReceiver, World
from tabhelm.simulated.pagequeue import PageSending

URL = "https://receiver.example/operations"
HOSTS = ("shared", "window")
each_host = pytest.mark.parametrize("host", HOSTS)


def run(host: str, test: Callable[[World, SimulatedBrowser], Coroutine[Any, Any, None]], seed: int = 1) -> None:
    with World(seed) as world:
        browser = SimulatedBrowser(world, start)
        browser.settings = Settings(host=host, stall_after=2.0)  # type: ignore[attr-defined]
        world.run(test(world, browser), limit=3600.0)


async def page(browser: SimulatedBrowser, name: str) -> SimulatedPage:
    opened = browser.open(name, browser.settings)  # type: ignore[attr-defined]
    await opened.join()
    return opened


class Outbox:
    """A page's own sender: where it puts operations, whatever it is asked, and what it answers."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.sent: list[tuple[str, Any]] = []
        """By whom, and what payload."""
        self.tokens: list[tuple[int, str, int]] = []
        self.attempts: list[int] = []
        self.signals: list[Any] = []
        self.answer: Callable[[dict[str, Any]], Any] = lambda operation: {"status": "committed"}
        self.hold: set[str] = set()
        """Pages whose sender does not settle."""
        self.ended: list[tuple[str, str]] = []

    def of(self, name: str) -> Callable[[list[dict[str, Any]], PageSending], Coroutine[Any, Any, Any]]:
        async def send(operations: list[dict[str, Any]], sending: PageSending) -> Any:
            assert set(sending.headers()) == {"Fencing-Token"}
            token = sending.token
            self.tokens.append((token["epoch"], token["stream"], token["seq"]))
            self.attempts.append(sending.attempt)
            self.signals.append(sending.signal)
            self.sent += [(name, operation["payload"]) for operation in operations]
            while name in self.hold:
                await self.world.sleep(0.1)
            self.ended.append((name, sending.signal.reason.reason if sending.signal.reason else ""))
            return [self.answer(operation) for operation in operations]

        return send

    async def holds(self, count: int) -> None:
        await self.world.until(lambda: len(self.signals) == count, within=120.0)


def sending_queue(opened: SimulatedPage, outbox: Outbox, **options: Any) -> PageQueue:
    return opened.queue("m", send=outbox.of(opened.name), **options)


async def done(world: World, queue: PageQueue, count: int, within: float = 120.0) -> dict[str, Any]:
    await world.until(lambda: queue.last_stats.get("done") == count, within=within)
    return queue.last_stats


# -- senders in the page -----------------------------------------------------------------------------------------------


@each_host
@pytest.mark.parametrize("each", [True, False])
def test_the_pages_own_sender_empties_the_queue_in_order(host: str, each: bool) -> None:
    async def test(world: World, browser: SimulatedBrowser) -> None:
        outbox = Outbox(world)
        a = await page(browser, "a")
        queue = sending_queue(a, outbox, each=each)
        for n in range(6):
            await queue.enqueue({"n": n}, partition="p")
        stats = await done(world, queue, 6)
        assert (stats["queued"], stats["inFlight"], stats["dead"]) == (0, 0, 0)
        assert [payload["n"] for _, payload in outbox.sent] == list(range(6))
        assert len(set(outbox.tokens)) == len(outbox.tokens), "each attempt has a token of its own"
        assert outbox.tokens == sorted(outbox.tokens)
        if each:
            assert len(outbox.tokens) == 6

    run(host, test)


@each_host
def test_what_the_sender_says_of_each_is_what_becomes_of_it(host: str) -> None:
    async def test(world: World, browser: SimulatedBrowser) -> None:
        outbox = Outbox(world)
        tried: list[str] = []

        def answer(operation: dict[str, Any]) -> dict[str, Any]:
            tried.append(operation["id"])
            if operation["id"] == "no":
                return {"status": "rejected", "detail": "not like that"}
            if operation["id"] == "later" and tried.count("later") < 3:
                return {"status": "retry", "retryAfterMs": 2_000}
            return {"status": "duplicate" if operation["id"] == "again" else "committed"}

        outbox.answer = answer
        a = await page(browser, "a")
        queue = sending_queue(a, outbox)
        for op_id in ("no", "later", "again", "yes"):
            await queue.enqueue(op_id, partition=op_id, op_id=op_id)
        began = world.loop.time()
        stats = await done(world, queue, 3)
        assert stats["dead"] == 1 and world.loop.time() - began >= 4.0
        (letter,) = await queue.dead_letters()
        assert (letter["id"], letter["reason"], letter["payload"]) == ("no", "not like that", "no")
        assert tried.count("no") == tried.count("yes") == tried.count("again") == 1

    run(host, test)


@each_host
@pytest.mark.parametrize("answer", ["throws", "nonsense", "too few"])
def test_a_sender_that_fails_is_tried_again_and_its_operation_dies_in_the_end(host: str, answer: str) -> None:
    async def test(world: World, browser: SimulatedBrowser) -> None:
        outbox = Outbox(world)
        a = await page(browser, "a")

        async def send(operations: list[dict[str, Any]], sending: PageSending) -> Any:
            outbox.attempts.append(sending.attempt)
            if answer == "throws":
                raise TypeError("400 forever, never sent again")  # what a text says decides nothing
            return ["yes"] if answer == "nonsense" else []

        queue = a.queue("m", send=send, each=True, maxAttempts=4, baseDelayMs=100)
        await queue.enqueue(1, op_id="bad")
        await world.until(lambda: queue.last_stats.get("dead") == 1, within=120.0)
        (letter,) = await queue.dead_letters()
        assert letter["reason"].startswith("gave up after 4 attempts"), letter
        if answer == "throws":
            assert "TypeError: 400 forever" in letter["reason"]
        assert outbox.attempts == [1, 2, 3, 4]
        assert "bad" in await queue.export_dead()

    run(host, test)


@each_host
def test_a_sender_that_is_too_slow_is_told_and_its_late_answer_is_none(host: str) -> None:
    async def test(world: World, browser: SimulatedBrowser) -> None:
        outbox = Outbox(world)
        a = await page(browser, "a")
        outbox.hold.add("a")
        queue = sending_queue(a, outbox, each=True, sendTimeoutMs=3_000, baseDelayMs=10_000)
        await queue.enqueue(1)
        await outbox.holds(1)
        await world.until(lambda: outbox.signals[0].aborted, within=5.0)
        assert outbox.signals[0].reason.reason == "timeout"
        outbox.answer = lambda _: {"status": "rejected"}
        outbox.hold.clear()
        await world.until(lambda: outbox.ended != [])
        await world.sleep(1.0)
        assert queue.last_stats["dead"] == 0, "the late answer of an attempt that is over"
        outbox.answer = lambda _: {"status": "committed"}
        await done(world, queue, 1)
        assert outbox.attempts == [1, 2]

    run(host, test)


# -- in mid-send -------------------------------------------------------------------------------------------------------


def freeze(opened: SimulatedPage) -> Callable[[], None]:
    opened.freeze()
    return opened.thaw


def hang(opened: SimulatedPage) -> Callable[[], None]:
    opened.hang(15.0)
    return lambda: None


def close(opened: SimulatedPage) -> Callable[[], None]:
    opened.close()
    return lambda: None


def crash(opened: SimulatedPage) -> Callable[[], None]:
    opened.crash()
    return lambda: None


def cache(opened: SimulatedPage) -> Callable[[], None]:
    opened.navigate_away()
    return opened.back


@each_host
@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("trouble", [freeze, hang, close, crash, cache])
def test_the_next_leader_goes_on_where_a_page_stopped_in_mid_send(
    host: str, trouble: Callable[[SimulatedPage], Callable[[], None]], seed: int
) -> None:
    async def test(world: World, browser: SimulatedBrowser) -> None:
        outbox = Outbox(world)
        a = await page(browser, "a")
        first = sending_queue(a, outbox, each=True)
        outbox.hold.add("a")
        await first.enqueue("one", partition="p")
        await first.enqueue("two", partition="p")
        await outbox.holds(1)
        b = await page(browser, "b")
        queue = sending_queue(b, outbox, each=True)
        undo = trouble(a)
        await done(world, queue, 2, within=300.0)
        assert outbox.sent == [("a", "one"), ("b", "one"), ("b", "two")]
        assert outbox.attempts == [1, 1, 1], "what a page could not finish is no failed attempt"
        undo()
        outbox.answer = lambda _: {"status": "rejected", "detail": "too late to count"}
        outbox.hold.clear()
        await world.sleep(30.0)
        assert (queue.last_stats["done"], queue.last_stats["dead"]) == (2, 0)
        if trouble in (freeze, cache):
            assert outbox.ended[-1][0] == "a" and outbox.ended[-1][1] != "", "its signal had told it"

    run(host, test, seed)


@each_host
def test_a_page_that_steps_down_aborts_its_send_and_sends_it_again_under_the_next_epoch(host: str) -> None:
    async def test(world: World, browser: SimulatedBrowser) -> None:
        outbox = Outbox(world)
        a = await page(browser, "a")
        queue = sending_queue(a, outbox, each=True)
        outbox.hold.add("a")
        await queue.enqueue(1)
        await outbox.holds(1)
        await a.session.call("forceElection", {"resource": "offline-queue:m"})
        await world.until(lambda: outbox.signals[0].aborted)
        assert isinstance(outbox.signals[0].reason, LeadershipLost)
        outbox.hold.clear()
        await done(world, queue, 1)
        assert [epoch for epoch, _, _ in outbox.tokens] == sorted({epoch for epoch, _, _ in outbox.tokens})
        assert outbox.attempts == [1, 1]

    run(host, test)


# -- values ------------------------------------------------------------------------------------------------------------


@each_host
def test_a_payload_that_is_no_json_goes_as_it_is(host: str) -> None:
    async def test(world: World, browser: SimulatedBrowser) -> None:
        outbox = Outbox(world)
        outbox.answer = lambda operation: {"status": "rejected" if operation["id"] == "dead" else "committed"}
        a = await page(browser, "a")
        queue = sending_queue(a, outbox)
        value = {"bytes": b"\x00\xff", "set": {1, 2}}
        await queue.enqueue(Opaque(value), op_id="one", partition="1")
        await queue.enqueue("json", op_id="two", partition="2")
        await queue.enqueue(Opaque(value), op_id="dead", partition="3")
        stats = await done(world, queue, 2)
        found = [payload.value if isinstance(payload, Opaque) else payload for _, payload in outbox.sent]
        assert found == [value, "json", value]
        assert stats["bytes"] > 0, "of the dead one"
        (letter,) = await queue.dead_letters()
        assert letter["payload"].value == value
        await queue.enqueue(Opaque(value), op_id="one", partition="1")  # the same again is nothing new
        with pytest.raises(TabhelmError) as refused:
            await queue.enqueue(Opaque({"another": 1}), op_id="one", partition="1")
        assert refused.value.code == "identifier-reused"
        assert (await queue.stats())["done"] == 2

    run(host, test)


# -- headers, options --------------------------------------------------------------------------------------------------


@each_host
def test_the_pages_headers_are_asked_before_each_request(host: str) -> None:
    async def test(world: World, browser: SimulatedBrowser) -> None:
        receiver = SimulatedReceiver(world, URL)
        a = await page(browser, "a")
        asked = 0

        async def headers() -> dict[str, str]:
            nonlocal asked
            asked += 1
            if asked == 2:
                raise RuntimeError("no token at the moment")
            return {"Authorization": f"Bearer {asked}"}

        queue = a.queue("m", endpoint=URL, headers=headers)
        await queue.enqueue({"n": 1})
        await done(world, queue, 1)
        sent = [request.headers["authorization"] for request in world.network.requests]
        assert sent == ["Bearer 1", "Bearer 3"], "the barrier, and the batch; nothing went out without"
        assert len(receiver.accepted) == 1

    run(host, test)


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"lanes": 17}, "lanes 17"),
        ({"mode": "bulk"}, "mode 'bulk'"),
        ({"unheard": 1}, "'unheard'"),
        ({"sendTimeoutMs": -1}, "sendTimeoutMs -1"),
        ({"baseDelayMs": 2_000, "maxDelayMs": 1_000}, "maxDelayMs"),
        ({"endpoint": URL, "payloads": "clone"}, "payloads"),
        ({"headers": {"Fencing-Token": "mine"}}, "Fencing-Token"),
        ({"flush": 1}, "flush 1"),
        ({"flush": True}, "nothing to send by"),
        ({"send": True, "sendBatch": True}, "send or sendBatch"),
    ],
)
def test_options_that_cannot_be_are_refused_by_name(options: dict[str, Any], named: str) -> None:
    async def test(world: World, browser: SimulatedBrowser) -> None:
        a = await page(browser, "a")
        queue = a.queue("m")
        queue.options = options
        a.agent.call(queue.open)  # as a page says it, not as the model would
        with pytest.raises(TabhelmError) as refused:
            await queue.enqueue(1)
        assert refused.value.code == "invalid-options"
        assert named in str(refused.value)

    run("shared", test)


def test_an_answer_to_nothing_that_was_asked_does_nothing() -> None:
    async def test(world: World, browser: SimulatedBrowser) -> None:
        outbox = Outbox(world)
        a = await page(browser, "a")
        queue = sending_queue(a, outbox, each=True)
        for told in ({"call": 77, "results": []}, {"call": 78, "lost": "doubt"}, {"call": 1}):
            a.session.post({"type": "sent", "queue": queue.handle, **told})
        await queue.enqueue(1)
        await done(world, queue, 1)
        a.session.post({"type": "sent", "queue": queue.handle, "call": 1, "error": {"name": "Error"}})
        await world.sleep(1.0)
        assert queue.last_stats["done"] == 1
        a.session.post({"type": "sent", "queue": queue.handle, "call": "one"})
        await world.until(lambda: any(event.get("code") == "malformed-message" for event in a.events))

    run("shared", test)


def test_an_answer_to_an_earlier_attempt_is_not_taken_for_this_one() -> None:
    async def test(world: World, browser: SimulatedBrowser) -> None:
        outbox = Outbox(world)
        a = await page(browser, "a")
        outbox.hold.add("a")
        queue = sending_queue(a, outbox, each=True, sendTimeoutMs=3_000, baseDelayMs=100)
        await queue.enqueue(1)
        await outbox.holds(2)
        told = {"results": [{"status": "rejected", "detail": "by the first attempt"}]}
        a.session.post({"type": "sent", "queue": queue.handle, "call": 1, **told})  # as no page of ours would
        await world.sleep(1.0)
        assert queue.last_stats["inFlight"] == 1
        outbox.hold.clear()
        assert (await done(world, queue, 1))["dead"] == 0

    run("shared", test)


@pytest.mark.parametrize("reason", ["doubt", "no-extras"])
def test_a_page_that_cannot_be_asked_lets_another_lead(reason: str) -> None:
    async def test(world: World, browser: SimulatedBrowser) -> None:
        outbox = Outbox(world)
        a = await page(browser, "a")
        outbox.hold.add("a")
        first = sending_queue(a, outbox, each=True)
        await first.enqueue(1)
        await outbox.holds(1)
        b = await page(browser, "b")
        queue = sending_queue(b, outbox, each=True)
        await world.sleep(1.0)
        a.session.post({"type": "sent", "queue": first.handle, "call": 1, "lost": reason})
        await done(world, queue, 1, within=20.0)
        assert [name for name, _ in outbox.sent] == ["a", "b"] and outbox.attempts == [1, 1]

    run("shared", test)


@each_host
def test_a_call_that_an_engine_reads_late_is_not_stored_again(host: str) -> None:
    # The page had given that engine up, and asked another one, whose leader has sent the operation by now.
    async def test(world: World, browser: SimulatedBrowser) -> None:
        outbox = Outbox(world)
        a = await page(browser, "a")
        queue = sending_queue(a, outbox)
        drawn = draw_operation_id(a.agent.clock, a.session.ports.entropy)
        operation = {"id": drawn, "partition": "p", "payload": "1", "fresh": True}
        params = {"queue": queue.handle, "operations": [operation]}
        assert await a.agent.start(a.session.call("enqueue", params)) == {"added": 1}
        await done(world, queue, 1)
        await world.sleep(5.0)
        assert await a.agent.start(a.session.call("enqueue", params)) == {"added": 0}
        assert (await queue.stats())["done"] == 1 and len(outbox.sent) == 1
        younger = operation | {"id": draw_operation_id(a.agent.clock, a.session.ports.entropy)}
        assert drawn_at(drawn) + 5.0 <= drawn_at(younger["id"]) <= a.agent.clock.wall()
        assert drawn_at("op-1") == 0.0

    run(host, test)


@each_host
def test_a_pending_enqueue_outlives_engines_and_settles_once(host: str) -> None:
    async def test(world: World, browser: SimulatedBrowser) -> None:
        receiver = SimulatedReceiver(world, URL)
        a = await page(browser, "a")
        queue = a.queue("m", endpoint=URL)
        pending = [queue.enqueue({"n": n}, partition="p") for n in range(20)]
        if host == "shared":
            a.engine.fail("deposed", "for the test")  # type: ignore[union-attr]
        else:
            a.navigate_away()
            await world.sleep(5.0)
            a.back()
        ids = [await each for each in pending]
        await done(world, queue, 20)
        assert [effect.payload["n"] for effect in receiver.accepted] == list(range(20))
        assert len(set(ids)) == 20

    run(host, test)


@each_host
def test_a_dead_letter_says_when_it_died_and_whether_its_partition_waits_for_it(host: str) -> None:
    async def test(world: World, browser: SimulatedBrowser) -> None:
        outbox = Outbox(world)
        outbox.answer = lambda operation: {"status": "rejected"}
        a = await page(browser, "a")
        queue = sending_queue(a, outbox, rejected="block")
        await world.sleep(100.0)
        first = [queue.enqueue(n, op_id=f"op-{n}", partition="case") for n in (1, 2)]
        for each in first:
            await each
        await world.until(lambda: queue.last_stats.get("blocked") == 1)
        letters = await queue.dead_letters()
        assert [letter["blocks"] for letter in letters].count(True) == 1 and letters[0]["blocks"]
        for letter in letters:
            assert letter["enqueuedAtMs"] <= letter["diedAtMs"] <= a.agent.clock.wall() * 1000
        assert await queue.remove_dead([letters[0]["id"]]) == {"count": 1}

    run(host, test)


@each_host
def test_figures_come_soon_and_not_too_often_and_the_last_ones_always(host: str) -> None:
    async def test(world: World, browser: SimulatedBrowser) -> None:
        outbox = Outbox(world)
        a = await page(browser, "a")
        queue = sending_queue(a, outbox, batch=1)
        await world.sleep(5.0)
        told: list[tuple[float, dict[str, Any]]] = []
        look = world.loop.create_task(watch(world, queue, told))
        began = world.loop.time()
        for n in range(60):
            await queue.enqueue(n)
            await world.sleep(0.05)
        await done(world, queue, 60)
        await world.sleep(2.0)
        look.cancel()
        assert told[0][0] - began < 0.2
        spaces = [later - before for (before, _), (later, _) in zip(told, told[1:], strict=False)]
        assert min(spaces) > 0.15 and len(told) > 10, spaces
        assert (told[-1][1]["done"], told[-1][1]["queued"], told[-1][1]["inFlight"]) == (60, 0, 0)

    run(host, test)


async def watch(world: World, queue: PageQueue, told: list[tuple[float, dict[str, Any]]]) -> None:
    """Write down when figures came."""
    last = queue.last_stats
    while True:
        await world.sleep(0.005)
        if queue.last_stats is not last:
            last = queue.last_stats
            told.append((world.loop.time(), last))


def test_a_call_that_cannot_be_posted_is_not_waited_for() -> None:
    async def test(world: World) -> None:
        posted: list[str] = []

        def post(message: dict[str, Any], values: Sequence[Opaque] = ()) -> None:
            posted.append(message["type"])
            raise TypeError("cannot be cloned")

        functions = PageFunctions(post, lambda queue, reason: False)
        for _ in range(3):
            with pytest.raises(TypeError, match="cannot be cloned"):
                await functions.ask("send", "q", {})
        assert posted == ["send"] * 3
        assert not functions._waiting

    with World(1) as world:
        world.run(test(world))
