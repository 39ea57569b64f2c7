/** A page's own word on its candidacies, and how its loops do while they lead. Part of extras.mjs. */
import { bad, checkKeys, checkNumber, checkText, checkWhole, message } from "./checks.mjs";
import { core } from "./core.mjs";

/** @typedef {import("./extras.mjs").Inside} Inside */
/** @typedef {import("./election.mjs").Run} Run a tenure of this page's */
/** @typedef {{eligible?: () => unknown, score?: () => unknown}} Asked */

const LOOK_MS = 1_000;
const MAX_PROGRESS = 200;
/** Between two tellings of progress. */
const PROGRESS_MS = 250;
/** After which to ask a circuit again, at most, while a trial is under way: nobody knows when it will end. */
const TRIAL_MS = 1_000;

// ---- standing -----------------------------------------------------------------------------------------------------------

/** How to stop asking, by election. @type {WeakMap<object, () => void>} */
const asking = new WeakMap();

/**
 * Ask the policy's functions, now, whenever the page changes and every second, and tell the engine what is new. Called again
 * at each connection: its engine has heard nothing yet.
 * @param {Inside} inside @param {string} id @param {Asked} asked
 */
export async function stand({ session, elections }, id, asked) {
  const election = elections.get(id);
  if (!election) return;
  asking.get(election)?.();
  const listening = new AbortController();
  const timer = setInterval(() => look(), LOOK_MS);
  const stop = () => {
    clearInterval(timer);
    listening.abort();
  };
  asking.set(election, stop);
  void election.stopped.then(stop);
  let said = "";
  let failed = "";
  const word = () => {
    try {
      const fit = asked.eligible ? asked.eligible() : true;
      if (fit instanceof Promise) throw bad("policy.eligible()", fit, "true, or one word why not, is expected at once");
      const score = Number(asked.score?.() ?? 0);
      if (!Number.isFinite(score)) throw bad("policy.score()", score, "a number is expected");
      return { unfit: fit === true ? null : String(fit || "ineligible"), score };
    } catch (error) {
      if (failed !== message(error)) reportError(error);
      failed = message(error);
      return { unfit: "eligible-failed", score: 0 };
    }
  };
  const look = () => {
    const told = word();
    const text = JSON.stringify(told);
    if (text === said || !session.up) return;
    said = text;
    session.post({ type: "candidacy", election: id, ...told });
  };
  document.addEventListener("visibilitychange", look, { signal: listening.signal });
  for (const type of ["online", "offline", "focus"]) window.addEventListener(type, look, { signal: listening.signal });
  look();
}

// ---- how a loop does ----------------------------------------------------------------------------------------------------

/** @param {Inside} inside @param {Run} run @param {object} told */
function tell({ session }, { election, grant, lost }, told) {
  if (!lost.signal.aborted) session.post({ type: "progress", election, grant, ...told });
}

/** @param {Inside} inside @param {Run} run */
function resign(inside, run) {
  tell(inside, run, { health: "failing" });
  if (!run.lost.signal.aborted) inside.elections.get(run.election)?.stepDown("unhealthy");
}

/** What each tenure said last, and when the engine was told. @type {WeakMap<Run, {value: unknown, at: number, timer: number}>} */
const telling = new WeakMap();

/**
 * The first is told at once, then the last of every quarter of a second: a loop may say it a thousand times.
 * @param {Inside} inside @param {Run} run @param {unknown} [value]
 */
export async function progress(inside, run, value = null) {
  const short = typeof value === "string" ? value.length <= MAX_PROGRESS : value === null || typeof value === "boolean" || Number.isFinite(value);
  if (!short) throw bad("progress", value, `a number, true, false or a text of at most ${MAX_PROGRESS} characters is expected`);
  run.lost.signal.throwIfAborted();
  const last = telling.get(run) ?? { value, at: -Infinity, timer: 0 };
  telling.set(run, last);
  last.value = value;
  const send = () => {
    clearTimeout(last.timer);
    last.timer = 0;
    last.at = performance.now();
    tell(inside, run, { progress: last.value });
  };
  const leftMs = last.at + PROGRESS_MS - performance.now();
  if (leftMs <= 0) send();
  else last.timer ||= setTimeout(send, leftMs);
}

/** @param {number} ms @param {AbortSignal} signal @returns {Promise<void>} also when the signal aborts */
const pause = (ms, signal) =>
  new Promise((resolve) => {
    const end = () => {
      clearTimeout(timer);
      signal.removeEventListener("abort", end);
      resolve();
    };
    const timer = setTimeout(end, ms);
    signal.addEventListener("abort", end);
  });

