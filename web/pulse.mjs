// Whether a page is still there, as its engine sees it. The page is pinged; one that is silent for `stallAfterMs`, though the
// engine itself was awake, is stalled until it answers (docs/wire.md).

/** When so many pings are unanswered, only one in so many is still sent: a page that hangs for hours gets no pile of them. */
const PINGS_AHEAD = 8;

/**
 * What a pulse does to its page, and tells of it. `patience`: the engine runs in the page itself, which may be late for so long
 * where the browser holds back its timers.
 * @typedef {{ping: (n: number, heard: number) => void, stalled: () => void, answering: () => void,
 *   patience?: (limitMs: number, sinceMs: number) => number}} Page
 */

export class Pulse {
  #stallAfterMs;
  #page;
  #stalled = false;
  #ticks = 0; // times to ping
  #n = 0; // the last ping
  #answered = 0; // the last ping that was answered
  #heardAt = performance.now(); // ours, for us
  /** @type {ReturnType<typeof setInterval> | undefined} */
  #pings = undefined;
  /** @type {ReturnType<typeof setTimeout> | undefined} */
  #timer = undefined;

  /** @param {{stallAfterMs: number, at: number}} hello @param {Page} page */
  constructor({ stallAfterMs, at }, page) {
    this.#stallAfterMs = stallAfterMs;
    this.#page = page;
    this.heard = at; // the page's clock, for the page
  }

  start() {
    this.stop();
    this.#pings = setInterval(() => this.ping(), this.#stallAfterMs / 4);
    this.#await(this.#stallAfterMs);
  }

  stop() {
    clearInterval(this.#pings);
    clearTimeout(this.#timer);
  }

  ping() {
    this.#ticks += 1;
    if (this.#n - this.#answered >= PINGS_AHEAD && this.#ticks % PINGS_AHEAD !== 0) return;
    this.#n += 1;
    this.#page.ping(this.#n, this.heard);
  }

  /** Ping `n` has been answered. @param {unknown} n @returns {boolean} whether it was waited for */
  pong(n) {
    if (!(typeof n === "number" && Number.isInteger(n) && n > this.#answered && n <= this.#n)) return false;
    this.#answered = n;
    return true;
  }

  /** The page is back from where it could not answer. @param {number} at */
  resume(at) {
    this.#answered = this.#n;
    this.#heardAt = performance.now();
    this.hear(at);
  }

  /** The page has said something. @param {number} at by its own clock */
  hear(at) {
    // In a page we stand still together with it, and nobody asks meanwhile: what comes first afterwards finds it out.
    if (this.#page.patience && this.#silentTooLong()) this.#stall();
    this.heard = at;
    this.#heardAt = performance.now();
    if (!this.#stalled) return;
    this.#stalled = false;
    this.#page.answering();
    this.ping();
    this.#await(this.#stallAfterMs);
  }

  /** @param {number} delayMs */
  #await(delayMs) {
    clearTimeout(this.#timer);
    const due = performance.now() + delayMs;
    this.#timer = setTimeout(() => this.#due(due), delayMs);
  }

  /** @param {number} due */
  #due(due) {
    const now = performance.now();
    const pingMs = this.#stallAfterMs / 4;
    if (!this.#page.patience && now - due > pingMs) {
      // We ourselves stood still (suspended, or Python computed): what the page answered meanwhile is still in our
      // queue. The page is judged after one more ping.
      this.ping();
      this.#await(pingMs);
      return;
    }
    const left = this.#heardAt + this.#limitMs() - now;
    if (left > 0) this.#await(left);
    else this.#stall();
  }

  #limitMs() {
    return this.#page.patience?.(this.#stallAfterMs, this.#heardAt) ?? this.#stallAfterMs;
  }

  #silentTooLong() {
    return performance.now() - this.#heardAt > this.#limitMs();
  }

  #stall() {
    if (this.#stalled) return;
    this.#stalled = true;
    this.#page.stalled();
  }
}
