"""Figures, alarms, history and diagnosis, asked by real tabs."""

from __future__ import annotations

import json
from typing import Any

from e2e.kit import Site, hand_over, leader, uncaught, until

from tabhelm.testing import ChaosBrowser, ChaosTab

SECOND = "/tabhelm2"
_LOCK = "e2e:v1:leader:job"
_SQUAT = """(name) => new Promise((held) => {
  navigator.locks.request(name, () => new Promise((release) => { window.letGo = release; held(true); }));
})"""
_EVENTS = "(type) => events.filter((event) => event.type === type)"


async def told(tab: ChaosTab, kind: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = await tab.evaluate(_EVENTS, kind)
    return found


async def metrics(tab: ChaosTab) -> dict[str, Any]:
    found: dict[str, Any] = await tab.evaluate("() => tab.metrics()")
    return found


async def test_what_a_handover_comes_to_in_figures(browser: ChaosBrowser, site: Site) -> None:
    tabs = await site.standing(browser, 2)
    old = await leader(tabs)
    (rest,) = [tab for tab in tabs if tab is not old.tab]
    await hand_over(old, [rest])
    await leader([rest], above=old.epoch)
    figures = await metrics(rest)
    job = figures["resources"]["e2e:job"]
    assert (job["acquisitions"], job["stepDowns"], job["leadersActing"]) == (2, {"your turn": 1}, 1)
    assert job["wait"]["count"] == 2 and job["hold"]["count"] == 1 and job["hold"]["sumMs"] > 0
    assert figures["tabs"] == 2 and figures["ignored"] == {}
    print(f"wait {job['wait']}, hold {job['hold']}")
    text = await rest.evaluate("() => tab.metrics({ format: 'prometheus' })")
    lines = text.splitlines()
    assert 'tabhelm_leaders_acting{resource="e2e:job"} 1' in lines
    assert 'tabhelm_step_downs_total{resource="e2e:job",reason="your turn"} 1' in lines
    assert 'tabhelm_wait_seconds_count{resource="e2e:job"} 2' in lines
    for tab in tabs:
        assert await tab.evaluate("() => tab.id") not in text
    refused = await rest.evaluate(
        "() => tab.metrics({ format: 'xml' }).catch((error) => `${error.name}: ${error.message}`)"
    )
    assert refused.startswith("TypeError: format ") and "prometheus" in refused
    assert await uncaught(rest) == []


async def test_nobody_acting_is_an_alarm_and_its_end_is_told(browser: ChaosBrowser, site: Site) -> None:
    squatter = await site.open(browser)
    assert await squatter.evaluate(_SQUAT, _LOCK)
    tab = await site.joined(browser)
    await site.stand(tab, actingAlarmMs=1_000)

    async def alarmed() -> bool:
        return [event["acting"] for event in await told(tab, "acting-alarm")] == [0]

    await until(alarmed, "the alarm that nobody acts")
    (alarm,) = await told(tab, "acting-alarm")
    assert alarm["resource"] == "e2e:job" and alarm["forMs"] >= 1_000
    assert (await metrics(tab))["resources"]["e2e:job"]["leadersActing"] == 0
    await squatter.evaluate("() => letGo()")
    await leader([tab])

    async def restored() -> bool:
        return [event["acting"] for event in await told(tab, "acting-restored")] == [1]

    await until(restored, "the end of the alarm")
    assert (await metrics(tab))["resources"]["e2e:job"]["alarms"] == {"none": 1}


async def test_the_history_outlives_every_tab_and_engine(browser: ChaosBrowser, site: Site) -> None:
    tabs = [await site.joined(browser, version="1.0") for _ in range(2)]
    for tab in tabs:
        await site.stand(tab)
    first = await leader(tabs)
    (rest,) = [tab for tab in tabs if tab is not first.tab]
    await hand_over(first, [rest])
    second = await leader([rest], above=first.epoch)

    async def written() -> bool:
        return len(await history(rest)) == 2

    await until(written, "two entries")
    # Asking wrote down what was pending. Now everybody dies without a word: the last entry gets no end.
    keeper = await site.open(browser)
    for tab in (first.tab, rest):  # who leads goes last
        await tab.close()
    late = await site.joined(browser, version="2.0")
    await site.stand(late)
    third = await leader([late], above=second.epoch)

    async def complete() -> bool:
        return len(await history(late)) == 3

    await until(complete, "three entries")
    found = await history(late)
    assert [(entry["epoch"], entry["tabId"], entry["version"]) for entry in found] == [
        (third.epoch, third.tab_id, "2.0"),
        (second.epoch, second.tab_id, "1.0"),
        (first.epoch, first.tab_id, "1.0"),
    ]
    assert [entry["reason"] for entry in found][::2] == [None, "your turn"]
    assert found[1]["reason"] is not None, "it ended, whoever wrote it down"
    assert {entry["authority"] for entry in found} == {"web-locks"}
    assert found[2]["endedMs"] > found[2]["beganMs"] > first.at - 5_000
    await keeper.close()


async def history(tab: ChaosTab) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = await tab.evaluate("() => tab.history()")
    return found


async def test_a_diagnosis_shows_everything_and_nobody_s_id(browser: ChaosBrowser, site: Site) -> None:
    first, second = [await site.joined(browser, session="user:123") for _ in range(2)]
    for tab in (first, second):
        await site.stand(tab, scope="user:123", fence=None)
    now = await leader([first, second], "job:user:123")
    found = await now.tab.evaluate("() => tab.diagnose()")
    text = json.dumps(found)
    ids = [await tab.evaluate("() => [tab.id, tab.connectionId, tab.engine.id]") for tab in (first, second)]
    for secret in {*(each for three in ids for each in three), "user:123"}:
        assert secret not in text, secret
    page, engine = found["page"], found["engine"]
    (leading,) = engine["presence"]["leaders"].values()
    assert page["tab"] == leading["tabId"] == engine["presence"]["self"]["tabId"], "one id is one word on both sides"
    assert page["elections"][0]["resource"] in engine["presence"]["leaders"]
    assert leading["lockName"] in [lock["name"] for lock in engine["locks"]["held"]]
    assert engine["database"]["epochs"] > 0 and engine["database"]["answeredInMs"] >= 0
    assert engine["channel"]["suspended"] is False
    assert len(engine["presence"]["tabs"]) == 2
    again = await now.tab.evaluate("() => tab.diagnose()")
    assert again["page"]["tab"] != page["tab"], "two reports cannot be joined"


async def test_an_error_s_text_shows_nobody_s_id_on_either_side(browser: ChaosBrowser, site: Site) -> None:
    tab, other = [await site.joined(browser, session="user:123") for _ in range(2)]
    await other.evaluate("() => { tab.lock('case', () => new Promise(() => {}), { scope: 'desk:bob' }); }")
    ids = [await each.evaluate("() => [tab.id, tab.connectionId, tab.engine.id]") for each in (tab, other)]
    await tab.evaluate(
        """async (words) => {
          const lost = "0123456789abcdef0123";
          const fail = () => { throw new Error(`${words} for desk:bob, user:123, after ${lost}`); };
          window.failing = tab.lead("job", fail, { scope: "user:123" });
          window.held = await tab.lock("case", () => "got it", { scope: "desk:bob", timeoutMs: 500 }).catch(String);
        }""",
        " ".join(each for three in ids for each in three),
    )
    await tab.until("() => failing.status.state === 'backing-off' || failing.status.error", what="the loop to fail")
    found = await tab.evaluate(
        """() => new Promise((resolve) => {
          window.spare = tab.lead("spare", (ctx) => new Promise((end) => ctx.signal.addEventListener("abort", end)));
          spare.addEventListener("status", ({ detail }) => {
            if (detail.state === "leading") spare.stepDown(`no more of bob (${tab.id})`);
            if (detail.state === "backing-off") resolve(tab.diagnose());
          });
        })"""
    )
    text = json.dumps(found)
    for secret in {*(each for three in ids for each in three), "user", "bob", "desk", "0123456789abcdef0123"}:
        assert secret not in text.replace("userSession", ""), secret
    page, engine = found["page"], found["engine"]
    (spare,) = [election["status"] for election in page["elections"] if election["resource"] == "spare"]
    assert spare["reason"].startswith("no more of ~") and spare["reason"].endswith(f" ({page['tab']})"), spare
    (failed,) = [event for event in engine["events"] if event["type"] == "loop-failed"][:1]
    assert page["tab"] in failed["error"] and page["connection"] in failed["error"]
    assert engine["metrics"]["locks"]["timedOut"] == 1 and "told" not in engine
    # An engine that does not answer: the page hides what it knows itself.
    await tab.evaluate("() => tab.leave(`as ${tab.id} said`)")
    alone = await tab.evaluate("() => tab.diagnose()")
    assert "error" in alone["engine"] and ids[0][0] not in json.dumps(alone)
    assert alone["page"]["hostReason"] == f"as {alone['page']['tab']} said"
    assert await uncaught(tab) == []


async def test_followers_see_whose_version_leads_how_it_is_and_how_far(browser: ChaosBrowser, two_builds: Site) -> None:
    site = two_builds
    first = await site.joined(browser, version="7.1")
    await site.stand(first)
    await leader([first])
    second = await site.joined(browser, base=SECOND, version="7.1")
    await site.stand(second)
    await first.evaluate("() => stands.job.runs[0].ctx.progress('row 7')")
    await first.evaluate("() => stands.job.runs[0].ctx.health(() => true, { everyMs: 200 })")
    await second.until(
        "() => `${stands.job.election.leader()?.progress} ${stands.job.election.leader()?.health}` === 'row 7 ok'",
        what="the other engine's tab to see progress and health",
    )
    seen = await second.evaluate("() => stands.job.election.leader()")
    assert (seen["version"], seen["authority"], seen["lockName"]) == ("7.1", "web-locks", _LOCK)
    assert seen["liveness"] == "alive" and seen["tabId"] == await first.evaluate("() => tab.id")


async def test_old_tabs_are_told_that_a_newer_version_is_there(browser: ChaosBrowser, two_builds: Site) -> None:
    site = two_builds
    old = await site.joined(browser, version="104.2")
    same = await site.joined(browser, version="104.2")
    newer = await site.joined(browser, base=SECOND, version="104.10")
    build = await newer.evaluate("() => tabhelm.buildId")
    for tab in (old, same):

        async def one(tab: ChaosTab = tab) -> bool:
            return len(await told(tab, "update-available")) == 1

        await until(one, f"{tab} to be told of the update")
        (event,) = await told(tab, "update-available")
        assert (event["version"], event["buildId"], event["tab"]) == (
            "104.10",
            build,
            await tab.evaluate("() => tab.id"),
        )
    late = await site.joined(browser, version="103.9")

    async def late_too() -> bool:
        return len(await told(late, "update-available")) == 1

    await until(late_too, "one that joins with an old version to be told")
    assert await told(newer, "update-available") == []


async def test_two_protocols_of_one_app_never_meet(browser: ChaosBrowser, site: Site) -> None:
    old = await site.joined(browser, protocol=1, version="1.0")
    new = await site.joined(browser, protocol=2, version="2.0")
    for tab in (old, new):
        await site.stand(tab)
    await leader([old])
    await leader([new])
    for tab in (old, new):
        await tab.until("() => Object.keys(tab.presence().leaders).join() === 'job'", what="its own leader")
        assert await tab.evaluate("() => tab.presence().tabs.length") == 1
        assert await told(tab, "update-available") == []
        assert (await metrics(tab))["ignored"] == {}
    assert (await leader([old])).epoch != (await leader([new])).epoch, "one domain, so a receiver can tell them apart"
