"""Empty a queue under leadership: recover, then claim, send, settle, for as long as the tenure stands.

A crash after the claim returns the operations under the next epoch; a stale leader can neither claim nor settle (the
transactions check the epoch) nor write (the receiver checks the token). Failures of the endpoint make the whole queue
wait; a single operation that fails makes its own partition wait.
"""

from __future__ import annotations

from tabhelm.errors import InvalidOptions
from tabhelm.leadership import LeaderContext
from tabhelm.queue.delivery import Delivery
from tabhelm.queue.flush_run import FlushRun
from tabhelm.queue.lanes import Lanes
from tabhelm.queue.ledger import Ledger
from tabhelm.queue.options import QueueOptions
from tabhelm.queue.sending import as_sender
from tabhelm.queue.shared import SharedQueue
from tabhelm.queue.transports import HttpTransport, OwnTransport, Transport


async def flush(queue: SharedQueue, context: LeaderContext, options: QueueOptions) -> None:
    """The built-in leader loop: send everything by the options' sender, or to their endpoint.

    Raises:
        LeadershipLost: the tenure ended.
        WrongResource: the tenure is of another resource.
        InvalidOptions: neither a sender nor an endpoint.
    """
    run = FlushRun(queue, context, options)
    try:
        transport = _transport(run)
        delivery = Delivery(run)
        while not await delivery.made_ready(transport, run.stream(0)):
            await run.rest()
        ledger = Ledger(run, delivery)
        await ledger.recover()
        ledger.transport = transport
        await Lanes(run, delivery, ledger, transport).run()
    finally:
        run.close()


def _transport(run: FlushRun) -> Transport:
    queue, options = run.queue, run.options
    if options.sender is not None:
        return OwnTransport(queue.services, run.context, as_sender(options.sender), options)
    if options.endpoint is not None:
        return HttpTransport(queue.services, run.context, options.endpoint, options)
    raise InvalidOptions(f"queue {queue.resource!r} has neither an endpoint nor a sender: name one to flush it")
