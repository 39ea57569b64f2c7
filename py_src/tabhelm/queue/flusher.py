"""Empty a queue under leadership: recover, then claim, send, settle, for as long as the tenure stands.

A crash after the claim returns the operations under the next epoch; a stale leader can neither claim nor settle (the
transactions check the epoch) nor write (the receiver checks the token). Failures of the endpoint make the whole queue
wait; a single operation that fails makes its own partition wait.
"""

from __future__ import annotations

from tabhelm.errors import InvalidOptions
from tabhelm.leadership import LeaderContext
from tabhelm.queue.carriers import Carrier, HttpCarrier, OwnCarrier
from tabhelm.queue.clerk import Clerk
from tabhelm.queue.delivery import Delivery
from tabhelm.queue.lanes import Lanes
from tabhelm.queue.options import QueueOptions
from tabhelm.queue.sending import as_sender
from tabhelm.queue.shared import SharedQueue
from tabhelm.queue.shift import Shift


async def flush(queue: SharedQueue, context: LeaderContext, options: QueueOptions) -> None:
    """The built-in leader loop: send everything by the options' sender, or to their endpoint.

    Raises:
        LeadershipLost: the tenure ended.
        WrongResource: the tenure is of another resource.
        InvalidOptions: neither a sender nor an endpoint.
    """
    shift = Shift(queue, context, options)
    try:
        carrier = _carrier(shift)
        delivery = Delivery(shift)
        while not await delivery.made_ready(carrier, shift.stream(0)):
            await shift.rest()
        clerk = Clerk(shift, delivery)
        await clerk.recover()
        clerk.carrier = carrier
        await Lanes(shift, delivery, clerk, carrier).run()
    finally:
        shift.close()


def _carrier(shift: Shift) -> Carrier:
    queue, options = shift.queue, shift.options
    if options.sender is not None:
        return OwnCarrier(queue.services, shift.context, as_sender(options.sender), options)
    if options.endpoint is not None:
        return HttpCarrier(queue.services, shift.context, options.endpoint, options)
    raise InvalidOptions(f"queue {queue.resource!r} has neither an endpoint nor a sender: name one to flush it")
