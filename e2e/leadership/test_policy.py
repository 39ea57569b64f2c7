"""What a policy asks of pages, in real tabs: preference, the app's own say, progress, health and circuit breakers."""

from __future__ import annotations

from e2e.kit import Site, leader, leaders, now, stands_by, until

from tabhelm.testing import ChaosBrowser, ChaosTab

_CTX = "stands.job.runs.at(-1).ctx"
_SINCE = "(epoch) => stands.job.statuses.find((s) => s.state === 'leading' && s.epoch === epoch).since"
"""When it began to lead, by its engine's word: the page hears of it later."""


async def reason(tab: ChaosTab, state: str, word: str) -> None:
    """Wait until this page's election has gone through this state for this reason."""
    await tab.until(
        f"() => stands.job.statuses.some((s) => s.state === '{state}' && s.reason === '{word}')",
        what=f"{state}: {word}",
    )


async def test_a_hidden_leader_yields_to_a_visible_standby_and_not_back_at_once(
    browser: ChaosBrowser, site: Site
) -> None:
    first, second = await site.standing(browser, 2, visible="prefer", coolDownMs=1_500)
    await first.show()
    old = await leader([first])
    await second.show()
    new = await leader([second], above=old.epoch)
    await reason(first, "stepping-down", "outranked")
    began = [await first.evaluate(_SINCE, old.epoch), await second.evaluate(_SINCE, new.epoch)]
    assert began[1] - began[0] >= 1_400, "not before its cool-down"
    await first.show()
    last = await leader([first], above=new.epoch)
    assert await first.evaluate(_SINCE, last.epoch) - began[1] >= 1_400


async def test_the_apps_own_say_decides_who_stands(browser: ChaosBrowser, site: Site) -> None:
    first, second = [await site.joined(browser) for _ in range(2)]
    stand = """([score]) => {
      window.fit = true;
      window.score = score;
      window.stands = { job: { runs: [], statuses: [] } };
      stands.job.election = tab.lead("job", (ctx) => {
        const run = { ctx, epoch: ctx.epoch, at: performance.timeOrigin + performance.now(), abortedAt: null };
        stands.job.runs.push(run);
        return new Promise((resolve) => ctx.signal.addEventListener("abort", () => ((run.abortedAt = 1), resolve())));
      }, { eligible: () => fit, score: () => score });
      stands.job.election.addEventListener("status", ({ detail }) => stands.job.statuses.push(detail));
    }"""
    await first.evaluate(stand, [1])
    old = await leader([first])
    await second.evaluate(stand, [2])
    await stands_by(second)
    await first.evaluate("() => { fit = 'on-battery'; }")
    new = await leader([second], above=old.epoch)
    await reason(first, "stepping-down", "on-battery")
    at = await now(first)
    assert at is not None and at["status"] == {"state": "idle", "reason": "on-battery"}
    await first.evaluate("() => { fit = true; }")
    await stands_by(first)
    assert await leaders([second]) == [new], "who may lead again waits for its turn"
    await second.evaluate("() => { window.fit = { toString() { throw new Error('broken'); } }; }")
    await leader([first], above=new.epoch)
    await reason(second, "stepping-down", "eligible-failed")


async def test_an_unhealthy_page_resigns_and_rests(browser: ChaosBrowser, site: Site) -> None:
    first = await site.joined(browser)
    await site.stand(first, coolDownMs=60_000)
    old = await leader([first])
    second = await site.joined(browser)
    await site.stand(second)
    await stands_by(second)
    await first.evaluate(f"""async () => {{
      window.well = true;
      await {_CTX}.progress("half way");
      await {_CTX}.health(() => well, {{ everyMs: 50 }});
    }}""")
    await second.until("() => stands.job.election.leader()?.health === 'ok'", what="word of its health")
    assert await second.evaluate("() => stands.job.election.leader().progress") == "half way"
    await first.evaluate("() => { well = false; }")
    new = await leader([second], above=old.epoch)
    await reason(first, "backing-off", "unhealthy")
    retry = await first.evaluate(
        "() => stands.job.statuses.find((s) => s.state === 'backing-off' && s.reason === 'unhealthy').retryInMs"
    )
    assert 50_000 < retry <= 60_000
    assert await leaders([second]) == [new]


async def test_a_circuit_that_stays_open_makes_its_leader_resign(browser: ChaosBrowser, site: Site) -> None:
    (tab,) = await site.standing(browser, 1, coolDownMs=0)
    await leader([tab])
    told = await tab.evaluate(f"""async () => {{
      const breaker = await {_CTX}.breaker("api", {{ failures: 2, openForMs: 5_000, resignAfterMs: 1_000 }});
      const down = () => Promise.reject(new Error("down"));
      const codes = [];
      for (let n = 0; n < 3; n++) await breaker.call(down).catch((error) => codes.push(error.code ?? error.message));
      const open = breaker.state;
      const same = (await {_CTX}.breaker("api")) === breaker;
      return {{ codes, open, same }};
    }}""")
    assert told == {"codes": ["down", "down", "circuit-open"], "open": "open", "same": True}
    await reason(tab, "stepping-down", "unhealthy")


async def test_a_loop_that_makes_no_progress_is_taken_for_stalled(browser: ChaosBrowser, site: Site) -> None:
    (tab,) = await site.standing(browser, 1, stallAfterMs=5_000)
    old = await leader([tab])
    await tab.evaluate(f"() => {{ window.beats = setInterval(() => void {_CTX}.progress().catch(() => 0), 200); }}")

    async def longer_than_its_limit() -> bool:
        at = await tab.evaluate("() => performance.timeOrigin + performance.now()")
        return bool(at - old.at > 11_000)

    await until(longer_than_its_limit, "time to pass", 30)
    assert await leaders([tab]) == [old], "it says that it goes on"
    await tab.evaluate("() => clearInterval(beats)")
    await reason(tab, "stepping-down", "stalled")


