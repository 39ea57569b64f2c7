"""The look at the database: whoever asks for one while another ends is not forgotten."""

from __future__ import annotations

from kit import join
from tabhelm.observe import StorageChanged
from tabhelm.simulated import World


def test_a_look_that_is_asked_for_as_one_ends_is_taken() -> None:
    """Between a task's end and its done callbacks there is a step in which others run: a wipe that is told there is
    noticed, and not only at whatever happens next."""
    with World(1) as world:

        async def main() -> None:
            a = join(world, "a")
            watch, loop = a.services.storage, a.agent.loop
            a.call(watch.look)
            await world.sleep(1.0)
            identify, looks = watch._identify, 0

            async def counted() -> str:
                nonlocal looks
                looks += 1
                if looks == 1:
                    found = await identify()
                    loop.call_soon(watch.look)  # the look's task ends in this very step, its callbacks come after this
                    return found
                return "another database"

            watch._identify = counted  # type: ignore[method-assign]
            a.call(watch.look)
            await world.sleep(1.0)
            changes = [event.change for event in a.services.events.recent if isinstance(event, StorageChanged)]
            assert (looks, changes[-1]) == (2, "wiped")

        world.run(main())
