"""Python and JavaScript write to one database of the app, under the same marks."""

from __future__ import annotations

import json
from typing import Any

import pytest
from e2e.kit import join, leader, until
from e2e.python_pages.site import PythonSite
from tests.fencing.vectors import SEQUENCES

from tabhelm.testing import ChaosBrowser

from .pages import GuardedPage, effect, set_up, stored

_CLEAR = """() => new Promise((done) => {
  const clearing = db.transaction("fence", "readwrite");
  clearing.objectStore("fence").clear();
  clearing.oncomplete = () => done(null);
})"""
_STAND = """() => {
  const stand = (stands.job = { runs: [], statuses: [] });
  stand.election = tab.lead("job", (ctx) => new Promise((resolve) => {
    const run = { ctx, epoch: ctx.epoch, at: clock(), abortedAt: null, reason: null };
    stand.runs.push(run);
    ctx.signal.addEventListener("abort", () => ((run.abortedAt = clock()), resolve()));
  }));
}"""
_TOKEN = "() => stands.job.runs.at(-1).ctx.nextToken()"
_LATE = """async () => {
  const { ctx } = stands.job.runs.at(-1);
  const applied = [];
  const work = async () => {
    stands.job.election.stop("meanwhile"); // nor does it stand again
    await new Promise((ended) => ctx.signal.addEventListener("abort", ended));
    return "late";
  };
  await guard.applyIfCurrent(ctx, () => "in time", (result) => applied.push(result));
  await guard.applyIfCurrent(ctx, work, (result) => applied.push(result)).catch(({ name }) => applied.push(name));
  return applied;
}"""


async def opened(browser: ChaosBrowser, site: PythonSite) -> GuardedPage:
    page = await GuardedPage.open(browser, site)
    assert isinstance(page, GuardedPage)
    await page.load()
    return page


async def by_script(page: GuardedPage, fields: dict[str, Any], name: str, rule: str) -> dict[str, Any]:
    """The effect under a token, written by JavaScript, and what came of it in Python's words."""
    error = (await effect(page.tab, fields, name, rule=rule))["error"]
    if error is None:
        return {"verdict": "accepted"}
    return {"verdict": "overtaken" if error["overtaken"] else "stale", "high_water": error["highWater"]}


@pytest.mark.parametrize("first", ["python", "javascript"])
async def test_the_vectors_each_step_in_the_other_language(
    browser: ChaosBrowser, python_site: PythonSite, first: str
) -> None:
    """Whoever comes first makes the database, too, and the other finds it as it needs it."""
    page = await opened(browser, python_site)
    if first == "python":
        assert await page("count") == 0
    await set_up(page.tab)
    turn = first
    for sequence in SEQUENCES:
        await page.tab.evaluate(_CLEAR)
        for number, step in enumerate(sequence["steps"]):
            name = f"{sequence['name']} {number}"
            given = [step["token"], name, sequence["rule"]]
            told = await (page("show", *given) if turn == "python" else by_script(page, *given))
            assert told == {key: value for key, value in step.items() if key in ("verdict", "high_water")}, name
            if "marks" in step:
                where = {key: step["token"][key] for key in ("domain", "resource")}
                records = json.loads(await page.tab.evaluate("async () => JSON.stringify(await stored('fence'))"))
                assert [each for each in records if each.items() >= where.items()] == [{**where, **step["marks"]}], name
            turn = "javascript" if turn == "python" else "python"
    assert await page.uncaught() == []


async def test_a_python_leader_that_lost_cannot_write_what_its_successor_guards(
    browser: ChaosBrowser, python_site: PythonSite
) -> None:
    """A leader in Python, its successor in JavaScript, and back: one resource, one database."""
    page = await opened(browser, python_site)
    await page("stand")
    first = await until(lambda: page("epoch"), "Python to lead", 30)
    assert await page("write", "python in time") == {"verdict": "accepted"}
    await page("draw")

    tab = await browser.new_tab(f"{python_site.url}/blank")
    await join(tab)
    await set_up(tab)
    await tab.evaluate(_STAND)
    await tab.until("() => stands.job.election.status.standby", what="the script to stand by")
    await page("step_down")
    second = await leader([tab], above=first)
    assert (await effect(tab, await tab.evaluate(_TOKEN), "script"))["end"] == "complete"
    kept = await tab.evaluate(_TOKEN)
    late = await page("write", "python too late", True)
    assert late["verdict"] == "stale" and late["high_water"]["epoch"] == second.epoch, late

    assert await tab.evaluate(_LATE) == ["in time", "LeadershipLost"], "local state: what comes late is dropped"
    third = await until(lambda: page("epoch"), "Python to lead again", 30)
    assert third > second.epoch
    assert await page("write", "python again") == {"verdict": "accepted"}
    result = await effect(tab, kept, "script too late")
    assert (result["end"], result["error"]["name"]) == ("aborted", "StaleOwner")
    names = sorted({each["id"].rpartition(" ")[0] for each in await stored(tab, "cases")})
    assert names == ["python again", "python in time", "script"]
    assert await page("late_result") == ["LeadershipLost"]
