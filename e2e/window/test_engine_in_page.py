"""``Engine`` as it runs in a page, with a fake interpreter: what it makes of time in which the page stood still."""

from __future__ import annotations

from typing import Any

from e2e.kit import Site

from tabhelm.testing import ChaosBrowser, ChaosTab

STALL_MS = 20_000
"""Long, since a machine that pauses is no standstill: the tests move the page's clock instead of waiting."""
_ENGINE = """async (stallAfterMs) => {
  const now = performance.now.bind(performance);
  let stood = 0;
  performance.now = () => now() + stood;
  window.standStill = (ms) => (stood += ms);
  const { Engine } = await import("/tabhelm/engine.mjs");
  window.told = []; // what Python would hear
  window.ends = []; // what became of the session's lock
  window.admitted = []; // whether the session might ask for locks when Python heard each
  const deliver = (session, text) => {
    told.push(`${session}:${JSON.parse(text).type}`);
    admitted.push(engine.desk.admitted("s1"));
  };
  const pyodide = { pyimport: () => ({ start: async () => deliver }) };
  const boot = async () => ({ pyodide, from: "plain", fallbackReason: null, version: "0" });
  window.engine = new Engine("tabhelm:t:v1:x", { boot, patience: (limitMs) => limitMs });
  window.pinged = (n) => say({ type: "pong", n, at: performance.now() });
  const heard = ({ type, n }) => type === "ping" && queueMicrotask(() => pinged(n));
  window.port = { onmessage: null, close() {}, postMessage: heard };
  engine.connect(port);
  window.say = (data) => port.onmessage({ data });
  const lifeline = "t:v1:lifeline:tab:s1";
  await new Promise((held) => navigator.locks.request(lifeline, () => (held(), new Promise(() => {}))));
  const about = { app: "t", protocol: 1, wheels: [], stallAfterMs, at: performance.now(), lifeline };
  say({ type: "hello", wire: 1, session: "s1", tab: "tab", ...about });
}"""
_TAKE = """() => new Promise((granted) => {
  engine.desk.request("s1", "t:v1:leader:job", "exclusive", false, false, (what) => (ends.push(what), granted()));
})"""
_HEARD = "() => new Promise((resolve) => setTimeout(resolve))"
"""Until Python has heard: it does so when the running script has ended, in microtasks, before any other task."""


async def _ready(browser: ChaosBrowser, site: Site, stall_ms: int = STALL_MS) -> ChaosTab:
    tab = await site.open(browser)
    await tab.evaluate(_ENGINE, stall_ms)
    await tab.until("() => told.includes('s1:hello')")
    await tab.evaluate(_TAKE)
    return tab


async def _seen(tab: ChaosTab) -> Any:
    return await tab.evaluate("() => [told, ends]")


async def test_the_first_answer_after_standing_still_finds_it_out(browser: ChaosBrowser, site: Site) -> None:
    tab = await _ready(browser, site)
    # The answer to a ping that was under way when the page began to hang comes before any timer that is due.
    found = await tab.evaluate(
        """async (ms) => {
          const answer = pinged;
          const n = await new Promise((ping) => (pinged = ping));
          standStill(ms);
          answer(n);
          return [told, ends];
        }""",
        2 * STALL_MS,
    )
    assert found == [["s1:hello", "s1:stalled", "s1:answering"], ["granted", "dropped"]]
    # Else what hangs on it, as a lease does, outlives the standstill.
    assert await tab.evaluate("() => admitted") == [True, False, True]


async def test_a_page_that_answers_nothing_has_stalled(browser: ChaosBrowser, site: Site) -> None:
    tab = await _ready(browser, site, 4_000)
    await tab.evaluate("() => { pinged = () => {}; }")
    await tab.until("() => told.includes('s1:stalled')")
    assert await _seen(tab) == [["s1:hello", "s1:stalled"], ["granted", "dropped"]]


async def test_the_time_of_a_freeze_is_none_of_standing_still(browser: ChaosBrowser, site: Site) -> None:
    tab = await _ready(browser, site)
    found = await tab.evaluate(
        f"""async (ms) => {{
          say({{ type: "freeze" }});
          standStill(ms);
          say({{ type: "resume", at: performance.now(), visible: true, online: true, lifecycle: "active" }});
          await ({_HEARD})();
          return [told, ends];
        }}""",
        2 * STALL_MS,
    )
    assert found == [["s1:hello", "s1:freeze", "s1:resume"], ["granted", "dropped"]]


async def test_all_is_let_go_before_suspend_returns(browser: ChaosBrowser, site: Site) -> None:
    tab = await _ready(browser, site)
    suspend = f"""async () => {{
      engine.suspend("pagehide");
      const size = engine.desk.size;
      await ({_HEARD})();
      return [told, ends, size];
    }}"""
    found = await tab.evaluate(suspend)
    assert found == [["s1:hello", ":cut", "s1:gone", ":suspend"], ["granted", "dropped"], 0]
    # A word that comes while it is suspended waits for its own lock.
    found = await tab.evaluate(
        "() => { engine.suspend('pagehide'); engine.resume(); engine.resume(); return told.length; }"
    )
    assert found == 4
    await tab.until("() => told.at(-1) === ':resume'")
    assert await tab.evaluate("() => told.filter((each) => each === ':resume').length") == 1
    assert await tab.evaluate("() => engine.desk.size") == 1


async def test_python_has_heard_all_when_the_page_is_gone(browser: ChaosBrowser, site: Site) -> None:
    """In a frame that a script takes out of its page no microtask runs after ``pagehide``."""
    tab = await _ready(browser, site)
    found = await tab.evaluate("() => { engine.suspend('pagehide'); engine.tellAll(); return [told, ends]; }")
    assert found == [["s1:hello", ":cut", "s1:gone", ":suspend"], ["granted", "dropped"]]


async def test_an_engine_that_is_wanted_again_at_once_goes_on(browser: ChaosBrowser, site: Site) -> None:
    tab = await _ready(browser, site)
    await tab.evaluate("() => { engine.suspend('pagehide'); engine.resume(); }")
    await tab.until("() => engine.failed || told.at(-1) === ':resume'")
    assert await tab.evaluate("() => [engine.failed, told, ends]") == [
        False,
        ["s1:hello", ":cut", "s1:gone", ":resume"],
        ["granted", "dropped"],
    ]
