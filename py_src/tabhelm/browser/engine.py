"""Where ``engine.mjs`` enters Python: builds the ports, starts the host, keeps every exception on this side."""

from __future__ import annotations

import asyncio
import random
import traceback
from collections.abc import Callable, Sequence
from typing import Any

from tabhelm.browser import browser_ports
from tabhelm.browser._js import js
from tabhelm.browser.opaque import StoredOpaque, to_js_opaque
from tabhelm.ports.database import Opaque


class EngineBridge:
    """The JavaScript side of the engine, in Python types (see ``docs/wire.md``)."""

    def __init__(self, bridge: Any) -> None:
        self._bridge = bridge
        self.info: str = bridge.info
        """JSON text: ``{engine, engineLock, app, protocol, buildId, version, from, fallbackReason, bootMs,
        host}``; ``host`` is ``"shared"`` or ``"window"``."""

    def post(self, session: str, text: str, values: Sequence[Opaque] = ()) -> None:
        """Send the JSON text of one message to a page, with values beside it that JSON need not hold; dropped when the
        session is gone."""
        if values:
            array = js().Array.new()
            for value in values:
                array.push(to_js_opaque(value.value))
            self._bridge.post(session, text, array)
        else:
            self._bridge.post(session, text)

    def report(self, text: str) -> None:
        """Tell the pages and the console about something that should not happen. Raises nothing."""
        try:
            self._bridge.report(text)
        except Exception:
            js().console.error(text)


async def start(bridge: Any) -> Callable[..., None]:
    """Start the host. Returns ``deliver(session, text, values?)``, which raises nothing.

    Args:
        bridge: the object that ``engine.mjs`` made: ``post``, ``desk``, ``info``, ``report``.
    """
    from tabhelm.host.engine import start as start_host  # the host is above this room: only its entry is known here

    ports = browser_ports(bridge.desk)
    # An app's own code may draw from the shared generator, whose state every restored snapshot has in common.
    random.seed(ports.entropy.token_bytes(32))
    engine = EngineBridge(bridge)
    report = engine.report

    def unhandled(_loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        report(_described(context.get("exception"), context.get("message") or "unhandled error"))

    asyncio.get_running_loop().set_exception_handler(unhandled)
    deliver = await start_host(engine, ports)

    def safe_deliver(session: str, text: str, values: Any = ()) -> None:
        try:
            if values:
                deliver(session, text, [StoredOpaque(value) for value in values])
            else:
                deliver(session, text)
        except Exception as error:
            report(_described(error, f"a message of session {session!r} could not be handled"))

    return safe_deliver


def _described(error: object, message: str) -> str:
    if not isinstance(error, BaseException):
        return message
    return f"{message}\n{''.join(traceback.format_exception(error))}"
