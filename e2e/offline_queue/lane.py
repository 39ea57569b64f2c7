"""What the queue tests share: open the queue in a page, enqueue, wait, and judge the whole history."""

from __future__ import annotations

from typing import Any

from e2e.kit import RECEIVER, Opens, Site, TabT, join, until

from tabhelm.testing.driver import DrivenTab
from tabhelm.testing.history import History

QUEUE = "mutations"

_OPEN = """(options) => {
  window.acks = [];
  window.queueEvents = [];
  window.q = tab.queue("mutations", options);
  q.addEventListener("stats", ({ detail }) => (window.lastStats = detail));
}"""

_ENQUEUE = """async ([operations, oneByOne]) => {
  // A caller gives up no operation: what was acknowledged is noted the moment it is.
  const note = (each, id) => acks.push({ op_id: id, partition: each.partition });
  if (oneByOne) {
    for (const each of operations) note(each, await q.enqueue(each.payload, { partition: each.partition, id: each.id
    }));
  } else {
    const ids = await q.enqueueAll(operations);
    operations.forEach((each, index) => note(each, ids[index]));
  }
  return acks.length;
}"""

_ATTEMPT = """async ([method, args]) => {
  try {
    return { value: await q[method](...args) };
  } catch (error) {
    return { error: { name: error.name, code: error.code ?? null, message: error.message } };
  }
}"""


async def queueing(browser: Opens[TabT], site: Site, *, join_options: Any = None, **options: Any) -> TabT:
    """A joined tab with the queue open; unless told otherwise it also stands for flushing."""
    tab = await site.open(browser)
    await join(tab, **(join_options or {}))
    await open_queue(tab, **options)
    return tab


async def open_queue(tab: DrivenTab, **options: Any) -> None:
    await tab.evaluate(_OPEN, {"endpoint": RECEIVER, **options})


def operations(name: str, count: int, partitions: int = 1) -> list[dict[str, Any]]:
    """So many operations, dealt to the partitions in turn."""
    return [
        {"payload": {"kind": "note", "from": name, "n": n}, "partition": f"{name}-{n % partitions}"}
        for n in range(count)
    ]


async def enqueue(tab: DrivenTab, wanted: list[dict[str, Any]], *, one_by_one: bool = False) -> None:
    """Enqueue and note the acknowledgements in the page."""
    await tab.evaluate(_ENQUEUE, [wanted, one_by_one], timeout=60)


async def attempt(tab: DrivenTab, method: str, *arguments: Any) -> dict[str, Any]:
    """Call a method of the page's queue; its value, or its error as plain data."""
    outcome: dict[str, Any] = await tab.evaluate(_ATTEMPT, [method, list(arguments)])
    return outcome


async def stats(tab: DrivenTab) -> dict[str, Any]:
    found: dict[str, Any] = await tab.evaluate("() => q.stats()")
    return found


async def drained(tab: DrivenTab, *, done: int | None = None, timeout: float = 40.0) -> None:
    """Wait until nothing is queued or in flight (and, if given, so many were ever done)."""

    async def empty() -> bool:
        at = await stats(tab)
        return at["queued"] == at["inFlight"] == 0 and (done is None or at["done"] >= done)

    await until(empty, f"the queue to be empty{f' with {done} done' if done is not None else ''}", timeout)


async def flusher(tabs: list[TabT]) -> TabT:
    """Wait until exactly one of the tabs is said to lead the queue, and return it."""
    ids = {await tab.evaluate("() => tab.id"): tab for tab in tabs}

    async def leading() -> TabT | None:
        said = await tabs[0].evaluate("() => tab.presence().leaders['offline-queue:mutations']?.tabId ?? null")
        return ids.get(said)

    return await until(leading, "a tab to lead the queue", 40)


async def barrier_answered(site: Site, resource: str = "e2e:offline-queue:mutations", epoch: int = 0) -> None:
    """Wait until the leader's first request, which holds no operation, is over: what is sent next is a batch.

    ``epoch``: the leader's, where there was one before.
    """

    async def answered() -> bool:
        barriers = [each for each in await site.requests() if each["operations"] == 0 and each["outcome"] == 200]
        return any(each["resource"] == resource and each["epoch"] >= epoch for each in barriers)

    await until(answered, "the barrier to be answered", 30)


async def acknowledged(*tabs: DrivenTab) -> list[dict[str, Any]]:
    """What these tabs were told is durable."""
    return [{**ack, "tab": tab.number} for tab in tabs for ack in await tab.evaluate("() => acks")]


async def judge(site: Site, acks: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Check the whole history at the receiver against the acknowledgements; returns the effects."""
    # Grants of engines that were killed are in nobody's log.
    history = History(grants_known=False)
    for ack in acks:
        history.acknowledged(ack["op_id"], partition=ack["partition"], tab=str(ack["tab"]))
    effects = await site.effects()
    history.effects(effects)
    history.check().require()
    return effects
