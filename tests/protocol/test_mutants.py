"""The checker must find each fault that the protocol is there to prevent, or it proves nothing.

Each mutant is planted into the real core for one test. Over the same seeds the real core has no violation at all.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

import pytest
from lab import Lab
from test_schedules import equal_epochs, equal_epochs_without_barriers
from test_takeover import issued_after_the_takeover, robbed_and_deaf, stalled_before_its_epoch

from tabhelm.fencing import FencingToken
from tabhelm.fencing.epochs import EpochIssuer, Grant, read_record
from tabhelm.fencing.guard import Marks, StrictGuard
from tabhelm.fencing.schema import FENCING
from tabhelm.leadership import beginning
from tabhelm.leadership.term import Term
from tabhelm.ports import Transaction
from tabhelm.queue import claiming
from tabhelm.simulated import NextAnswer, PageContext, RememberingGuard
from tabhelm.testing.verdict import Verdict

SEEDS = 24
Schedule = Callable[[Lab], Coroutine[Any, Any, None]]


def play(schedule: Schedule, seed: int, rule: StrictGuard | None = None) -> tuple[Lab, Verdict]:
    lab = Lab(seed, guard=(lambda: RememberingGuard(rule)) if rule else None)
    return lab, lab.run(schedule(lab), check=False)


def found(schedule: Schedule, *rules: str, guard: StrictGuard | None = None, seeds: int = SEEDS) -> bool:
    """Whether one of the seeds shows a violation of one of the rules."""
    return any(set(rules) & set(play(schedule, seed, guard)[1].broken) for seed in range(seeds))


def clean(schedule: Schedule) -> None:
    """The real core keeps every rule over the same seeds."""
    for seed in range(SEEDS):
        lab, verdict = play(schedule, seed)
        assert lab.world.loop.errors == []
        verdict.require(f"seed {seed}")


# -- the receiver's guard ----------------------------------------------------------------------------------------------


class OrderNotStrict(StrictGuard):
    def in_order(self, seen: int, token: FencingToken) -> bool:
        return token.seq >= seen


class NewerNotStrict(StrictGuard):
    def newer(self, marks: Marks, token: FencingToken) -> bool:
        return token.epoch >= marks.epoch


class OwnerNotCompared(StrictGuard):
    def current(self, marks: Marks, token: FencingToken) -> bool:
        return token.epoch == marks.epoch


async def echoes(lab: Lab) -> None:
    """The network delivers some requests twice, and late; only the token tells the register that it had them."""
    lab.register.echo = lambda: lab.rng.uniform(0.0, 3.0) if lab.rng.random() < 0.3 else None
    tabs = [lab.tab(f"t{n}", lead=True) for n in range(2)]
    await lab.sleep(10.0)
    lab.rng.choice(tabs).page.close()
    await lab.sleep(10.0)


def test_a_guard_that_does_not_ask_for_a_greater_seq_is_found() -> None:
    clean(echoes)
    assert found(echoes, "overtaken", guard=OrderNotStrict())
    assert found(echoes, "doubled", guard=OrderNotStrict())


def test_a_guard_that_does_not_ask_for_a_greater_epoch_is_found() -> None:
    assert found(echoes, "overtaken", guard=NewerNotStrict())
    clean(equal_epochs)
    assert found(equal_epochs, "stale", guard=NewerNotStrict())


def test_a_guard_that_does_not_compare_owners_is_found() -> None:
    clean(equal_epochs_without_barriers)
    assert found(equal_epochs_without_barriers, "stale", guard=OwnerNotCompared())


# -- epochs ------------------------------------------------------------------------------------------------------------


async def killed_at_its_first_write(lab: Lab) -> None:
    """The moment that the register sees a new epoch, the process that issued it dies; then another one begins."""

    def kill(token: FencingToken) -> None:
        for tab in lab.tabs:
            if tab.page.alive and token.owner_id.startswith(f"{tab.page.tab_id}:"):
                tab.page.crash()

    lab.on_new_epoch = kill
    lab.world.faults.commit_delay = (0.0, 0.3)
    lab.world.faults.http_delay = (0.001, 0.01)
    for n in range(5):
        lab.tab(f"t{n}", build=f"b{n}", lead=True)
        await lab.sleep(lab.rng.uniform(0.5, 3.0))
    await lab.sleep(10.0)


async def power_cut_at_its_first_write(lab: Lab) -> None:
    """The moment that the register sees a new epoch, the power fails; afterwards the user comes back."""
    failing = True

    def cut(token: FencingToken) -> None:
        if failing:
            lab.world.power_cut()

    lab.on_new_epoch = cut
    lab.world.faults.http_delay = (0.001, 0.01)
    for n in range(4):
        failing = n < 3
        tab = lab.tab(f"t{n}", lead=True, queue=n == 3)
        await lab.sleep(5.0)
    await lab.led(tab)


def early(self: EpochIssuer, body: Callable[[Transaction], Coroutine[Any, Any, Grant]]) -> Awaitable[Grant]:
    """The epoch is used as soon as its request succeeded."""
    done: asyncio.Future[Grant] = asyncio.get_running_loop().create_future()

    async def watched(tx: Transaction) -> Grant:
        grant = await body(tx)
        done.set_result(grant)
        return grant

    def ended(task: asyncio.Task[Grant]) -> None:
        error = None if task.cancelled() else task.exception()
        if error is not None and not done.done():
            done.set_exception(error)

    task = asyncio.ensure_future(self._database.transaction([FENCING], "readwrite", watched))
    task.add_done_callback(ended)
    return done


async def relaxed(self: EpochIssuer, body: Callable[[Transaction], Coroutine[Any, Any, Grant]]) -> Grant:
    """The epoch is used before it is on the disk."""
    return await self._database.transaction([FENCING], "readwrite", body, durability="relaxed")


def test_an_epoch_used_before_its_transaction_is_complete_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    clean(killed_at_its_first_write)
    monkeypatch.setattr(EpochIssuer, "_complete", early)
    assert found(killed_at_its_first_write, "ungranted", "shared_epochs")


def test_an_epoch_used_before_it_is_on_the_disk_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    clean(power_cut_at_its_first_write)
    monkeypatch.setattr(EpochIssuer, "_complete", relaxed)
    assert found(power_cut_at_its_first_write, "shared_epochs")


def test_an_issue_that_does_not_count_takeovers_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    original = EpochIssuer.issue

    async def blind(self: EpochIssuer, resource: str, *args: Any, takeovers_seen: int, **options: Any) -> Grant:
        async def body(tx: Transaction) -> int:
            record = await read_record(tx, resource)
            return record.takeovers if record else 0

        now = await self._database.transaction([FENCING], "readonly", body)
        return await original(self, resource, *args, takeovers_seen=now, **options)

    monkeypatch.setattr(EpochIssuer, "issue", blind)
    assert any(issued_after_the_takeover(play(stalled_before_its_epoch, seed)[0]) for seed in range(3 * SEEDS))


# -- the queue and the barrier -----------------------------------------------------------------------------------------


def test_a_claim_that_does_not_check_the_epoch_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    clean(robbed_and_deaf)
    original, checked = claiming.Claiming.run, claiming.require_current
    unchecked: list[Transaction] = []

    async def check(tx: Transaction, grant: Grant) -> None:
        if tx not in unchecked:
            await checked(tx, grant)

    async def claim(self: claiming.Claiming, *args: Any) -> claiming.Found:
        unchecked.append(self._tx)
        return await original(self, *args)

    monkeypatch.setattr(claiming, "require_current", check)
    monkeypatch.setattr(claiming.Claiming, "run", claim)
    # The nets above it: who hears that somebody leads with a higher epoch asks the store, and steps down; and a leader
    # gives back what is claimed by nobody that it knows of.
    monkeypatch.setattr(Term, "_verify", lambda self, tenure: None)

    async def held(self: claiming.Claiming, claims: list[Any]) -> tuple[list[Any], list[str]]:
        return list(claims), []

    monkeypatch.setattr(claiming.Claiming, "_held", held)
    assert found(robbed_and_deaf, "lost", seeds=4 * SEEDS)  # one in twenty or so


async def late_writes(lab: Lab) -> None:
    """A leader's last writes are slow on their way; it dies, and the next one takes its time before its first write."""

    def patient() -> Any:
        async def loop(context: PageContext) -> None:
            lab.begun(context)
            await context.sleep(8.0)
            await lab.writer()(context)

        return loop

    first = lab.tab("a", build="one", lead=True)
    await lab.led(first)
    lab.tab("b", build="two", lead=True, loop=patient())
    await lab.sleep(5.0)
    lab.network(*(NextAnswer(delay=lab.rng.uniform(0.5, 6.0)) for _ in range(2)))
    await lab.sleep(lab.rng.uniform(1.0, 3.0))
    lab.world.network.script.clear()
    first.page.crash()
    await lab.sleep(30.0)


def test_a_leader_without_a_barrier_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    clean(late_writes)

    async def no_barrier(*_: Any) -> None:
        return None

    monkeypatch.setattr(beginning, "raise_marks", no_barrier)
    assert found(late_writes, "leaked")