async def test_what_the_engine_refuses_ends_the_election_and_names_the_key(browser: ChaosBrowser, site: Site) -> None:
    tab = await site.joined(browser)
    await tab.evaluate("""() => {
      window.ends = [];
      tab.addEventListener("event", ({ detail }) => { if (detail.to === "stopped") ends.push(detail); });
    }""")
    refused = {
        "{ fenceHeaders: { a: 'b' } }": "fenceHeaders are given without fence",
        "{ newest: 1 }": "newest 1",
        "{ authorities: ['server-lease'] }": "lease",
        "{ session: '' }": "session ''",
        "{ requires: ['a'], prefers: ['a'] }": "prefers 'a'",
    }
    for policy, words in refused.items():
        end = await tab.evaluate(f"() => tab.lead('job', () => {{}}, {policy}).stopped")
        assert end["reason"] == "invalid-policy" and words in end["error"]["message"], end
        await tab.until("() => ends.length > 0", what="the event")
        (event,) = await tab.evaluate("() => ends.splice(0)")
        assert (event["type"], event["from"], event["reason"]) == ("leadership-changed", "idle", "invalid-policy")
        assert event["resource"].endswith(":job") and event["detail"] == end["error"]["message"]
    for policy, words in {"{ eligible: true }": "policy.eligible true", "{ fenceHeaders: 7 }": "Headers"}.items():
        lead = f"tab.lead('job', () => {{}}, {policy})"
        told = await tab.evaluate(f"() => {{ try {{ {lead}; }} catch (error) {{ return String(error); }} }}")
        assert told.startswith("TypeError") and words in told, told


async def test_a_page_that_tells_its_progress_all_the_time_does_not_flood_its_engine(
    browser: ChaosBrowser, site: Site
) -> None:
    tab = await site.joined(browser)
    await tab.evaluate("""() => {
      window.posted = [];
      const { postMessage } = MessagePort.prototype;
      MessagePort.prototype.postMessage = function (data, ...more) {
        if (data?.type === "progress") posted.push({ at: performance.now(), progress: data.progress });
        return postMessage.call(this, data, ...more);
      };
    }""")
    await site.stand(tab)
    old = await leader([tab])
    took = await tab.evaluate(f"""async () => {{
      const began = performance.now();
      for (let n = 1; n <= 2_000; n++) {{
        await {_CTX}.progress(n);
        if (n % 100 === 0) await new Promise((resolve) => setTimeout(resolve, 20));
      }}
      return performance.now() - began;
    }}""")
    await tab.until("() => posted.at(-1)?.progress === 2_000", what="the last one to be told")
    posted = await tab.evaluate("() => posted")
    assert posted[0]["progress"] == 1, "the first one at once"
    assert len(posted) <= 3 + took / 250, f"{len(posted)} in {took:.0f} ms"
    await tab.until("() => stands.job.election.leader()?.progress === 2_000", what="the engine to know")
    assert await leaders([tab]) == [old]


async def test_a_watch_of_the_health_leaves_no_listeners_behind(browser: ChaosBrowser, site: Site) -> None:
    tab = await site.joined(browser)
    await site.stand(tab)
    await leader([tab])
    await tab.evaluate(f"""async () => {{
      const {{ signal }} = {_CTX};
      window.listening = 0;
      window.looked = 0;
      const add = signal.addEventListener, remove = signal.removeEventListener;
      signal.addEventListener = function (...given) {{ listening++; return add.apply(this, given); }};
      signal.removeEventListener = function (...given) {{ listening--; return remove.apply(this, given); }};
      await {_CTX}.health(() => (looked++, true), {{ everyMs: 10 }});
    }}""")
    await tab.until("() => looked >= 20", what="twenty looks")
    assert await tab.evaluate("() => listening") <= 2


async def test_who_asks_a_circuit_again_as_told_does_not_spin_while_a_trial_hangs(
    browser: ChaosBrowser, site: Site
) -> None:
    tab = await site.joined(browser)
    await site.stand(tab)
    await leader([tab])
    told = await tab.evaluate(f"""async () => {{
      const breaker = await {_CTX}.breaker("api", {{ failures: 1, openForMs: 300 }});
      await breaker.call(() => Promise.reject(new Error("down"))).catch(() => 0);
      await new Promise((resolve) => setTimeout(resolve, 400));
      void breaker.call(() => new Promise(() => {{}}));
      return breaker.call(() => 1).catch(({{ code, retryInMs }}) => ({{ code, retryInMs }}));
    }}""")
    assert told == {"code": "circuit-open", "retryInMs": 300}


async def test_an_eligible_that_answers_later_is_refused_by_its_name(browser: ChaosBrowser, site: Site) -> None:
    tab = await site.joined(browser)
    await tab.evaluate("""() => {
      window.told = [];
      addEventListener("error", ({ error }) => told.push(String(error)));
      window.stands = { job: { runs: [], statuses: [] } };
      stands.job.election = tab.lead("job", () => {}, { eligible: async () => true });
      stands.job.election.addEventListener("status", ({ detail }) => stands.job.statuses.push(detail));
    }""")
    await reason(tab, "idle", "eligible-failed")
    await tab.until("() => told.length", what="an error")
    told = await tab.evaluate("() => told")
    assert len(told) == 1 and "policy.eligible()" in told[0] and "at once" in told[0], told
