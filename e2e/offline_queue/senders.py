"""Pages with a sender of their own: it writes to the receiver under its token, may be held, and notes what it saw."""

from __future__ import annotations

from typing import Any

from e2e.kit import RECEIVER, Opens, Site, TabT, join

from tabhelm.testing.driver import DrivenTab

_OPEN = """([kind, receiver, options]) => {
  window.acks ??= [];
  // What the sender saw; `aborted`: what its signal said.
  window.sends ??= [];
  window.held ??= false;
  window.behave ??= async (operation, sending) => {
    const { id, partition, payload } = operation;
    const body = JSON.stringify({ operations: [{ op_id: id, partition, payload }] });
    const { "Fencing-Token": token } = sending.headers();
    const headers = { "Fencing-Token": token, "Content-Type": "application/json" };
    const answer = await fetch(receiver, { method: "POST", body, headers, signal: sending.signal });
    if (!answer.ok) throw new Error(`the receiver says ${answer.status}`);
    const [{ status, detail }] = (await answer.json()).results;
    return { status, detail };
  };
  const one = async (operation, sending) => {
    const { token, attempt, signal, endpoint } = sending;
    const { id, payload } = operation;
    const seen = { id, payload, attempt, token, endpoint, aborted: null, settled: false, keys: Object.keys(operation) };
    sends.push(seen);
    signal.addEventListener("abort", () => {
      const { name, reason, message } = signal.reason;
      seen.aborted = `${name}: ${reason ?? message}`;
    });
    while (held) await new Promise((soon) => setTimeout(soon, 20));
    try {
      return await behave(operation, sending);
    } finally {
      seen.settled = true;
    }
  };
  const senders = {
    send: one,
    sendBatch: async (operations, sending) => {
      const results = [];
      for (const operation of operations) results.push(await one(operation, sending));
      return results;
    },
  };
  window.q = tab.queue("mutations", { ...options, [kind]: senders[kind] });
  q.addEventListener("stats", ({ detail }) => (window.lastStats = detail));
}"""


async def sending(
    browser: Opens[TabT], site: Site, *, kind: str = "send", join_options: Any = None, **options: Any
) -> TabT:
    """A joined tab whose own ``send`` or ``sendBatch`` empties the queue. ``behave(operation, sending)`` is what it
    does, at first a write to the receiver; ``held`` lets it wait."""
    tab = await site.open(browser)
    await join(tab, **(join_options or {}))
    await open_sender(tab, kind=kind, **options)
    return tab


async def open_sender(tab: DrivenTab, *, kind: str = "send", **options: Any) -> None:
    await tab.evaluate(_OPEN, [kind, RECEIVER, options])


async def sends(tab: DrivenTab) -> list[dict[str, Any]]:
    """What the tab's sender was asked so far."""
    found: list[dict[str, Any]] = await tab.evaluate("() => sends")
    return found


async def asked(tab: DrivenTab, count: int = 1) -> dict[str, Any]:
    """Wait until the tab's sender was asked so often; the newest."""
    found: dict[str, Any] = await tab.until(
        "(count) => sends.length >= count && sends[count - 1]", what=f"send number {count}", arg=count
    )
    return found


async def hold(tab: DrivenTab, held: bool = True) -> None:
    """Let the tab's sender wait before it does anything, or go on."""
    await tab.evaluate("(held) => { window.held = held; }", held)
