"""``guard.check`` in an app's own transactions: real storage, real stale owners, both languages on one record."""

from __future__ import annotations

from typing import Any

from e2e.kit import STALL_MS, WATCHED, Site, leader, stands_by
from tests.fencing.vectors import MALFORMED_RECORDS, MALFORMED_TOKENS, SEQUENCES, TEXT

from tabhelm.testing import ChaosBrowser
from tabhelm.testing.driver import DrivenBrowser, DrivenTab

from .pages import PLAY, effect, set_up, stored

HANG = 5 * STALL_MS / 1000
_TOKEN = "() => stands.job.runs.at(-1).ctx.nextToken()"


async def test_the_vectors_in_real_storage(driven: DrivenBrowser, site: Site) -> None:
    tab = await site.open(driven)
    await set_up(tab)
    assert await tab.evaluate(PLAY, TEXT) == []


async def test_what_is_no_token_or_no_marks_writes_nothing(driven: DrivenBrowser, site: Site) -> None:
    tab = await site.open(driven)
    await set_up(tab)
    for each in MALFORMED_TOKENS:
        result = await effect(tab, each["token"], "late")
        assert (result["end"], result["error"]["name"]) == ("aborted", "TypeError"), each["name"]
    good = {**SEQUENCES[0]["steps"][0]["token"], "epoch": 9}
    plant = """(record) => new Promise((done) => {
      const planting = db.transaction("fence", "readwrite");
      planting.objectStore("fence").put(record);
      planting.oncomplete = () => done(null);
    })"""
    for each in MALFORMED_RECORDS:
        await tab.evaluate(plant, each["record"])
        result = await effect(tab, good, "late")
        assert (result["end"], result["error"]["name"]) == ("aborted", "TypeError"), each["name"]
        assert "holds a record" in result["error"]["message"]
    assert await stored(tab, "cases") == []
    readonly = """(token) => guard.check(db.transaction("fence").objectStore("fence"), token)
      .then(() => "checked", ({ message }) => message)"""
    assert "readwrite" in await tab.evaluate(readonly, good)


async def test_marks_are_not_kept_where_nobody_finds_them_again(browser: ChaosBrowser, site: Site) -> None:
    """In a store with another key every token, however late, would be the first."""
    tab = await site.open(browser)
    await set_up(tab)
    elsewhere = """(token) => new Promise((resolve) => {
      const opening = indexedDB.open("elsewhere", 1);
      opening.onupgradeneeded = () => opening.result.createObjectStore("fence", { keyPath: ["resource", "domain"] });
      opening.onsuccess = () => {
        const transaction = opening.result.transaction("fence", "readwrite");
        const checked = guard.check(transaction.objectStore("fence"), token);
        checked.then(() => resolve("checked"), ({ message }) => resolve(message));
      };
    })"""
    told = await tab.evaluate(elsewhere, SEQUENCES[0]["steps"][0]["token"])
    assert "its key path" in told, told


async def test_the_abort_can_be_left_to_the_caller(browser: ChaosBrowser, site: Site) -> None:
    tab = await site.open(browser)
    await set_up(tab)
    (first, *_, late) = SEQUENCES[3]["steps"]
    await effect(tab, {**first["token"], "epoch": 2, "owner": "bob"}, "bob")
    result = await effect(tab, late["token"], "ann", abort=False)
    assert (result["end"], result["error"]["name"]) == ("complete", "StaleOwner")
    assert [each["id"] for each in await stored(tab, "cases")] == ["ann before", "bob after", "bob before"]


async def late_write(driven: DrivenBrowser, site: Site, *, guarded: bool) -> tuple[dict[str, Any], list[str]]:
    """A leader draws a token and hangs; another leads and writes; the first wakes and writes.

    Returns what came of the late write, and whose effects the app's database holds.
    """
    await site.joined(driven)  # the engine lives in the process of the page that was first, and shall not hang with it
    ann, bob = await site.standing(driven, 2, join=WATCHED)
    for tab in (ann, bob):
        await set_up(tab)
    first = await leader([ann, bob])
    other: DrivenTab = bob if first.tab is ann else ann
    await stands_by(other)
    token = await first.tab.evaluate(_TOKEN)
    assert (await effect(first.tab, token, "first in time", guarded=guarded))["end"] == "complete"
    late = await first.tab.evaluate(_TOKEN)
    await first.tab.hang(HANG)
    await other.show()
    second = await leader([other], above=first.epoch)
    assert (await effect(other, await second.tab.evaluate(_TOKEN), "second", guarded=guarded))["end"] == "complete"
    result = await effect(first.tab, late, "first too late", guarded=guarded)
    return result, sorted(each["id"].rpartition(" ")[0] for each in await stored(other, "cases"))


async def test_the_late_write_of_a_stale_owner_is_refused(driven: DrivenBrowser, site: Site) -> None:
    result, effects = await late_write(driven, site, guarded=True)
    assert result["end"] == "aborted" and result["error"]["name"] == "StaleOwner", result
    assert result["error"]["overtaken"] is False
    assert effects == ["first in time"] * 2 + ["second"] * 2


async def test_without_the_guard_it_lands(browser: ChaosBrowser, site: Site) -> None:
    """The same without a guard: that shows that the guard, and nothing else, refused it."""
    result, effects = await late_write(browser, site, guarded=False)
    assert result == {"end": "complete", "error": None}
    assert "first too late" in effects
