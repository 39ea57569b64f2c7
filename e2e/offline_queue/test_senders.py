"""The app's own senders in real tabs: each operation once, whatever happens to the page in mid-send."""

from __future__ import annotations

from typing import Any

import pytest
from e2e.kit import Site, join, uncaught

from tabhelm.testing import ChaosBrowser

from .lane import acknowledged, attempt, drained, enqueue, flusher, judge, operations, stats
from .senders import asked, hold, sending, sends
from .test_handover import WAYS, joins, lose


@pytest.mark.parametrize("kind", ["send", "sendBatch"])
async def test_a_pages_own_sender_writes_each_operation_once(browser: ChaosBrowser, site: Site, kind: str) -> None:
    if kind == "sendBatch":  # one request of many operations, under the attempt's one token
        leads = await site.open(browser)
        await join(leads)
        await leads.evaluate("""() => {
          window.acks = [];
          window.sends = [];
          const sendBatch = async (operations, sending) => {
            const list = operations.map(({ id, partition, payload }) => ({ op_id: id, partition, payload }));
            const headers = { ...sending.headers(), "Content-Type": "application/json" };
            const body = JSON.stringify({ operations: list });
            const answer = await fetch("/api/operations", { method: "POST", body, headers });
            sends.push({ token: sending.token, count: operations.length });
            return (await answer.json()).results; // {op_id, status, detail?}
          };
          window.q = tab.queue("mutations", { sendBatch, batch: 10 });
        }""")
    else:
        leads = await sending(browser, site)
    wanted = operations("a", 30, partitions=3)
    await enqueue(leads, wanted)
    await drained(leads, done=30)
    effects = await judge(site, await acknowledged(leads))
    assert len(effects) == 30
    seen = await sends(leads)
    tokens = [(each["token"]["epoch"], each["token"]["stream"], each["token"]["seq"]) for each in seen]
    assert len(set(tokens)) == len(tokens), "each attempt has a token of its own"
    if kind == "sendBatch":
        assert sum(each["count"] for each in seen) == 30 and len(seen) < 30
    else:
        assert len(seen) == 30
        assert set(seen[0]["keys"]) == {"id", "partition", "payload", "attempts", "enqueuedAtMs"}
    assert await uncaught(leads) == []


@pytest.mark.parametrize("how", WAYS)
async def test_a_page_is_lost_in_mid_send(browser: ChaosBrowser, site: Site, how: str) -> None:
    host = await sending(browser, site, flush=False)
    leads = await sending(browser, site, join_options=joins(how))
    assert await flusher([leads, host]) is leads
    await hold(leads)
    rest = await sending(browser, site)
    await enqueue(host, operations("a", 6, partitions=2))
    before = (await asked(leads))["token"]["epoch"]
    await lose(leads, how)
    assert await flusher([rest]) is rest
    await drained(rest, done=6)
    seen = await sends(rest)
    assert len(seen) == 6 and {each["attempt"] for each in seen} == {1}, "what was lost in mid-send has not failed"
    assert all(each["token"]["epoch"] > before for each in seen)
    assert len(await judge(site, await acknowledged(host))) == 6
    if how in ("frozen", "hung"):
        if how == "frozen":
            await leads.thaw()
        # It comes back and goes on, as if nothing had been: its signal had told it, and nobody waits for what it says.
        await leads.evaluate("() => { behave = async () => ({ status: 'rejected', detail: 'too late' }); }")
        await hold(leads, False)
        late = await leads.until("() => sends[0].settled && sends[0]", what="the late sender to settle")
        assert late["aborted"].startswith("LeadershipLost"), late
        await enqueue(host, operations("b", 1))
        await drained(rest, done=7)
        assert (await stats(rest))["dead"] == 0


async def test_a_page_that_goes_into_the_cache_in_mid_send_comes_back_as_another(
    browser: ChaosBrowser, site: Site
) -> None:
    leads = await sending(browser, site)
    await hold(leads)
    await enqueue(leads, operations("a", 2))
    await asked(leads)
    assert await leads.bfcache_round_trip("/blank2"), await leads.not_restored_reasons()
    await leads.until("() => sends.length === 2", what="the restored page to be asked again")
    seen = await sends(leads)
    assert [each["id"] for each in seen] == [seen[0]["id"]] * 2 and seen[0]["aborted"] == "LeadershipLost: pagehide"
    assert seen[1]["token"]["epoch"] > seen[0]["token"]["epoch"] and seen[1]["attempt"] == 1
    await hold(leads, False)  # both go on; the first may not write any more
    await drained(leads, done=2)
    assert len(await judge(site, await acknowledged(leads))) == 2
    assert await uncaught(leads) == []


