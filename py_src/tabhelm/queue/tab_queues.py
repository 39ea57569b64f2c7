"""The queues that one tab has open, and those for whose flushing it stands."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from tabhelm.election import LeadershipPolicy
from tabhelm.election.policy import SERVER_LEASE
from tabhelm.errors import InvalidOptions, InvalidPolicy
from tabhelm.leadership import LeaderContext, LeaderLoop
from tabhelm.leadership.standing import Standing
from tabhelm.names import queue_resource
from tabhelm.queue.options import QueueOptions
from tabhelm.queue.queue import Queue
from tabhelm.queue.shared import QueueHub

QueueLoop = Callable[[LeaderContext, Queue], Awaitable[None]]


class TabQueues:
    """``user_session`` says who is signed in: ``None`` if that was never told, empty if nobody is."""

    def __init__(self, app: str, hub: QueueHub, standing: Standing, user_session: Callable[[], str | None]) -> None:
        self._app = app
        self._hub = hub
        self._standing = standing
        self._user_session = user_session
        self._flushing: dict[str, tuple[QueueOptions, QueueLoop | None]] = {}
        """By what the queues are flushed for which this tab stands, or stood."""

    def open(
        self,
        name: str,
        *,
        scope: str | None,
        loop: QueueLoop | None,
        flush: bool | None,
        policy: LeadershipPolicy | None,
        options: QueueOptions,
    ) -> Queue:
        """Open one; where there is something to send by, and ``flush`` is not false, also stand for flushing it.

        Raises:
            InvalidName: a name is not allowed.
            InvalidOptions: there is both a loop and something to send by, or with ``flush=True`` neither; or this tab
                flushes the queue already, with other options.
            InvalidPolicy: a lease service shall decide who flushes.
        """
        sends = options.endpoint is not None or options.sender is not None
        if sends and loop is not None:
            what = "to an endpoint" if options.sender is None else "by a sender"
            raise InvalidOptions(f"queue {name!r} is flushed {what} or by a loop, not by both: leave one out")
        resource = queue_resource(self._app, name, scope)
        key = resource.token_resource
        elections = self._standing.elections
        flushes = flush is not False and (sends or loop is not None)
        if flush and not flushes:
            raise InvalidOptions(
                f"queue {name!r}: flush {flush!r} is not valid where there is nothing to send by: name an endpoint, a "
                "sender or a loop, or leave it out"
            )
        if flushes and self._flushing.get(key, (options, loop)) != (options, loop) and key in elections:
            raise InvalidOptions(
                f"queue {name!r} is already open with other options: this tab would go by the first ones"
            )
        queue = Queue(name, self._hub.open(key), options)
        if flushes and key not in elections:
            self._flushing[key] = options, loop
            policy = policy or LeadershipPolicy(online=True)
            if SERVER_LEASE in policy.authorities:
                raise InvalidPolicy(
                    f"queue {name!r}: authorities {policy.authorities!r} is not valid: each device empties its own "
                    "queue, so a lease service cannot decide which of them may"
                )
            self._standing.stand(resource, _flusher(queue, loop), policy, barred=lambda: self._barred_from(scope))
        return queue

    def _barred_from(self, scope: str | None) -> str | None:
        """Another user's cookies would carry this scope's operations."""
        session = self._user_session()
        if scope is None or session is None or scope == session or scope.startswith(f"{session}:"):
            return None
        return "session-mismatch"


def _flusher(queue: Queue, loop: QueueLoop | None) -> LeaderLoop:
    async def run(context: LeaderContext) -> None:
        await (queue.flush(context) if loop is None else loop(context, queue))

    return run
