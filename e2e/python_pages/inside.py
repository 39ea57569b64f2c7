"""What the tests run inside a page's own interpreter: shipped there as text, called by name, answered as JSON."""

from __future__ import annotations

import asyncio
import json
import traceback
from importlib import import_module
from typing import Any

import tabhelm
from tabhelm import JoinedTab, LeaderContext, LeadershipLost, LeadershipPolicy, Leading
from tabhelm.observe import as_dict
from tabhelm.queue import Operation, Sending

js: Any = import_module("js")
create_once_callable: Any = import_module("pyodide.ffi").create_once_callable
TABS: dict[str, JoinedTab] = {}
ELECTIONS: dict[str, tabhelm.Election] = {}
QUEUES: dict[str, tabhelm.Queue] = {}
RUNS: list[dict[str, Any]] = []
CONTEXTS: list[LeaderContext] = []
HEADERS: dict[str, dict[str, str]] = {}
BODIES: dict[str, dict[str, Any]] = {}
EVENTS: list[dict[str, Any]] = []
PENDING: dict[str, list[asyncio.Future[str]]] = {}
LEFT: dict[str, int] = {}
HOLD: dict[str, bool] = {}
SENDS: list[dict[str, Any]] = []


async def call(name: str, arguments: str) -> str:
    """Await ``name(*arguments)``; an exception comes back as a traceback."""
    try:
        return json.dumps({"result": await globals()[name](*json.loads(arguments))})
    except BaseException as error:
        return json.dumps({"error": type(error).__name__, "traceback": "".join(traceback.format_exception(error))})


def clock() -> float:
    """Unix milliseconds of the machine's one clock."""
    return float(js.performance.timeOrigin + js.performance.now())


async def join(options: dict[str, Any], key: str = "tab") -> dict[str, Any]:
    began = clock()
    tab = TABS[key] = await tabhelm.join(**{"app": "e2e", "stall_after": 10.0, **options})
    tab.events.subscribe(lambda event: EVENTS.append(as_dict(event)))
    return {**await who(key), "ms": clock() - began}


async def who(key: str = "tab") -> dict[str, Any]:
    tab = TABS[key]
    state = tab.state
    return {
        "id": tab.tab_id,
        "connection": tab.connection_id,
        "generation": tab.generation,
        "host": tab.host,
        "lifecycle": state.lifecycle,
        "visible": state.visible,
        "online": state.online,
    }


async def leave(key: str = "tab") -> None:
    await TABS.pop(key).leave()


async def stand(resource: str, policy: dict[str, Any] | None = None, key: str = "tab") -> None:
    async def loop(context: LeaderContext) -> None:
        run: dict[str, Any] = {"epoch": context.epoch, "at": clock(), "ended": None, "ticks": 0}
        RUNS.append(run)
        CONTEXTS.append(context)
        try:
            while True:
                await context.sleep(0.1)
                run["ticks"] += 1
        finally:
            run["ended"] = clock()

    given = LeadershipPolicy.from_wire({"fence": "/api/operations", **(policy or {})})
    ELECTIONS[resource] = TABS[key].lead(resource, loop, policy=given)


async def now(resource: str) -> dict[str, Any]:
    election = ELECTIONS[resource]
    run = next((run for run in reversed(RUNS) if run["ended"] is None), None)
    state = election.status
    leads = isinstance(state, Leading) and run is not None and run["epoch"] == state.epoch
    return {"status": str(state), "leads": leads, "epoch": run and run["epoch"], "at": run and run["at"], "runs": RUNS}


async def events() -> list[dict[str, Any]]:
    return EVENTS


async def keep_headers(name: str) -> None:
    """A token for a write that will be sent later, however late."""
    HEADERS[name] = CONTEXTS[-1].headers()


async def lost() -> str | None:
    """Why the newest tenure is over, found out by asking for one more token."""
    try:
        CONTEXTS[-1].next_token()
    except LeadershipLost as lost:
        return lost.reason
    return None


async def write(name: str, headers: str | None = None) -> int:
    """One protected write, under a fresh token or kept headers; returns the receiver's status."""
    body = json.dumps({"operations": [{"op_id": name, "partition": "p", "payload": {"kind": "note", "name": name}}]})
    sent = {**(HEADERS[headers] if headers else CONTEXTS[-1].headers()), "Content-Type": "application/json"}
    options = js.JSON.parse(json.dumps({"method": "POST", "headers": sent, "body": body}))
    response = await js.fetch("/api/operations", options)
    return int(response.status)


