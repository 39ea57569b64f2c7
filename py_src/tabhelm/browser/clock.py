"""Time by the browser's own timers.

``setTimeout`` is used directly. The event loop's ``call_later`` would leave a live browser timer behind every cancelled
timeout, and does not wait at all for delays of up to 2 ms.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Callable

from tabhelm.browser._js import create_proxy, js

_LONGEST_MS = 2**31 - 1
"""``setTimeout`` takes a 32-bit number; anything above fires at once."""


class BrowserTimer:
    """One ``setTimeout`` at a time and its proxy, both gone when it fires or is cancelled."""

    __slots__ = ("_callback", "_due", "_handle", "_proxy", "_wake")

    def __init__(self, delay: float, callback: Callable[[], None]) -> None:
        self._callback: Callable[[], None] | None = callback
        self._due = time.monotonic() + delay
        self._wake = self._fired  # our own reference: the proxy gives up its one while it is running
        self._proxy = create_proxy(self._wake)
        self._handle = self._arm(delay)

    def _arm(self, delay: float) -> object:
        milliseconds = _LONGEST_MS if delay * 1000 >= _LONGEST_MS else max(0, math.ceil(delay * 1000))
        return js().setTimeout(self._proxy, milliseconds)

    def _fired(self) -> None:
        remaining = self._due - time.monotonic()
        if remaining > 0:  # a rounded-down clock, or a delay beyond what one timer can wait
            self._handle = self._arm(remaining)
            return
        callback = self._callback
        self._discard()
        if callback is None:
            return
        try:
            callback()
        except Exception as error:
            context = {"message": "a timer's callback failed", "exception": error}
            asyncio.get_event_loop().call_exception_handler(context)

    def _discard(self) -> None:
        proxy, self._proxy, self._callback = self._proxy, None, None
        if proxy is not None:
            proxy.destroy()

    def cancel(self) -> None:
        if self._proxy is not None:
            js().clearTimeout(self._handle)
            self._discard()


class BrowserClock:
    """``performance.now()`` and ``Date.now()``, through the interpreter's own clock functions."""

    def monotonic(self) -> float:
        return time.monotonic()

    def wall(self) -> float:
        return time.time()

    def call_later(self, delay: float, callback: Callable[[], None]) -> BrowserTimer:
        return BrowserTimer(max(0.0, delay), callback)

    async def sleep(self, delay: float) -> None:
        if delay <= 0:
            await asyncio.sleep(0)
            return
        woken: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        def wake() -> None:
            if not woken.done():
                woken.set_result(None)

        timer = self.call_later(delay, wake)
        try:
            await woken
        finally:
            timer.cancel()
