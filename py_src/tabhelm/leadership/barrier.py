"""Write to a fenced receiver under a tenure, and show it the new epoch before anything else.

Until the receiver has seen it, an old leader's late write could still land between our grant and our first write. An
empty batch, the barrier, raises the receiver's marks and does nothing else.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import replace

from tabhelm.errors import Unreachable
from tabhelm.fencing.complaint import complaint
from tabhelm.fencing.http_form import idempotency_key_header, token_header
from tabhelm.fencing.reply import Reply, read_reply
from tabhelm.leadership.tenure import Tenure, TokenStream
from tabhelm.observe import EpochIssued, Events, WriteRefused
from tabhelm.ports import Http

EMPTY_BATCH = '{"operations":[]}'
TIMEOUT = 10.0
_ATTEMPTS = 5
MoreHeaders = Callable[[], Awaitable[Mapping[str, str]]]
"""Asked before each request; what it raises comes out of it as it is."""


async def raise_marks(
    http: Http, url: str, tenure: Tenure, stream: TokenStream, events: Events, more: MoreHeaders | None = None
) -> None:
    """Raise the marks of the receiver at ``url`` to this tenure's epoch. ``more`` gives further headers.

    Raises:
        LeadershipLost: the receiver knows a newer owner, and the store agrees.
        Unreachable: no answer that says so came; the barrier does not stand.
    """
    reply = await try_barrier(http, url, tenure, stream, events, more)
    if reply.kind != "answered":
        raise Unreachable(complaint(url, reply))


async def try_barrier(
    http: Http, url: str, tenure: Tenure, stream: TokenStream, events: Events, more: MoreHeaders | None = None
) -> Reply:
    """Show the receiver this tenure's epoch; the barrier stands only if the reply is ``answered``.

    Raises:
        LeadershipLost: as ``write`` does.
    """
    return await write(http, url, tenure, stream, events, EMPTY_BATCH, 0, timeout=TIMEOUT, more=more)


async def write(
    http: Http,
    url: str,
    tenure: Tenure,
    stream: TokenStream,
    events: Events,
    body: str,
    expected: int,
    *,
    timeout: float,
    key: str | None = None,
    more: MoreHeaders | None = None,
) -> Reply:
    """POST a batch of ``expected`` operations, again with a new token wherever a refusal leaves us the right to.

    ``key`` makes it a single operation, whose id it is. ``more`` gives further headers.

    Whatever the network or the server does is told by the reply, which is never ``stale`` nor ``overtaken``.

    Raises:
        LeadershipLost: the tenure is over, or the receiver knows a newer owner and the store agrees.
    """
    reply = Reply("unknown")
    for _ in range(_ATTEMPTS):
        others = await more() if more is not None else {}
        token = stream.next_token()
        headers = {
            "accept": "application/json",
            **others,
            "Fencing-Token": token_header(token),
            "Content-Type": "application/json",
        }
        if key is not None:
            headers["Idempotency-Key"] = idempotency_key_header(key)
        try:
            answer = await http.send("POST", url, headers=headers, body=body, timeout=timeout)
        except Unreachable as failure:
            return Reply("unknown", str(failure), silent=True, offline=failure.offline)
        reply = read_reply(answer, token, expected)
        if reply.high_water is None:
            return reply
        events.emit(WriteRefused(tenure.resource, token.epoch, reply.kind))
        if reply.kind == "stale":
            # Our store may have forgotten what the receiver knows: go on above it, if nobody else leads.
            await tenure.raise_above(reply.high_water)
            grant = tenure.grant
            events.emit(EpochIssued(grant.resource, grant.domain, grant.epoch, grant.owner_id, grant.authority))
    return replace(reply, kind="busy", detail=f"refused {_ATTEMPTS} times in a row, each with another high water")
