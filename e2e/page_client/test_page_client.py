"""What the page client promises by itself: identity, leading, doubt, lifecycle, engines that die or hang, bad input."""

from __future__ import annotations

import itertools
import json
from typing import Any

import pytest

from tabhelm.testing import ChaosBrowser, ChaosTab

from .conftest import JOIN

LEAD = """(resource) => {
  window.runs = 0; window.over = []; window.tokens = [];
  window.election = tab.lead(resource, async (ctx) => {
    runs++; window.ctx = ctx;
    try {
      while (true) { tokens.push(ctx.headers("op-1")); await ctx.sleep(10); }
    } catch (error) {
      over.push(error.reason);
      if (window.linger) await new Promise((resolve) => (window.settle = resolve));
      throw error;
    }
  });
}"""
TELL = """(name) => new Promise((told) => {
  navigator.locks.request(name, () => (told(), new Promise((relent) => (window.relent = relent))));
})"""
CAUGHT = "async (code) => { try { await %s; return null; } catch (e) { return [e.name, e.code ?? '', e.message]; } }"


async def join(browser: ChaosBrowser, origin: str, **options: Any) -> ChaosTab:
    tab = await browser.new_tab(f"{origin}/blank")
    await tab.evaluate(JOIN, options)
    return tab


async def caught(tab: ChaosTab, code: str) -> Any:
    return await tab.evaluate(CAUGHT % code)


async def nothing_uncaught(*tabs: ChaosTab) -> None:
    for tab in tabs:
        assert await tab.evaluate("uncaught") == []


async def test_one_tab_leads_and_its_headers_are_structured_fields(browser: ChaosBrowser, origin: str) -> None:
    a = await join(browser, origin)
    b = await join(browser, origin)
    assert await a.evaluate("tab.engine.id") == await b.evaluate("tab.engine.id")
    await a.evaluate(LEAD, "r")
    await a.until("() => tokens.length > 1")
    await b.evaluate(LEAD, "r")
    await b.until("() => election.status.state === 'waiting'")
    owner = await a.evaluate("tab.connectionId")
    head = '"t:r";domain="d";epoch=1001;stream="pa\\"ge"'  # the engine's stream name holds a quote, to be escaped
    assert await a.evaluate("tokens.slice(0, 2)") == [
        {"Fencing-Token": f'{head};seq={seq};owner="{owner}"', "Idempotency-Key": '"op-1"'} for seq in (1, 2)
    ]
    await a.evaluate("ctx.check()")
    await a.evaluate("() => election.stepDown('tired')")
    await b.until("() => runs === 1")
    assert await a.evaluate("over") == ["tired"]
    assert (await caught(a, "ctx.nextToken()"))[:2] == ["LeadershipLost", "leadership-lost"]
    await a.evaluate("tab.leave('logout')")
    assert await a.evaluate("election.stopped") == {"state": "stopped", "reason": "logout"}
    assert (await caught(a, "tab.queue('q')"))[1] == "not-joined"
    await nothing_uncaught(a, b)


async def test_a_loop_never_runs_twice_at_once(browser: ChaosBrowser, origin: str) -> None:
    a = await join(browser, origin)
    await a.evaluate(LEAD, "r")
    await a.until("() => runs === 1")
    await a.evaluate("() => { window.linger = true; window.tenure = ctx.epoch; election.stepDown('again'); }")
    await a.until("() => typeof window.settle === 'function'")
    b = await join(browser, origin)
    await b.evaluate(LEAD, "r")
    await b.until("() => runs === 1", what="the grant that the lingering tab does not accept going on")
    assert await a.evaluate("runs") == 1
    await b.evaluate("() => election.stop()")
    await a.evaluate("() => { window.linger = false; settle(); }")
    await a.until("() => runs === 2 && ctx.epoch > tenure")
    await nothing_uncaught(a, b)


