"""A person who uses the demo: what they press, type and read."""

from __future__ import annotations

import asyncio

from e2e.kit import Site, until
from playwright.async_api import ConsoleMessage, Locator, Page
from playwright.async_api import Error as PlaywrightError

from tabhelm.testing import ChaosBrowser, ChaosTab, wait_for

SENT = "Everything is sent."
_READY = "() => window.demo && document.querySelector('#connection').textContent.startsWith('connected')"


class Person:
    """Somebody in front of one tab of the demo."""

    def __init__(self, tab: ChaosTab) -> None:
        self.tab = tab
        self.complaints: list[str] = []
        """What the console says that it should not; refused policies are told there too."""
        tab.page.on("console", self._hear)
        tab.page.on("pageerror", lambda error: self.complaints.append(str(error)))

    @classmethod
    async def arrives(cls, browser: ChaosBrowser, site: Site, query: str = "") -> Person:
        """Opens the demo in a new tab and waits until it has joined."""
        person = cls(await browser.new_tab())
        await person.tab.navigate(f"{site.url}/?test{query}")
        await person.tab.until(_READY, timeout=60, what="the demo to join")
        return person

    @property
    def page(self) -> Page:
        return self.tab.page

    def _hear(self, message: ConsoleMessage) -> None:
        # The browser itself reports every answer of the server that is an error.
        if message.type in ("error", "warning") and not message.text.startswith("Failed to load resource"):
            self.complaints.append(message.text)

    async def presses(self, name: str) -> None:
        """Press the button of this name: by the keyboard, for what comes above it moves it from under a mouse."""
        await self.tab.show()
        button = self.page.get_by_role("button", name=name, exact=True, disabled=False)
        await button.wait_for()
        await button.press("Enter", no_wait_after=True)

    async def crashes(self) -> None:
        """Press the button that crashes the tab, and wait until it has."""
        self.tab.doomed = True
        try:
            await self.presses("Crash this tab")
        except PlaywrightError as error:  # it may be dead before it has answered that the key was let go
            if "crashed" not in error.message:
                raise

        async def gone() -> bool:
            return self.tab.gone

        await wait_for(gone, 30, "the tab to crash")

    async def adds(self, *titles: str) -> None:
        """Record cases."""
        await self.tab.show()
        for title in titles:
            await self.page.get_by_label("New case").fill(title)
            await self.page.get_by_role("button", name="Add", exact=True).click()

    def sees(self, selector: str) -> Locator:
        return self.page.locator(selector)

    async def reads(self, selector: str, text: str, timeout: float = 15.0) -> None:
        """Wait until an element says ``text``."""
        shows = "([selector, text]) => document.querySelector(selector)?.innerText.includes(text)"
        try:
            await self.tab.until(shows, timeout=timeout, what=f"{selector} to say {text!r}", arg=[selector, text])
        except BaseException:
            if not self.tab.silent:
                print(await self.tab.evaluate("(selector) => document.querySelector(selector)?.innerText", selector))
            raise

    async def told(self, text: str, timeout: float = 15.0) -> None:
        """Wait until the timeline says ``text``."""
        await self.reads("#log", text, timeout)

    async def leads(self, timeout: float = 15.0) -> None:
        """Wait until both jobs are this tab's."""
        both = "() => document.querySelectorAll('#leaders .self').length === 2"
        await self.tab.until(both, timeout=timeout, what="this tab to lead both jobs")

    async def has_company(self, count: int) -> None:
        """Wait until the roster shows so many tabs."""
        shown = "(count) => document.querySelectorAll('#tabs li').length === count"
        await self.tab.until(shown, what=f"{count} tabs to be here", arg=count)


async def applied(site: Site, titles: set[str]) -> None:
    """Wait until the server has a case of each of these titles."""

    async def there() -> bool:
        return titles <= {case["title"] for case in await cases(site)}

    await until(there, f"{len(titles)} cases at the server", 60)


async def cases(site: Site) -> list[dict[str, object]]:
    """The server's cases."""
    return await asyncio.to_thread(site.server.cases)


async def each_once(site: Site, *people: Person) -> None:
    """Nothing was applied twice, nothing acknowledged is missing, and nobody's console complains."""
    sent = [effect["op_id"] for effect in await site.effects()]
    assert len(sent) == len(set(sent))
    for person in people:
        if not person.tab.gone:
            kept = await person.tab.evaluate("() => demo.acks.map(({ id }) => id)")
            assert set(kept) <= set(sent)
        assert person.complaints == []
