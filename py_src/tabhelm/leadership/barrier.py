"""Show the receiver the new epoch before anything else.

Until the receiver has seen it, an old leader's late write could still land between our grant and our first write. An
empty batch raises the receiver's marks and does nothing else.
"""

from __future__ import annotations

from tabhelm.errors import Unreachable
from tabhelm.fencing.http_form import token_header
from tabhelm.fencing.refusal import overtaken, refused_high_water
from tabhelm.fencing.token import HighWater
from tabhelm.leadership.tenure import Tenure, TokenStream
from tabhelm.observe import EpochIssued, Events, WriteRefused
from tabhelm.ports import Http

EMPTY_BATCH = '{"operations":[]}'
TIMEOUT = 10.0
_ATTEMPTS = 4


async def raise_marks(http: Http, url: str, tenure: Tenure, stream: TokenStream, events: Events) -> None:
    """Raise the marks of the receiver at ``url`` to this tenure's epoch.

    Raises:
        LeadershipLost: the receiver knows a newer owner, and the store agrees.
        Unreachable: no answer that says so came; the barrier does not stand.
    """
    for _ in range(_ATTEMPTS):
        token = stream.next_token()
        headers = {"Fencing-Token": token_header(token), "Content-Type": "application/json"}
        answer = await http.send("POST", url, headers=headers, body=EMPTY_BATCH, timeout=TIMEOUT)
        tenure.ensure()
        if answer.status == 200 and not answer.redirected:
            return
        high_water = refused_high_water(answer)
        if high_water is None:
            raise Unreachable(f"the receiver {url} answered {answer.status} to the barrier; expected 200 or 409")
        if overtaken(token, high_water):
            events.emit(WriteRefused(tenure.resource, token.epoch, "overtaken"))
            continue
        events.emit(WriteRefused(tenure.resource, token.epoch, "stale"))
        await outbid(tenure, high_water, events)
    raise Unreachable(f"the receiver {url} refused {_ATTEMPTS} barriers in a row, each with another high water")


async def outbid(tenure: Tenure, high_water: HighWater, events: Events) -> None:
    """Go on above a receiver's high water that our store has forgotten, and tell of the new grant.

    Raises:
        LeadershipLost: somebody else leads.
    """
    await tenure.raise_above(high_water)
    grant = tenure.grant
    events.emit(EpochIssued(grant.resource, grant.domain, grant.epoch, grant.owner_id, grant.authority))
