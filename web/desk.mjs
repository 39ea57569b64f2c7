// The lock desk: every Web Lock of one context, grouped by owner, so that all that a vanished page holds or waits for
// is let go in one synchronous step. No Python is needed for that: a SharedWorker whose last page enters the
// back/forward cache is suspended within about ten milliseconds, and a lock not released by then starves its queue.
//
// No worker-only API here: the window host uses the same desk.

/** Names of errors that say "not now", as opposed to "never in this context". */
const WITHDRAWN = new Set(["AbortError", "InvalidStateError"]);

/**
 * Told of what becomes of a request: "granted", "unavailable", "withdrawn", "failed" (with a message), and after a grant once
 * "released", "dropped" or "stolen".
 * @typedef {(what: string, message?: string) => void} Listener
 */

/** One request, from the call until the lock ends. `held` is a plain property: cheap to read across the bridge. */
class Entry {
  held = false;
  wanted = true;
  #desk;
  /** @type {Listener | null} */
  #listener;
  #controller = new AbortController();
  /** @type {((value?: unknown) => void) | null} */
  #letGo = null;

  /** @param {LockDesk} desk @param {string} owner @param {string} name @param {Listener} listener */
  constructor(desk, owner, name, listener) {
    this.#desk = desk;
    this.owner = owner;
    this.name = name;
    this.#listener = listener;
  }

  get signal() {
    return this.#controller.signal;
  }

  /** The lock manager's callback. The lock is kept as long as the returned promise is pending. @param {Lock | null} lock */
  granted(lock) {
    // First of all: a request that was taken back may still be granted (it was under way); it must not be kept.
    if (!this.wanted) return undefined;
    if (lock === null) {
      this.end("unavailable");
      return undefined;
    }
    this.held = true;
    const kept = new Promise((resolve) => (this.#letGo = resolve));
    this.tell("granted");
    return kept;
  }

  /** Let go of a held lock; harmless otherwise. */
  release() {
    if (this.held) this.end("released");
  }

  /** Take the request back, or let go of the lock if it was granted meanwhile; harmless when it has ended. */
  abort() {
    if (this.held) this.end("released");
    else if (this.wanted) this.end("withdrawn");
  }

  /** Stop holding and waiting, now. Tells nobody: see `end` and `LockDesk.letGo`. */
  let() {
    this.held = false;
    this.wanted = false;
    this.#letGo?.();
    this.#letGo = null;
    this.#controller.abort();
    this.#desk.forget(this);
  }

  /** @param {string} what @param {string} [message] */
  end(what, message) {
    this.let();
    this.tell(what, message);
    this.#listener = null; // nothing of the other language is kept alive past the end
  }

  /** @param {string} what @param {string} [message] */
  tell(what, message) {
    try {
      this.#listener?.(what, message);
    } catch (error) {
      console.error(`tabhelm: the listener of lock ${this.name} failed on "${what}"`, error);
    }
  }
}

/** All lock requests of this context. Owner "" is the context itself: always admitted. */
export class LockDesk {
  #locks;
  /** @type {Map<string, Set<Entry>>} */
  #owners = new Map([["", new Set()]]);

  /** @param {LockManager | undefined} locks */
  constructor(locks = globalThis.navigator?.locks) {
    this.#locks = locks;
  }

  /** Let `owner` ask for locks (again). @param {string} owner */
  admit(owner) {
    if (!this.#owners.has(owner)) this.#owners.set(owner, new Set());
  }

  /** @param {string} owner */
  admitted(owner) {
    return this.#owners.has(owner);
  }

  /**
   * Release all that `owner` holds and withdraw all that it waits for, before returning; shut it out. The browser releases
   * a lock only when the running script has ended: so telling those who asked, which may take its time, is left to the caller.
   * @param {string} owner @returns {() => void} tells them
   */
  letGo(owner) {
    const entries = [...(this.#owners.get(owner) ?? [])];
    if (owner !== "") this.#owners.delete(owner);
    const ends = entries.map((entry) => (entry.held ? "dropped" : "withdrawn"));
    for (const entry of entries) entry.let();
    return () => entries.forEach((entry, index) => entry.end(ends[index]));
  }

  /** The same, and tell them at once. @param {string} owner */
  drop(owner) {
    const tell = this.letGo(owner);
    tell();
  }

  /**
   * Ask for a lock. The listener is never called before this returns.
   * @param {string} owner @param {string} name @param {LockMode} mode @param {boolean} ifAvailable @param {boolean} steal
   * @param {Listener} listener
   */
  request(owner, name, mode, ifAvailable, steal, listener) {
    const entry = new Entry(this, owner, name, listener);
    const entries = this.#owners.get(owner);
    if (!entries || !this.#locks) {
      const what = entries ? "failed" : "withdrawn";
      queueMicrotask(() => entry.wanted && entry.end(what, entries && "this context has no Web Locks (they need a secure context)"));
      return entry;
    }
    entries.add(entry);
    // The specification allows a signal neither with `steal` nor with `ifAvailable`; both answer at once anyway.
    const options = ifAvailable || steal ? { mode, ifAvailable, steal } : { mode, signal: entry.signal };
    this.#locks
      .request(name, options, (lock) => entry.granted(lock))
      .catch((error) => {
        if (!entry.wanted) return; // our own abort
        // A held lock's promise is rejected in one case only: another context stole the lock.
        if (entry.held) entry.end("stolen");
        else if (WITHDRAWN.has(error?.name)) entry.end("withdrawn");
        else entry.end("failed", `${error?.name}: ${error?.message}`);
      });
    return entry;
  }

  /** Called by an entry that ended. @param {Entry} entry */
  forget(entry) {
    this.#owners.get(entry.owner)?.delete(entry);
  }

  /** How many requests are held or waiting, for tests and diagnosis. */
  get size() {
    let count = 0;
    for (const entries of this.#owners.values()) count += entries.size;
    return count;
  }
}