async def test_a_loop_that_outlives_its_election_keeps_the_next_one_waiting(browser: ChaosBrowser, origin: str) -> None:
    a = await join(browser, origin)
    await a.evaluate(LEAD, "r")
    await a.until("() => runs === 1")
    await a.evaluate("() => { window.linger = true; election.stop(); }")
    await a.until("() => typeof window.settle === 'function' && election.status.state === 'stopped'")
    await a.evaluate(LEAD, "r")
    await a.evaluate("() => election.stop()")  # the second has nothing to wait for; the third still has
    await a.evaluate(LEAD, "r")
    await a.until("() => election.status.reason === 'loop-still-running'")
    b = await join(browser, origin)
    await b.evaluate(LEAD, "r")
    await b.until("() => runs === 1")
    await b.evaluate("() => election.stop()")
    assert await a.evaluate("[runs, election.status.state]") == [0, "idle"]
    await a.evaluate("() => { window.linger = false; settle(); }")
    await a.until("() => runs === 1")
    await nothing_uncaught(a, b)


async def test_one_candidacy_a_resource_and_a_new_one_after_stop(browser: ChaosBrowser, origin: str) -> None:
    a = await join(browser, origin)
    await a.evaluate(LEAD, "r")
    assert (await caught(a, "tab.lead('r', () => {})"))[1] == "already-standing"
    await a.evaluate("() => election.stop()")
    await a.evaluate(LEAD, "r")
    await a.until("() => runs === 1")


async def test_a_frozen_tab_finds_its_signal_aborted(browser: ChaosBrowser, origin: str) -> None:
    a = await join(browser, origin)
    await a.evaluate(LEAD, "r")
    await a.until("() => runs === 1")
    await a.evaluate("() => document.addEventListener('freeze', () => (window.inFreeze = ctx.signal.aborted))")
    b = await join(browser, origin)
    await b.evaluate(LEAD, "r")
    await a.freeze()
    await b.until("() => runs === 1")
    await a.thaw()
    assert await a.evaluate("inFreeze") is True
    await a.until("() => over.length === 1")
    assert await a.evaluate("[over, runs]") == [["freeze"], 1]
    await b.evaluate("() => election.stop()")
    await a.until("() => runs === 2")
    await nothing_uncaught(a, b)


async def test_a_page_that_hung_doubts_before_it_hears_anything(browser: ChaosBrowser, origin: str) -> None:
    a = await join(browser, origin, stallAfterMs=4_000)
    await a.evaluate(LEAD, "r")
    await a.until("() => runs >= 1")
    seen = await a.evaluate(
        """() => {
          const end = performance.now() + 8_000;
          while (performance.now() < end) {}
          try { return ctx.nextToken(); } catch (error) { return [error.name, error.reason, ctx.signal.aborted]; }
        }"""
    )
    assert seen == ["LeadershipLost", "doubt", True]
    await a.until("() => runs >= 2")


async def test_back_from_the_cache_it_joins_again(browser: ChaosBrowser, origin: str) -> None:
    a = await join(browser, origin)
    await a.evaluate(LEAD, "r")
    await a.until("() => runs === 1")
    before = await a.evaluate("[tab.id, tab.generation, tab.connectionId]")
    watcher = await join(browser, origin)
    await a.show()
    await a.navigate("/other")
    held = "async () => (await navigator.locks.query()).held.map(({ name }) => name).filter((n) => n.includes(':tab:'))"
    await watcher.until(f"async () => (await ({held})()).length === 1", what="the cached page's lock to be gone")
    assert await a.back(), await a.not_restored_reasons()
    await a.until("() => tab.engine && runs === 2")
    after = await a.evaluate("[tab.id, tab.generation, tab.connectionId]")
    assert after[:2] == [before[0], before[1] + 1]
    assert after[2] != before[2]
    assert await a.evaluate("over") == ["pagehide"]
    await nothing_uncaught(a, watcher)


