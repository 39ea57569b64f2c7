"""Networks that go and receivers that misbehave: everything arrives once they behave, and only once."""

from __future__ import annotations

from typing import Any

import pytest
from e2e.kit import Site, join, until

from tabhelm.testing import ChaosBrowser, ChaosTab

from .lane import (
    RECEIVER,
    acknowledged,
    attempt,
    barrier_answered,
    drained,
    enqueue,
    flusher,
    judge,
    open_queue,
    operations,
    queueing,
    stats,
)


async def troubled(tab: ChaosTab) -> dict[str, Any]:
    """Wait until the page is told of an error, and return the figures that say so."""
    found: dict[str, Any] = await tab.until(
        "() => (lastStats?.lastError || lastStats?.paused) && lastStats", what="the queue to tell of its trouble"
    )
    return found


async def test_the_network_goes_away_and_comes_back(browser: ChaosBrowser, site: Site) -> None:
    tab = await queueing(browser, site)
    await flusher([tab])
    await tab.offline(True)
    await tab.until("() => !tab.presence().leaders['offline-queue:mutations']", what="the offline tab to lead no more")
    before = len(await site.requests())
    await enqueue(tab, operations("offline", 30, partitions=2))
    assert (await stats(tab))["queued"] == 30
    await tab.offline(False)
    await drained(tab, done=30)
    assert len(await site.requests()) > before
    assert len(await judge(site, await acknowledged(tab))) == 30


async def test_the_network_comes_back_without_a_word(browser: ChaosBrowser, site: Site) -> None:
    """A browser may keep ``online`` and ``offline`` to itself, as Firefox does from a page that it opened cut off."""
    tab = await site.open(browser)
    swallow = "addEventListener(type, (event) => event.stopImmediatePropagation())"
    await tab.evaluate(f'() => {{ for (const type of ["online", "offline"]) {swallow}; }}')
    await join(tab)
    await open_queue(tab)
    await tab.offline(True)
    await tab.until("() => tab.presence().self.online === false", what="the page to find out that it is cut off")
    await enqueue(tab, operations("dark", 3))
    assert (await stats(tab))["queued"] == 3
    await tab.offline(False)
    await drained(tab, done=3)
    assert len(await judge(site, await acknowledged(tab))) == 3


async def test_the_engine_alone_has_no_network(browser: ChaosBrowser, site: Site) -> None:
    # The leading tab, in another process, believes that it is online: only the requests tell otherwise.
    await queueing(browser, site, flush=False)
    tab = await queueing(browser, site)
    await flusher([tab])
    (engine,) = await browser.shared_workers(url_contains="engine.mjs")
    await engine.offline(True)
    await enqueue(tab, operations("cut-off", 10))
    await troubled(tab)
    assert await tab.evaluate("() => navigator.onLine") and await site.effects() == []
    await engine.offline(False)
    await drained(tab, done=10)
    assert len(await judge(site, await acknowledged(tab))) == 10


@pytest.mark.parametrize(
    ("name", "faults"),
    [
        ("500", {"status": 500}),
        ("429", {"status": 429, "retry_after_s": 1}),
        ("html", {"status": 200, "body": "<!doctype html><title>Sign in</title>"}),
        ("other-ids", {"status": 200, "body": {"results": [{"op_id": "x", "status": "committed"}] * 5}}),
        ("redirect", {"location": "/blank"}),
        ("garbled-409", {"status": 409, "body": "conflict"}),
        ("no-answer", {"drop_answers": True}),
        ("half-an-answer", {"cut_answers": True}),
    ],
)
async def test_wrong_answers_are_no_success(browser: ChaosBrowser, site: Site, name: str, faults: Any) -> None:
    tab = await queueing(browser, site)
    await flusher([tab])
    await barrier_answered(site)
    await site.faults(**faults)
    await enqueue(tab, operations(name, 5))
    await troubled(tab)
    assert (await stats(tab))["done"] == 0
    await site.faults()
    await drained(tab, done=5)
    assert len(await judge(site, await acknowledged(tab))) == 5


