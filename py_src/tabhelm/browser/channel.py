"""``BroadcastChannel``."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from tabhelm.browser._js import Thrown, create_proxy, js, js_exception, to_python_value


class BrowserChannel:
    def __init__(self, name: str) -> None:
        self._channel: Any = js().BroadcastChannel.new(name)
        self._callback: Callable[[object], None] | None = None
        self._listener = self._came  # our own reference: the proxy may be destroyed while it is running
        self._proxy: Any = None

    def post(self, text: str) -> None:
        if self._channel is None:
            return
        try:
            self._channel.postMessage(text)
        except js_exception() as error:
            if Thrown.of(error).name != "InvalidStateError":  # closed under us, with the page
                raise RuntimeError(f"a message could not be posted: {Thrown.of(error)}") from None

    def subscribe(self, callback: Callable[[object], None]) -> None:
        self._callback = callback
        if self._proxy is None and self._channel is not None:
            # A synchronous function: exceptions of an ``async def`` listener would be swallowed.
            self._proxy = create_proxy(self._listener)
            self._channel.onmessage = self._proxy

    def _came(self, event: Any) -> None:
        if self._callback is None:
            return
        try:
            self._callback(to_python_value(event.data))
        except Exception as error:
            context = {"message": "a channel's callback failed", "exception": error}
            asyncio.get_event_loop().call_exception_handler(context)

    def close(self) -> None:
        channel, self._channel, self._callback = self._channel, None, None
        if channel is not None:
            channel.onmessage = None
            channel.close()
        if self._proxy is not None:
            self._proxy.destroy()
            self._proxy = None


class BrowserChannels:
    def open(self, name: str) -> BrowserChannel:
        return BrowserChannel(name)
