"""A receiver that knows a higher epoch than the store: the holder goes on above it, and the new grant is told."""

from __future__ import annotations

from lab import OPERATIONS, REGISTER, Lab, seeds

from kit import join
from tabhelm.fencing import FencingToken
from tabhelm.leadership import Leading
from tabhelm.observe import as_dict
from tabhelm.testing.history import History


@seeds(4)
def test_an_epoch_issued_above_a_receivers_mark_is_an_event_too(seed: int) -> None:
    lab = Lab(seed)
    told = History()

    async def play() -> None:
        member = join(lab.world, "a")
        member.services.events.subscribe(lambda event: told.event(as_dict(event)))
        election = member.lead("job", fence=REGISTER)
        queue = member.call(lambda: member.tab.queue("mutations", endpoint=OPERATIONS))
        await lab.until(lambda: all(isinstance(each.status, Leading) for each in member.tab.elections.values()))
        await lab.sleep(1.0)
        domain = member.grants[0].domain
        for receiver, resource in ((lab.register, "app:job"), (lab.receiver, "app:offline-queue:mutations")):
            receiver.guard.judge("user", FencingToken(domain, resource, 9, "page", 1, "forgotten"))
        member.call(election.step_down)
        await lab.until(lambda: member.led[-1] == 10)
        lab.history.acknowledged(await member.agent.start(queue.enqueue({})))
        await lab.until(lambda: len(lab.receiver.accepted) == 1)

    lab.run(play())
    assert {token.epoch for token in lab.register.tokens} == {1, 10}
    told.effects(lab.receiver.accepted)
    for token in lab.register.tokens:
        told.shown(token)
    told.check().require("from the events alone")
