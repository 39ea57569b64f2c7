"""A page gives up, in real tabs: what was asked and has not begun is withdrawn, also when the engine goes meanwhile.

And a tab that stands again asks at once."""

from __future__ import annotations

from typing import Any

from e2e.kit import Site, uncaught, until

from tabhelm.testing import ChaosBrowser, ChaosTab

from .pages import known, page

SLOW = """() => { window.began = []; tab.lead("other", async (ctx) => {
  await ctx.serve({ hello: () => "hello" });
  await ctx.sleep(1e9);
}); tab.lead("job", async (ctx) => {
  await new Promise((ready) => (window.ready = ready));
  await ctx.serve({ do: (args) => (began.push(args), args) });
  await ctx.sleep(1e9);
}); }"""
GIVE_UP = """async () => {
  const stop = new AbortController();
  const { election } = asking;
  const asked = [
    election.ask("do", "aborted", { signal: stop.signal, timeoutMs: 600_000 }),
    election.ask("do", "outwaited", { timeoutMs: 200 }),
  ];
  const seen = asked.map((each) => each.catch(({ message }) => message));
  seen[1].then(() => stop.abort(new Error("enough")));
  const given = await Promise.all(seen);
  const other = tab.lead("other", () => {}, { requires: ["nobody has it"] });
  await other.ask("hello"); // on the same way, so whatever was said before has been heard
  return given;
}"""
NOTE = """() => {
  window.told = [];
  const { postMessage } = MessagePort.prototype;
  MessagePort.prototype.postMessage = function (data, ...more) {
    if (data?.method === "ask" || data?.type === "unask") told.push(structuredClone(data));
    return postMessage.call(this, data, ...more);
  };
}"""


async def slow_leader(browser: ChaosBrowser, site: Site) -> ChaosTab:
    """It leads, and serves nothing until ``ready()``."""
    tab = await site.joined(browser, host="window")
    await tab.evaluate(SLOW)
    await tab.until("() => Boolean(window.ready)", what="the loop to run")
    return tab


async def test_what_is_given_up_does_not_begin_later(browser: ChaosBrowser, site: Site) -> None:
    leader = await slow_leader(browser, site)
    for host in ("shared", "window"):
        asker = await page(browser, site, host, requires=["nobody has it"])
        await asker.tab.until("() => asking.election.leader() !== null", what="the leader to be known")
        given_up = await asker.tab.evaluate(GIVE_UP)
        assert given_up[0] == "enough" and "did not answer 'do' within 0." in given_up[1], given_up
        await asker.begin("do", host, timeoutMs=60_000)
        if host == "window":
            await leader.evaluate("() => ready()")
        assert await uncaught(asker.tab) == []
        last = asker
    assert (await last.answer())["value"] == "window"

    async def all_began() -> bool:
        return len(await leader.evaluate("() => began")) >= 2

    await until(all_began, "both to have begun")
    assert sorted(await leader.evaluate("() => began")) == ["shared", "window"]


async def test_the_next_engine_is_told_how_much_time_is_left_and_what_was_given_up(
    browser: ChaosBrowser, site: Site
) -> None:
    leader = await page(browser, site, "window")
    await until(leader.leads, "the first to lead")
    maker = await site.joined(browser)  # the shared engine lives in its process
    asker = await page(browser, site, requires=["nobody has it"])
    await known([asker], leader)
    await asker.tab.evaluate(NOTE)
    await asker.tab.evaluate(
        """() => {
          const stop = new AbortController();
          tab.addEventListener("host", ({ detail }) => {
            if (detail.state !== "connected") stop.abort(new Error("no engine"));
          });
          const asked = asking.election.ask("wait", "given up", { signal: stop.signal });
          asking.given = asked.catch(({ message }) => message);
        }"""
    )
    await asker.begin("wait", "kept", timeoutMs=60_000)

    async def begun() -> bool:
        return len(await leader.served()) == 2

    await until(begun, "both to have begun")
    # Time that is to be missing from what is left, told below: nothing happens in it that could be waited for.
    await asker.tab.evaluate("() => new Promise((passed) => setTimeout(passed, 1_000))")
    engine = await asker.tab.evaluate("() => tab.engine.id")
    await maker.kill_process()
    await asker.tab.until(f"() => tab.engine && tab.engine.id !== {engine!r}", what="another engine")
    assert await asker.tab.evaluate("() => asking.given") == "no engine"
    await asker.tab.until("() => told.length >= 4", what="both to be said again")
    told: list[dict[str, Any]] = [each["params"] for each in await asker.tab.evaluate("() => told")]
    first, second, again, kept = told[:4]
    assert [each["args"] for each in (first, again)] == ['"given up"'] * 2
    assert [each["abandoned"] for each in told[:4]] == [False, False, True, False]
    assert [each["fresh"] for each in told[:4]] == [True, True, False, False]
    assert kept["id"] == second["id"] and kept["leftMs"] < second["leftMs"] - 1_000
    await leader.finish()
    assert (await asker.answer())["value"] == leader.tab_id
    assert len(await leader.served()) == 2


async def test_a_tab_that_stands_again_may_ask_at_once(browser: ChaosBrowser, site: Site) -> None:
    leader = await page(browser, site)
    await until(leader.leads, "the first to lead")
    found: list[Any] = await leader.tab.evaluate(
        """async () => {
          const seen = ({ code, message }) => [code, message];
          const loop = async (ctx) => {
            await ctx.serve({ who: () => "second" });
            await ctx.sleep(1e9);
          };
          const first = asking.election;
          first.stop();
          const late = first.ask("echo").catch(seen);
          const second = tab.lead("job", loop);
          const answer = await second.ask("who").catch(seen);
          second.stop();
          await second.stopped;
          return [answer, await late, await second.ask("who").catch(seen)];
        }"""
    )
    answer, late, after = found
    assert answer == "second"
    assert late[0] == after[0] == "election-stopped"
    assert "job" in late[1] and "stand again" in after[1]
    assert await uncaught(leader.tab) == []
