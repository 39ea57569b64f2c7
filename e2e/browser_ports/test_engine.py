"""``engine.mjs`` and ``desk.mjs`` in a real SharedWorker, with fake pages and mostly with a fake interpreter."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio
from playwright.async_api import Playwright

from tabhelm.testing import ChaosBrowser, ChaosTab

from . import site


class Site:
    def __init__(self, browser: ChaosBrowser, origin: str) -> None:
        self.browser = browser
        self.origin = origin

    async def tab(self) -> ChaosTab:
        return await self.browser.new_tab(f"{self.origin}/blank")


async def run(tab: ChaosTab, body: str, args: Any = None, timeout: float = 60.0) -> Any:
    """Run ``async ({FakePage, eventually, locks, name}, args) => …`` in the tab."""
    parts = """async (args) => {
      const parts = await import("/parts/fake_page.mjs");
      const name = (build) => `tabhelm:regcase:v3:${build}`;
      return await (BODY)({ ...parts, name }, args);
    }"""
    return await tab.evaluate(parts.replace("BODY", body), args, timeout=timeout)


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def place(chromium_path: str, playwright_driver: Playwright) -> AsyncIterator[Site]:
    with site.serve() as origin:
        async with ChaosBrowser.launch(chromium_path, playwright=playwright_driver) as browser:
            yield Site(browser, origin)


@pytest_asyncio.fixture(loop_scope="session")
async def tab(place: Site) -> AsyncIterator[ChaosTab]:
    """A fresh tab; its SharedWorkers end with it."""
    opened = await place.tab()
    yield opened
    await opened.close()


# -- joining -----------------------------------------------------------------------------------------------------------


async def test_the_welcome_does_not_wait_for_python(tab: ChaosTab) -> None:
    seen = await run(
        tab,
        """async ({ FakePage, locks, name }) => {
          const page = await FakePage.worker("never", name("b1")).hello({ at: 12.5 });
          const welcome = await page.until("welcome");
          return { welcome, held: (await locks(":engine:"))[0] };
        }""",
    )
    welcome = seen["welcome"]
    assert welcome["heard"] == 12.5 and welcome["buildId"] == "b1"
    assert len(welcome["engine"]) == 32 and welcome["engineLock"] == f"regcase:v3:engine:{welcome['engine']}"
    assert welcome["engineLock"] in seen["held"], "held before the welcome"


async def test_what_pages_say_while_python_boots_reaches_it_in_order(tab: ChaosTab) -> None:
    told = await run(
        tab,
        """async ({ FakePage, name }) => {
          const page = await FakePage.worker("echo", name("b2-slow")).hello();
          page.post({ type: "state", visible: false });
          page.post({ type: "call", id: 1, method: "x", params: {} });
          await page.event("told", ({ message }) => message.type === "call");
          page.post({ type: "call", id: 2, method: "x", params: {} });
          await page.event("told", ({ message }) => message.id === 2);
          return page.messages.filter(({ type }) => type === "event").map(({ event }) => event.message.type);
        }""",
    )
    assert told == ["hello", "state", "call", "call"]


async def test_a_page_that_left_during_the_boot_is_never_told_of(tab: ChaosTab) -> None:
    facts = await run(
        tab,
        """async ({ FakePage, name }) => {
          const leaver = await FakePage.worker("echo", name("b3-slow")).hello();
          await leaver.until("welcome");
          leaver.post({ type: "bye", reason: "closing" });
          const stayer = await FakePage.worker("echo", name("b3-slow")).hello();
          await stayer.event("told", ({ message }) => message.type === "hello");
          return [await stayer.facts(), leaver.messages.filter(({ type }) => type === "event").length];
        }""",
    )
    assert facts[0]["counters"]["sessions"] == 1
    assert facts[1] == 0


@pytest.mark.parametrize(
    ("fields", "code"),
    [
        ({"app": "other"}, "wrong-engine"),
        ({"protocol": 4}, "wrong-engine"),
        ({"wire": 2}, "wrong-wire"),
        ({"stallAfterMs": "soon"}, "malformed"),
        ({"lifeline": "somebody:v3:tab:else"}, "malformed"),
        ({"wheels": [7]}, "malformed"),
        ({"at": None}, "malformed"),
    ],
)
async def test_a_hello_that_does_not_fit_is_refused(tab: ChaosTab, fields: dict[str, Any], code: str) -> None:
    refused = await run(
        tab,
        """async ({ FakePage, name }, fields) => {
          const page = await FakePage.worker("never", name("b4")).hello(fields);
          return (await page.until("refused")).error;
        }""",
        fields,
    )
    assert refused["code"] == code and refused["message"]


async def test_nonsense_is_counted_and_ignored(tab: ChaosTab) -> None:
    facts = await run(
        tab,
        """async ({ FakePage, name }) => {
          const page = FakePage.worker("echo", name("b5"));
          for (const nonsense of [null, 42, "sched$x", {}, { type: 7 }, [1]]) page.post(nonsense);
          page.post({ type: "state", visible: true });      // before any hello
          await page.hello();
          page.post({ type: "gone", reason: "a lie" });      // only the engine says so
          page.post({ type: "pong", n: 99, at: 1 });
          page.post({ type: "pong", n: "x", at: 1 });
          page.post({ type: "pong" });
          page.post({ type: "state", big: 1n });             // nothing that JSON can hold
          page.post({ type: "resume" });
          page.post({ type: "hello", wire: 1, session: "another" });   // a second time
          return await page.facts();
        }""",
    )
    assert facts["counters"] == {"sessions": 1, "ignored": 14}


async def test_wheels_come_before_the_page_does(tab: ChaosTab) -> None:
    seen = await run(
        tab,
        """async ({ FakePage, name }) => {
          const good = await FakePage.worker("echo", name("b6")).hello({ wheels: ["/parts/fake_page.mjs"] });
          await good.event("told", ({ message }) => message.type === "hello");
          const errors = [];
          for (const wheels of [["/missing/none.whl"], ["/odd/empty"]]) {
            const bad = await FakePage.worker("echo", name("b6")).hello({ wheels });
            errors.push((await bad.until("refused")).error);
          }
          return { errors, facts: await good.facts() };
        }""",
    )
    missing, broken = seen["errors"]
    assert missing["code"] == broken["code"] == "wheel"
    assert "/missing/none.whl cannot be fetched: status 404" in missing["message"]
    assert "cannot be unpacked: not a zip file" in broken["message"]
    assert seen["facts"]["counters"]["sessions"] == 1


# -- is the page there? ------------------------------------------------------------------------------------------------


async def test_pings_are_echoed_in_what_was_heard(tab: ChaosTab) -> None:
    seen = await run(
        tab,
        """async ({ FakePage, name }) => {
          const page = await FakePage.worker("echo", name("c1")).hello({ stallAfterMs: 400, at: 1 });
          const third = await page.until("ping", ({ n }) => n === 3);
          await page.until("ping", ({ heard }) => heard >= third.cameAt - 1);
          const pings = page.messages.filter(({ type }) => type === "ping");
          return { pings, facts: await page.facts() };
        }""",
    )
    pings = seen["pings"]
    assert [ping["n"] for ping in pings[:4]] == [1, 2, 3, 4]
    heard = [ping["heard"] for ping in pings]
    assert heard[0] == 1 and heard == sorted(heard)
    assert seen["facts"]["admitted"]


async def test_a_silent_page_loses_its_locks_and_may_come_back(tab: ChaosTab, place: Site) -> None:
    waiter = await place.tab()
    await run(
        tab,
        """async ({ FakePage, name }) => {
          window.page = await FakePage.worker("echo", name("c2")).hello({ stallAfterMs: 1000 });
          await page.event("told", ({ message }) => message.type === "hello");
          page.post({ type: "x-lock", name: "regcase:v3:leader:c2" });
          await page.event("lock", ({ what }) => what === "granted");
        }""",
    )
    await waiter.evaluate(
        "() => { window.got = navigator.locks.request('regcase:v3:leader:c2', () => performance.now()); }"
    )
    await waiter.until("async () => (await navigator.locks.query()).pending.length > 0")
    seen = await run(
        tab,
        """async () => {
          page.answers = false;
          await page.event("lock", ({ what }) => what === "dropped");
          const last = page.messages.filter(({ type }) => type === "ping").map(({ heard }) => heard).at(-1);
          const dropped = page.find("event", ({ event }) => event.what === "dropped").cameAt;
          await page.event("told", ({ message }) => message.type === "stalled");
          const shutOut = await page.facts();
          page.answers = true;
          await page.event("told", ({ message }) => message.type === "answering");
          return { silentMs: dropped - last, shutOut, back: await page.facts() };
        }""",
    )
    assert await waiter.evaluate("() => window.got", timeout=15) > 0
    assert 995 <= seen["silentMs"] <= 4_000, seen["silentMs"]
    assert not seen["shutOut"]["admitted"] and seen["back"]["admitted"]
    await waiter.close()


async def test_an_engine_that_stood_still_itself_blames_no_page(tab: ChaosTab) -> None:
    seen = await run(
        tab,
        """async ({ FakePage, name }) => {
          const page = await FakePage.worker("echo", name("c3")).hello({ stallAfterMs: 1600 });
          await page.until("ping");
          page.post({ type: "x-busy", ms: 3000 });
          const facts = await page.facts();
          await page.until("ping", undefined, { from: page.messages.length });
          await new Promise((resolve) => setTimeout(resolve, 2000));
          const stalled = page.find("event", ({ event }) => event.message?.type === "stalled");
          return { facts, stalled: stalled ?? null };
        }""",
    )
    assert seen["stalled"] is None
    assert seen["facts"]["admitted"]


async def test_freeze_drops_at_once_and_resume_admits(tab: ChaosTab) -> None:
    seen = await run(
        tab,
        """async ({ FakePage, name }) => {
          const page = await FakePage.worker("echo", name("c4")).hello({ stallAfterMs: 2000 });
          const asked = ["held", "pending"].map((part) => `regcase:v3:leader:c4-${part}`);
          let letGo;
          await new Promise((held) =>
            navigator.locks.request(asked[1], () => { held(); return new Promise((resolve) => (letGo = resolve)); }));
          for (const name of asked) page.post({ type: "x-lock", name });
          await page.event("lock", ({ what }) => what === "granted");
          page.post({ type: "freeze" });
          page.post({ type: "x-lock", name: "regcase:v3:leader:c4-late" });   // asked for on behalf of a frozen page
          const late = await page.event("lock", ({ name }) => name.endsWith("late"));
          await page.event("told", ({ message }) => message.type === "freeze");
          const order = page.messages.filter(({ type }) => type === "event").map(({ event }) => event)
            .filter(({ type, message }) => type === "lock" || message?.type === "freeze")
            .map((event) => event.what ?? event.message.type);
          const pings = page.messages.filter(({ type }) => type === "ping").length;
          await new Promise((resolve) => setTimeout(resolve, 600));
          const morePings = page.messages.filter(({ type }) => type === "ping").length - pings;
          const frozen = await page.facts();
          page.post({ type: "resume", lifecycle: "active", visible: true, online: true, at: performance.now() });
          await page.event("told", ({ message }) => message.type === "resume");
          await page.until("ping", undefined, { from: page.messages.length });
          letGo();
          return { order, late, morePings, frozen, resumed: await page.facts() };
        }""",
    )
    assert seen["order"] == ["granted", "dropped", "withdrawn", "freeze", "withdrawn"]
    assert seen["late"]["what"] == "withdrawn"
    assert seen["morePings"] == 0, "a frozen page is not pinged"
    assert not seen["frozen"]["admitted"] and seen["resumed"]["admitted"]


@pytest.mark.parametrize("how", ["bye", "lifeline"])
async def test_a_page_that_is_gone_leaves_nothing_behind(tab: ChaosTab, how: str) -> None:
    seen = await run(
        tab,
        """async ({ FakePage, eventually, locks, name }, how) => {
          const stayer = await FakePage.worker("echo", name("c5-" + how)).hello();
          const before = (await stayer.facts()).size;
          for (let round = 0; round < 20; round += 1) {
            const page = await FakePage.worker("echo", name("c5-" + how)).hello();
            page.post({ type: "x-lock", name: "regcase:v3:leader:c5" });
            await page.event("lock", ({ what }) => what === "granted");
            if (how === "bye") page.post({ type: "bye", reason: "closing" });
            page.die();
          }
          await eventually(async () => (await stayer.facts()).counters.sessions === 1, "all are gone");
          // The same as the browser sees it: the engine's lock, the one page's lifeline, the engine waiting for it.
          const counts = async () => String((await locks("regcase:v3")).map(({ length }) => length));
          await eventually(async () => (await counts()) === "2,1", "two held, one pending");
          return { before, facts: await stayer.facts() };
        }""",
        how,
    )
    assert seen["facts"]["size"] == seen["before"] == 2, "the engine's own lock and one lifeline"


@pytest.mark.parametrize("what", ["bye", "freeze"])
async def test_the_last_page_s_locks_are_free_before_python_has_heard_of_its_end(tab: ChaosTab, what: str) -> None:
    free = await run(
        tab,
        """async ({ FakePage, name }, what) => {
          const page = await FakePage.worker("echo", name(`c6-${what}-late`)).hello({ stallAfterMs: 60_000 });
          const { engineLock } = await page.until("welcome");
          const asked = `regcase:v3:leader:c6-${what}`;
          page.post({ type: "x-lock", name: asked });
          await page.event("lock", ({ what }) => what === "granted");
          const late = new BroadcastChannel("late");
          let heard = false;
          const end = new Promise((resolve) => (late.onmessage = () => resolve((heard = true))));
          const mustBeFree = what === "bye" ? [asked, engineLock] : [asked];
          const said = performance.now();
          const free = Promise.all(mustBeFree.map((each) =>
            navigator.locks.request(each, () => ({ heard, soon: performance.now() - said < 2_000 }))));
          page.post({ type: what, reason: "pagehide" });
          const granted = await free;
          await end; // Python takes three seconds
          late.close();
          return granted;
        }""",
        what,
    )
    assert free == [{"heard": False, "soon": True}] * (2 if what == "bye" else 1), "when the lock was granted"


async def test_the_locks_of_all_sessions_of_a_page_are_free_before_python_has_heard_of_any_end(tab: ChaosTab) -> None:
    free = await run(
        tab,
        """async ({ FakePage, name }) => {
          const [first, second] = await Promise.all([1, 2].map(() =>
            FakePage.worker("echo", name("c7-parting")).hello({ stallAfterMs: 60_000 })));
          const { engineLock } = await first.until("welcome");
          const asked = "regcase:v3:leader:c7";
          second.post({ type: "x-lock", name: asked });
          await second.event("lock", ({ what }) => what === "granted");
          const late = new BroadcastChannel("late");
          let heard = 0;
          const end = new Promise((resolve) => (late.onmessage = () => (heard += 1) === 2 && resolve()));
          const free = Promise.all([asked, engineLock].map((each) =>
            navigator.locks.request(each, () => heard)));
          first.post({ type: "x-busy", ms: 300 }); // both goodbyes are there when the first one is read
          for (const page of [first, second]) page.post({ type: "bye", reason: "pagehide" });
          const granted = await free;
          await end;
          late.close();
          return granted;
        }""",
    )
    assert free == [0, 0], "how many ends Python had heard of when each lock was granted"


async def test_the_time_that_python_takes_to_hear_of_the_last_page_s_end_is_none_of_that_to_finish(
    tab: ChaosTab,
) -> None:
    # Three milliseconds may pass by a worker that the machine lets wait; not each time.
    tasks = await run(
        tab,
        """async ({ FakePage, name }) => {
          const slept = new BroadcastChannel("slept");
          const seen = [];
          for (let number = 0; number < 5; number++) {
            const page = await FakePage.worker("echo", name(`c8${number}-settling`)).hello();
            await page.event("told", ({ message }) => message.type === "hello");
            const told = new Promise((resolve) => (slept.onmessage = ({ data }) => resolve(data)));
            page.post({ type: "bye", reason: "left" });
            seen.push(await told);
          }
          slept.close();
          return seen;
        }""",
    )
    assert max(tasks) >= 2, tasks


# -- the engine's end --------------------------------------------------------------------------------------------------


async def test_a_failed_boot_is_told_to_every_page(tab: ChaosTab) -> None:
    errors = await run(
        tab,
        """async ({ FakePage, name }) => {
          const errors = [];
          for (let round = 0; round < 3; round += 1) {
            const page = await FakePage.worker("fails", name("d1")).hello();
            errors.push((await page.until("failed")).error);
          }
          return errors;
        }""",
    )
    assert errors == [{"code": "boot-wasm", "message": "the interpreter's file is not WebAssembly", "alike": False}] * 3


async def test_a_name_that_says_nothing_fails(tab: ChaosTab) -> None:
    error = await run(
        tab,
        """async ({ FakePage }) => (await FakePage.worker("never", "tabhelm:regcase").until("failed")).error""",
    )
    assert error["code"] == "engine-name"


@pytest.mark.parametrize("why", ["deposed", "engine-crashed"])
async def test_an_engine_that_is_done_for_lets_go_of_everything(tab: ChaosTab, why: str) -> None:
    seen = await run(
        tab,
        """async ({ FakePage, eventually, locks, name }, why) => {
          const page = await FakePage.worker("echo", name("d2-" + why)).hello();
          const { engineLock, engine } = await page.until("welcome");
          page.post({ type: "x-lock", name: "regcase:v3:leader:d2" });
          await page.event("lock", ({ what }) => what === "granted");
          if (why === "deposed") navigator.locks.request(engineLock, { steal: true }, () => new Promise(() => {}));
          else page.post({ type: "x-crash" });
          const { error } = await page.until("failed");
          await eventually(async () => (await locks("regcase:v3:leader:d2"))[0].length === 0, "the lock is free");
          // The next worker of that name is another engine. Who connects in the moment in which the old one closes may
          // get no answer at all: that is what a page's patience is for.
          await eventually(async () => {
            const next = await FakePage.worker("echo", name("d2-" + why)).hello();
            const answer = await next.until("welcome", undefined, { ms: 1000 }).catch(() => null);
            return answer && answer.engine !== engine;
          }, "a new engine");
          return error;
        }""",
        why,
    )
    assert seen["code"] == why and seen["message"]


# -- with the real interpreter -----------------------------------------------------------------------------------------


async def test_python_is_started_and_no_exception_escapes(tab: ChaosTab) -> None:
    seen = await run(
        tab,
        """async ({ FakePage, name }) => {
          const page = await FakePage.worker("python", name("e1")).hello({ stallAfterMs: 60000 });
          const { info, random } = await page.event("info", undefined, { ms: 60000 });
          page.post({ type: "x-fail" });
          const message = await page.event("engine-error");
          const from = page.messages.length;
          page.post({ type: "x-do", order: "fail-task" });
          const task = await page.event("engine-error", undefined, { from });
          page.post({ type: "x-do", order: "lock" });
          const lock = await page.event("lock");
          page.post({ type: "freeze" });
          const end = await page.event("end");
          return { info, random, message, task, lock, end };
        }""",
        timeout=120,
    )
    info = seen["info"]
    assert (info["app"], info["protocol"], info["buildId"], info["from"]) == ("regcase", 3, "e1", "plain")
    assert info["bootMs"] > 0 and info["engineLock"].endswith(info["engine"])
    assert 0 <= seen["random"] < 1
    assert "nobody catches this message's error" in seen["message"]["message"]
    assert "nobody catches this task's error" in seen["task"]["message"]
    assert seen["lock"]["held"] is True
    assert seen["end"]["why"] == "dropped" and seen["end"]["held"] is False