async def test_a_reload_keeps_the_id_and_a_copied_id_is_given_up(browser: ChaosBrowser, origin: str) -> None:
    a = await join(browser, origin)
    identity, generation = await a.evaluate("[tab.id, tab.generation]")
    await a.reload()
    await a.evaluate(JOIN, {})
    assert await a.evaluate("[tab.id, tab.generation]") == [identity, generation + 1]
    stored = await a.evaluate("Object.entries(sessionStorage)")
    b = await browser.new_tab(f"{origin}/blank")
    await b.evaluate("(items) => items.forEach(([key, value]) => sessionStorage.setItem(key, value))", stored)
    await b.evaluate(JOIN, {})
    other, first = await b.evaluate("[tab.id, tab.generation]")
    assert other != identity
    assert first == 1


async def test_an_engine_dies_and_a_pending_enqueue_settles_once(browser: ChaosBrowser, origin: str) -> None:
    a = await join(browser, origin)
    b = await join(browser, origin)
    await a.evaluate(LEAD, "r")
    await a.until("() => runs === 1")
    engine = await a.evaluate("tab.engine.id")
    await a.evaluate(
        """() => {
          window.settled = [];
          tab.queue("q", { endpoint: "/api" }).enqueue("late", { id: "op-7" }).then((id) => settled.push(id));
        }"""
    )
    await b.evaluate("() => command(1, 'die')")
    for tab in (a, b):
        await tab.until("(old) => tab.engine && tab.engine.id !== old", arg=engine)
    await a.until("() => settled.length && runs === 2")
    assert await a.evaluate("[settled, over, tab.generation]") == [["op-7"], ["died"], 2]
    await a.until("(id) => tab.engine?.id === id", arg=await b.evaluate("tab.engine.id"))
    await nothing_uncaught(a, b)


async def test_an_engine_that_says_nothing_or_fails_is_left_for_the_next(browser: ChaosBrowser, origin: str) -> None:
    a = await join(browser, origin, stallAfterMs=4_000, enginePatienceMs=6_000)
    silent = await a.evaluate("""() => {
      window.told = [];
      const { id } = tab.engine; // whose own first event may still be on its way
      tab.addEventListener("event", ({ detail }) => tab.engine?.id !== id && told.push(detail.silentEngine));
      command(1, "mute");
      return id;
    }""")
    await a.until("() => tab.engine?.incarnation === 2 && told.length")
    assert await a.evaluate("told") == [silent], "the next engine is told which one fell silent with its locks"
    b = await join(browser, origin, enginePatienceMs=6_000)
    assert await b.evaluate("tab.engine.incarnation") == 2
    await a.evaluate("() => command(2, 'fail')")
    for tab in (a, b):
        await tab.until("() => tab.engine?.incarnation === 3")
    await a.until("() => told.length === 2")
    assert await a.evaluate("told[1]") is None, "an engine that failed has let go of everything"
    await nothing_uncaught(a, b)


async def test_a_join_that_cannot_succeed_says_why(browser: ChaosBrowser, origin: str) -> None:
    a = await join(browser, origin)
    name, code, text = await caught(a, "m.join({ app: 'u', host: 'shared', engineUrl: '/nothing.mjs' })")
    assert (name, code) == ("TabhelmError", "no-engine")
    assert "/nothing.mjs" in text
    assert "tabhelm:u:v1:test#4" in text
    name, code, text = await caught(a, "m.join({ app: 'v', engineUrl: '/nothing/engine.mjs' })")
    assert (name, code) == ("TabhelmError", "no-engine")
    assert "tabhelm:v:v1:test#2" in text and "/nothing/window.mjs" in text, "two engines mute, then one in the page"
    await a.evaluate(TELL, "fake:refuse:wheel")
    refused = await caught(a, "m.join({ app: 'v' })")
    assert refused[1:] == ["refused", 'the engine "tabhelm:v:v1:test" refused this page: not this page']
    await a.evaluate("() => command(1, 'mute')")
    late = "m.join({ app: 't', enginePatienceMs: 60000, signal: AbortSignal.timeout(50) })"
    assert (await caught(a, late))[0] == "TimeoutError"
    await nothing_uncaught(a)