async def test_a_send_that_takes_too_long_is_aborted_and_tried_again(browser: ChaosBrowser, site: Site) -> None:
    leads = await sending(browser, site, sendTimeoutMs=700, baseDelayMs=100)
    await hold(leads)
    await enqueue(leads, operations("a", 1))
    await asked(leads)
    first = await leads.until("() => sends[0].aborted && sends[0]", what="the signal of the slow attempt to abort")
    assert first["aborted"].startswith("TimeoutError")
    await hold(leads, False)
    await drained(leads, done=1)
    assert (await sends(leads))[-1]["attempt"] >= 2
    assert len(await judge(site, await acknowledged(leads))) == 1


async def test_stepping_down_aborts_the_send_and_counts_no_attempt(browser: ChaosBrowser, site: Site) -> None:
    leads = await sending(browser, site)
    await hold(leads)
    await enqueue(leads, operations("a", 1))
    await asked(leads)
    await leads.evaluate("() => __orchestration.forceElection('offline-queue:mutations')")
    first = await leads.until("() => sends[0].aborted && sends[0]", what="the signal to abort")
    assert first["aborted"].startswith("LeadershipLost")
    await hold(leads, False)
    await drained(leads, done=1)
    assert [each["attempt"] for each in await sends(leads)] == [1, 1]
    assert len(await judge(site, await acknowledged(leads))) == 1


async def test_outcomes_decide_and_texts_of_errors_do_not(browser: ChaosBrowser, site: Site) -> None:
    leads = await sending(browser, site, maxAttempts=3, baseDelayMs=50)
    await leads.evaluate("""() => {
      behave = async ({ id, attempts }) => {
        if (id === "throws") throw new TypeError("status 400, give up");
        if (id === "odd") return "perhaps";
        if (id === "rejected") return { status: "rejected", detail: "no such case" };
        if (id === "later") return attempts < 2 ? { status: "retry", retryAfterMs: 100 } : "committed";
        if (id === "again") return "duplicate";
      };
    }""")
    names = ["throws", "odd", "rejected", "later", "again", "fine"]
    await enqueue(leads, [{"payload": name, "partition": name, "id": name} for name in names])
    await drained(leads, done=3)
    letters = {letter["id"]: letter for letter in (await attempt(leads, "deadLetters"))["value"]}
    assert set(letters) == {"throws", "odd", "rejected"}
    assert letters["rejected"]["reason"] == "no such case" and letters["rejected"]["payload"] == "rejected"
    assert "gave up after 3 attempts" in letters["throws"]["reason"]
    assert "TypeError: status 400, give up" in letters["throws"]["reason"]
    assert "perhaps" in letters["odd"]["reason"] and "committed" in letters["odd"]["reason"]
    counts: dict[str, int] = {}
    for each in await sends(leads):
        counts[each["id"]] = counts.get(each["id"], 0) + 1
    assert counts == {"throws": 3, "odd": 3, "rejected": 1, "later": 3, "again": 1, "fine": 1}


async def test_the_same_sender_in_the_page_that_runs_its_own_engine(browser: ChaosBrowser, site: Site) -> None:
    window: dict[str, Any] = {"host": "window"}
    leads = await sending(browser, site, join_options=window)
    await hold(leads)
    await enqueue(leads, operations("a", 4, partitions=2))
    await asked(leads)
    rest = await sending(browser, site)
    await leads.freeze()
    await drained(rest, done=4)
    await leads.thaw()
    await hold(leads, False)
    late = await leads.until("() => sends[0].settled && sends[0]", what="the late sender to settle")
    assert late["aborted"] == "LeadershipLost: freeze"
    assert len(await judge(site, await acknowledged(leads))) == 4


