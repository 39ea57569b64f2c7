"""Watching must not break what is watched: also where the listener is the app's own code."""

from __future__ import annotations

from kit import join
from tabhelm.listeners import Listeners
from tabhelm.messages import Nudge, decode
from tabhelm.names import queue_channel
from tabhelm.observe import TaskFailed
from tabhelm.simulated import World


def test_one_that_raises_is_dropped_and_the_others_are_told() -> None:
    told: list[int] = []
    failed: list[str] = []
    listeners: Listeners[[int]] = Listeners("x", lambda what, error: failed.append(f"{what}: {error}"))

    def fails(_: int) -> None:
        raise RuntimeError("no")

    listeners.add(fails)
    stop = listeners.add(told.append)
    listeners.tell(1)
    listeners.tell(2)
    stop()
    stop()
    listeners.tell(3)
    assert (told, failed) == ([1, 2], ["x: no"])


def test_a_listener_of_a_queue_that_raises_keeps_nobody_from_hearing_of_an_operation() -> None:
    with World(1) as world:
        nudges: list[Nudge] = []
        channel = world.ports(world.agent("listener")).channels.open(queue_channel("app"))

        def hear(data: object) -> None:
            if isinstance(message := decode(data), Nudge):
                nudges.append(message)

        channel.subscribe(hear)

        async def main() -> None:
            member = join(world, "a")
            queue = member.call(lambda: member.tab.queue("mutations"))

            def fails() -> None:
                raise RuntimeError("the app's own mistake")

            member.call(lambda: queue.subscribe(fails))
            await member.agent.start(queue.enqueue({"n": 1}))
            await world.until(lambda: len(nudges) == 1)
            (failure,) = [event for event in member.services.events.recent if isinstance(event, TaskFailed)]
            assert "the app's own mistake" in failure.error

        world.run(main())