async def presence(key: str = "tab") -> dict[str, Any]:
    seen = TABS[key].presence()
    return {
        "own": seen.own.tab_id,
        "tabs": {tab.tab_id: [tab.lifecycle, tab.liveness, sorted(tab.capabilities)] for tab in seen.tabs},
        "leaders": {resource: leader.tab_id for resource, leader in seen.leaders.items()},
    }


async def queue(name: str, options: dict[str, Any], key: str = "tab") -> None:
    QUEUES[name] = TABS[key].queue(name, **options)


async def flush_batches(name: str, key: str = "tab") -> None:
    """Stand for the queue with a loop of our own."""
    opened = QUEUES[name]

    async def flush(context: LeaderContext) -> None:
        async for batch in opened.batches(context, limit=25):
            await batch.send("/api/operations")

    ELECTIONS[name] = TABS[key].lead(opened, flush)


async def enqueue(name: str, prefix: str, count: int) -> list[str]:
    payloads = [{"kind": "note", "name": f"{prefix}-{number}"} for number in range(count)]
    return [await QUEUES[name].enqueue(payload, partition=prefix) for payload in payloads]


async def leave_in_midst(name: str, prefix: str, count: int, url: str) -> None:
    """Begin so many calls at once, and more until the page has gone elsewhere before all are answered; ``settled``."""
    pending: list[asyncio.Future[str]] = []
    PENDING[name] = pending

    def begin() -> None:
        note = {"kind": "note", "name": f"{prefix}-{len(pending)}"}
        pending.append(asyncio.ensure_future(QUEUES[name].enqueue(note, partition=prefix)))

    for _ in range(count):
        begin()

    def leaving(_event: Any) -> None:
        LEFT[name] = sum(not each.done() for each in pending)

    js.addEventListener("pagehide", create_once_callable(leaving))
    await asyncio.sleep(0)  # each has begun
    js.location.href = url
    while name not in LEFT and len(pending) < 50 * count:  # the next page may be long in coming
        await asyncio.sleep(0.005)
        begin()


async def settled(name: str) -> dict[str, Any]:
    """How the calls of ``leave_in_midst`` ended, and how many of them were open when the page left."""
    found = await asyncio.gather(*PENDING[name], return_exceptions=True)
    return {"left": LEFT[name], "ids": [each if isinstance(each, str) else repr(each) for each in found]}


async def send_from_here(name: str, options: dict[str, Any], key: str = "tab") -> None:
    """Empty the queue with a sender of our own, which waits while ``HOLD`` says so, then writes to the receiver."""

    async def send(operation: Operation, sending: Sending) -> str:
        seen: dict[str, Any] = {"id": operation.op_id, "attempt": sending.attempt, "epoch": sending.token.epoch}
        seen["ended"] = None
        SENDS.append(seen)
        try:
            while HOLD.get(name):
                await asyncio.sleep(0.02)
            item = {
                "op_id": operation.op_id,
                "partition": operation.partition,
                "payload": json.loads(operation.payload),
            }
            body = json.dumps({"operations": [item]})
            headers = {"Content-Type": "application/json", "Fencing-Token": sending.headers()["Fencing-Token"]}
            asked = js.JSON.parse(json.dumps({"method": "POST", "headers": headers, "body": body}))
            answer = await js.fetch("/api/operations", asked)
            seen["ended"] = int(answer.status)
            return str((await answer.json()).results[0].status)
        except BaseException as error:
            seen["ended"] = type(error).__name__
            raise

    QUEUES[name] = TABS[key].queue(name, sender=send, payloads="json", **options)


async def hold_sends(name: str, held: bool) -> None:
    HOLD[name] = held


async def sends() -> list[dict[str, Any]]:
    """What the senders of this page were asked."""
    return SENDS


async def stats(name: str) -> dict[str, Any]:
    seen = await QUEUES[name].stats()
    return {"queued": seen.queued, "in_flight": seen.in_flight, "done": seen.done, "dead": seen.dead}


async def observed(key: str = "tab") -> dict[str, Any]:
    """Figures, history and diagnosis, and what must not be in the last."""
    tab = TABS[key]
    metrics = tab.metrics()
    found = await tab.diagnose()
    text = json.dumps(found)
    return {
        "acting": {resource: item.leaders_acting for resource, item in metrics.resources.items()},
        "text": metrics.text(),
        "history": [[entry.resource, entry.epoch, entry.tab_id, entry.reason] for entry in await tab.history()],
        "shown": [each for each in (tab.tab_id, tab.connection_id) if each in text],
        "diagnosis": found,
    }


