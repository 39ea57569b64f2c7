"""Random schedules: leaders die, freeze, hang and step down, messages are lost and late, while questions are asked."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from test_asking import Team

from tabhelm.errors import AskTimeout, LeaderChanged, NoHandler, NoLeader, NotCloneable, TabhelmError, TooManyCalls
from tabhelm.simulated import World

FAULTS = ("step-down", "die", "freeze", "thaw", "hang", "none")
NOT_BEGUN = (NoLeader, NotCloneable, NoHandler, TooManyCalls)
MAY_END_SO = (NoLeader, LeaderChanged, AskTimeout)


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    seed=st.integers(0, 10_000),
    loss=st.sampled_from([0.0, 0.2, 0.5]),
    late=st.sampled_from([0.005, 0.3, 1.5]),
    idempotent=st.booleans(),
    faults=st.lists(st.sampled_from(FAULTS), min_size=1, max_size=6),
)
def test_every_question_settles_in_time_and_what_is_said_of_it_is_true(
    seed: int, loss: float, late: float, idempotent: bool, faults: list[str]
) -> None:
    timeout = 8.0
    outcomes: dict[int, tuple[str, Any]] = {}
    took: list[float] = []

    async def ask(world: World, team: Team, name: str, number: int) -> None:
        began = world.loop.time()
        try:
            outcomes[number] = ("value", await team.ask(name, "echo", number, timeout=timeout))
        except TabhelmError as error:
            outcomes[number] = ("error", error)
        took.append(world.loop.time() - began)

    async def main(world: World) -> None:
        team = Team(world, *"abcd", idempotent=("echo",) if idempotent else ())
        await team.settled()
        # One that asks stays whole, so that its own clock is fair; everything else may happen to the others.
        asker = next(name for name, member in team.members.items() if not member.leading)
        world.faults.channel_loss, world.faults.channel_delay = loss, (0.0, late)
        asking: list[asyncio.Task[None]] = []
        number = 0
        for fault in faults:
            for _ in range(3):
                number += 1
                asking.append(asyncio.ensure_future(ask(world, team, asker, number)))
                await world.sleep(world.rng.uniform(0.0, 0.4))
            others = [name for name, member in team.members.items() if name != asker and member.agent.alive]
            leading = [name for name in others if team.members[name].leading]
            victim = (leading or others or [asker])[0]
            member = team.members[victim]
            if fault == "step-down":
                member.call(team.elections[victim].step_down)
            elif victim != asker and fault == "die":
                member.agent.die()
            elif victim != asker and fault == "freeze" and member.agent.state == "running":
                member.freeze()
            elif fault == "thaw":
                for name in others:
                    if team.members[name].agent.frozen:
                        team.members[name].thaw()
            elif victim != asker and fault == "hang" and member.agent.state == "running":
                member.agent.hang(3.0)
            await world.sleep(world.rng.uniform(0.0, 2.0))
        for task in asking:
            await task
        await world.sleep(30.0)  # what was late arrives, and may not begin anything that was said not to have begun
        begun = Counter(args for _, _, args, _ in team.begun)
        if not idempotent:
            assert max(begun.values(), default=0) <= 1
        for number, (kind, what) in outcomes.items():
            if kind == "value":
                assert what["args"] == number and begun[number] >= 1
            else:
                assert isinstance(what, MAY_END_SO), what
                if isinstance(what, NOT_BEGUN) or getattr(what, "outcome", "") == "not-sent":
                    assert begun[number] == 0, (number, what)
        keys = {args: {call.idempotency_key for _, _, asked, call in team.begun if asked == args} for args in begun}
        assert all(len(each) == 1 for each in keys.values())

    with World(seed) as world:
        world.run(main(world))
    assert len(took) == 3 * len(faults)
    assert max(took) < timeout * 1.01 + 0.1
