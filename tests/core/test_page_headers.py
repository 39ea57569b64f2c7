"""The headers of a page's policy: its functions stay in the page, and are asked over the wire."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from tabhelm.app_headers import ask
from tabhelm.errors import InvalidPolicy, NoHeaders
from tabhelm.host.page_headers import page_policy
from tabhelm.host.page_sender import PageFunctions
from tabhelm.simulated import World

URL = "https://receiver.example/operations"
GIVEN = {"fence": URL, "fenceHeaders": True, "eligible": True, "graceMs": 7}


class Page:
    """What a session says to its page, and what that answers."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.clock = world.ports(world.agent("a")).clock
        self.said: list[dict[str, Any]] = []
        self.functions = PageFunctions(
            lambda message, values=(): self.said.append(message), lambda queue, reason: False
        )
        self.policy = page_policy(GIVEN, "e1", self.functions, self.clock)

    def asking(self, timeout: float = 10.0) -> asyncio.Task[Any]:
        return asyncio.get_running_loop().create_task(
            ask(self.policy.fence_headers, self.clock, timeout, "fence_headers")  # type: ignore[arg-type]
        )

    async def answer(self, **told: Any) -> Any:
        """What the asker gets of such an answer."""
        asking = self.asking()
        await self.world.until(lambda: bool(self.said))
        question = self.said.pop()
        assert question == {"type": "headers", "queue": "e1", "call": question["call"], "key": "fenceHeaders"}
        self.functions.handlers["sent"]({"type": "sent", "queue": "e1", "call": question["call"], **told})
        return await asking


def played(scene: Callable[[Page], Coroutine[Any, Any, None]]) -> None:
    with World(1) as world:
        world.run(scene(Page(world)))


def test_the_page_is_asked_before_each_request() -> None:
    async def scene(page: Page) -> None:
        assert page.policy.grace == 0.007
        for number in range(3):
            found = await page.answer(headers={"Authorization": f"Bearer {number}"})
            assert found == {"authorization": f"Bearer {number}"}

    played(scene)


@pytest.mark.parametrize(
    ("told", "says"),
    [
        ({"error": {"name": "TypeError", "message": "no token"}}, "TypeError: no token"),
        ({"lost": "no-extras"}, "the page cannot be asked: no-extras"),
        ({"headers": None}, "fence_headers of type NoneType"),
        ({"headers": {"fencing-token": "mine"}}, "tabhelm's own"),
    ],
)
def test_what_the_page_cannot_give_is_told(told: dict[str, Any], says: str) -> None:
    async def scene(page: Page) -> None:
        with pytest.raises(NoHeaders, match=says):
            await page.answer(**told)

    played(scene)


def test_a_page_that_gave_none_yet_has_all_the_time_there_is() -> None:
    async def scene(page: Page) -> None:
        asking = page.asking()
        await page.world.sleep(9.0)
        page.functions.handlers["sent"]({"type": "sent", "queue": "e1", "call": 1, "headers": {"a": "b"}})
        assert await asking == {"a": "b"}

    played(scene)


def test_a_page_that_hangs_is_trusted_with_those_of_the_last_time_once() -> None:
    async def scene(page: Page) -> None:
        first = await page.answer(headers={"a": "b"})
        assert await page.asking() == first
        with pytest.raises(NoHeaders, match="TimeoutError"):
            await page.asking()
        assert [message["type"] for message in page.said] == ["headers", "unsend"] * 2

    played(scene)


def test_what_is_no_function_is_refused_by_name() -> None:
    async def scene(page: Page) -> None:
        for wrong in ({"fenceHeaders": 7, "fence": URL}, {"eligible": "yes"}, {"fenceHeaders": True}, [1]):
            with pytest.raises(InvalidPolicy):
                page_policy(wrong, "e1", page.functions, page.clock)

    played(scene)