@pytest.mark.parametrize(
    ("endpoint", "said"),
    [
        ("/nowhere", "HTTP 404"),
        ("http://127.0.0.1:9/operations", "http://127.0.0.1:9 is not this origin: it must allow"),
        (RECEIVER, "/blank): use that address"),
    ],
    ids=["not-there", "another-origin", "redirect"],
)
async def test_a_wrong_endpoint_is_told_with_its_address(
    browser: ChaosBrowser, site: Site, endpoint: str, said: str
) -> None:
    await site.faults(location="/blank")
    tab = await queueing(browser, site, endpoint=endpoint, baseDelayMs=50)
    told = "() => events.find(({ type }) => type === 'queue-trouble')?.detail"
    detail = await tab.until(told, what="the event of the trouble")
    assert endpoint in detail and said in detail
    await enqueue(tab, operations("kept", 1))
    assert (await stats(tab))["lastError"] == detail


async def test_an_answer_that_never_comes(browser: ChaosBrowser, site: Site) -> None:
    tab = await queueing(browser, site, sendTimeoutMs=500)
    await flusher([tab])
    await barrier_answered(site)
    await site.faults(stall=True, count=1)
    await enqueue(tab, operations("stalled", 5))
    await troubled(tab)
    await drained(tab, done=5)
    assert len(await judge(site, await acknowledged(tab))) == 5


@pytest.mark.parametrize("status", [429, 503])
async def test_the_pause_that_the_receiver_asks_for_is_kept(browser: ChaosBrowser, site: Site, status: int) -> None:
    tab = await queueing(browser, site)
    await flusher([tab])
    await barrier_answered(site)
    await site.faults(status=status, retry_after_s=3, count=1)
    await enqueue(tab, operations("patient", 2))
    await enqueue(tab, operations("impatient", 2))  # news is no reason to ask earlier
    await drained(tab, done=4)
    requests = await site.requests()
    refused = next(n for n, request in enumerate(requests) if request["outcome"] == status)
    assert requests[refused + 1]["at_ms"] - requests[refused]["at_ms"] >= 2_900
    assert len(await judge(site, await acknowledged(tab))) == 4


@pytest.mark.parametrize(
    ("above", "stranger", "verdict"),
    [(5, True, "stale"), (0, True, "stale"), (0, False, "overtaken")],
    ids=["higher-epoch", "own-epoch-of-another-owner", "own-epoch-and-owner"],
)
async def test_a_409_is_answered_with_a_newer_token(
    browser: ChaosBrowser, site: Site, above: int, stranger: bool, verdict: str
) -> None:
    # The lock is still this tab's: a stale epoch is outbid (marks of a browser whose storage was wiped are like that);
    # one that is its own was overtaken, and only a later number is needed.
    tab = await queueing(browser, site)
    await enqueue(tab, operations("first", 1))
    await drained(tab, done=1)
    first = (await site.effects())[-1]
    owner = "stranger" if stranger else first["owner"]
    high_water = {"epoch": first["epoch"] + above, "seq": first["seq"] + 1, "owner": owner}
    await site.faults(
        status=409, body={"type": "urn:tabhelm:stale-token", "status": 409, "high_water": high_water}, count=1
    )
    await enqueue(tab, operations("second", 1))
    await drained(tab, done=2)
    epochs = [effect["epoch"] for effect in await judge(site, await acknowledged(tab))]
    assert epochs == [first["epoch"], first["epoch"] + above + stranger]
    told = "(verdict) => events.some((each) => each.type === 'write-refused' && each.verdict === verdict)"
    await tab.until(told, what="the event of the refusal", arg=verdict)


async def test_an_operation_that_the_receiver_cannot_take_stops_nobody(browser: ChaosBrowser, site: Site) -> None:
    tab = await queueing(browser, site)
    await flusher([tab])
    await tab.evaluate("""async () => {
      const huge = { payload: "x".repeat(5_000_000), partition: "p", id: "huge" }; // the receiver reads 4 MiB
      const others = (count, name) => Array.from({ length: count }, (_, n) => ({ payload: n, partition: "p",
        id: `${name}-${n}` }));
      await q.enqueueAll([...others(10, "before"), huge, ...others(10, "after")]);
    }""")
    await drained(tab, done=20)
    letters = (await attempt(tab, "deadLetters"))["value"]
    assert [letter["id"] for letter in letters] == ["huge"] and "413" in letters[0]["reason"]
    sent = [effect["op_id"] for effect in await site.effects()]
    assert sent == [f"{name}-{n}" for name in ("before", "after") for n in range(10)]


