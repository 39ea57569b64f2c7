"""What a page of these tests does: join, and tell what came of it."""

from __future__ import annotations

from typing import Any

from e2e.kit import PATIENCE_MS

from tabhelm.testing import ChaosTab

JOIN = """async ([base, options]) => {
  const began = performance.now();
  const ms = () => Math.round(performance.now() - began);
  window.told = [];
  window.violations ??= [];
  addEventListener("securitypolicyviolation", ({ violatedDirective }) => violations.push(violatedDirective));
  try {
    const { join } = await import(`${base}/tabhelm.mjs`);
    window.tab = await join({ app: "serving", ...options });
    tab.addEventListener("event", ({ detail }) => told.push(detail));
    const { from, fallbackReason = null } = tab.engine;
    return { ms: ms(), host: tab.host, from, fallbackReason, reason: tab.hostState.reason };
  } catch ({ name, code, message }) {
    return { ms: ms(), name, code: code ?? null, message };
  }
}"""

WORK = """async () => {
  window.election ??= tab.lead("job", (ctx) => new Promise((ended) => ctx.signal.addEventListener("abort", ended)), {});
  const queue = tab.queue("mutations", { endpoint: "/api/operations" });
  return queue.enqueue({ kind: "note", from: tab.id }, { partition: "p" });
}"""
"""Stand for a job and enqueue one operation; returns its id."""

FLUSHED = (
    "async () => { const { queued, inFlight } = await tab.queue('mutations').stats(); return queued + inFlight === 0; }"
)


async def try_join(tab: ChaosTab, base: str = "/tabhelm", **options: Any) -> dict[str, Any]:
    """Join; returns ``{ms, host, from, …}``, or ``{ms, name, code, message}`` of the error."""
    given = {"enginePatienceMs": PATIENCE_MS, **options}
    result: dict[str, Any] = await tab.evaluate(JOIN, [base, given], timeout=90)
    return result


async def works(tab: ChaosTab) -> str:
    """A joined tab leads, enqueues and flushes; returns the operation's id."""
    operation: str = await tab.evaluate(WORK)
    await tab.until("() => election.status.state === 'leading'", what="the tab to lead")
    await tab.until(FLUSHED, what="the queue to be flushed")
    return operation
