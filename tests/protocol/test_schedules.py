"""The named schedules: each over many seeds, the whole protocol, judged by the history checker."""

from __future__ import annotations

from typing import Any

from lab import Lab, seeds

from tabhelm.simulated import Faults, NextAnswer


@seeds(8)
def test_two_devices_on_one_receiver(seed: int) -> None:
    """Each device has its own leader and its own epochs; they never meet in one high water."""
    lab = Lab(seed)
    lab.add_device()

    async def play() -> None:
        tabs = [lab.tab(f"d{n}{m}", device=n, lead=True, queue=True) for n in range(2) for m in range(2)]
        for _ in range(15):
            for tab in tabs:
                if tab.page.alive:
                    lab.enqueue(tab, lab.rng.choice("ab"))
            await lab.sleep(lab.rng.uniform(0.0, 1.0))
        lab.rng.choice(tabs).page.crash()
        await lab.sleep(10.0)
        await lab.settled()

    verdict = lab.run(play())
    assert len({token.domain for token in lab.register.tokens}) == 2
    assert verdict.acknowledged > 40 and not lab.register.refused


@seeds(8)
def test_storage_wiped_while_leaders_live(seed: int) -> None:
    lab = Lab(seed)

    async def play() -> None:
        tabs = [lab.tab(f"t{n}", lead=True, queue=True, build=f"b{n % 2}") for n in range(4)]
        for tab in tabs:
            await tab.page.session.ready
        for _ in range(4):
            for tab in tabs:
                lab.enqueue(tab)
            await lab.sleep(lab.rng.uniform(0.0, 2.0))
            lab.wipe()
        await lab.sleep(5.0)
        for tab in tabs:
            lab.enqueue(tab)
        await lab.sleep(30.0)
        await lab.settled()

    lab.run(play())
    last = {f"t{n}-4" for n in range(4)}
    assert last <= {effect.op_id for effect in lab.receiver.accepted}
    assert len({token.domain for token in lab.register.tokens}) == 1, "somebody remembered the domain"


@seeds(8)
def test_storage_wiped_while_the_leader_is_frozen(seed: int) -> None:
    """Frozen, it is replaced; thawed, its engine's memory of an old epoch must not bring it back."""
    lab = Lab(seed, faults=Faults(channel_loss=1.0))

    async def play() -> None:
        first = lab.tab("a", build="one", lead=True, queue=True)
        await lab.led(first)
        second = lab.tab("b", build="two", lead=True, queue=True)
        await second.page.session.ready
        lab.enqueue(first)
        await lab.sleep(3.0)
        first.page.freeze()
        await lab.led(second)
        lab.enqueue(second)
        lab.wipe()
        await lab.sleep(lab.rng.uniform(0.0, 20.0))
        second.page.freeze()
        first.page.thaw()
        await lab.led(first)
        lab.enqueue(first)
        second.page.thaw()
        await lab.sleep(30.0)
        lab.enqueue(second)
        await lab.sleep(1.0)
        await lab.settled()

    lab.run(play())
    assert {"a-1", "b-1"} <= {effect.op_id for effect in lab.receiver.accepted}


@seeds(8)
def test_storage_wiped_and_everybody_gone(seed: int) -> None:
    """Nobody remembers: a new domain begins, and the old leader's late write cannot harm it."""
    lab = Lab(seed)

    async def play() -> None:
        old = lab.tab("a", lead=True, queue=True)
        await lab.led(old)
        lab.enqueue(old)
        await lab.sleep(5.0)
        lab.network(*(NextAnswer(delay=lab.rng.uniform(0.0, 8.0)) for _ in range(3)))
        await lab.sleep(2.0)
        old.page.crash()
        lab.wipe()
        new = lab.tab("b", lead=True, queue=True)
        await lab.led(new)
        lab.enqueue(new)
        await lab.sleep(10.0)
        await lab.settled()

    lab.run(play())
    assert len({token.domain for token in lab.register.tokens}) == 2


async def equal_epochs(lab: Lab, **options: Any) -> None:
    """Wiped, and the one who is left has forgotten: it issues an epoch that another owner had already.

    The second engine led first and heard nothing since (every message is lost), so it remembers the domain and an old
    epoch; the first engine's later writes are still on their way.
    """
    lab.world.faults.channel_loss = 1.0
    two = lab.tab("two", build="two", lead=True, queue=True, **options)
    await lab.led(two)
    one = lab.tab("one", build="one", lead=True, queue=True, **options)
    await one.page.session.ready
    await lab.sleep(1.0)
    two.page.freeze()
    await lab.led(one)
    lab.enqueue(one)
    await lab.sleep(lab.rng.uniform(0.5, 4.0))
    lab.network(*(NextAnswer(delay=lab.rng.uniform(0.5, 6.0)) for _ in range(3)))
    await lab.sleep(lab.rng.uniform(0.0, 2.0))
    one.page.crash()
    lab.wipe()
    two.page.thaw()
    await lab.led(two)
    lab.enqueue(two)
    await lab.sleep(30.0)
    await lab.settled()


async def equal_epochs_without_barriers(lab: Lab) -> None:
    """The same, where nobody shows its epoch before its first write, and nobody stops when it is refused."""
    await equal_epochs(lab, policy={"fence": None}, loop=lab.writer(pause=(0.2, 1.0), barrier=False))