@pytest.mark.parametrize("before", [0, 3], ids=["at the head", "in the midst"])
async def test_an_operation_that_is_always_answered_500_dies_and_what_is_behind_it_is_sent(
    browser: ChaosBrowser, site: Site, before: int
) -> None:
    # All in one partition: nothing else could show meanwhile that the receiver is well.
    tab = await queueing(browser, site, maxAttempts=3, baseDelayMs=100, maxDelayMs=500)
    await flusher([tab])
    await site.faults(status=500, containing="poison")
    named = [*(f"before-{n}" for n in range(before)), "poison", *(f"behind-{n}" for n in range(5))]
    await enqueue(tab, [{"payload": {"kind": "note", "name": name}, "partition": "p", "id": name} for name in named])
    await drained(tab, done=before + 5, timeout=60)
    (letter,) = (await attempt(tab, "deadLetters"))["value"]
    assert letter["id"] == "poison" and letter["attempts"] == 2
    assert "gave up after 3 attempts" in letter["reason"] and "500" in letter["reason"]
    sent = [effect["op_id"] for effect in await site.effects()]
    assert sent == [name for name in named if name != "poison"]
    alone = [each for each in await site.requests() if each["outcome"] == 500 and each["operations"] == 1]
    assert len(alone) >= 3, "it was tried as often by itself"


async def test_signed_out_pauses_until_resumed(browser: ChaosBrowser, site: Site) -> None:
    tab = await queueing(browser, site)
    await flusher([tab])
    await site.faults(status=401)
    await enqueue(tab, operations("paused", 3))
    assert (await troubled(tab))["paused"] == "HTTP 401"
    await tab.until("() => events.some(({ type }) => type === 'queue-paused')", what="the event of the pause")
    await site.faults()
    before = len(await site.requests())
    await enqueue(tab, operations("more", 1))
    assert (await stats(tab))["queued"] == 4 and len(await site.requests()) == before
    follower = await queueing(browser, site, flush=False)
    await follower.evaluate("() => q.resume()")  # any tab may say so
    await drained(tab, done=4)
    assert len(await judge(site, await acknowledged(tab))) == 4


async def test_rejected_operations_are_dead_letters_and_stop_nobody(browser: ChaosBrowser, site: Site) -> None:
    tab = await queueing(browser, site)
    poison = {"payload": {"kind": "reject", "reason": "no such case"}, "partition": "p", "id": "poison"}
    await enqueue(tab, [*operations("p", 2), poison, *operations("p", 3)])
    await drained(tab, done=5)
    letters = (await attempt(tab, "deadLetters"))["value"]
    assert [(letter["id"], letter["reason"]) for letter in letters] == [("poison", "no such case")]
    assert letters[0]["payload"] == poison["payload"] and letters[0]["partition"] == "p"
    await tab.until("() => events.some(({ type }) => type === 'operation-died')", what="the event of the dead letter")
    await attempt(tab, "retryDead", ["poison"])
    await until(lambda: _dead(tab), "the poison to be refused again")
    await attempt(tab, "removeDead", ["poison"])
    assert (await attempt(tab, "deadLetters"))["value"] == []


async def _dead(tab: ChaosTab) -> bool:
    at = await stats(tab)
    return (at["dead"], at["queued"], at["inFlight"]) == (1, 0, 0)


async def test_an_operation_that_must_wait_holds_back_only_its_partition(browser: ChaosBrowser, site: Site) -> None:
    tab = await queueing(browser, site)
    slow = {"payload": {"kind": "retry", "reason": "busy"}, "partition": "slow", "id": "slow"}
    behind = {"payload": {"kind": "note"}, "partition": "slow", "id": "behind"}
    await enqueue(tab, [slow, behind, *operations("quick", 20, partitions=4)])

    async def tried_again() -> bool:
        return len([each for each in await site.requests() if each["operations"] in (1, 2)]) >= 2

    await until(tried_again, "the slow one to be tried again")
    sent = [effect["partition"] for effect in await site.effects()]
    assert len(sent) == 20 and "slow" not in sent
    at = await stats(tab)
    assert at["queued"] + at["inFlight"] == 2


async def test_a_server_that_is_killed_and_comes_back(browser: ChaosBrowser, site: Site) -> None:
    tab = await queueing(browser, site, batch=1)  # so that there is something left when the server is killed
    await site.faults(delay_ms=250)
    await enqueue(tab, operations("s", 60, partitions=3))

    async def some() -> bool:
        return len(await site.effects()) >= 10

    await until(some, "some to be applied")
    site.server.kill()
    await troubled(tab)
    site.server.start()
    await drained(tab, done=60)
    assert len(await judge(site, await acknowledged(tab))) == 60
