"""Cases of an election that no other test has in real tabs; docs/testing.md has the whole table."""

from __future__ import annotations

from typing import Any

import pytest
from e2e.kit import RECEIVER, Site, join, leader, leaders, now, uncaught, until, write

from tabhelm.testing import ChaosBrowser, ChaosTab

_QUEUED = """async (name) => {
  const { held, pending } = await navigator.locks.query();
  const count = (locks) => locks.filter((lock) => lock.name === name).length;
  return { held: count(held), pending: count(pending) };
}"""
LOCK = "e2e:v1:leader:job"


async def stands_by(tab: ChaosTab) -> None:
    async def queued() -> bool:
        at = await now(tab)
        return at is not None and at["status"]["state"] == "waiting" and bool(at["status"]["standby"])

    await until(queued, f"{tab!r} to stand by")


async def locked(tab: ChaosTab, name: str, **wanted: int) -> None:
    """Wait until so many requests for the lock are held and pending."""

    async def so() -> bool:
        return bool(await tab.evaluate(_QUEUED, name) == wanted)

    await until(so, f"{name} to be {wanted}")


async def test_a_leader_that_must_be_visible_yields_when_it_is_hidden(browser: ChaosBrowser, site: Site) -> None:
    first, second = await site.standing(browser, 2, visible="require")
    await first.show()
    old = await leader([first])
    assert await write(first, "first") == 200
    await second.show()
    new = await leader([second], above=old.epoch)
    run = (await now(first) or {})["runs"][0]
    assert run["reason"] == "hidden" and run["abortedAt"] <= new.at, "its loop had ended before the next began"
    at = await now(first)
    assert at is not None and at["status"] == {"state": "idle", "reason": "hidden"}
    await locked(second, LOCK, held=1, pending=0)
    assert await write(second, "second") == 200
    assert [each["epoch"] for each in await site.effects()] == [old.epoch, new.epoch]


async def test_stopping_withdraws_what_was_asked_for(browser: ChaosBrowser, site: Site) -> None:
    first = await site.joined(browser)
    await site.stand(first)
    old = await leader([first])
    second = await site.joined(browser)
    for how in ("stands.job.election.stop('enough')", "tab.leave('enough')"):
        await site.stand(second)
        await stands_by(second)
        await locked(first, LOCK, held=1, pending=1)
        await second.evaluate(f"async () => {{ {how}; await stands.job.election.stopped; }}")
        await locked(first, LOCK, held=1, pending=0)
    assert await leaders([first]) == [old]


async def test_a_loop_that_throws_frees_the_lock_at_once(browser: ChaosBrowser, site: Site) -> None:
    first = await site.joined(browser)
    await first.evaluate("""() => {
      window.statuses = [];
      window.election = tab.lead("job", (ctx) => new Promise((_, fail) => { window.fail = fail; }));
      election.addEventListener("status", ({ detail }) => statuses.push(detail));
    }""")
    await first.until("() => window.fail && election.status.state === 'leading'", what="the first tab to lead")
    (second,) = await site.standing(browser, 1)
    await stands_by(second)
    await first.evaluate("() => { window.failedAt = clock(); fail(new RangeError('broken')); }")
    new = await leader([second])
    took = new.at - float(await first.evaluate("() => failedAt"))
    assert took < 10_000, f"the next led after {took:.0f} ms"
    failures = "() => events.find(({ type, error }) => type === 'loop-failed' && /broken/.test(error))"
    await first.until(failures, what="the loop's own error to be told")
    assert any("broken" in line for line in first.log if line.startswith("error: ")), "in the page's console, too"
    assert await write(second, "next") == 200
    assert await uncaught(first) == []


async def test_an_answer_that_comes_after_stepping_down_is_not_applied(browser: ChaosBrowser, site: Site) -> None:
    """The loop applies what it fetched only while it may: the answer that was slow finds an aborted signal."""
    first, second = await site.standing(browser, 2)
    old = await leader([first, second])
    (rest,) = [tab for tab in (first, second) if tab is not old.tab]
    await stands_by(rest)
    await site.hold_one()
    await old.tab.evaluate(
        """([url]) => {
          const { ctx } = stands.job.runs.at(-1);
          window.applied = null;
          const operation = { op_id: "slow", partition: "p", payload: { kind: "note", name: "slow" } };
          const body = JSON.stringify({ operations: [operation] });
          const headers = { ...ctx.headers(), "Content-Type": "application/json" };
          // Careless: the request is not given the signal. What guards the page is asking before applying.
          window.answer = fetch(url, { method: "POST", headers, body }).then((response) => {
            try { ctx.nextToken(); window.applied = response.status; } catch (error) { window.applied = error.name; }
          });
        }""",
        [RECEIVER],
    )
    await site.held()
    await old.tab.evaluate("() => stands.job.election.stepDown('your turn')")
    new = await leader([rest], above=old.epoch)
    await site.release()
    assert await old.tab.until("() => window.applied", what="the slow answer") == "LeadershipLost"
    assert await write(rest, "next") == 200
    assert [(each["op_id"], each["epoch"]) for each in await site.effects()] == [("next", new.epoch)]


@pytest.mark.parametrize("host", ["shared", pytest.param("window", marks=pytest.mark.thorough)])
async def test_the_leader_is_reloaded_in_mid_request(browser: ChaosBrowser, site: Site, host: str) -> None:
    first = await site.joined(browser, host=host)
    await site.stand(first)
    old = await leader([first])
    second = await site.joined(browser, host=host)
    await site.stand(second)
    await stands_by(second)
    await site.hold_one()
    await first.evaluate(_UNANSWERED, [RECEIVER])
    await site.held()
    await first.reload()
    new = await leader([second], above=old.epoch)
    assert await write(second, "next") == 200
    await site.release()

    async def judged() -> bool:
        late = [each for each in await site.requests() if each["epoch"] == old.epoch and each["operations"]]
        return [each["outcome"] for each in late] == [409]

    await until(judged, "the request of the document that is gone to be judged")
    assert [(each["op_id"], each["epoch"]) for each in await site.effects()] == [("next", new.epoch)]
    facts = await join(first, host=host)
    assert facts["generation"] == 2
    await site.stand(first)
    await stands_by(first)
    assert await leaders([first, second]) == [new]


_UNANSWERED = """([url]) => {
  const { ctx } = stands.job.runs.at(-1);
  const operation = { op_id: "mid", partition: "p", payload: { kind: "note", name: "mid" } };
  const body = JSON.stringify({ operations: [operation] });
  const headers = { ...ctx.headers(), "Content-Type": "application/json" };
  // keepalive: the browser sends it though the document goes away.
  void fetch(url, { method: "POST", headers, body, keepalive: true }).catch(() => {});
}"""


async def test_hiding_showing_and_closing_are_no_errors(browser: ChaosBrowser, site: Site) -> None:
    tabs = await site.standing(browser, 3, visible="require")
    epochs = [0]
    for number in range(9):
        tab = tabs[number % 3]
        await tab.show()
        found = await leader([tab], above=epochs[-1])
        epochs.append(found.epoch)
    closed = tabs.pop()
    await closed.close()
    await tabs[0].show()
    found = await leader([tabs[0]], above=epochs[-1])
    for tab in tabs:
        failures: list[dict[str, Any]] = await tab.evaluate(
            "() => events.filter(({ type }) => /fail|error|overran/.test(type))"
        )
        assert failures == [] and await uncaught(tab) == [] and list(tab.log) == []
        assert await tab.evaluate("() => events.some(({ type }) => type === 'leadership-changed')"), "they are events"
