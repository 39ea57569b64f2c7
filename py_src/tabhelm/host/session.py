"""One page in the engine, from its ``hello`` to its ``gone``: its tab, and whose each of its messages is."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tabhelm.host.calls import PageCalls
from tabhelm.host.page_elections import PageElections
from tabhelm.host.page_locks import PageLocks
from tabhelm.host.page_news import PageNews
from tabhelm.host.page_queue import PageQueues
from tabhelm.host.page_support import PageSupport
from tabhelm.host.wire import Message, Post, field, milliseconds, optional_text, page_state, words
from tabhelm.leadership import Election
from tabhelm.presence import Identity
from tabhelm.services import Services
from tabhelm.tab import Tab, TabFacts

STALL_AFTER = 10.0


class Session:
    """Lives from a page's ``hello`` to its ``gone``."""

    def __init__(self, hello: Message, post: Post, services: Services) -> None:
        identity = Identity(field(hello, "tab", str), field(hello, "session", str), field(hello, "generation", int))
        facts = TabFacts(
            field(hello, "version", str, ""),
            frozenset(words(hello, "capabilities")),
            optional_text(hello, "userSession"),
        )
        self._post = post
        self._services = services
        self.silent_engine = optional_text(hello, "silentEngine")
        self.stall_after = milliseconds(hello, "stallAfterMs", STALL_AFTER)
        test_hooks = field(hello, "testHooks", bool, False)
        self._stalled = False
        self.tab = Tab(services, identity, facts, page_state(hello), self._confirm)
        self._queues = PageQueues(self.tab, services, post, self._quiet)
        self._elections = PageElections(
            self.tab, services, post, self._queues.functions, self._quiet, test_hooks=test_hooks
        )
        self._news = PageNews(self.tab, services, post, self._quiet, self._elections.say_leaders)
        support = PageSupport(self.tab, services)
        calls = PageCalls(self._elections.calls | self._queues.calls | support.calls, post, services.tasks)
        self._handlers: dict[str, Callable[[Message], None]] = {
            "state": lambda message: self.tab.set_state(page_state(message)),
            "freeze": self._freeze,
            "resume": self._resume,
            "stalled": lambda _: self._stall(True),
            "answering": lambda _: self._stall(False),
            "update": self._update,
            **self._elections.handlers,
            **self._queues.handlers,
            **PageLocks(self.tab, services, post).handlers,
            **calls.handlers,
        }

    def joined(self, info: dict[str, Any]) -> None:
        """Tell the page that it is in."""
        self._post({"type": "joined", **info})
        self._news.say_presence()

    def receive(self, message: Message) -> None:
        """One message of the page. Unknown types are ignored: the page may be newer.

        Raises:
            TabhelmError: the message cannot be used.
        """
        handler = self._handlers.get(message["type"])
        if handler is None:
            self._services.events.ignored("unknown-type")
            return
        handler(message)

    def end(self, reason: str) -> None:
        """The page is gone: everything that must be done before the engine may be suspended with it."""
        self._news.end()
        self._queues.end()
        self._elections.end()
        self.tab.vanish(reason)

    async def ended(self) -> None:
        """Wait until nothing of it runs any more."""
        await self.tab.gone()

    async def _confirm(self, election: Election) -> bool:
        return await self._elections.confirm(election)

    # -- lifecycle ----------------------------------------------------------------------------------------------------

    def _freeze(self, _: Message) -> None:
        state = self.tab.state
        self.tab.set_state(type(state)("frozen", state.visible, state.online))

    def _resume(self, message: Message) -> None:
        self.tab.set_state(page_state(message))
        self._say_all()

    def _stall(self, stalled: bool) -> None:
        self._stalled = stalled
        self.tab.set_stalled(stalled)
        if not stalled:
            self._say_all()

    def _say_all(self) -> None:
        self._news.say_presence()
        self._elections.say_states()
        self._queues.say_all()

    def _quiet(self) -> bool:
        return self._stalled or self.tab.state.lifecycle == "frozen"

    def _update(self, message: Message) -> None:
        self.tab.update(
            capabilities=words(message, "capabilities") if message.get("capabilities") is not None else None,
            user_session=optional_text(message, "userSession"),
            session_changed="userSession" in message,
        )