async def test_a_refusal_that_can_pass_is_tried_again(browser: ChaosBrowser, origin: str) -> None:
    a = await join(browser, origin)
    await a.evaluate(LEAD, "r")
    await a.until("() => runs === 1")
    await a.evaluate(TELL, "fake:refuse:wheel")
    await a.evaluate("() => { window.late = tab.queue('q').enqueue('never', { id: 'op-1' }).catch((e) => e.code); }")
    await a.evaluate("() => command(1, 'die')")
    await a.until("() => tab.hostState.state === 'lost'")
    assert await a.evaluate("late") == "engine-lost"
    await a.evaluate("() => { window.later = tab.queue('q').enqueue(1, { id: 'op-2' }); relent(); }")
    assert await a.evaluate("later") == "op-2"
    await a.until("() => tab.hostState.state === 'connected' && runs === 2")
    await nothing_uncaught(a)


async def test_a_final_refusal_is_told_to_every_call(browser: ChaosBrowser, origin: str) -> None:
    a = await join(browser, origin)
    await a.evaluate(TELL, "fake:refuse:wrong-wire")
    await a.evaluate("() => { window.late = tab.queue('q').enqueue('never').catch((e) => e.code); }")
    await a.evaluate("() => command(1, 'die')")
    assert await a.evaluate("late") == "refused"
    await a.evaluate("() => relent()")
    for call in ("tab.queue('q').enqueue(1)", "tab.queue('q').stats()"):
        assert (await caught(a, call))[:2] == ["TabhelmError", "refused"]
    assert await a.evaluate("tab.hostState.state") == "lost"
    await nothing_uncaught(a)


async def test_engines_that_fail_once_joined_are_replaced_ever_more_slowly(browser: ChaosBrowser, origin: str) -> None:
    a = await join(browser, origin)
    await a.evaluate(
        """() => {
          window.seen = [];
          tab.addEventListener("host", ({ detail: { state, engine } }) => {
            if (state === "connected") seen.push([engine.incarnation, performance.now()]);
          });
        }"""
    )
    await a.evaluate(TELL, "fake:crash")
    await a.evaluate("() => command(1, 'fail')")
    await a.until("() => seen.length === 4", timeout=60)
    seen = await a.evaluate("seen")
    assert [incarnation for incarnation, _ in seen] == [2, 3, 4, 1]
    waits = [after - before for (_, before), (_, after) in itertools.pairwise(seen)]
    assert all(wait >= least for wait, least in zip(waits, (990, 1990, 3990), strict=True)), waits
    await a.evaluate("() => relent()")
    await nothing_uncaught(a)


async def test_a_call_that_a_living_engine_never_answers_is_given_up(browser: ChaosBrowser, origin: str) -> None:
    a = await browser.new_tab(f"{origin}/blank")
    # The client counts the time without an answer in ticks of its own: they are driven by hand here.
    await a.evaluate("() => { window.setInterval = (tick, ms) => ((window.tick = tick), (window.tickMs = ms), 0); }")
    await a.evaluate(JOIN, {"stallAfterMs": 10_000_000})
    outcome = """async () => {
      let outcome = "waiting";
      tab.queue("q").enqueue("never").catch((error) => (outcome = `${error.code}: ${error.message}`));
      for (let ms = 0; ms < 60_000; ms += tickMs) tick();
      await Promise.resolve();
      const before = outcome;
      tick();
      await new Promise((resolve) => setTimeout(resolve));
      return [before, outcome];
    }"""
    before, after = await a.evaluate(outcome)
    assert before == "waiting"
    assert after.startswith('no-answer: the engine lives but has not answered "enqueue" for 60000 ms')
    assert await a.evaluate("tab.queue('q').enqueue(1, { id: 'op-1' })") == "op-1"
    await nothing_uncaught(a)


async def test_nonsense_from_the_engine_is_counted_and_ignored(browser: ChaosBrowser, origin: str) -> None:
    a = await join(browser, origin)
    await a.evaluate(LEAD, "r")
    await a.until("() => runs === 1")
    await a.evaluate("() => command(1, 'garbage')")
    await a.until("async () => (await __orchestration.metrics()).page.malformed === 6")
    assert await a.evaluate("[ctx.signal.aborted, runs]") == [False, 1]
    await nothing_uncaught(a)