@seeds(12)
def test_equal_epochs_from_two_owners(seed: int) -> None:
    lab = Lab(seed)
    lab.run(equal_epochs(lab))
    owners: dict[tuple[str, str, int], set[str]] = {}
    for domain, resource, epoch, owner in lab.durable:
        owners.setdefault((domain, resource, epoch), set()).add(owner)
    assert any(len(each) == 2 for each in owners.values()), "the schedule makes two owners of one epoch"


@seeds(8)
def test_equal_epochs_of_a_cloned_profile(seed: int) -> None:
    """A restored backup: two devices with one domain, each issuing the same epochs. They may disturb each other, but
    neither writes as a stale owner, and nothing is lost."""
    lab = Lab(seed)
    lab.add_device()

    async def play() -> None:
        first = lab.tab("a", lead=True, queue=True)
        await lab.led(first)
        lab.clone_profile(0, 1)
        second = lab.tab("b", device=1, lead=True, queue=True)
        for _ in range(10):
            lab.enqueue(first)
            lab.enqueue(second)
            await lab.sleep(lab.rng.uniform(0.0, 3.0))
        second.page.close()
        await lab.sleep(5.0)
        lab.enqueue(first)
        lab.tab("c", device=1, queue=True)
        await lab.sleep(30.0)
        await lab.settled(600)

    lab.run(play())


@seeds(12)
def test_a_hung_leader_that_wakes_before_it_reads_its_revocation(seed: int) -> None:
    """The token was drawn before the hang, the request goes out after it: first thing, whatever messages wait."""
    lab = Lab(seed)

    async def play() -> None:
        careless = lab.writer(pause=(0.0, 0.01), thinking=8.0)
        first = lab.tab("a", lead=True, loop=careless, queue=True)
        await lab.led(first)
        second = lab.tab("b", lead=True, queue=True)
        await second.page.session.ready
        tokens = len(lab.register.tokens)
        await lab.until(lambda: len(lab.register.tokens) > tokens)
        await lab.sleep(0.3)  # the answer is back, the next token drawn, its request not sent
        lab.enqueue(first)
        first.page.hang(lab.rng.uniform(14.0, 30.0))
        await lab.led(second)
        lab.enqueue(second)
        await lab.sleep(40.0)
        await lab.settled()

    lab.run(play())
    assert lab.register.refused, "the late write reached the register, and was refused"


@seeds(12)
def test_an_engine_dies_with_enqueues_pending(seed: int) -> None:
    """The page draws the ids: a pending enqueue survives its engine and settles once."""
    lab = Lab(seed, faults=Faults(commit_delay=(0.0, 0.05), database_delay=(0.0, 0.02)))

    async def play() -> None:
        tabs = [lab.tab(f"t{n}", queue=True) for n in range(3)]
        for tab in tabs:
            await tab.page.session.ready
        for _ in range(3):
            for _ in range(5):
                for tab in tabs:
                    lab.enqueue(tab, lab.rng.choice("ab"))
            await lab.sleep(lab.rng.uniform(0.0, 0.06))
            for worker in lab.browsers[0].living_engines():
                worker.engine.agent.die()
            await lab.sleep(lab.rng.choice([0.0, 5.0]))
        await lab.sleep(10.0)
        await lab.settled()

    verdict = lab.run(play())
    assert verdict.acknowledged == 45, "every call was answered, if not by one engine then by the next"


@seeds(12)
def test_an_engine_enters_the_bfcache_with_its_only_page_and_a_waiter_waits_in_another(seed: int) -> None:
    lab = Lab(seed)

    async def play() -> None:
        first = lab.tab("a", build="one", lead=True, queue=True)
        await lab.led(first)
        second = lab.tab("b", build="two", lead=True, queue=True)
        await second.page.session.ready
        await lab.sleep(2.0)
        for _ in range(10):
            lab.enqueue(first)
        await lab.sleep(lab.rng.uniform(0.0, 0.05))
        first.page.navigate_away()
        await lab.led(second, within=1.0)
        await lab.sleep(lab.rng.uniform(0.0, 10.0))
        lab.enqueue(second)
        first.page.back()
        await lab.sleep(10.0)
        second.page.close()
        if first.page.alive:
            await lab.led(first)
        else:
            lab.tab("c", build="one", queue=True)
        await lab.sleep(10.0)
        await lab.settled()

    lab.run(play())


@seeds(8)
def test_an_answer_is_lost_after_the_commit(seed: int) -> None:
    lab = Lab(seed)

    async def play() -> None:
        tab = lab.tab("a", queue=True)
        other = lab.tab("b", queue=True)
        await tab.page.session.ready
        await other.page.session.ready
        await lab.sleep(2.0)
        lab.network(NextAnswer(lose_answer=True))
        lab.world.faults.http_lose_answer = 0.6
        for _ in range(6):
            lab.enqueue(tab, lab.rng.choice("ab"))
            lab.enqueue(other, lab.rng.choice("ab"))
            await lab.sleep(lab.rng.uniform(0.0, 10.0))
        (tab if lab.rng.random() < 0.5 else other).page.crash()
        lab.world.faults.http_lose_answer = 0.0
        await lab.settled()

    verdict = lab.run(play())
    assert verdict.accepted == verdict.acknowledged == 12
    assert any("answer lost" in line for line in lab.world.trace)
