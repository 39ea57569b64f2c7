"""The two advisory algorithms (heartbeats alone, a claim in localStorage), as tiny models: the checker must find split
brain in both, or it proves nothing. Undisturbed they look perfectly well, which is what makes them tempting.

Each leader numbers its term one above the highest that it knows of and writes to a receiver that refuses nobody.
"""

from __future__ import annotations

from typing import Any

from lab import MORE

from tabhelm.fencing import FencingToken
from tabhelm.simulated import Faults, SimulatedAgent, World
from tabhelm.testing.history import History
from tabhelm.testing.verdict import Verdict

SEEDS = 20 * MORE
EVERY = 1.0
LEASE = 5.0


class Candidate:
    """What both algorithms share: a term, and writes while it believes to lead."""

    def __init__(self, world: World, name: str, history: History) -> None:
        self.world = world
        self.name = name
        self.history = history
        self.agent: SimulatedAgent = world.agent(name)
        self.clock = self.agent.clock
        self.term = 0
        self.leading = False
        self._writes = 0

    def start(self) -> None:
        self.agent.start(self._live())

    async def _live(self) -> None:
        while True:
            self.look()
            await self.clock.sleep(self.world.rng.uniform(0.5, 1.0) * EVERY)

    def look(self) -> None:
        raise NotImplementedError

    def lead(self, term: int) -> None:
        """It believes to be elected."""
        if not self.leading:
            self.leading, self.term = True, term
            self.history.granted(domain="tabs", resource="job", epoch=term, owner=self.name)

    def follow(self) -> None:
        self.leading = False

    def write(self) -> None:
        """A request leaves; it reaches the receiver when it does."""
        self._writes += 1
        token = FencingToken("tabs", "job", self.term, self.name, self._writes, self.name)
        op_id = f"{self.name}-{self._writes}"
        delay = self.world.rng.uniform(*self.world.faults.http_delay)
        loop = self.world.loop
        loop.call_later(delay, self.history.accepted, op_id, token, context=loop.root.context())


class Heartbeats(Candidate):
    """Broadcast-only election: the smallest name among those heard of lately leads."""

    def __init__(self, world: World, name: str, history: History, _storage: dict[str, Any]) -> None:
        super().__init__(world, name, history)
        self.heard: dict[str, float] = {}
        self.highest = 0
        self.born = self.clock.monotonic()
        self.channel = world.ports(self.agent).channels.open("presence")
        self.agent.call(lambda: self.channel.subscribe(self._hear))

    def _hear(self, data: object) -> None:
        name, term = str(data).split()
        self.heard[name] = self.clock.monotonic()
        self.highest = max(self.highest, int(term))

    def look(self) -> None:
        now = self.clock.monotonic()
        alive = [name for name, at in self.heard.items() if now - at < LEASE]
        if min([self.name, *alive]) == self.name and (alive or now - self.born > LEASE):
            self.lead(self.highest + 1)
            self.highest = max(self.highest, self.term)
            self.write()
        else:
            self.follow()
        self.channel.post(f"{self.name} {self.highest}")


class Claim(Candidate):
    """A lease in localStorage: read, compare, write, read back."""

    def __init__(self, world: World, name: str, history: History, storage: dict[str, Any]) -> None:
        super().__init__(world, name, history)
        self.storage = storage

    async def _live(self) -> None:
        while True:
            await self._claim()
            await self.clock.sleep(self.world.rng.uniform(0.5, 1.0) * EVERY)

    async def _claim(self) -> None:
        current = self.storage.get("leader")
        if current is not None and current["tab"] != self.name and current["until"] >= self.clock.wall():
            self.follow()
            return
        await self._moment()  # another process of the browser may run between the read and the write
        term = current["term"] + (current["tab"] != self.name) if current is not None else 1
        self.storage["leader"] = claim = {"tab": self.name, "until": self.clock.wall() + LEASE, "term": term}
        if self.storage["leader"] is claim:
            self.lead(term)
            await self._moment()
            self.write()

    async def _moment(self) -> None:
        low, high = self.world.faults.database_delay
        if high > 0:
            await self.clock.sleep(self.world.rng.uniform(low, high))


def play(kind: type[Candidate], seed: int, *, trouble: bool) -> Verdict:
    history, storage = History(), dict[str, Any]()
    with World(seed, faults=Faults(channel_loss=0.3 if trouble else 0.0, channel_delay=(0.0, 0.01))) as world:
        world.faults.database_delay = (0.0, 0.01) if trouble else (0.0, 0.0)
        candidates = [kind(world, f"t{n}", history, storage) for n in range(4)]  # type: ignore[call-arg]

        async def main() -> None:
            for candidate in candidates:
                candidate.start()
                await world.sleep(world.rng.uniform(0.0, 0.02) if trouble else 1.0)
            for _ in range(15):
                await world.sleep(2.0)
                if trouble:
                    # A hidden tab that is suspended believes on waking what it believed before.
                    world.rng.choice(candidates).agent.hang(world.rng.uniform(1.0, 12.0))

        world.run(main())
    return history.check()


def split_brain(kind: type[Candidate], rule: str) -> bool:
    return any(rule in play(kind, seed, trouble=True).broken for seed in range(SEEDS))


def test_heartbeats_alone_split_the_brain() -> None:
    assert split_brain(Heartbeats, "stale")
    assert split_brain(Heartbeats, "shared_epochs")


def test_a_claim_in_local_storage_splits_the_brain() -> None:
    assert split_brain(Claim, "stale")
    assert split_brain(Claim, "shared_epochs")


def test_undisturbed_both_look_well() -> None:
    for seed in range(SEEDS):
        play(Heartbeats, seed, trouble=False).require(f"heartbeats, seed {seed}")
        play(Claim, seed, trouble=False).require(f"claim, seed {seed}")