async def test_a_grant_for_a_loop_in_the_engine_is_acknowledged_too(browser: ChaosBrowser, origin: str) -> None:
    a = await join(browser, origin)
    await a.evaluate("() => command(1, 'say', { type: 'grant', election: 'engine:offline-queue:q', grant: 3 })")
    await a.until("async () => (await tab.diagnose()).engine.calls.includes('engine:offline-queue:q 3')")


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        ("m.join()", "join() needs options"),
        ("m.join({ app: 'a b' })", 'app "a b" is not valid'),
        ("m.join({ app: 'x', foo: 1 })", 'join has no option "foo"'),
        ("m.join({ app: 'x', host: 'worker' })", 'host "worker" is not valid'),
        ("m.join({ app: 'x', stallAfterMs: 10 })", "stallAfterMs 10 is not valid"),
        ("tab.lead('r', 3)", "the second argument of lead() 3"),
        ("tab.lead('r')", "null is not valid: a function or { python: "),
        ("tab.lead('r', { python: 'nope' })", 'python "nope" is not valid'),
        ("tab.lead('r', () => {}, { visible: 'maybe' })", 'policy.visible "maybe"'),
        ("tab.lead('r', () => {}, { takeoverAfterMs: 9999 })", "policy.takeoverAfterMs 9999 is not valid"),
        ("tab.lead('r', () => {}, { takeoverAfterMs: 'no' })", "a number of milliseconds, at least 10000"),
        ("tab.queue('q:1')", 'queue "q:1" is not valid'),
        ("tab.queue('q').enqueue({ a: { b: [1, 2n] } })", "payload.a.b[1] is a bigint, which JSON cannot hold"),
        ("tab.queue('q').enqueue({ a: NaN })", "payload.a is NaN"),
        ("tab.queue('q').enqueue({ a: [,] })", "payload.a[0] is undefined"),
        ("tab.queue('q').enqueue({ 'to do': undefined })", 'payload["to do"] is undefined'),
        ("tab.queue('q').enqueue({ a() {} })", "payload.a is a function"),
        ("tab.queue('q').enqueue([Symbol()])", "payload[0] is a symbol"),
        ("tab.queue('q').enqueue({ at: new Date(NaN) })", "payload.at is an invalid date"),
        ("tab.queue('q').enqueue({ a: { toJSON: () => new Set() } })", "payload.a is of the kind Set"),
        (
            "(() => { const a = []; a.push({ a }); return tab.queue('q').enqueue(a); })()",
            "payload[0].a is payload",
        ),
        ("tab.queue('q').enqueue({ get a() { throw new Error('no') } })", "payload cannot be read: no"),
        ("tab.queue('q').enqueue(undefined)", "payload is undefined"),
        ("tab.queue('q').enqueue(1, { partion: 'x' })", 'enqueue options has no option "partion"'),
        ("tab.queue('q').enqueueAll([{ payload: { m: new Map() } }])", "items[0].payload.m is of the kind Map"),
    ],
)
async def test_bad_input_is_named(one_tab: ChaosTab, code: str, expected: str) -> None:
    name, _, text = await caught(one_tab, f"(async () => {code})()")
    assert name == "TypeError"
    assert expected in text


async def test_what_json_can_hold_is_taken_whole(one_tab: ChaosTab) -> None:
    text = await one_tab.evaluate(
        """async () => {
          const { jsonText } = await import("/tabhelm/checks.mjs");
          const { payloadText } = await import("/tabhelm/payloads.mjs");
          class Case { constructor() { this.id = 7; } }
          const shared = { twice: true };
          const converted = { at: new Date(0), url: new URL("https://a/") };
          const payload = [shared, shared, converted, new Case(), null, "x"];
          const text = jsonText(payload);
          return text === payloadText("payload", payload) ? text : null;
        }"""
    )
    at = "1970-01-01T00:00:00.000Z"
    assert json.loads(text) == [{"twice": True}] * 2 + [{"at": at, "url": "https://a/"}, {"id": 7}, None, "x"]
