"""A lease that is held: renewed by a task of its own, and not believed in for a moment longer than it may be."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from tabhelm.authority.lease_tools import LeaseTools
from tabhelm.errors import DatabaseError, LeadershipLost, TabhelmError
from tabhelm.fencing.epochs import Grant
from tabhelm.fencing.leases import Lease, read_lease, write_lease
from tabhelm.fencing.schema import FENCING
from tabhelm.fencing.token import HighWater
from tabhelm.ports import Timer, Transaction
from tabhelm.tasks import within

RENEWAL_FAILED = "lease-renewal-failed"
_GIVING_UP = 10.0
"""Seconds that giving a lease back may take. It expires by itself if that fails."""


class LeaseHold:
    """One acquisition. ``owner`` is whose page must go on, ``owner_id`` whom the record names."""

    def __init__(self, tools: LeaseTools, lock_name: str, resource: str, owner: str, owner_id: str, hold: str) -> None:
        self.hold = hold
        self.renewal = 0
        """The number of the last renewal: each one is greater than all before it, under any holder."""
        self._tools = tools
        self._lock_name = lock_name
        self._resource = resource
        self._owner = owner
        self._owner_id = owner_id
        self._grant: Grant | None = None
        self._hidden = tools.hidden()
        """Which length was written last, or may have been."""
        self._due = asyncio.Event()
        """It is time to renew it."""
        self._until = 0.0
        self._ended: str | None = None
        self._given_up = False
        self._callback: Callable[[str], None] | None = None
        self._timer: Timer | None = None
        self._renewing: asyncio.Task[None] | None = None
        self._turn = asyncio.Lock()
        """One renewal at a time."""

    # -- for the authority --------------------------------------------------------------------------------------------

    def claimed(self, renewal: int) -> Lease:
        """The record of this hold with this number, as it is to be written."""
        self.renewal = renewal
        return Lease(self._owner_id, self.hold, renewal, self._tools.times.length(self._hidden), False)

    def start(self, grant: Grant, since: float) -> None:
        """The claim is durable. ``since``: when it was begun, by our clock."""
        self._grant = grant
        self._tools.holds[self] = None
        self._believe_until(since + self._deadline())
        self._renewing = self._tools.tasks.start(self._renew_for_ever(since), f"renew {self._lock_name}")
        self.hidden_or_shown()

    def hidden_or_shown(self) -> None:
        """Our page may have been hidden or shown: write at once for how long it holds from now on."""
        if self._tools.hidden() != self._hidden:
            self._due.set()

    # -- Hold ---------------------------------------------------------------------------------------------------------

    @property
    def held(self) -> bool:
        return self.lost is None

    @property
    def lost(self) -> str | None:
        """Judged at every look: who stood still for too long must not believe in it before a timer says so."""
        if self._ended is None:
            if self._late():
                self._end(RENEWAL_FAILED)
            elif not self._tools.locks.admitted(self._owner):
                self._end("lock-lost")  # its page froze, hung or left
        return self._ended

    def on_end(self, callback: Callable[[str], None]) -> None:
        self._callback = callback
        if self._ended is not None:
            self._tell()

    def release(self) -> None:
        self._end("lock-lost")
        if not self._given_up:
            self._given_up = True
            task = self._tools.tasks.start(self._give_up(), f"release {self._lock_name}")
            self._tools.giving_up[task] = None
            task.add_done_callback(lambda _: self._tools.giving_up.pop(task, None))

    async def begin(self) -> Grant:
        """The epoch was issued in the transaction that acquired the lease."""
        return self._stored()

    async def check(self) -> None:
        await self._tools.issuer.require_current(self._stored())
        self._require_held()

    async def reissue_above(self, high_water: HighWater) -> Grant:
        grant = self._stored()
        self._grant = await self._tools.issuer.reissue_above(grant, high_water, holds=lambda: self.held)
        self._require_held()
        return self._grant

    # -- its life -----------------------------------------------------------------------------------------------------

    def _require_held(self) -> None:
        if (reason := self.lost) is not None:
            raise LeadershipLost(self._resource, reason)

    def _stored(self) -> Grant:
        """What this browser's store says of it."""
        self._require_held()
        assert self._grant is not None, "begun before it was acquired"
        return self._grant

    def _deadline(self) -> float:
        """So long after the beginning of a renewal it is believed in."""
        return self._tools.times.deadline(self._hidden)

    def _late(self) -> bool:
        """Whether it was not renewed in time."""
        return self._tools.clock.monotonic() >= self._until

    def _believe_until(self, until: float) -> None:
        clock = self._tools.clock
        self._until = until
        if self._timer is not None:
            self._timer.cancel()
        self._timer = clock.call_later(max(0.0, self._until - clock.monotonic()), self._look)

    def _look(self) -> None:
        """The time is up, unless the timer came a little early."""
        left = self._until - self._tools.clock.monotonic()
        if self.lost is None:
            self._timer = self._tools.clock.call_later(max(0.001, left), self._look)

    def _end(self, reason: str) -> None:
        if self._ended is not None:
            return
        self._ended = reason
        self._tools.holds.pop(self, None)
        if self._timer is not None:
            self._timer.cancel()
        if self._renewing is not None and self._renewing is not asyncio.current_task():
            self._renewing.cancel()
        self._tell()

    def _tell(self) -> None:
        callback, self._callback = self._callback, None
        if callback is not None and self._ended is not None:
            asyncio.get_running_loop().call_soon(callback, self._ended)

    async def _renew_for_ever(self, since: float) -> None:
        clock, times = self._tools.clock, self._tools.times
        pause = max(0.0, since + times.renew_every - clock.monotonic())
        while True:
            await self._pause(pause)
            if self.lost is not None:
                return
            started = clock.monotonic()
            try:
                await self._renew_now()
            except LeadershipLost as lost:
                self._end(lost.reason)
                return
            except (TabhelmError, TimeoutError):
                pause = max(0.0, started + times.retry - clock.monotonic())
                continue
            pause = max(0.0, started + times.renew_every - clock.monotonic())

    async def _renew_now(self) -> None:
        """Renew it once.

        Raises:
            LeadershipLost: somebody else has it.
            TimeoutError: not while it could still be believed in.
        """
        async with self._turn:
            started, self._hidden = self._tools.clock.monotonic(), self._tools.hidden()
            until = started + self._deadline()
            if until < self._until:
                # It was longer. Others may soon read that it is not, even if we do not hear that this was written.
                self._believe_until(until)
            self.renewal = await within(self._tools.clock, self._until - started, self._renew())
            self._require_held()
            self._believe_until(started + self._deadline())

    async def _pause(self, seconds: float) -> None:
        timer = self._tools.clock.call_later(seconds, self._due.set)
        try:
            await self._due.wait()
        finally:
            timer.cancel()
        self._due.clear()

    async def _renew(self) -> int:
        grant = self._stored()
        seconds = self._tools.times.length(self._hidden)

        async def body(tx: Transaction) -> int:
            self._require_held()
            lease = await read_lease(tx, self._lock_name)
            if lease is None:
                # Wiped under us: nobody has taken it, so it is ours, and so is the domain of its tokens.
                await self._tools.issuer.restore(tx, grant)
            elif lease.hold != self.hold or lease.released:
                raise LeadershipLost(self._resource, "newer-epoch")
            # A renewal of ours that failed may have been written all the same.
            number = max(self.renewal, lease.renewal if lease is not None else 0) + 1
            record = Lease(self._owner_id, self.hold, number, seconds, False)
            await write_lease(tx, self._lock_name, record, self._tools.clock)
            return number

        return await self._tools.database.transaction([FENCING], "readwrite", body)

    async def _give_up(self) -> None:
        async def body(tx: Transaction) -> None:
            lease = await read_lease(tx, self._lock_name)
            if lease is not None and lease.hold == self.hold and not lease.released:
                free = Lease(lease.owner_id, lease.hold, lease.renewal + 1, lease.seconds, True)
                await write_lease(tx, self._lock_name, free, self._tools.clock)

        try:
            clock, database = self._tools.clock, self._tools.database
            await within(clock, _GIVING_UP, database.transaction([FENCING], "readwrite", body))
        except (DatabaseError, TimeoutError):
            pass  # it is renewed no more, so it expires
