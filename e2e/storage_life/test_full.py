"""The storage of the origin is full: Chromium's own limit, lowered."""

from __future__ import annotations

from e2e.kit import Site, until
from e2e.offline_queue.lane import acknowledged, attempt, drained, enqueue, flusher, judge, operations, queueing, stats

from tabhelm.testing import ChaosBrowser, ChaosTab

_FILL = """async (bytes) => {
  const database = await new Promise((resolve, reject) => {
    const request = indexedDB.open("filler", 1);
    request.onupgradeneeded = () => request.result.createObjectStore("blocks", { autoIncrement: true });
    request.onsuccess = () => resolve(request.result);
    request.onerror = () => reject(request.error);
  });
  // What the browser thinks that is left is as old as its last look: write until it refuses.
  for (let block = 0; block < 2_000; block++) {
    const noise = new Uint8Array(bytes);
    for (let at = 0; at < bytes; at += 65_536) crypto.getRandomValues(noise.subarray(at, at + 65_536));
    const refused = await new Promise((resolve) => {
      const transaction = database.transaction("blocks", "readwrite");
      transaction.objectStore("blocks").add(noise);
      transaction.oncomplete = () => resolve(null);
      transaction.onabort = () => resolve(transaction.error?.name ?? "aborted");
    });
    if (refused !== null) {
      if (bytes <= 64) return refused;
      bytes = Math.floor(bytes / 4);
    }
  }
  return "never refused";
}"""


async def fill(browser: ChaosBrowser, site: Site) -> ChaosTab:
    """Write the origin's storage full, to the last bytes, from a page without tabhelm."""
    page = await site.open(browser)
    assert await page.evaluate(_FILL, 262_144, timeout=60) == "QuotaExceededError"
    return page


async def test_every_call_is_refused_whole_the_queue_is_readable_and_goes_on_with_room(
    browser: ChaosBrowser, site: Site
) -> None:
    await browser.quota(site.url, 2_000_000)
    tab = await queueing(browser, site, flush=False)
    await enqueue(tab, operations("small", 3))
    await fill(browser, site)
    for method, given in (("enqueue", {"n": 1}), ("enqueueAll", [{"payload": n} for n in range(50)])):
        error = (await attempt(tab, method, given))["error"]
        assert error["code"] == "quota-exceeded" and "nothing was written" in error["message"], error
    assert (await stats(tab))["queued"] == 3
    assert (await attempt(tab, "deadLetters"))["value"] == []
    await browser.quota(site.url, None)

    async def stored() -> bool:
        return "value" in await attempt(tab, "enqueue", {"kind": "note"})

    await until(stored, "the browser to notice that there is room again", 60)
    leads = await queueing(browser, site)
    await drained(leads, done=4)


async def test_a_full_queue_is_flushed(browser: ChaosBrowser, site: Site) -> None:
    """Nothing can be written any more, neither a claim nor a receipt: what is sent is deleted all the same."""
    await browser.quota(site.url, 3_000_000)
    tab = await queueing(browser, site)
    await flusher([tab])
    await enqueue(tab, operations("warm", 1))
    await drained(tab, done=1)
    await site.hold_one()
    await enqueue(tab, operations("held", 1))
    await site.held()  # the leader is busy, so that all that follows is queued
    await enqueue(tab, operations("waiting", 40, partitions=4))
    await fill(browser, site)
    error = (await attempt(tab, "enqueue", {"n": 1}))["error"]
    assert error["code"] == "quota-exceeded", error
    await site.release()
    await site.applied(42)
    await browser.quota(site.url, None)  # so that what was done can also be counted
    await drained(tab, timeout=100)
    assert len(await judge(site, await acknowledged(tab))) == 42
