"""Own senders: what they are given, what their answers do, and what becomes of an operation when they fail."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest
from queue_kit import Ledger, opened, put, reasons, simulated

from kit import Member, join
from tabhelm.errors import LeadershipLost
from tabhelm.fencing.http_form import parse_token_header
from tabhelm.leadership import Leading
from tabhelm.observe import OperationDied
from tabhelm.queue import BatchSender, Operation, Outcome, Queue, Sending
from tabhelm.simulated import World


async def drained(world: World, member: Member, queue: Queue, within: float = 60.0) -> None:
    """Wait until nothing is queued any more."""
    for _ in range(int(within)):
        stats = await member.agent.start(queue.stats())
        if not stats.queued and not stats.in_flight:
            return
        await world.sleep(1.0)
    raise AssertionError(f"still {stats}")


@simulated
async def test_a_function_is_given_one_operation_and_a_token_of_its_own(world: World) -> None:
    a = join(world, "a")
    seen: list[tuple[Any, str, int, dict[str, str]]] = []

    async def send(operation: Operation, sending: Sending) -> str | None:
        seen.append((operation.content, operation.partition, sending.attempt, sending.headers()))
        return "committed" if len(seen) % 2 else None

    queue = opened(a, sender=send, endpoint="https://mine.example/")
    await put(a, queue, 1, 2, 3, partition="case")
    await drained(world, a, queue)
    assert [content for content, *_ in seen] == [{"n": 1}, {"n": 2}, {"n": 3}]
    assert [headers["Idempotency-Key"] for *_, headers in seen] == ['"op-1"', '"op-2"', '"op-3"']
    tokens = [parse_token_header(headers["Fencing-Token"]) for *_, headers in seen]
    assert [token.seq for token in tokens] == sorted({token.seq for token in tokens})
    assert {(token.resource, token.stream) for token in tokens} == {("app:offline-queue:m", "lane-0")}
    stats = await a.agent.start(queue.stats())
    assert stats.done == 3 and stats.bytes == 0


@simulated
async def test_a_batch_sender_is_given_many_and_answers_in_their_order(world: World) -> None:
    a = join(world, "a")
    batches: list[list[str]] = []

    async def send(operations: Sequence[Operation], sending: Sending) -> list[Outcome | str | None]:
        batches.append([operation.op_id for operation in operations])
        assert "Idempotency-Key" not in sending.headers() or len(operations) == 1
        return [Outcome.rejected("no title") if each.op_id == "op-2" else "duplicate" for each in operations]

    queue = opened(a, flush=False)
    await put(a, queue, *range(5))
    opened(a, sender=BatchSender(send), payloads="json")
    await drained(world, a, queue)
    assert batches == [["op-0", "op-1", "op-2", "op-3", "op-4"]]
    assert await reasons(a, queue) == {"op-2": "no title"}


@pytest.mark.parametrize(
    "text", ["after 4000ms", "400 Bad Request", "HTTP 422", "rejected", "Unauthorized 401", "not retryable"]
)
def test_the_text_of_an_error_decides_nothing(text: str) -> None:
    """A peer drops an operation whose error text holds a number like 400."""
    with World(1) as world:

        async def main() -> None:
            a = join(world, "a")

            def fail(operation: Operation, sending: Sending) -> None:
                if sending.attempt < 4:
                    raise TimeoutError(text)

            ledger = Ledger(fail)
            queue = opened(a, sender=ledger)
            await put(a, queue, 1)
            await drained(world, a, queue)
            assert ledger.sent == ["op-1"] * 4
            assert [sending.attempt for sending in ledger.sendings] == [1, 2, 3, 4]
            assert await reasons(a, queue) == {}

        world.run(main())


@simulated
async def test_a_sender_that_goes_on_failing_makes_a_dead_letter_with_its_last_words(world: World) -> None:
    a = join(world, "a")

    def fail(operation: Operation, sending: Sending) -> None:
        if operation.op_id == "op-1":
            raise ValueError("no such case")

    ledger = Ledger(fail)
    queue = opened(a, sender=ledger, max_attempts=5, base_delay=1.0, max_delay=8.0)
    at: list[float] = []
    ledger.decide = lambda operation, sending: (at.append(world.loop.time()), fail(operation, sending))[1]
    await put(a, queue, 1, 2)
    await drained(world, a, queue, within=120)
    assert await reasons(a, queue) == {"op-1": "gave up after 5 attempts: ValueError: no such case"}
    assert ledger.sent == ["op-1"] * 5 + ["op-2"]
    pauses = [later - earlier for earlier, later in zip(at[:5], at[1:5], strict=False)]
    for pause, full in zip(pauses, (1.0, 2.0, 4.0, 8.0), strict=True):
        assert full / 2 <= pause <= full + full + 1.0
    died = [event for event in a.services.events.recent if isinstance(event, OperationDied)]
    assert [event.operation for event in died] == ["op-1"]


@simulated
async def test_a_poison_operation_stops_neither_other_partitions_nor_for_ever_its_own(world: World) -> None:
    a = join(world, "a")

    def fail(operation: Operation, sending: Sending) -> None:
        if operation.op_id == "op-0":
            raise RuntimeError("poison")

    ledger = Ledger(fail)
    queue = opened(a, sender=ledger, max_attempts=8)
    await put(a, queue, 0, 1, partition="bad")
    await put(a, queue, *range(2, 30), partition="good")
    await world.until(lambda: {f"op-{n}" for n in range(2, 30)} <= set(ledger.sent), within=5.0)
    assert "op-1" not in ledger.sent
    await drained(world, a, queue, within=200)
    assert ledger.sent.count("op-0") == 8 and ledger.sent[-1] == "op-1"


@simulated
async def test_a_poison_operation_in_a_batch_is_found_and_the_others_are_never_counted_out(world: World) -> None:
    a = join(world, "a")
    counts: dict[str, int] = {}

    async def send(operations: Sequence[Operation], sending: Sending) -> None:
        if any(operation.op_id == "op-5" for operation in operations):
            raise RuntimeError("one of these")
        for operation in operations:
            counts[operation.op_id] = operation.attempts

    queue = opened(a, flush=False)
    for n in range(40):
        await put(a, queue, n, partition=f"p{n:02}")
    opened(a, sender=BatchSender(send), payloads="json", max_attempts=6)
    await drained(world, a, queue, within=300)
    assert set(await reasons(a, queue)) == {"op-5"}
    assert len(counts) == 39 and set(counts.values()) == {0}


@simulated
async def test_the_answers_of_a_sender(world: World) -> None:
    a = join(world, "a")
    first: dict[str, Any] = {
        "op-1": Outcome.retry(after=20.0, detail="later"),
        "op-2": "skipped",
        "op-3": Outcome.duplicate(),
        "op-4": "rejected",
    }
    at: dict[str, list[float]] = {}

    def decide(operation: Operation, sending: Sending) -> Any:
        at.setdefault(operation.op_id, []).append(world.loop.time())
        return first.pop(operation.op_id, None)

    queue = opened(a, sender=Ledger(decide))
    for n in range(1, 5):
        await put(a, queue, n, partition=f"p{n}")
    await drained(world, a, queue)
    assert {op_id: len(times) for op_id, times in at.items()} == {"op-1": 2, "op-2": 2, "op-3": 1, "op-4": 1}
    assert at["op-1"][1] - at["op-1"][0] >= 20.0
    assert await reasons(a, queue) == {"op-4": "rejected"}


@pytest.mark.parametrize(
    "answers", [lambda n: ["committed"] * (n - 1), lambda n: [Outcome("other", "committed")] * n, lambda n: [7] * n]
)
def test_answers_that_are_none_are_failures(answers: Any) -> None:
    with World(1) as world:

        async def main() -> None:
            a = join(world, "a")
            broken = True

            async def send(operations: Sequence[Operation], sending: Sending) -> Any:
                return answers(len(operations)) if broken else None

            queue = opened(a, flush=False)
            await put(a, queue, 1, 2, 3)
            opened(a, sender=BatchSender(send), payloads="json")
            await world.until(lambda: queue.shared.last_error is not None)
            assert queue.shared.last_error is not None and queue.shared.last_error.startswith("ValueError: ")
            broken = False
            await drained(world, a, queue)
            assert (await a.agent.start(queue.stats())).done == 3

        world.run(main())


@simulated
async def test_a_send_that_takes_too_long_is_cancelled_and_tried_again(world: World) -> None:
    a = join(world, "a")
    cancelled: list[str] = []

    async def hang(operation: Operation) -> None:
        try:
            await asyncio.get_running_loop().create_future()
        except asyncio.CancelledError:
            cancelled.append(operation.op_id)
            raise

    ledger = Ledger(lambda operation, sending: hang(operation) if sending.attempt < 3 else None)
    queue = opened(a, sender=ledger, send_timeout=2.0)
    await put(a, queue, 1)
    await drained(world, a, queue)
    assert cancelled == ["op-1", "op-1"] and ledger.sent == ["op-1"] * 3


@simulated
async def test_stepping_down_aborts_a_send_which_is_unknown_and_no_attempt(world: World) -> None:
    a = join(world, "a")
    waiting: list[Sending] = []
    again: list[Operation] = []

    async def hang(sending: Sending) -> None:
        waiting.append(sending)
        await asyncio.get_running_loop().create_future()

    def decide(operation: Operation, sending: Sending) -> Any:
        if not waiting:
            return hang(sending)
        again.append(operation)
        return None

    queue = opened(a, sender=Ledger(decide))
    await put(a, queue, 1)
    await world.until(lambda: bool(waiting))
    (election,) = a.tab.elections.values()
    a.call(election.step_down, "test")
    await world.until(lambda: not isinstance(election.status, Leading))
    with pytest.raises(LeadershipLost):
        a.call(waiting[0].headers)
    await world.until(lambda: bool(again))
    assert again[0].attempts == 0 and again[0].unknown_since > 0


@simulated
async def test_a_demoted_leader_starts_no_further_send(world: World) -> None:
    """A peer goes on with the second and third entry after it lost leadership during the first."""
    a, b = join(world, "a"), join(world, "b")
    sent: list[tuple[str, str, str]] = []
    demoted = False

    def sender(member: Member) -> Ledger:
        def decide(operation: Operation, sending: Sending) -> Any:
            nonlocal demoted
            sent.append((member.agent.name, operation.op_id, sending.token.owner_id))
            if operation.op_id == "op-0" and not demoted:
                demoted = True
                member.set(lifecycle="frozen")  # in the middle of the send, as a page's freeze handler does

                async def deaf() -> None:
                    try:
                        await world.sleep(3.0)
                    except asyncio.CancelledError:
                        await world.sleep(3.0)  # careless: goes on, and says that it is done

                return deaf()
            return None

        return Ledger(decide)

    queue = opened(a, sender=sender(a))
    await world.until(lambda: a.leading)
    await put(a, queue, 0, 1, 2)
    theirs = opened(b, sender=sender(b))
    await world.until(lambda: [who for who, op_id, _ in sent if op_id == "op-2"] != [], within=60.0)
    assert [op_id for who, op_id, _ in sent if who == "a"] == ["op-0"]
    assert [op_id for who, op_id, _ in sent if who == "b"] == ["op-0", "op-1", "op-2"]
    await drained(world, b, theirs)
    assert (await b.agent.start(theirs.stats())).done == 3


@simulated
async def test_a_flap_of_leadership_delivers_nothing_twice(world: World) -> None:
    """A peer with an entry waiting to be retried sends it from the old loop and from the new one."""
    a = join(world, "a")
    first = True

    def decide(operation: Operation, sending: Sending) -> Any:
        nonlocal first
        if operation.op_id == "op-1" and first:
            first = False
            return Outcome.retry(after=5.0)
        return None

    ledger = Ledger(decide)
    queue = opened(a, sender=ledger)
    await put(a, queue, 1, 2)
    await world.until(lambda: ledger.sent == ["op-1"])
    await world.sleep(1.0)
    (election,) = a.tab.elections.values()
    for _ in range(3):
        a.call(election.step_down, "flap")
        await world.sleep(0.7)
    await drained(world, a, queue)
    assert ledger.sent == ["op-1", "op-1", "op-2"]


@simulated
async def test_a_write_queues_up_behind_an_older_one_that_is_held(world: World) -> None:
    """A peer lets a live write overtake an older one of the same key that is being held back."""
    a = join(world, "a")
    held = True

    def decide(operation: Operation, sending: Sending) -> Any:
        return Outcome.retry(after=2.0) if held and operation.op_id == "op-1" else None

    ledger = Ledger(decide)
    queue = opened(a, sender=ledger)
    await put(a, queue, 1, partition="case-42")
    await world.until(lambda: ledger.sent == ["op-1"])
    await put(a, queue, 2, partition="case-42")
    await world.sleep(10.0)
    assert set(ledger.sent) == {"op-1"}
    held = False
    await drained(world, a, queue)
    assert ledger.sent[-2:] == ["op-1", "op-2"] and ledger.sent.count("op-2") == 1


@simulated
async def test_two_tabs_that_flush_at_once_send_each_operation_once(world: World) -> None:
    """A peer's two contexts drain one queue without claiming: most entries went out twice."""
    a, b = join(world, "a"), join(world, "b")
    ledgers = Ledger(), Ledger()
    queues = [opened(member, sender=ledger) for member, ledger in zip((a, b), ledgers, strict=True)]
    for at in range(100):
        await put((a, b)[at % 2], queues[at % 2], at, partition=f"p{at % 7}")
    await drained(world, a, queues[0])
    sent = [op_id for ledger in ledgers for op_id in ledger.sent]
    assert sorted(sent) == sorted(f"op-{n}" for n in range(100))