async def join_errors() -> dict[str, str]:
    """What is said where something is missing."""
    said = {}
    locks, storage = js.navigator.locks, js.indexedDB
    define(js.navigator, "locks", None)
    define(js.window, "indexedDB", None)
    try:
        await tabhelm.join(app="e2e")
    except tabhelm.TabhelmError as error:
        said["locks"] = f"{type(error).__name__}: {error}"
    finally:
        define(js.navigator, "locks", locks)
        define(js.window, "indexedDB", storage)
    return said


def define(target: Any, name: str, value: Any) -> None:
    described = js.JSON.parse('{"configurable": true, "writable": true}')
    described.value = value
    js.Object.defineProperty(target, name, described)


async def proxies(wanted: int | None = None) -> int:
    """How many Python objects JavaScript holds; waits up to five seconds for the wanted number, if one is given."""
    import gc

    pyodide: Any = import_module("pyodide_js")
    for _ in range(100):
        gc.collect()
        held = int(pyodide._module.pyproxy_alloc_map.size)
        if wanted is None or held == wanted:
            break
        await asyncio.sleep(0.05)
    return held


async def trace_proxies() -> None:
    pyodide: Any = import_module("pyodide_js")
    pyodide._module.enable_pyproxy_allocation_tracing()


async def a_whole_life(rounds: int) -> list[int]:
    """Join, lead, enqueue, be robbed, leave, so many times; how many proxies were there after each."""
    counts = []
    for number in range(rounds):
        async with tabhelm.join(app="proxies", capabilities={"x"}) as tab:
            queue = tab.queue("q", endpoint="/api/operations")
            await queue.enqueue({"kind": "note", "name": f"n{number}"})

            async def loop(context: LeaderContext) -> None:
                await context.sleep(100)

            election = tab.lead("r", loop)
            await election.wait_for(Leading)
            stop = tab.on_presence(lambda presence: None)
            tab.update(capabilities={"y"})
            while (await queue.stats()).done <= number:
                await asyncio.sleep(0.02)
            stop()
        counts.append(await proxies(0))
    return counts


async def stop(resource: str) -> None:
    election = ELECTIONS[resource]
    election.stop("done")
    await election.stopped()


async def hold(name: str, options: dict[str, Any], key: str = "tab") -> None:
    """Ask for the lock ``case``; its body runs until ``end``."""
    body: dict[str, Any] = {"inside": False, "outcome": None, "ending": asyncio.Event(), "lock": None}
    BODIES[name] = body

    async def run() -> None:
        try:
            async with TABS[key].lock("case", **options) as lock:
                body.update(inside=True, lock=lock, began=clock())
                try:
                    await body["ending"].wait()
                finally:
                    body["inside"] = False
            body["outcome"] = ["value", None]
        except tabhelm.TabhelmError as error:
            body["outcome"] = [type(error).__name__, str(error)]

    body["task"] = asyncio.create_task(run())


async def body(name: str) -> dict[str, Any]:
    its = BODIES[name]
    held = its["lock"] is not None and its["lock"].held
    return {"inside": its["inside"], "held": held, "outcome": its["outcome"], "began": its.get("began")}


async def end(name: str) -> None:
    BODIES[name]["ending"].set()


async def cancel(name: str) -> None:
    BODIES[name]["task"].cancel()


async def fly(name: str, value: Any, key: str = "tab") -> None:
    """Ask for the flight ``catalog``; its work runs until ``end``."""
    body: dict[str, Any] = {"ran": False, "outcome": None, "ending": asyncio.Event()}
    BODIES[name] = body

    async def work() -> Any:
        body["ran"] = True
        await body["ending"].wait()
        return value

    async def run() -> None:
        try:
            body["outcome"] = ["value", await TABS[key].single_flight("catalog", work)]
        except tabhelm.TabhelmError as error:
            body["outcome"] = [type(error).__name__, str(error)]

    body["task"] = asyncio.create_task(run())


async def flown(name: str) -> dict[str, Any]:
    return {key: BODIES[name][key] for key in ("ran", "outcome")}


async def many_locks(rounds: int) -> list[float]:
    """Milliseconds of each of so many locks taken and let go, one after the other."""
    took = []
    for _ in range(rounds):
        began = clock()
        async with TABS["tab"].lock("figures"):
            took.append(clock() - began)
    return took
