"""What a fenced receiver's answer to a batch means. The barrier and the queue read it in this one place.

Only ``200`` with JSON ``{"results": [...]}``, not redirected, is an answer. Anything else (HTML, a login page behind a
redirect) is *unknown*, never success.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from typing import Any, Literal

from tabhelm.fencing.refusal import overtaken, refused_high_water
from tabhelm.fencing.token import FencingToken, HighWater
from tabhelm.json_text import loads
from tabhelm.ports import HttpAnswer

MAX_RETRY_AFTER = 3600.0
_MONTHS = "Jan Feb Mar Apr May Jun Jul Aug Sep Oct Nov Dec".split()
_DATE = re.compile(
    rf"[A-Z][a-z]{{2}}, ([0-9]{{2}}) ({'|'.join(_MONTHS)}) ([0-9]{{4}}) ([0-9]{{2}}):([0-9]{{2}}):([0-9]{{2}}) GMT"
)


@dataclass(frozen=True, slots=True)
class Reply:
    """What a request came to.

    ``answered``: ``results`` hold. ``stale``/``overtaken``: refused, nothing applied. ``busy``: not now. ``denied``:
    signed out or not allowed. ``unfit``: the receiver will not take this request at all. ``unknown``: cannot be told.
    """

    kind: Literal["answered", "stale", "overtaken", "busy", "denied", "unfit", "unknown"]
    detail: str = ""
    results: tuple[Any, ...] = ()
    high_water: HighWater | None = None
    retry_after: float | None = None
    retention: float | None = None
    """For how many seconds the receiver remembers operation ids, by its own word (``Tabhelm-Retention``)."""
    problem: str = ""
    """The problem's type, where the answer is one (RFC 9457)."""
    said: str = ""
    """That problem's detail, else its title: printable text, cut at 400 characters."""
    silent: bool = False
    """No answer came at all."""
    offline: bool = False
    """The browser says that there is no network."""
    redirected: bool = False
    lasting: bool = False
    """No receiver answers like that: it will be the same the next time."""


def read_reply(answer: HttpAnswer, token: FencingToken, expected: int) -> Reply:
    """What ``answer`` means for a batch of ``expected`` operations that was sent with ``token``."""
    shown = f"HTTP {answer.status}"
    if answer.redirected:
        where = answer.url.partition("?")[0].partition("#")[0][:200]
        shown = f"{shown}, redirected to {where}" if where else f"{shown} after a redirect"
        return Reply("unknown", shown, redirected=True, lasting=True)
    wait = retry_after(answer.headers.get("retry-after"), answer.headers.get("date"))
    if answer.status == 200:
        results = _results(answer.body)
        if results is None or len(results) != expected:
            return Reply("unknown", f"{shown} whose body is not the contract's", lasting=True)
        return Reply("answered", results=results, retention=_seconds(answer.headers.get("tabhelm-retention")))
    if (high_water := refused_high_water(answer)) is not None:
        return Reply("overtaken" if overtaken(token, high_water) else "stale", shown, high_water=high_water)
    kind, detail = _problem(answer.body)
    if answer.status in (401, 403):
        return Reply("denied", shown, problem=kind, said=detail)
    if answer.status in (429, 503):
        return Reply("busy", shown, retry_after=wait, problem=kind, said=detail)
    if answer.status == 413 or (answer.status in (400, 422) and kind.startswith("urn:tabhelm:")):
        why = " ".join(part for part in (shown, kind, detail) if part)
        return Reply("unfit", why, problem=kind, said=detail, lasting=True)
    return Reply("unknown", shown, retry_after=wait, problem=kind, said=detail, lasting=answer.status < 500)


def retry_after(value: Any, date: Any = None) -> float | None:
    """Seconds of a ``Retry-After``, at most an hour; ``None`` if there is none we can use.

    Its date form is taken from the answer's own ``date``, for the server's clock and ours are never compared: without
    that it is of no use.
    """
    seconds = _seconds(value)
    if seconds is None and (until := _moment(value)) is not None and (now := _moment(date)) is not None:
        seconds = max(0.0, until - now)
    return None if seconds is None else min(seconds, MAX_RETRY_AFTER)


def _moment(value: Any) -> float | None:
    """Seconds since 1970 of a date as HTTP writes them today (RFC 9110, IMF-fixdate)."""
    found = _DATE.fullmatch(value) if isinstance(value, str) else None
    if found is None:
        return None
    day, month, year, *time = (int(part) if part.isdecimal() else _MONTHS.index(part) for part in found.groups())
    year, month = (year, month - 2) if month > 1 else (year - 1, month + 10)  # from March on: a leap day comes last
    days = 365 * year + year // 4 - year // 100 + year // 400 + (153 * month + 2) // 5 + day - 719_469
    return days * 86_400.0 + time[0] * 3_600 + time[1] * 60 + time[2]


def _seconds(value: Any) -> float | None:
    try:
        seconds = float(value)
    except (TypeError, ValueError, OverflowError):
        return None
    return seconds if seconds >= 0 and math.isfinite(seconds) else None


def _results(body: str) -> tuple[Any, ...] | None:
    try:
        results = loads(body)["results"]
    except (ValueError, TypeError, KeyError):
        return None
    return tuple(results) if isinstance(results, list) else None


def _problem(body: str) -> tuple[str, str]:
    """Type and detail of a problem; empty where there is none."""
    try:
        value = loads(body)
    except ValueError:
        return "", ""
    if not isinstance(value, dict):
        return "", ""
    kind, detail = value.get("type"), value.get("detail") or value.get("title")
    return _plain(kind), _plain(detail)


def _plain(text: Any) -> str:
    return "".join(c if c.isprintable() else " " for c in text[:400]) if isinstance(text, str) else ""