@simulated
async def test_a_follower_enqueues_offline_and_closes_and_its_work_is_sent_once(world: World) -> None:
    """A peer gives only the leader a durable queue."""
    a, b = join(world, "a"), join(world, "b")
    a.set(online=False)
    ledger = Ledger()
    queue = opened(a, sender=ledger)
    await put(b, opened(b, flush=False), 1, 2)
    b.agent.die()
    await world.sleep(5.0)
    assert ledger.sent == []
    a.set(online=True)
    await drained(world, a, queue)
    assert ledger.sent == ["op-1", "op-2"]


@simulated
async def test_a_sender_that_cancels_itself_has_failed(world: World) -> None:
    a = join(world, "a")

    def decide(operation: Operation, sending: Sending) -> Any:
        if sending.attempt == 1:
            raise asyncio.CancelledError
        if sending.attempt == 2:
            raise LeadershipLost("something else", "not ours")
        return None

    ledger = Ledger(decide)
    queue = opened(a, sender=ledger)
    await put(a, queue, 1)
    await drained(world, a, queue)
    assert ledger.sent == ["op-1"] * 3
    (election,) = a.tab.elections.values()
    assert isinstance(election.status, Leading) and election.status.epoch == 1


@pytest.mark.parametrize("word", ["unknown", "failed"])
def test_a_sender_that_says_what_only_tabhelm_finds_out_has_failed(word: Any) -> None:
    # Taken at its word it would be asked again at once, for ever.
    @simulated
    async def test(world: World) -> None:
        a = join(world, "a")
        ledger = Ledger(lambda operation, sending: Outcome("", word))
        queue = opened(a, sender=ledger, max_attempts=4)
        await world.until(lambda: a.leading)
        began = world.loop.time()
        await put(a, queue, 1)
        await world.until(lambda: len(ledger.sent) == 4)
        assert world.loop.time() - began > 1.5
        await world.sleep(1.0)
        assert f"gave up after 4 attempts: ValueError: {word!r}" in (await reasons(a, queue))["op-1"]

    test()


def test_a_point_in_time_is_no_time_to_wait() -> None:
    for nonsense in (1_790_000_000.0, -1.0, float("nan"), float("inf"), True, 10**400):
        with pytest.raises(ValueError, match="retry_after"):
            Outcome.retry(after=nonsense)
    assert Outcome.retry(after=7 * 86_400.0).retry_after == 604_800.0
    with pytest.raises(ValueError, match="one of its words"):
        Outcome.of("unknown")
