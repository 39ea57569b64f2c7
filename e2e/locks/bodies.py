"""Bodies that hold a lock, or do a flight, until told; and what the browser says of the lock."""

from __future__ import annotations

from typing import Any

from e2e.kit import until

from tabhelm.testing.driver import DrivenTab

LOCK = "e2e:v1:mutation:case"
FLIGHT = "e2e:v1:single-flight:catalog"

_HOLD = """([id, options]) => {
  window.held ??= {};
  const its = (held[id] = { inside: false, abortedAt: null, lock: null, outcome: null, began: null });
  tab.lock("case", (lock) => new Promise((resolve, reject) => {
    Object.assign(its, { inside: true, lock, began: clock(), end: resolve });
    its.fail = () => reject(new RangeError("mine"));
    lock.signal.addEventListener("abort", () => { its.abortedAt = clock(); if (!its.deaf) resolve("told"); });
  }).finally(() => (its.inside = false)), options).then(
    (value) => (its.outcome = ["value", value, clock()]),
    ({ name, code, message, reason, holder, heldForMs }) =>
      (its.outcome = ["error", { name, code, message, reason, holder, heldForMs }, clock()]),
  );
}"""
_STATE = """(id) => {
  const its = window.held?.[id];
  if (!its) return null;
  const { inside, abortedAt, outcome, began, lock } = its;
  return { inside, abortedAt, outcome, began, held: lock?.held ?? false };
}"""
_LOCKS = """async (name) => {
  const { held, pending } = await navigator.locks.query();
  const count = (locks) => locks.filter((lock) => lock.name === name).length;
  return { held: count(held), pending: count(pending) };
}"""
_FLY = """([id, options]) => {
  window.flights ??= {};
  window.ran ??= [];
  const its = (flights[id] = { outcome: null });
  const { value, error, ms = 0, ...rest } = options;
  its.promise = tab.singleFlight("catalog", async (lock) => {
    ran.push(clock());
    its.lock = lock;
    await new Promise((resolve) => {
      its.end = resolve;
      if (ms) setTimeout(resolve, ms);
      lock.signal.addEventListener("abort", resolve);
    });
    lock.check();
    if (error) throw Object.assign(new RangeError(error), { name: "CatalogError" });
    return value ?? { from: tab.id, at: clock() };
  }, rest).then(
    (got) => (its.outcome = ["value", got]),
    ({ name, code, message, reason }) => (its.outcome = ["error", { name, code, message, reason }]),
  );
}"""


async def hold(tab: DrivenTab, name: str = "x", **options: Any) -> None:
    """Ask for the lock ``case``; ``end`` and ``fail`` end the body."""
    await tab.evaluate(_HOLD, [name, options])


async def state(tab: DrivenTab, name: str = "x") -> dict[str, Any]:
    """``inside``, ``held``, ``abortedAt``, ``began``, ``outcome``."""
    found: dict[str, Any] = await tab.evaluate(_STATE, name)
    return found


async def inside(tab: DrivenTab, name: str = "x", *, timeout: float = 15.0) -> dict[str, Any]:
    """Wait until the body runs and holds its lock."""

    async def runs() -> dict[str, Any] | None:
        at = await state(tab, name)
        return at if at["inside"] and at["held"] else None

    return await until(runs, "a body that holds the lock", timeout)


async def outcome(tab: DrivenTab, name: str = "x", *, timeout: float = 15.0) -> Any:
    """Wait until the promise has settled: ``["value", …]`` or ``["error", {name, code, …}]``."""

    async def settled() -> Any:
        return (await state(tab, name))["outcome"]

    kind, told, _ = await until(settled, "the promise of a lock to settle", timeout)
    return [kind, {name: value for name, value in told.items() if value is not None} if kind == "error" else told]


async def end(tab: DrivenTab, name: str = "x", value: Any = "done") -> None:
    await tab.evaluate("([id, value]) => held[id].end(value)", [name, value])


async def locks(tab: DrivenTab, name: str = LOCK) -> dict[str, int]:
    """How many requests for the lock are held and pending in the whole browser."""
    found: dict[str, int] = await tab.evaluate(_LOCKS, name)
    return found


async def queued(tab: DrivenTab, held: int, pending: int, name: str = LOCK) -> None:
    """Wait until so many hold the lock and so many wait for it."""

    async def so() -> bool:
        return await locks(tab, name) == {"held": held, "pending": pending}

    await until(so, f"{held} holding {name} and {pending} waiting")


async def fly(tab: DrivenTab, name: str = "x", **options: Any) -> None:
    """Ask for the flight ``catalog``; ``value``, ``error`` and ``ms`` say what its work does."""
    await tab.evaluate(_FLY, [name, options])


async def landed(tab: DrivenTab, name: str = "x", *, timeout: float = 20.0) -> Any:
    """Wait for the outcome of a flight."""
    return await tab.until("(id) => flights[id].outcome", timeout, arg=name)  # type: ignore[attr-defined]


async def runs(*tabs: DrivenTab) -> int:
    """How often the work was done in these tabs."""
    return sum([await tab.evaluate("() => window.ran?.length ?? 0") for tab in tabs])
