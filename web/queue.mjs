/** An offline queue, as its page sees it: what is enqueued is durable; a leader elsewhere, or here, sends it. */
import { Emitter, bad, checkKeys, checkLabel, payloadText, uuid7 } from "./checks.mjs";
import { lately } from "./election.mjs";

/** @typedef {import("./session.mjs").Session} Session */

const DEFAULT_PARTITION = "default";

export class Queue extends Emitter {
  #session;
  #handle;
  #options;

  /**
   * @param {Session} session @param {string} handle @param {string} name @param {string | undefined} scope
   * @param {object} options
   */
  constructor(session, handle, name, scope, options) {
    super();
    this.#session = session;
    this.#handle = handle;
    this.#options = options;
    this.name = name;
    this.scope = scope ?? null;
    lately(this, (what, ...given) => session.handlers.extra(what, this, ...given), ["deadLetters", "retryDead", "removeDead", "resume"]);
    this.open();
  }

  /** @param {unknown} payload @param {{partition?: string, id?: string}} [options] */
  async enqueue(payload, options) {
    const { partition, id } = checkKeys("enqueue options", options, ["partition", "id"]);
    return (await this.#enqueue([operation({ payload, partition, id }, "")]))[0];
  }

  /** @param {readonly unknown[]} items */
  async enqueueAll(items) {
    if (!Array.isArray(items)) throw bad("items", items, "an array of {payload, partition, id} is expected");
    const operations = items.map((item, index) =>
      operation(checkKeys(`items[${index}]`, item, ["payload", "partition", "id"]), `items[${index}].`),
    );
    return operations.length ? this.#enqueue(operations) : [];
  }

  stats() {
    return this.call("stats");
  }

  // ---- called by the tab --------------------------------------------------------------------------------------------

  /** Open the queue at the engine, at first and after every reconnection. */
  open() {
    const scope = this.scope === null ? {} : { scope: this.scope };
    this.#session.post({ type: "queue", queue: this.#handle, name: this.name, ...scope, options: this.#options });
  }

  /** @param {string} name @param {string | undefined} scope */
  is(name, scope) {
    return this.name === name && this.scope === (scope ?? null);
  }

  /** @param {object} options */
  sameOptions(options) {
    const sorted = (/** @type {object} */ each) => JSON.stringify(Object.entries(each).sort());
    return sorted(options) === sorted(this.#options);
  }

  // -------------------------------------------------------------------------------------------------------------------

  /** @param {ReturnType<typeof operation>[]} operations @returns {Promise<string[]>} */
  async #enqueue(operations) {
    // `fresh` ids need no look for an earlier operation of the same id; sent again, they are fresh no more.
    const again = operations.map((each) => ({ ...each, fresh: false }));
    const queue = this.#handle;
    await this.#session.call("enqueue", { queue, operations }, { again: { queue, operations: again } });
    return operations.map(({ id }) => id);
  }

  /** Ask the engine about this queue. @param {string} method @param {object} [params] */
  call(method, params) {
    return this.#session.call(method, { queue: this.#handle, ...params });
  }
}

/** @param {Record<string, unknown>} item @param {string} where */
function operation({ payload, partition, id }, where) {
  return {
    id: id === undefined ? uuid7() : checkLabel(`${where}id`, id),
    payload: payloadText(`${where}payload`, payload),
    fresh: id === undefined,
    partition: partition === undefined ? DEFAULT_PARTITION : checkLabel(`${where}partition`, partition),
  };
}
