// Guards for an app's own data and state: may this token still write? A module of its own, for pages and workers, without
// imports (docs/guards.md). The records are those of tabhelm/fencing/store_guard.py, so that both may share a store.

const MAX_TEXT = 512;
const KEY_PATH = '["domain","resource"]';
const MAX_NUMBER = 999_999_999_999_999; // the greatest integer of a Structured Field (RFC 9651)

/** @typedef {import("./guard.mjs").FencingToken} FencingToken */
/** @typedef {import("./guard.mjs").Marks} Marks */
/** @typedef {import("./guard.mjs").Rule} Rule */

export class StaleOwner extends Error {
  code = /** @type {const} */ ("stale-owner");

  /** @param {FencingToken} token @param {import("./guard.mjs").HighWater} highWater @param {boolean} overtaken */
  constructor(token, highWater, overtaken) {
    const { epoch, seq, owner, stream, resource } = token;
    const what = overtaken
      ? `was overtaken: ${highWater.seq} was seen in stream "${stream}" of epoch ${epoch}`
      : `is stale: epoch ${highWater.epoch} of owner "${highWater.owner}" was seen`;
    super(`token ${epoch}/${seq} of owner "${owner}" for "${resource}" ${what}`);
    this.name = "StaleOwner";
    this.resource = resource;
    this.highWater = highWater;
    this.overtaken = overtaken;
  }
}

const isText = (/** @type {unknown} */ value) => typeof value === "string" && value.length <= MAX_TEXT && /^[\x20-\x7e]+$/.test(value);
const isNumber = (/** @type {unknown} */ value, /** @type {number} */ least) => Number.isInteger(value) && Number(value) >= least && Number(value) <= MAX_NUMBER;

/** @param {FencingToken} token */
function checkToken(token) {
  if (typeof token !== "object" || token === null) throw new TypeError(`token: ${String(token)} is none`);
  for (const name of /** @type {const} */ (["domain", "resource", "stream", "owner"])) {
    if (!isText(token[name])) throw new TypeError(`token: ${name} ${shown(token[name])} is not valid: 1 to ${MAX_TEXT} printable ASCII characters`);
  }
  for (const name of /** @type {const} */ (["epoch", "seq"])) {
    if (!isNumber(token[name], 1)) throw new TypeError(`token: ${name} ${shown(token[name])} is not valid: a whole number of 1 to ${MAX_NUMBER}`);
  }
}

/** @param {unknown} value */
const shown = (value) => (JSON.stringify(value) ?? String(value)).slice(0, 80);

/** @param {string} store @param {any} record */
function checkMarks(store, record) {
  const { domain, resource, epoch, owner, streams } = record;
  const sound = isNumber(epoch, 1) && typeof owner === "string" && owner !== "" && Object.prototype.toString.call(streams) === "[object Object]";
  if (!sound || !Object.values(streams).every((seq) => isNumber(seq, 0))) {
    throw new TypeError(`store "${store}" holds a record for (${shown(domain)}, ${shown(resource)}) that is none of marks: ${JSON.stringify(record)?.slice(0, 200)}`);
  }
}

/** @type {typeof import("./guard.mjs").judge} */
export function judge(marks, token, rule = "strict") {
  checkToken(token);
  const { epoch, owner, stream, seq } = token;
  if (!marks || epoch > marks.epoch) return { verdict: "accepted", marks: { epoch, owner, streams: { [stream]: seq } } };
  const seen = Object.hasOwn(marks.streams, stream) ? marks.streams[stream] : 0;
  const highWater = { epoch: marks.epoch, seq: seen, owner: marks.owner };
  if (epoch < marks.epoch || owner !== marks.owner) return { verdict: "stale", highWater };
  if (rule === "strict" && seq <= seen) return { verdict: "overtaken", highWater };
  return { verdict: "accepted", marks: { epoch, owner, streams: { ...marks.streams, [stream]: Math.max(seq, seen) } } };
}

/** @param {Marks | null} marks @param {FencingToken} token @param {Rule} rule @returns {Marks} */
function accepted(marks, token, rule) {
  if (rule !== "strict" && rule !== "epoch") throw new TypeError(`rule: ${shown(rule)} is not valid: "strict" or "epoch"`);
  const judged = judge(marks, token, rule);
  if (judged.verdict === "accepted") return judged.marks;
  throw new StaleOwner(token, judged.highWater, judged.verdict === "overtaken");
}

