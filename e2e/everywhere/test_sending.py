"""Own senders, payloads that are no JSON, and dead letters, in whichever engine."""

from __future__ import annotations

from e2e.kit import Site
from e2e.offline_queue.lane import acknowledged, attempt, drained, enqueue, judge, operations, stats
from e2e.offline_queue.senders import asked, hold, sending, sends

from tabhelm.testing.driver import DrivenBrowser


async def test_own_senders_of_two_tabs_send_each_operation_once(driven: DrivenBrowser, site: Site, host: str) -> None:
    tabs = [await sending(driven, site, join_options={"host": host}) for _ in range(2)]
    for tab in tabs:
        await enqueue(tab, operations(f"tab{tab.number}", 20, partitions=2))
    await drained(tabs[0], timeout=60)
    assert len(await judge(site, await acknowledged(*tabs))) == 40
    seen = [each for tab in tabs for each in await sends(tab)]
    assert len(seen) == 40 and {each["attempt"] for each in seen} == {1}


async def test_the_next_tab_goes_on_when_one_is_closed_in_mid_send(
    driven: DrivenBrowser, site: Site, host: str
) -> None:
    leads = await sending(driven, site, join_options={"host": host})
    await hold(leads)
    await enqueue(leads, operations("a", 4))
    acks = await acknowledged(leads)
    await asked(leads)
    rest = await sending(driven, site, join_options={"host": host})
    await leads.close()
    await drained(rest, done=4, timeout=60)
    assert len(await judge(site, acks)) == 4


async def test_a_payload_that_is_no_json_arrives_as_it_went(driven: DrivenBrowser, site: Site, host: str) -> None:
    tab = await sending(driven, site, join_options={"host": host})
    told = await tab.evaluate("""async () => {
      behave = async ({ payload }) => { window.got = payload; };
      const payload = {
        map: new Map([["when", new Date(5)]]), bytes: new Uint8Array([0, 255]), big: 12n, nothing: undefined,
      };
      payload.self = payload;
      await q.enqueue(payload, { id: "one" });
      return q.enqueue({ f() {} }).catch(({ name, message }) => `${name}: ${message}`);
    }""")
    assert told.startswith("TypeError: payload.f is a function")
    await drained(tab, done=1)
    got = await tab.evaluate("""async () => [
      got.map.get("when").getTime(), [...got.bytes], String(got.big), "nothing" in got, got.self === got,
    ]""")
    assert got == [5, [0, 255], "12", True, True]
    again = await tab.evaluate("() => q.enqueue({ another: 1 }, { id: 'one' }).catch(({ code }) => code)")
    assert again == "identifier-reused"


async def test_a_blob_arrives_or_the_browser_says_why_it_stores_none(
    driven: DrivenBrowser, site: Site, host: str
) -> None:
    tab = await sending(driven, site, join_options={"host": host})
    told = await tab.evaluate("""async () => {
      behave = async ({ payload }) => { window.got = payload; };
      const blob = new Blob(["hello"], { type: "text/plain" });
      return q.enqueue({ blob }).then(() => "stored", ({ code, message }) => `${code}: ${message}`);
    }""")
    if told != "stored":  # WebKit keeps none in a private window, nor where a test's browser has no folder
        assert told.startswith("database: ") and "Blob" in told and type(driven).__name__ == "WebKitBrowser", told
        assert (await stats(tab))["queued"] == 0
        return
    await drained(tab, done=1)
    assert await tab.evaluate("() => got.blob.text()") == "hello"


async def test_dead_letters(driven: DrivenBrowser, site: Site, host: str) -> None:
    tab = await sending(driven, site, join_options={"host": host})
    await tab.evaluate(
        "() => { behave = async ({ payload }) => payload.n < 0 ? { status: 'rejected', detail: 'no' } : null; }"
    )
    await enqueue(tab, [{"payload": {"n": n}, "partition": str(n), "id": str(n)} for n in (-2, -1, 1)])
    await drained(tab, done=1)
    letters = (await attempt(tab, "deadLetters"))["value"]
    assert [(each["id"], each["payload"], each["reason"]) for each in letters] == [
        ("-2", {"n": -2}, "no"),
        ("-1", {"n": -1}, "no"),
    ]
    assert (await attempt(tab, "removeDead", ["-2"]))["value"] == {"count": 1}
    await tab.evaluate("() => { behave = async () => {}; }")
    assert (await attempt(tab, "retryDead", ["-1"]))["value"] == {"count": 1}
    await drained(tab, done=2)
    assert (await attempt(tab, "deadLetters"))["value"] == []
