/** An offline queue, as its page sees it: what is enqueued is durable; a leader elsewhere, or here, sends it. */
import { Emitter, bad, checkKeys, checkLabel, jsonText, plain, uuid7 } from "./checks.mjs";
import { lately } from "./election.mjs";

/** @typedef {import("./session.mjs").Session} Session */

const ITEM = ["payload", "partition", "id"];

export class Queue extends Emitter {
  #session;
  #handle;

  /**
   * @param {Session} session @param {string} handle @param {string} name @param {string | undefined} scope
   * @param {Record<string, any>} options
   */
  constructor(session, handle, name, scope, options) {
    super();
    this.#session = session;
    this.#handle = handle;
    this.options = options;
    this.name = name;
    this.scope = scope ?? null;
    lately(this, (what, ...given) => this.#extra(what, ...given), ["deadLetters", "retryDead", "removeDead", "exportDead", "resume"]);
    this.open();
  }

  /** @param {unknown} payload @param {{partition?: string, id?: string}} [options] */
  async enqueue(payload, options) {
    return (await this.#enqueue([{ ...checkKeys("enqueue options", options, ITEM.slice(1)), payload }], () => ""))[0];
  }

  /** @param {readonly unknown[]} items */
  async enqueueAll(items) {
    if (!Array.isArray(items)) throw bad("items", items, "an array of {payload, partition, id} is expected");
    const where = (/** @type {number} */ index) => `items[${index}].`;
    return items.length ? this.#enqueue(items.map((item, index) => checkKeys(`items[${index}]`, item, ITEM)), where) : [];
  }

  stats() {
    return this.call("stats");
  }

  // ---- called by the tab --------------------------------------------------------------------------------------------

  /** Open the queue at the engine, at first and after every reconnection. */
  open() {
    const { name, scope } = this;
    this.#session.post({ type: "queue", queue: this.#handle, name, scope, options: plain(this.options) });
  }

  /** @param {string} name @param {string | undefined} scope */
  is(name, scope) {
    return this.name === name && this.scope === (scope ?? null);
  }

  /** @param {Record<string, unknown>} options */
  sameOptions(options) {
    // What JSON leaves out, a function, is only the same as itself.
    return Object.keys({ ...this.options, ...options }).every(
      (key) => options[key] === this.options[key] || (JSON.stringify(options[key]) ?? NaN) === JSON.stringify(this.options[key]),
    );
  }

  // -------------------------------------------------------------------------------------------------------------------

  /** @param {Record<string, any>[]} items @param {(index: number) => string} where @returns {Promise<string[]>} */
  async #enqueue(items, where) {
    const { send, sendBatch, payloads } = this.options;
    const clones = payloads ? payloads === "clone" : send ?? sendBatch;
    /** @type {any} as they are at this moment, whatever becomes of them afterwards */
    let operations, values;
    try {
      operations = items.map(({ payload, partition = "default", id }, index) => ({
        id: id === undefined ? uuid7() : checkLabel(`${where(index)}id`, id),
        payload: clones ? "" : jsonText(payload),
        fresh: id === undefined,
        partition: checkLabel(`${where(index)}partition`, partition),
      }));
      if (clones) values = structuredClone(items.map(({ payload }) => payload));
    } catch (error) {
      await this.#extra("explain", items, where, clones);
      throw error;
    }
    if (clones) operations = await this.#extra("digested", operations, values);
    const given = { queue: this.#handle, operations, values };
    // `fresh` ids need no look for an earlier operation of the same id; sent again, they are fresh no more.
    const again = { ...given, operations: operations.map((/** @type {object} */ each) => ({ ...each, fresh: false })) };
    const operationIds = operations.map((/** @type {{id: string}} */ { id }) => id);
    try {
      await this.#session.call("enqueue", given, { again });
    } catch (error) {
      throw Object.assign(/** @type {Error} */ (error), { operationIds });
    }
    return operationIds;
  }

  /** @param {string} what @param {unknown[]} given */
  #extra(what, ...given) {
    return this.#session.handlers.extra(what, this, ...given);
  }

  /** Ask the engine about this queue. @param {string} method @param {object} [params] */
  call(method, params) {
    return this.#session.call(method, { queue: this.#handle, ...params });
  }
}
