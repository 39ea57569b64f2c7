"""Ask the leader, in real tabs: from its own page, its engine, another engine, a page of Python; and when it goes."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Container, Sequence
from pathlib import Path
from typing import Any

import pytest
from e2e.kit import Site, uncaught, until

from tabhelm.testing import ChaosBrowser
from tabhelm.testing.driver import DrivenBrowser

from .pages import Page, begun, known, leader_of, member, page, team

KINDS = ["shared", "window", "python"]
GOES: dict[str, Callable[[Any], Awaitable[Any]]] = {
    "closed": lambda tab: tab.close(),
    "crashed": lambda tab: tab.kill_process(),
    "frozen": lambda tab: tab.freeze(),
}
ENGINES_AND_KINDS = [
    *(("chromium", kind) for kind in KINDS),
    *((engine, kind) for engine in ("firefox", "webkit") for kind in ("shared", "window")),
]
LEADER_GOES = [(*each, how) for each in ENGINES_AND_KINDS for how in GOES if how != "frozen" or each[0] == "chromium"]


def in_each(*names: str, main: Container[str] = (), given: Sequence[Sequence[str]] = ENGINES_AND_KINDS) -> Any:
    """Who leads, in which engine, and ``names``. What none of ``main`` matches is the same code in one more setting
    (who asks, and what comes back to whom, is tested in all of them); ``main`` may name engines, with or without kinds
    (``webkit``, ``webkit-shared``), and whole settings."""

    def usual(each: Sequence[str]) -> bool:
        return any("-".join(each[:length]) in main for length in range(1, len(each) + 1))

    marks = {True: [], False: [pytest.mark.thorough]}
    settings = [pytest.param(*each, id="-".join(each), marks=marks[usual(each)]) for each in given]
    return pytest.mark.parametrize(("engine", "kind", *names), settings, indirect=["engine"])


SHARED = {"chromium-shared", "firefox-shared", "webkit-shared"}
IN_CHROMIUM = pytest.mark.parametrize(
    "engine", ["chromium", *(pytest.param(each, marks=pytest.mark.thorough) for each in ("firefox", "webkit"))],
    indirect=True,
)  # fmt: skip
"""Elsewhere it is the same code in one more setting."""


def others(driven: DrivenBrowser) -> list[str]:
    """Who stands beside the leader. Pages of Python are driven in Chromium alone."""
    return KINDS if driven.engine == "chromium" else ["shared", "window"]


@in_each(main={"chromium", *SHARED})
async def test_whoever_asks_is_answered(driven: DrivenBrowser, site: Site, bundle: Path, kind: str) -> None:
    members = await team(driven, site, bundle, kind, *others(driven))
    leader = members[0]
    args = {"force": True, "n": [1, 2.5, None], "text": "é\u2028\U0001f600"}
    for asker in members:
        answer = await asker.ask("echo", args, idempotencyKey="key of " + asker.tab_id)
        assert answer["value"] == {"by": leader.tab_id, "args": args}
        answer = min([answer, *[await asker.ask("echo", n) for n in range(4)]], key=lambda each: float(each["ms"]))
        print(f"\n{kind} leads, {type(asker).__name__} asks: {answer['ms']:.1f} ms")
        assert (await asker.ask("none"))["value"] is None
    served = [seen for seen in await leader.served() if seen[2].startswith("key of ")]
    assert [seen[1] for seen in served] == [asker.tab_id for asker in members]
    assert [seen[3] for seen in served][-1] == ("2.0" if others(driven)[-1] == "python" else "1.0")
    for asker in members:
        if isinstance(asker, Page):
            assert await uncaught(asker.tab) == []


@in_each(main=SHARED)
async def test_what_goes_wrong_is_told_to_the_asker(driven: DrivenBrowser, site: Site, bundle: Path, kind: str) -> None:
    members = await team(driven, site, bundle, kind, *others(driven))
    for asker in members:
        failed = await asker.ask("fail")
        assert (failed["error"], failed["name"], failed["ours"]) == ("handler-failed", "HandlerFailed", True)
        assert (failed["handler"]["name"], failed["handler"]["message"]) == ("RangeError", "out of it")
        refused = await asker.ask("refuse")
        version = "1.0" if isinstance(asker, Page) else "2.0"
        assert (refused["error"], refused["message"]) == ("ask-refused", f"not for {version} x,y")
        missing = await asker.ask("nothing")
        assert (
            missing["error"] == "no-handler"
            and "it serves: echo, fail, lossy, none, refuse, wait" in missing["message"]
        )
        lossy = await asker.ask("lossy")
        assert lossy["error"] == "handler-failed" and lossy["handler"]["name"] == "NotCloneable"
        assert ".items[1].at" in lossy["handler"]["message"]
        late = await asker.ask("wait", timeoutMs=5_000)
        assert (late["error"], late["outcome"]) == ("ask-timeout", "unknown") and late["ms"] < 20_000
    assert len(await members[0].served()) == len(members)


async def test_what_cannot_be_sent_is_refused_before_anything_is(driven: DrivenBrowser, site: Site) -> None:
    first = await page(driven, site)
    await until(first.leads, "the first to lead")
    caught = """async (args) => {
      const given = [{ rows: [1, { at: new Map() }] }, { n: 1n }, "x".repeat(100_001), "é".repeat(20_000)];
      const seen = ({ name, code, message }) => [name, code, message];
      return Promise.all(given.map((args) => asking.election.ask("echo", args).catch(seen)));
    }"""
    found: list[list[str]] = await first.tab.evaluate(caught)
    assert [each[:2] for each in found] == [["NotCloneable", "not-cloneable"]] * 4
    for each, place in zip(found, ("args.rows[1].at", "args.n", "100000", "100000"), strict=True):
        assert place in each[2]
    wrong = """async () => Promise.all([["", 1], ["echo", 1, { timeoutMs: 0 }], ["echo", 1, { timeout: 5 }]].map(
      (given) => asking.election.ask(...given).catch(({ name, message }) => `${name}: ${message}`)))"""
    told: list[str] = await first.tab.evaluate(wrong)
    assert all(each.startswith("TypeError: ") for each in told) and 'no option "timeout"' in told[2]
    await first.tab.evaluate("""() => {
      asking.stop = new AbortController();
      const asked = asking.election.ask("wait", null, { signal: asking.stop.signal });
      asking.aborted = asked.catch(({ message }) => message);
    }""")
    await begun(first)
    assert await first.tab.evaluate("() => (asking.stop.abort(new Error('enough')), asking.aborted)") == "enough"
    assert await uncaught(first.tab) == []


@in_each("how", main={"chromium-shared", "firefox-shared-crashed", "webkit-shared-crashed"}, given=LEADER_GOES)
async def test_the_leader_goes_in_the_middle(
    driven: DrivenBrowser, site: Site, bundle: Path, kind: str, how: str
) -> None:
    keeper = await page(driven, site, requires=["nobody has it"])  # the shared engine lives in its process
    members = await team(driven, site, bundle, kind, *others(driven))
    askers = [*members[1:], keeper]
    for asker in askers:
        await asker.begin("wait", timeoutMs=60_000)
    await begun(members[0], len(askers))
    await GOES[how](members[0].tab)
    for asker in askers:
        told = await asker.answer()
        assert (told["error"], told["outcome"]) == ("leader-changed", "unknown"), told
    second = await leader_of(members[1:])
    assert await second.served() == []  # nobody does it twice
    await known([*askers], second)
    for asker in askers:
        assert (await asker.ask("echo"))["value"]["by"] == second.tab_id


@in_each(main={"chromium-shared"})
async def test_an_idempotent_handler_is_asked_again_with_the_same_key(
    driven: DrivenBrowser, site: Site, bundle: Path, kind: str
) -> None:
    keeper = await page(driven, site, requires=["nobody has it"])
    members = await team(driven, site, bundle, kind, others(driven)[0], others(driven)[-1], idempotent=["wait"])
    await keeper.begin("wait", {"n": 1}, timeoutMs=60_000)
    await begun(members[0])
    first = await members[0].served()
    await members[0].tab.close()
    second = await leader_of(members[1:])
    await begun(second)
    await second.finish()
    assert (await keeper.answer())["value"] == second.tab_id
    assert await second.served() == first


async def test_a_question_waits_for_a_leader_and_no_longer_than_told(driven: DrivenBrowser, site: Site) -> None:
    asker = await page(driven, site, requires=["nobody has it"])
    alone = await asker.ask("echo", timeoutMs=300)
    assert (alone["error"], alone["outcome"]) == ("no-leader", None) and 250 < alone["ms"] < 10_000
    await asker.begin("echo", 7, timeoutMs=90_000)
    other = await page(driven, site, "window")
    assert (await asker.answer())["value"] == {"by": other.tab_id, "args": 7}


@IN_CHROMIUM
async def test_an_answer_survives_the_death_of_the_askers_engine(
    driven: DrivenBrowser, site: Site, bundle: Path
) -> None:
    leader = await page(driven, site, "window")
    await until(leader.leads, "the first to lead")
    maker = await site.joined(driven)  # the shared engine lives in its process
    asker = await page(driven, site, requires=["nobody has it"])
    await known([asker], leader)
    engine = await asker.tab.evaluate("() => tab.engine.id")
    await asker.begin("wait", timeoutMs=60_000)
    await begun(leader)
    await maker.kill_process()
    await asker.tab.until(f"() => tab.engine && tab.engine.id !== {engine!r}", what="another engine")
    await leader.finish()
    assert (await asker.answer())["value"] == leader.tab_id
    assert len(await leader.served()) == 1


@IN_CHROMIUM
async def test_a_loop_in_the_middle_of_which_nobody_serves_yet(driven: DrivenBrowser, site: Site) -> None:
    asker = await page(driven, site, requires=["nobody has it"])
    slow = await site.joined(driven, host="window")
    await slow.evaluate(
        """() => { tab.lead("job", async (ctx) => {
          await new Promise((ready) => (window.ready = ready));
          await ctx.serve({ late: () => "at last" });
          await ctx.sleep(1e9);
        }); }"""
    )
    await slow.until("() => Boolean(window.ready)", what="the loop to run")
    await asker.begin("late", timeoutMs=30_000)
    await slow.evaluate("() => ready()")
    assert (await asker.answer())["value"] == "at last"


@in_each(main=SHARED)
async def test_state_reaches_all_and_those_who_come_late(
    driven: DrivenBrowser, site: Site, bundle: Path, kind: str
) -> None:
    members = await team(driven, site, bundle, kind, *others(driven))
    leader = members[0]
    for number in range(1, 6):
        await leader.publish({"connected": number})

    async def all_see(value: Any, who: list[Any]) -> None:
        async def look() -> bool:
            seen = [await each.state() for each in who]
            return all(state is not None and state["value"] == value for state in seen)

        await until(look, f"all to see {value}")

    await all_see({"connected": 5}, members)
    for each in members:
        states = await each.states()
        assert [state["number"] for state in states] == [1, 2, 3, 4, 5]
        assert {state["tabId"] for state in states} == {leader.tab_id}
        assert all(state["current"] and not state["missed"] for state in states)
    late = [await member(driven, site, bundle, other) for other in others(driven)]
    await all_see({"connected": 5}, late)
    await leader.tab.close()
    second = await leader_of([*members[1:], *late])
    rest = [each for each in [*members[1:], *late]]

    async def old() -> bool:
        seen = [await each.state() for each in rest]
        return all(state is not None and not state["current"] and state["value"] == {"connected": 5} for state in seen)

    await until(old, "all to know that it is an old leader's")
    await second.publish("new")
    await all_see("new", rest)
    state = await rest[0].state()
    assert state is not None and (state["number"], state["current"], state["tabId"]) == (1, True, second.tab_id)


async def test_whoever_was_away_catches_up(browser: ChaosBrowser, site: Site, bundle: Path) -> None:
    leader, cached, frozen = await team(browser, site, bundle, "shared", "window", "shared")
    await leader.publish(1)

    async def sees(who: Any, value: Any) -> None:
        async def look() -> bool:
            state = await who.state()
            return state is not None and state["value"] == value and state["current"]

        await until(look, f"{value} to be seen")

    await sees(cached, 1)
    await sees(frozen, 1)
    await cached.tab.navigate("/blank2")
    await frozen.tab.freeze()
    for value in (2, 3, 4):
        await leader.publish(value)
    await sees(leader, 4)
    await frozen.tab.thaw()
    await sees(frozen, 4)
    assert [state["value"] for state in await frozen.states()] == [1, 4]
    assert await cached.tab.back(), await cached.tab.not_restored_reasons()
    await sees(cached, 4)
