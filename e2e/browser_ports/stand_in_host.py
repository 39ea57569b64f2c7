"""A host that only shows what ``tabhelm.browser.engine`` gives it, and fails on demand."""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import Callable
from typing import Any

from tabhelm.ports import Ports


async def start(bridge: Any, ports: Ports) -> Callable[[str, str], None]:
    def say(session: str, **event: object) -> None:
        bridge.post(session, json.dumps({"type": "event", "event": event}))

    async def work(session: str, order: str) -> None:
        if order == "lock":
            lock = await ports.locks.acquire("regcase:v3:leader:job", owner=session)
            assert lock is not None
            lock.on_end(lambda why: say(session, type="end", why=why, held=lock.held))
            say(session, type="lock", held=lock.held)
        elif order == "fail-task":
            raise LookupError("nobody catches this task's error")

    tasks: list[asyncio.Task[None]] = []

    def deliver(session: str, text: str) -> None:
        message = json.loads(text)
        if message["type"] == "x-fail":
            raise ValueError("nobody catches this message's error")
        if message["type"] == "x-do":
            tasks.append(asyncio.ensure_future(work(session, message["order"])))
        elif message["type"] == "hello":
            say(session, type="info", info=json.loads(bridge.info), random=random.random())
        else:
            say(session, type="told", message=message)

    return deliver
