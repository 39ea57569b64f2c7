/**
 * Sending in the page: the engine empties a queue in this page's name, and asks the page's own functions: `send`, `sendBatch`,
 * `headers` (docs/queue.md), `fenceHeaders`, `leaseHeaders`. Part of extras.mjs.
 */
import { bad, message, nameOf, quoted } from "./checks.mjs";
import { core } from "./core.mjs";
import { unboxed } from "./payloads.mjs";

/** @typedef {import("./extras.mjs").Inside} Inside */
/** @typedef {import("./tabhelm.js").Sending} Sending */

const LOOK_MS = 250; // how often a page that sends looks whether its engine may still count on it
const STATUSES = ["committed", "duplicate", "rejected", "retry", "skipped"];

/** Listen to what the engine asks of this tab's functions. Once for each tab. @param {Inside} inside */
export function attend(inside) {
  if (inside.messages.has("send")) return;
  const work = new Work(inside);
  inside.messages.set("send", (data) => work.send(data));
  inside.messages.set("headers", (data) => work.headers(data));
  inside.messages.set("unsend", ({ call, reason }) => work.stop(call, reason));
  inside.downs.add((reason) => work.stopAll(reason));
}

/** What the engine waits for. */
class Work {
  #inside;
  /** @type {Map<number, {queue: string, resource: string, lost: AbortController}>} by the engine's number */
  #calls = new Map();
  /** @type {ReturnType<typeof setInterval> | undefined} */
  #timer = undefined;

  /** @param {Inside} inside */
  constructor(inside) {
    this.#inside = inside;
  }

  /** @param {any} data */
  send(data) {
    this.#answer(data, async (queue, signal, ensure) => {
      const operations = data.operations.map((/** @type {any} */ { payload, value, ...operation }) => ({
        ...operation,
        payload: value === undefined ? JSON.parse(payload) : unboxed(data.values[value]),
      }));
      const { send, sendBatch } = queue.options;
      const fencing = { "Fencing-Token": data.header };
      /** @type {Sending} */
      const sending = {
        token: data.token,
        attempt: data.attempt,
        endpoint: data.endpoint ?? undefined,
        signal,
        headers() {
          ensure();
          return send ? { ...fencing, "Idempotency-Key": quoted(operations[0].id) } : { ...fencing };
        },
      };
      ensure();
      const results = send ? [await send(operations[0], sending)] : await sendBatch(operations, sending);
      return { results: outcomes(results, operations.length, send ? "send" : "sendBatch") };
    });
  }

  /** Those of a queue, or of an election's policy. @param {any} data */
  headers(data) {
    const { queues, elections } = this.#inside;
    /** @type {any} */
    const options = queues.get(data.queue)?.options ?? elections.get(data.queue)?.policy;
    this.#answer(data, async () => ({ headers: Object.fromEntries(new Headers(await options[data.key ?? "headers"]())) }));
  }

  /** Nobody waits for its outcome any more. @param {number} call @param {unknown} reason */
  stop(call, reason) {
    const known = this.#calls.get(call);
    this.#forget(call);
    const late = reason === "timeout" && new DOMException("the time for this attempt is over", "TimeoutError");
    known?.lost.abort(late || new core.LeadershipLost(known.resource, String(reason)));
    // The engine does not know that yet: it shall not wait for the answer.
    if (known && reason === "doubt") this.#inside.session.post({ type: "sent", queue: known.queue, call, lost: reason });
  }

  /** @param {string} reason */
  stopAll(reason) {
    for (const call of [...this.#calls.keys()]) this.stop(call, reason);
  }

  /**
   * Do it and say what came of it, unless the engine, or this connection to it, is no longer interested.
   * @param {any} data @param {(queue: import("./queue.mjs").Queue, signal: AbortSignal, ensure: () => void) => Promise<object>} work
   */
  #answer({ queue: handle, call }, work) {
    const { session, queues } = this.#inside;
    const queue = queues.get(handle);
    const lost = new AbortController();
    const resource = `offline-queue:${queue?.name}${queue?.scope ? `:${queue.scope}` : ""}`;
    const mine = { queue: handle, resource, lost };
    this.#calls.set(call, mine);
    this.#timer ??= setInterval(() => session.doubts() && this.stopAll("doubt"), LOOK_MS);
    const ensure = () => {
      if (session.doubts()) this.stop(call, "doubt");
      lost.signal.throwIfAborted();
    };
    const tell = (/** @type {object} */ told) => {
      if (this.#calls.get(call) !== mine) return; // stopped; the number may be another connection's by now
      this.#forget(call);
      session.post({ type: "sent", queue: handle, call, ...told });
    };
    Promise.resolve()
      .then(() => work(/** @type {any} */ (queue), lost.signal, ensure))
      .then(tell, (error) => tell({ error: { name: nameOf(error), message: message(error).slice(0, 2_000) } }));
  }

  /** @param {number} call */
  #forget(call) {
    this.#calls.delete(call);
    if (this.#calls.size) return;
    clearInterval(this.#timer);
    this.#timer = undefined;
  }
}

/** @param {unknown} results @param {number} count @param {string} name of the function */
function outcomes(results, count, name) {
  const list = name === "sendBatch" && results === undefined ? Array(count).fill(undefined) : results;
  if (!Array.isArray(list) || list.length !== count) {
    throw bad(`what ${name} gave`, results, `an array of ${count} outcomes is expected, one for each operation, or nothing: all are committed`);
  }
  return [...list].map((given) => {
    const { status, detail, retryAfterMs } = typeof given === "object" && given ? given : { status: given ?? "committed" };
    if (!STATUSES.includes(status)) {
      throw bad(`what ${name} gave`, given, `nothing (it is committed), or one of ${STATUSES.join(", ")}, as a text or as {status, detail, retryAfterMs}, is expected`);
    }
    if (retryAfterMs !== undefined && typeof retryAfterMs !== "number") throw bad("retryAfterMs", retryAfterMs, "a number of milliseconds is expected");
    return { status, detail: detail === undefined ? undefined : String(detail).slice(0, 500), retryAfterMs };
  });
}
