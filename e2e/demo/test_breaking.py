"""What a person breaks on purpose, and what the page tells them of it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import pytest
from e2e.demo.person import SENT, Person, applied, each_once
from e2e.kit import Site, until
from e2e.offline_queue.lane import barrier_answered
from playwright.async_api import expect

Arrives = Callable[..., Awaitable[Person]]
HYDRANTS = {f"Hydrant {number}" for number in range(1, 31)}


async def test_a_crashed_leader_loses_nothing(arrives: Arrives, site: Site) -> None:
    ann = await arrives()
    await ann.leads()
    bob, cid = await arrives(), await arrives()
    await ann.presses("Offline")  # ann's process holds the engine: let another one lead, and crash
    leader, other = await until(lambda: _leader(bob, cid), "another tab to lead both jobs")
    await ann.presses("Offline")
    # Once the server knows the leader: what is held is a batch of its queue.
    epoch = await leader.tab.evaluate("() => demo.tab.presence().leaders['offline-queue:mutations'].epoch")
    await barrier_answered(site, "inspections:offline-queue:mutations", epoch)
    await site.faults(hold=True, count=1, resource="inspections:offline-queue:mutations")
    await leader.presses("Record 30 cases")
    await leader.tab.until("() => demo.acks.length === 30", what="30 cases to be durable")
    await site.held()
    await leader.crashes()
    await site.release()
    await applied(site, HYDRANTS)
    await other.told("without a leader")
    await other.has_company(2)
    await other.reads("#queue-note", SENT)
    await each_once(site, ann, other)


async def _leader(*two: Person) -> tuple[Person, Person] | None:
    for one, other in (two, two[::-1]):
        if await one.sees("#leaders .self").count() == 2:
            return one, other
    return None


async def test_a_tab_that_was_opened_from_another_survives_its_crash(arrives: Arrives, site: Site) -> None:
    ann = await arrives()
    await ann.leads()
    async with ann.page.context.expect_page() as opening:
        await ann.page.get_by_role("link", name="Open another tab").click()
    second = await opening.value
    await ann.has_company(2)
    await ann.crashes()
    await second.get_by_text("(this tab)").first.wait_for()
    await second.locator("#leaders .self").nth(1).wait_for(timeout=30_000)


async def test_the_late_report_of_a_frozen_tab_is_refused(arrives: Arrives, site: Site) -> None:
    ann = await arrives()
    await ann.leads()
    bob = await arrives()
    await ann.presses("Freeze my loop")
    await bob.leads()
    await bob.told("was frozen")
    await ann.told("ready before it froze was refused", 30)
    await ann.tab.until(
        "() => Number(document.querySelector('#refused').innerText) >= 1", what="the refusal to be shown"
    )
    assert not [effect for effect in await site.effects() if "a late write" in str(effect["payload"])]
    await each_once(site, ann, bob)


async def test_a_frozen_tab_that_is_alone_leads_again(arrives: Arrives, site: Site) -> None:
    ann = await arrives()
    await ann.leads()
    await ann.presses("Freeze my loop")
    await ann.tab.until("() => document.querySelector('#veil').open")
    await ann.tab.until("() => !document.querySelector('#veil').open", timeout=30)
    await ann.leads()
    await each_once(site, ann)


async def test_another_tab_leads_while_one_hangs(arrives: Arrives, site: Site) -> None:
    ann, bob = await arrives(), await arrives()
    await ann.presses("Offline")
    await bob.leads()
    await ann.presses("Offline")
    await bob.presses("Hang for 15 s")
    await ann.leads(30)
    await ann.told("hung, silent for 10 s")
    await bob.told("stood still", 30)
    await each_once(site, ann, bob)


@pytest.mark.parametrize(
    ("fault", "said"),
    [
        ("slow", "Waiting for the server's answer"),
        ("failing", "The server answered 503"),
        ("applies, but", "No answer came"),
    ],
)
async def test_a_bad_server_is_waited_for(arrives: Arrives, site: Site, fault: str, said: str) -> None:
    ann = await arrives()
    await ann.leads()
    bob = await arrives()
    await ann.tab.show()
    await ann.page.get_by_label(fault).check()
    await ann.presses("Record 30 cases")
    await ann.reads("#queue-note", said)
    assert await ann.sees("#problem").is_hidden(), "a server that is slow or failing is nothing that is broken here"
    await bob.tab.show()
    await bob.reads("#queue-note", said, 30)
    await expect(bob.page.get_by_label(fault), "it is so for all tabs").to_be_checked(timeout=15_000)
    await bob.page.get_by_label("works").check()
    await applied(site, HYDRANTS)
    await ann.reads("#queue-note", SENT, 30)
    await ann.reads("#doubled", "0")
    await each_once(site, ann, bob)


async def test_a_tab_with_its_own_engine_is_one_of_them(arrives: Arrives, site: Site) -> None:
    ann = await arrives()
    await ann.leads()
    bob = await arrives("&host=window")
    await bob.reads("#me", "inside this page")
    await ann.has_company(2)
    await bob.has_company(2)
    await bob.adds("Lift 3")
    await applied(site, {"Lift 3"})
    await ann.tab.close()
    await bob.leads(30)
    await each_once(site, bob)


async def test_a_choice_is_not_taken_back_by_an_older_answer(arrives: Arrives) -> None:
    ann = await arrives()
    await ann.tab.show()
    await ann.tab.evaluate("""() => {
      const usual = fetch;
      window.overviews = 0;
      const gate = (name) => new Promise((go) => (window[name] = go));
      globalThis.fetch = async (url, options) => {
        if (url === "/api/faults") await gate("sendOrder");
        const answer = await usual(url, options);
        if (url === "/api/overview" && ++overviews === 1) await gate("showOverview");
        return answer;
      };
    }""")
    await ann.tab.until("() => overviews === 1", what="the page to ask what the server does")
    failing = ann.page.get_by_label("failing")
    await failing.check()
    await ann.tab.evaluate("() => showOverview()")
    for count in (2, 3):  # it asks every few seconds
        await ann.tab.until("(count) => overviews >= count", arg=count, what="the page to ask again")
        assert await failing.is_checked()
    await ann.tab.evaluate("() => sendOrder()")
    await ann.tab.until("() => overviews >= 5", what="news of what is now in force")
    assert await failing.is_checked()
