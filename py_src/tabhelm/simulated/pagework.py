"""A model of a page's elections (``web/election.mjs``)."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from tabhelm.errors import LeadershipLost, NotFenced
from tabhelm.ports import HttpAnswer
from tabhelm.simulated.pagesession import Session

Loop = Callable[["PageContext"], Awaitable[None]]


class AbortSignal:
    """Aborts once, synchronously."""

    def __init__(self) -> None:
        self.reason: LeadershipLost | None = None
        self._listeners: list[Callable[[], object]] = []

    @property
    def aborted(self) -> bool:
        return self.reason is not None

    def abort(self, reason: LeadershipLost) -> None:
        if self.reason is None:
            self.reason = reason
            for listener in list(self._listeners):
                listener()

    def listen(self, listener: Callable[[], object]) -> Callable[[], None]:
        """Call back at the abort; returns what takes the listener away."""
        self._listeners.append(listener)
        return lambda: self._listeners.remove(listener) if listener in self._listeners else None


class PageContext:
    """What a page's leader loop gets."""

    def __init__(self, election: PageElection, signal: AbortSignal, token: dict[str, Any] | None, grant: int) -> None:
        self.election = election
        self.signal = signal
        self.token = token
        self.grant = grant
        self._seq = 0

    @property
    def epoch(self) -> int | None:
        return None if self.token is None else int(self.token["epoch"])

    def next_token(self) -> dict[str, Any]:
        """A new token for one protected write.

        Raises:
            LeadershipLost: the page no longer leads, or has to doubt it.
        """
        self.election.ensure(self.signal)
        if self.token is None:
            raise NotFenced(f"the authority of {self.election.key!r} issues no tokens")
        self._seq += 1
        return {**self.token, "seq": self._seq}

    def headers(self, operation_id: str | None = None) -> dict[str, str]:
        """The fencing headers of one request (RFC 9651)."""
        token = self.next_token()
        fields = [_text(token["resource"]), f"domain={_text(token['domain'])}", f"epoch={token['epoch']}"]
        fields += [f"stream={_text(token['stream'])}", f"seq={token['seq']}", f"owner={_text(token['owner'])}"]
        headers = {"Fencing-Token": ";".join(fields)}
        if operation_id is not None:
            headers["Idempotency-Key"] = _text(operation_id)
        return headers

    async def sleep(self, seconds: float) -> None:
        """Wait; raises the abort's reason."""
        sleeper = asyncio.ensure_future(self.election.session.ports.clock.sleep(seconds))
        await self._abortable(sleeper)

    async def fetch(
        self, method: str, url: str, *, headers: Mapping[str, str], body: str | None = None, timeout: float = 30.0
    ) -> HttpAnswer:
        """``fetch(…, {signal})``: aborted with the leadership."""
        http = self.election.session.ports.http
        sending = asyncio.ensure_future(http.send(method, url, headers=headers, body=body, timeout=timeout))
        answer: HttpAnswer = await self._abortable(sending)
        return answer

    async def check(self) -> None:
        """Ask the engine to verify authority and epoch.

        Raises:
            LeadershipLost: this page no longer leads.
        """
        self.election.ensure(self.signal)
        try:
            await self.election.session.call("check", {"election": self.election.id, "grant": self.grant}, once=True)
        except Exception as error:
            self.signal.abort(LeadershipLost(self.election.key, f"check: {error}"))
        self.election.ensure(self.signal)

    async def _abortable(self, task: asyncio.Future[Any]) -> Any:
        if self.signal.aborted:
            task.cancel()
        forget = self.signal.listen(task.cancel)
        try:
            return await task
        except asyncio.CancelledError:
            if self.signal.reason is None:
                raise
            raise LeadershipLost(self.election.key, self.signal.reason.reason) from None
        finally:
            forget()