/** @param {Inside} inside @param {Run} run @param {unknown} check @param {unknown} [options] */
export async function health(inside, run, check, options) {
  const { everyMs, timeoutMs, failures } = checkKeys("health options", options, ["everyMs", "timeoutMs", "failures"]);
  if (typeof check !== "function") throw bad("health", check, "a function is expected");
  const policy = inside.elections.get(run.election)?.policy;
  const pauseMs = checkNumber("everyMs", everyMs ?? policy?.healthEveryMs ?? 5_000, 1);
  const limitMs = checkNumber("timeoutMs", timeoutMs ?? pauseMs, 1);
  const most = checkWhole("failures", failures ?? 1, 1);
  const { signal } = run.lost;
  const well = async () => {
    const end = new AbortController();
    const late = pause(limitMs, end.signal).then(() => false);
    try {
      return (await Promise.race([Promise.resolve().then(() => check()), late])) !== false;
    } catch {
      return false;
    } finally {
      end.abort();
    }
  };
  const watch = async () => {
    let said = "";
    for (let failed = 0; !signal.aborted; await pause(pauseMs, signal)) {
      failed = (await well()) ? 0 : failed + 1;
      const word = failed ? "failing" : "ok";
      if (word !== said) tell(inside, run, { health: (said = word) });
      if (failed >= most) return resign(inside, run);
    }
  };
  void watch();
}

/** @type {WeakMap<Run, Map<string, CircuitBreaker>>} */
const breakers = new WeakMap();

/** @param {Inside} inside @param {Run} run @param {unknown} name @param {unknown} [options] */
export async function breaker(inside, run, name, options) {
  const given = checkKeys("breaker options", options, ["failures", "openForMs", "resignAfterMs", "resignOpens"]);
  const known = breakers.get(run) ?? new Map();
  breakers.set(run, known);
  const text = checkText("breaker", name);
  if (!known.has(text)) {
    const limits = {
      failures: checkWhole("failures", given.failures ?? 5, 1),
      openForMs: checkNumber("openForMs", given.openForMs ?? 10_000, 1),
      resignAfterMs: given.resignAfterMs === null ? null : checkNumber("resignAfterMs", given.resignAfterMs ?? 60_000, 1),
      resignOpens: given.resignOpens === null ? null : checkWhole("resignOpens", given.resignOpens ?? 5, 1),
    };
    known.set(text, new CircuitBreaker(text, limits, run.lost.signal, () => resign(inside, run)));
  }
  return known.get(text);
}

/** Closed: calls go through. Open: refused at once. Half-open: one is tried, and decides. */
class CircuitBreaker {
  opened = 0;
  #limits;
  #signal;
  #resign;
  #failed = 0;
  /** @type {number | null} */
  #tryAt = null;
  #trying = false;
  #patience = 0;

  /**
   * @param {string} name @param {{failures: number, openForMs: number, resignAfterMs: number | null, resignOpens: number | null}} limits
   * @param {AbortSignal} signal @param {() => void} resign
   */
  constructor(name, limits, signal, resign) {
    this.name = name;
    this.#limits = limits;
    this.#signal = signal;
    this.#resign = resign;
    signal.addEventListener("abort", () => clearTimeout(this.#patience));
  }

  get state() {
    if (this.#tryAt === null) return "closed";
    return this.#trying || performance.now() >= this.#tryAt ? "half-open" : "open";
  }

  /** @param {() => unknown} work */
  async call(work) {
    const trial = this.#tryAt !== null;
    if (this.#tryAt !== null) {
      const leftMs = this.#trying ? Math.min(this.#limits.openForMs, TRIAL_MS) : this.#tryAt - performance.now();
      if (leftMs > 0) {
        const error = new core.TabhelmError("circuit-open", `the circuit "${this.name}" is open after repeated failures: try again in ${Math.ceil(leftMs)} ms`);
        throw Object.assign(error, { retryInMs: leftMs });
      }
      this.#trying = true;
    }
    try {
      const answer = await work();
      if (trial || this.#tryAt === null) this.#close(); // one that began before it opened, and ends after, proves nothing
      return answer;
    } catch (error) {
      if (!this.#signal.aborted) this.#fail(trial); // a call that ends with its leadership says nothing
      throw error;
    } finally {
      if (trial) this.#trying = false;
    }
  }

  #close() {
    this.#failed = 0;
    this.#tryAt = null;
    clearTimeout(this.#patience);
  }

  /** @param {boolean} trial */
  #fail(trial) {
    const { failures, openForMs, resignAfterMs, resignOpens } = this.#limits;
    if (trial) {
      this.#tryAt = performance.now() + openForMs;
    } else if (this.#tryAt === null && ++this.#failed >= failures) {
      this.#tryAt = performance.now() + openForMs;
      this.opened++;
      if (resignOpens !== null && this.opened >= resignOpens) this.#resign();
      else if (resignAfterMs !== null) this.#patience = setTimeout(this.#resign, resignAfterMs);
    }
  }
}
