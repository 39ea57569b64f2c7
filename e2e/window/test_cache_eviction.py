"""A page in the back/forward cache runs nothing at all: one callback of the garbage collector, and it is thrown out."""

from __future__ import annotations

from e2e.kit import Site, join, leader, until, write
from e2e.offline_queue.lane import drained, enqueue, open_queue, operations

from tabhelm.testing import ChaosBrowser

_WATCH = """() => {
  window.collected = [];
  const Original = FinalizationRegistry;
  window.FinalizationRegistry = class extends Original {
    constructor(cleanup) {
      super(({ held, stack }) => {
        collected.push(stack);
        cleanup(held);
      });
    }
    register(target, held, token) {
      super.register(target, { held, stack: new Error().stack }, token);
    }
  };
  // So that a collection is known to have been one.
  window.canary = new Promise((collected) => {
    const registry = new Original(collected);
    registry.register({}, "gone");
    window.keep = registry;
  });
}"""


async def test_nothing_is_left_to_the_garbage_collector(browser: ChaosBrowser, site: Site) -> None:
    tab = await site.open(browser)
    await tab.evaluate(_WATCH)
    await join(tab, host="window")
    await open_queue(tab)
    await enqueue(tab, operations("a", 30))
    await drained(tab, done=30)
    await site.stand(tab)
    old = await leader([tab])
    assert await write(tab, "one") == 200
    await tab.freeze()
    await tab.thaw()
    await leader([tab], above=old.epoch)
    assert await tab.bfcache_round_trip("/blank2"), await tab.not_restored_reasons()
    await tab.until("() => tab.hostState.state === 'connected'", what="joined again")
    session = await tab.page.context.new_cdp_session(tab.page)
    await session.send("HeapProfiler.enable")

    async def collected() -> bool:
        await session.send("HeapProfiler.collectGarbage")
        return await tab.evaluate("() => Promise.race([canary, new Promise((no) => setTimeout(no, 200))])") == "gone"

    await until(collected, "the garbage to be collected")
    assert await collected(), "once more, for what the first left"
    assert await tab.evaluate("() => collected") == []