class PageElection:
    """One page's candidacy for one resource, and the loop that runs while it leads."""

    def __init__(
        self,
        session: Session,
        number: str,
        resource: str,
        scope: str | None,
        loop: Loop,
        policy: dict[str, Any],
    ) -> None:
        self.session = session
        self.id = number
        self.resource = resource
        self.scope = scope
        self.policy = policy
        self.status: dict[str, Any] = {"state": "idle", "reason": "new"}
        self.leader: dict[str, Any] | None = None
        self.failures: list[BaseException] = []
        """What the loop raised, other than by its abort."""
        self._loop = loop
        self._limit = min(session.settings.stall_after, policy.get("stallAfterMs", 1e12) / 1000)
        self._run: tuple[int, AbortSignal] | None = None
        self._offered: int | None = None
        self._accepted: int | None = None
        self._stopping = ""

    @property
    def key(self) -> str:
        return self.resource if self.scope is None else f"{self.resource}:{self.scope}"

    @property
    def state(self) -> str:
        return str(self.status["state"])

    @property
    def acting(self) -> bool:
        """Whether the loop runs under a signal that is not aborted: the page *believes* that it leads."""
        return self._run is not None and not self._run[1].aborted and not self.session.doubts(self._limit)

    def open(self) -> None:
        if not self._stopping:
            scope = {} if self.scope is None else {"scope": self.scope}
            self.session.post(
                {"type": "lead", "election": self.id, "resource": self.resource, **scope, "policy": self.policy}
            )

    def step_down(self, reason: str = "requested") -> None:
        self.session.post({"type": "step-down", "election": self.id, "reason": reason})

    def stop(self, reason: str = "requested") -> None:
        if self._stopping:
            return
        self._stopping = reason
        if self.session.up:
            self.session.post({"type": "stop", "election": self.id, "reason": reason})
        else:
            self._finish({"state": "stopped", "reason": reason})

    def ensure(self, signal: AbortSignal) -> None:
        if not signal.aborted and self.session.doubts(self._limit):
            signal.abort(LeadershipLost(self.key, "doubt"))
        if signal.reason is not None:
            raise LeadershipLost(self.key, signal.reason.reason)

    def abort(self, reason: str) -> None:
        self._offered = self._accepted = None
        if self._run is not None:
            self._run[1].abort(LeadershipLost(self.key, reason))

    def doubt(self) -> None:
        if self._run is not None:
            self._run[1].abort(LeadershipLost(self.key, "doubt"))

    def down(self, reason: str) -> None:
        self.abort(reason)
        if not self.session.up and self.state != "stopped":
            self.status = {"state": "idle", "reason": reason}

    def receive(self, data: dict[str, Any]) -> None:
        kind = data["type"]
        if kind == "grant":
            self._offered = data["grant"]
            self.consider()
        elif kind == "lead":
            self._begin(data["grant"], data.get("token"))
        elif kind == "revoke":
            self._revoke(data["grant"], str(data.get("reason", "revoked")))
        elif kind == "status":
            if data["status"]["state"] == "stopped":
                self._finish(data["status"])
            elif self.state != "stopped":
                self.status = data["status"]

    def consider(self) -> None:
        """Accept an offered grant, if this page can work."""
        if self._offered is not None and self._run is None and self.session.able():
            self._accepted, self._offered = self._offered, None
            self.session.post({"type": "ack", "election": self.id, "grant": self._accepted})

    def _begin(self, grant: int, token: dict[str, Any] | None) -> None:
        if grant != self._accepted or self._run is not None or self.session.doubts(self._limit):
            self._ended(grant, LeadershipLost(self.key, "the page could no longer take it"))
            return
        self._accepted = None
        signal = AbortSignal()
        self._run = (grant, signal)
        context = PageContext(self, signal, token, grant)
        self.session.agent.start(self._work(context, self.session.connection_id))

    async def _work(self, context: PageContext, connection_id: str) -> None:
        error: BaseException | None = None
        try:
            await self._loop(context)
        except Exception as failure:
            error = failure
        if isinstance(error, LeadershipLost) and context.signal.aborted:
            error = None
        if error is not None:
            self.failures.append(error)
        reason = context.signal.reason
        context.signal.abort(LeadershipLost(self.key, "ended"))
        self._run = None
        if connection_id == self.session.connection_id:
            self._ended(context.grant, error or (reason if reason is not None and reason.reason == "doubt" else None))
        self.consider()

    def _revoke(self, grant: int, reason: str) -> None:
        if self._offered == grant:
            self._offered = None
        if self._accepted == grant:
            self._accepted = None
        if self._run is not None and self._run[0] == grant:
            self._run[1].abort(LeadershipLost(self.key, reason))
        else:
            self._ended(grant, None)

    def _ended(self, grant: int, error: BaseException | None) -> None:
        told = None if error is None else {"name": type(error).__name__, "message": str(error)}
        self.session.post({"type": "ended", "election": self.id, "grant": grant, "error": told})

    def _finish(self, status: dict[str, Any]) -> None:
        self.abort(str(status.get("reason", "stopped")))
        self._stopping = self._stopping or "stopped"
        if self.state != "stopped":
            self.status = status


def _text(value: str) -> str:
    escaped = value.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'
