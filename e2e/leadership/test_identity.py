"""Who a tab is: over reloads, duplicates, and journeys to the back/forward cache and back."""

from __future__ import annotations

from typing import Any

from e2e.kit import Site, join, leader, now, uncaught, until, write

from tabhelm.testing import ChaosBrowser, ChaosTab

_SELF = "() => ({ id: tab.id, connectionId: tab.connectionId, generation: tab.generation })"


async def test_a_page_comes_back_out_of_the_cache_joins_again_and_leads_again(
    browser: ChaosBrowser, site: Site
) -> None:
    # The first leader does not host the engine here, then (below) it does.
    await _journey(browser, site, hosted_by_first=False)


async def test_a_page_whose_process_holds_the_engine_comes_back_out_of_the_cache(
    browser: ChaosBrowser, site: Site
) -> None:
    await _journey(browser, site, hosted_by_first=True)


async def _journey(browser: ChaosBrowser, site: Site, *, hosted_by_first: bool) -> None:
    one, other = [await site.joined(browser) for _ in range(2)]
    first, second = (one, other) if hosted_by_first else (other, one)
    await site.stand(first)
    old = await leader([first])
    await site.stand(second)
    before = await first.evaluate(_SELF)

    await first.navigate("/blank2")
    meanwhile = await leader([second], above=old.epoch)
    assert await write(second, "meanwhile") == 200
    assert await first.back(), await first.not_restored_reasons()
    assert await first.not_restored_reasons() == []
    assert await first.evaluate("() => shown.at(-1)") is True, "pageshow was not `persisted`"

    await first.until("() => tab.hostState.state === 'connected' && tab.engine", what="joined again")
    after = await first.evaluate(_SELF)
    assert (after["id"], after["generation"]) == (before["id"], before["generation"] + 1)
    assert after["connectionId"] != before["connectionId"]
    run = await first.evaluate("() => { const { ctx, ...rest } = stands.job.runs[0]; return rest; }")
    assert run["reason"] == "pagehide" and run["abortedAt"] <= meanwhile.at, "its loop had ended before the next began"

    async def waits() -> bool:
        at = await now(first)
        return at is not None and at["status"]["state"] == "waiting"

    await until(waits, "standing again")
    assert (await leader([first, second])).tab is second, "it came back and took nothing away"
    await second.close()
    again = await leader([first], above=meanwhile.epoch)
    assert await write(first, "again") == 200
    assert [(each["op_id"], each["epoch"]) for each in await site.effects()] == [
        ("meanwhile", meanwhile.epoch),
        ("again", again.epoch),
    ]
    assert await uncaught(first) == []


async def test_a_duplicated_tab_gets_an_id_of_its_own_and_a_reloaded_one_keeps_it(
    browser: ChaosBrowser, site: Site
) -> None:
    tab = await site.open(browser)
    first = await join(tab)
    copy = await tab.duplicate()
    assert await copy.evaluate("() => sessionStorage.length") == 1, "the copy has the stored id"
    second = await join(copy)
    assert first["generation"] == second["generation"] == 1
    assert first["id"] != second["id"]

    await tab.reload()
    assert _who(await join(tab)) == (first["id"], 2)
    await copy.reload()
    assert _who(await join(copy)) == (second["id"], 2)
    assert len({first["connectionId"], second["connectionId"], await _connection(tab), await _connection(copy)}) == 4


async def test_two_tabs_of_one_renderer_have_two_ids(browser: ChaosBrowser, site: Site) -> None:
    tab = await site.open(browser)
    first = await join(tab)
    copy = await tab.duplicate(share_process=True)
    assert (await join(copy))["id"] != first["id"]


def _who(facts: dict[str, Any]) -> tuple[str, int]:
    return facts["id"], facts["generation"]


async def _connection(tab: ChaosTab) -> str:
    return str(await tab.evaluate("() => tab.connectionId"))