async def test_further_headers_are_asked_before_each_request(browser: ChaosBrowser, site: Site) -> None:
    # The page's own engine sends from the page, where its requests can be seen.
    tab = await site.open(browser)
    seen: list[dict[str, str]] = []
    tab.page.on("request", lambda request: request.method == "POST" and seen.append(dict(request.headers)))
    await join(tab, host="window")
    await tab.evaluate("""() => {
      window.acks = [];
      window.asked = 0;
      const headers = async () => {
        asked += 1;
        if (asked === 2) throw new Error("no token at the moment");
        return new Headers({ Authorization: `Bearer ${asked}` });
      };
      window.q = tab.queue("mutations", { endpoint: "/api/operations", headers });
    }""")
    await enqueue(tab, operations("a", 3))
    await drained(tab, done=3)
    given = [headers.get("authorization") for headers in seen if "fencing-token" in headers]
    assert given[0] == "Bearer 1" and None not in given and "Bearer 2" not in given
    assert len(set(given)) == len(given), "asked anew for each request"
    assert len(await judge(site, await acknowledged(tab))) == 3


async def test_a_page_without_extras_lets_another_send(browser: ChaosBrowser, site: Site) -> None:
    # Its queue's functions lie behind a file that it cannot have: it says so, instead of letting time run out.
    tab = await site.open(browser)
    await tab.page.route("**/extras.mjs*", lambda route: route.abort())
    await join(tab, testHooks=False)
    await tab.evaluate("""() => {
      window.acks = [];
      window.q = tab.queue("mutations", { send: async () => {}, payloads: "json" });
    }""")
    await enqueue(tab, operations("a", 2))
    led = "() => events.some(({ type, to }) => type === 'leadership-changed' && to === 'leading')"
    await tab.until(led, what="the page without its functions to lead, for a moment")
    other = await sending(browser, site, payloads="json")
    await drained(other, done=2, timeout=60)
    assert len(await sends(other)) == 2


async def test_a_queue_is_opened_once_more_with_the_same_functions_only(browser: ChaosBrowser, site: Site) -> None:
    tab = await sending(browser, site)
    told = await tab.evaluate("""() => {
      const told = [tab.queue("mutations") === q];
      for (const options of [{ send: q.options.send }, { send: () => {} }, { flush: false }]) {
        try {
          told.push(tab.queue("mutations", options) === q);
        } catch (error) {
          told.push(`${error.name}: ${error.message}`);
        }
      }
      return told;
    }""")
    assert told[:2] == [True, True]
    assert all(text.startswith("TypeError") and "other options" in text for text in told[2:]), told


async def test_options_that_cannot_be_are_refused_by_name(browser: ChaosBrowser, site: Site) -> None:
    tab = await site.open(browser)
    await join(tab)
    at_once = await tab.evaluate("""() => [
      { unheard: 1 }, { endpoint: 5 }, { send: "x" }, { sendBatch: null },
      { mode: "bulk" }, { batch: 0 }, { lanes: 1.5 }, { sendTimeoutMs: -1 }, { baseDelayMs: "1" },
      { rejected: "drop" }, { maxBytes: NaN }, { payloads: "text" }, { headers: { "not a name": "x" } }, { flush: 1 },
    ].map((options) => {
      try {
        tab.queue(`q${Math.random()}`.replace(".", ""), options);
        return [Object.keys(options)[0], "taken"];
      } catch (error) {
        return [Object.keys(options)[0], `${error.name}: ${error.message}`];
      }
    })""")
    assert [name for name, text in at_once if not text.startswith("TypeError")] == []
    assert [name for name, text in at_once if name not in text and name != "headers"] == []
    later = await tab.evaluate("""async () => {
      const told = [];
      for (const options of [{ lanes: 17 }, { baseDelayMs: 2, maxDelayMs: 1 }, { endpoint: "/x", payloads: "clone" },
                             { headers: { "Fencing-Token": "mine" } }, { send() {}, sendBatch() {} }]) {
        const queue = tab.queue(`later${told.length}`, options);
        told.push(await queue.enqueue(1).catch(({ code, message }) => `${code}: ${message}`));
      }
      return told;
    }""")
    for text, key in zip(later, ("lanes 17", "maxDelayMs", "payloads", "fencing-token", "not both"), strict=True):
        assert text.startswith("invalid-options: ") and key in text, text
    assert await tab.evaluate("() => events.filter(({ type }) => type === 'queue-failed').length") == 5
