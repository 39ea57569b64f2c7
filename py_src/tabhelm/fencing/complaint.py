"""Why a receiver did not take what it was sent, in words, and what to look at."""

from __future__ import annotations

from tabhelm.fencing.reply import Reply

NOT_OWNER = "urn:tabhelm:not-owner"
BARRIER = "the barrier"
"""What a receiver calls an empty batch."""
_PLAIN = "about:blank"
"""The type of a problem that is no more than its status (RFC 9457)."""
_MOST = 500


def answered(reply: Reply) -> str:
    """The answer in short: ``HTTP 403 urn:tabhelm:not-owner`` and the receiver's own words."""
    if reply.kind == "unfit":
        return reply.detail  # has it all
    return " ".join(part for part in (reply.detail, reply.problem, reply.said) if part and part != _PLAIN)[:_MOST]


def complaint(url: str, reply: Reply, what: str = BARRIER) -> str:
    """What went wrong at the receiver ``url``, and the way out. ``what`` it did not take."""
    return f"the receiver {url} did not take {what} ({answered(reply)}): {_way_out(reply, what)}"


def _way_out(reply: Reply, what: str) -> str:
    if reply.redirected:
        return "use that address, unless somebody is to sign in there"
    if reply.problem == NOT_OWNER:
        return 'its "owns" lets nobody write for a resource without their scope: stand with scope: "user:…"'
    if reply.kind == "denied":
        return "does it want a header of the policy's fence_headers (fenceHeaders), or somebody to sign in?"
    if reply.silent:
        return "does a receiver listen there?"
    if reply.kind == "busy":
        return "it is asked again"
    if what != BARRIER:
        return 'it must be answered by 200 and {"results": […]}, one for each operation; it is sent again'
    return 'is that its address? An empty batch must be answered by 200 and {"results": []}'
