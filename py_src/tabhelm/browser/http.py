"""``fetch``."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

from tabhelm.browser._js import Rejected, Thrown, js, js_exception, outcome, to_js_value, to_python_value
from tabhelm.browser.clock import BrowserClock
from tabhelm.errors import Unreachable
from tabhelm.ports.http import HttpAnswer

BODY_LIMIT = 1 << 20
"""Bytes of an answer's body that are read; the rest is cut off unread."""


class BrowserHttp:
    def __init__(self, clock: BrowserClock | None = None) -> None:
        self._clock = clock or BrowserClock()

    async def send(
        self, method: str, url: str, *, headers: Mapping[str, str], body: str | None = None, timeout: float
    ) -> HttpAnswer:
        controller = js().AbortController.new()
        late = False

        def expire() -> None:
            nonlocal late
            late = True
            controller.abort()

        request = {
            "method": method,
            "headers": dict(headers),
            # A redirect (to a login page, say) is followed and reported: the caller decides what it is worth.
            "redirect": "follow",
            "credentials": "same-origin",
            "cache": "no-store",
        }
        if body is not None:
            request["body"] = body
        timer = self._clock.call_later(timeout, expire)
        try:
            options = to_js_value(request)
            options.signal = controller.signal
            response = await outcome(js().fetch, None, _absolute(url), options)
            return HttpAnswer(
                status=response.status,
                headers=to_python_value(js().Object.fromEntries(response.headers)),
                body=await _read(response.body),
                redirected=bool(response.redirected),
                url=str(response.url),
            )
        except asyncio.CancelledError:
            controller.abort()
            raise
        except (Rejected, js_exception()) as error:
            thrown = error.thrown if isinstance(error, Rejected) else Thrown.of(error)
            why = f"no whole answer within {timeout:g} s" if late else f"{thrown}{_foreign(url)}"
            offline = bool(js().navigator.onLine is False)
            raise Unreachable(f"{method} {url}: {why}; whether it had an effect is unknown", offline=offline) from None
        finally:
            timer.cancel()

    def farewell(self, method: str, url: str, *, headers: Mapping[str, str]) -> None:
        request = {"method": method, "headers": dict(headers), "credentials": "same-origin", "cache": "no-store"}
        try:
            going = js().fetch(_absolute(url), to_js_value({**request, "keepalive": True}))
        except js_exception():
            return
        # Nobody hears that it failed. The function that takes anything and does nothing:
        going.catch(js().Function.prototype)


def _absolute(url: str) -> str:
    """``url`` itself, except in a worker that was started from a ``blob:`` URL (PyScript's are): nothing is relative to
    that, but it knows its origin."""
    location = js().location
    return str(js().URL.new(url, location.origin).href) if location.protocol == "blob:" else url


def _foreign(url: str) -> str:
    """What else may be wrong with an address of another origin: the browser does not tell it from a dead network."""
    here = js().location.origin
    try:
        there = str(js().URL.new(_absolute(url), js().location.href).origin)
    except js_exception():
        return " (no valid address)"
    if there == here:
        return ""
    return f" ({there} is not this origin: it must allow {here} by CORS, see docs/receiver.md)"


async def _read(stream: Any) -> str:
    """The stream as text, cut at the limit."""
    if not stream:
        return ""
    reader = stream.getReader()
    parts: list[bytes] = []
    missing = BODY_LIMIT
    while missing > 0:
        chunk = await outcome(reader.read, reader)
        if chunk.done:
            break
        part = chunk.value.to_bytes()[:missing]
        parts.append(part)
        missing -= len(part)
    else:
        # Nobody waits for the cancellation: it only tells the browser to stop receiving.
        reader.cancel()
    return b"".join(parts).decode("utf-8", "replace")