/** @type {typeof import("./guard.mjs").check} */
export function check(store, token, { rule = "strict", abort = true } = {}) {
  return new Promise((resolve, reject) => {
    /** @param {unknown} error */
    const refuse = (error) => {
      reject(error);
      try {
        if (abort) store.transaction.abort();
      } catch {
        // it has ended by itself
      }
    };
    try {
      checkToken(token);
      if (store.transaction.mode === "readonly") {
        throw new TypeError(`store "${store.name}": the marks are raised in the transaction that writes: it must be "readwrite"`);
      }
      // In any other store the record would be written where nobody finds it, and every token be accepted.
      if (JSON.stringify(store.keyPath) !== KEY_PATH) {
        throw new TypeError(`store "${store.name}": its key path is ${shown(store.keyPath)}, and must be ${KEY_PATH}`);
      }
      const { domain, resource } = token;
      const asked = store.get([domain, resource]);
      asked.onerror = () => reject(asked.error);
      asked.onsuccess = () => {
        try {
          const record = asked.result;
          if (record !== undefined) checkMarks(store.name, record);
          const marks = accepted(record ?? null, token, rule);
          const put = store.put({ ...record, domain, resource, ...marks });
          put.onerror = () => reject(put.error);
          // What the caller does next comes after it in the same transaction, and its failure aborts that.
          resolve();
        } catch (error) {
          refuse(error);
        }
      };
    } catch (error) {
      refuse(error);
    }
  });
}

export class MemoryGuard {
  /** @type {Map<string, Marks>} */
  #marks = new Map();
  #rule;

  /** @param {Rule} [rule] */
  constructor(rule = "strict") {
    this.#rule = rule;
  }

  /** @param {FencingToken} token */
  check(token) {
    checkToken(token);
    this.#marks.set(keyOf(token), accepted(this.#marks.get(keyOf(token)) ?? null, token, this.#rule));
  }

  /** @param {FencingToken} token */
  isCurrent(token) {
    const marks = this.#marks.get(keyOf(token));
    return !marks || (marks.epoch === token.epoch && marks.owner === token.owner);
  }

  /** @template T @param {FencingToken} token @param {() => T | Promise<T>} work @returns {Promise<T>} */
  async applyIfCurrent(token, work) {
    this.check(token);
    const result = await work();
    if (!this.isCurrent(token)) accepted(this.#marks.get(keyOf(token)) ?? null, token, this.#rule);
    return result;
  }
}

/** @param {FencingToken} token */
const keyOf = ({ domain, resource }) => JSON.stringify([domain, resource]);

/** @param {import("./guard.mjs").Holder} context @param {() => any} work @param {(result: any) => any} [apply] */
export async function applyIfCurrent(context, work, apply = (result) => result) {
  ensure(context);
  const result = await work();
  ensure(context);
  return apply(result);
}

/** @param {import("./guard.mjs").Holder} context */
function ensure(context) {
  try {
    context.nextToken(); // it doubts itself too: after a hang the signal alone does not tell yet
  } catch (error) {
    if (/** @type {{code?: string}} */ (error).code !== "not-fenced") throw error;
  }
  context.signal.throwIfAborted();
}

/**
 * @template T @param {(command: any, still: {isCurrent: () => boolean}) => T | Promise<T>} handle
 * @param {{guard?: MemoryGuard, tokenOf?: (command: any) => FencingToken}} [options]
 * @returns {(command: any) => Promise<import("./guard.mjs").FencedAnswer<T>>}
 */
export function rejectStale(handle, { guard = new MemoryGuard(), tokenOf = (command) => command.token } = {}) {
  return async (command) => {
    let token;
    try {
      token = tokenOf(command);
      guard.check(token);
    } catch (error) {
      if (error instanceof StaleOwner) return { ok: false, error: "STALE_OWNER", highWater: error.highWater, overtaken: error.overtaken };
      if (error instanceof TypeError) return { ok: false, error: "MALFORMED_TOKEN", message: error.message };
      throw error;
    }
    const held = token;
    return { ok: true, value: await handle(command, { isCurrent: () => guard.isCurrent(held) }) };
  };
}
