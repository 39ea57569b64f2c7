/**
 * Locks of the app's own, and single flights. The engine asks for them and holds them in this page's name, so that a page that
 * freezes, hangs or goes away lets go at once; the bodies run here (docs/locks.md).
 */
import { bad, checkFlag, checkKeys, checkNumber, checkPart, checkScope, message, nameOf } from "./checks.mjs";
import { payloadText } from "./payloads.mjs";
import { core } from "./core.mjs";

/** @typedef {import("./extras.mjs").Inside} Inside */
/** @typedef {import("./tabhelm.js").TabhelmError} TabhelmError */
/** @typedef {import("./tabhelm.js").Lock} Lock */
/**
 * @typedef {object} Wanted
 * @property {string} name
 * @property {string | undefined} scope
 * @property {boolean} [shared]
 * @property {boolean} [ifAvailable]
 * @property {boolean} [flight]
 * @property {number | undefined} [timeoutMs]
 */
/** @typedef {(lock: Lock) => unknown} Work */

const LOOK_MS = 250; // how often to see whether what waits may be asked for, and whether what is held may still be believed
const LATE_MS = 2_500; // the engine names the holder when time is up; if it says nothing, the page says less
const MOST = 200_000; // characters of a flight's result, as it is quoted in a message

/** @type {WeakMap<object, Locks>} */
const ofTabs = new WeakMap();

/** @param {Inside} inside */
function locks(inside) {
  const known = ofTabs.get(inside.tab);
  if (known) return known;
  const made = new Locks(inside);
  ofTabs.set(inside.tab, made);
  return made;
}

/** @param {Inside} inside @param {string} name @param {unknown} body @param {unknown} [options] @returns {Promise<any>} */
export async function lock(inside, name, body, options) {
  const given = checkKeys("lock", options, ["mode", "ifAvailable", "timeoutMs", "signal", "scope"]);
  const { mode = "exclusive", ifAvailable = false } = given;
  if (typeof body !== "function") throw bad("the second argument of lock()", body, "a function is expected");
  if (mode !== "exclusive" && mode !== "shared") throw bad("mode", mode, '"exclusive" or "shared" is expected');
  if (ifAvailable && given.timeoutMs !== undefined) throw new TypeError("ifAvailable never waits, so timeoutMs can mean nothing: leave one out");
  const wanted = {
    name: checkPart("lock", name),
    scope: checkScope("scope", given.scope),
    shared: mode === "shared",
    ifAvailable: checkFlag("ifAvailable", ifAvailable),
    timeoutMs: given.timeoutMs === undefined ? undefined : checkNumber("timeoutMs", given.timeoutMs, 0),
  };
  const signal = checkSignal(given.signal);
  signal?.throwIfAborted();
  const request = new Request(locks(inside), wanted, /** @type {Work} */ (body));
  const stop = () => request.abandon(signal?.reason);
  signal?.addEventListener("abort", stop);
  try {
    return await request.outcome;
  } finally {
    signal?.removeEventListener("abort", stop);
  }
}

/** @param {Inside} inside @param {string} key @param {unknown} work @param {unknown} [options] @returns {Promise<any>} */
export async function singleFlight(inside, key, work, options) {
  const given = checkKeys("singleFlight", options, ["timeoutMs", "signal", "scope"]);
  if (typeof work !== "function") throw bad("the second argument of singleFlight()", work, "a function is expected");
  const wanted = { name: checkPart("key", key), scope: checkScope("scope", given.scope), flight: true };
  const timeoutMs = given.timeoutMs === undefined ? undefined : checkNumber("timeoutMs", given.timeoutMs, 1);
  const signal = checkSignal(given.signal);
  signal?.throwIfAborted();
  return locks(inside).join(wanted, /** @type {Work} */ (work), timeoutMs, signal);
}

/** @param {unknown} signal @returns {AbortSignal | undefined} */
function checkSignal(signal) {
  if (signal === undefined || signal instanceof AbortSignal) return signal;
  throw bad("signal", signal, "an AbortSignal is expected");
}

/** @param {string} code @param {string} text @param {object} [more] @returns {TabhelmError & {reason?: string}} */
const problem = (code, text, more = {}) => Object.assign(new core.TabhelmError(code, text), more);

/** @param {string} name @param {string} reason */
const lockLost = (name, reason) => problem("lock-lost", `lock "${name}" is held no more: ${reason}`, { name: "LockLost", lock: name, reason });

/** All of one joined tab. */
class Locks {
  /** @type {Map<string, Request>} what the engine was asked for, by its handle */
  #asked = new Map();
  /** @type {Set<Request>} */
  #all = new Set();
  /** @type {Map<string, Flight>} */
  #flights = new Map();
  #made = 0;
  /** @type {ReturnType<typeof setInterval> | undefined} */
  #timer = undefined;

  /** @param {Inside} inside */
  constructor({ tab, session, messages, downs }) {
    this.session = session;
    const look = () => this.look();
    messages.set("lock", (data) => this.#asked.get(data.lock)?.told(data));
    downs.add((reason) => this.#down(reason));
    tab.addEventListener("host", look); // connected again
    document.addEventListener("resume", look); // after the session's own listener, which says so to the engine first
  }

  /** @param {Wanted} wanted */
  full({ flight, name, scope }) {
    const short = this.session.lock(flight ? "single-flight" : "mutation", name);
    return scope === undefined ? short : `${short}:${scope}`;
  }

  /** @param {Request} request */
  add(request) {
    if (this.session.left) throw problem("not-joined", "this tab has left; call join() again");
    this.#all.add(request);
    this.#timer ??= setInterval(() => this.look(), LOOK_MS);
    this.look();
  }

  /** @param {Request} request */
  remove(request) {
    this.#all.delete(request);
    this.forget(request);
    if (this.#all.size) return;
    clearInterval(this.#timer);
    this.#timer = undefined;
  }

  /** A new handle each time it is asked for: what was said of an earlier one is no answer. @param {Request} request */
  ask(request) {
    const handle = `l${++this.#made}`;
    this.#asked.set(handle, request);
    return handle;
  }

  /** @param {Request} request */
  forget(request) {
    if (request.handle) this.#asked.delete(request.handle);
    request.handle = "";
  }

  look() {
    // While no engine is connected, a call for this connection only says at once whether there will ever be one again.
    if (!this.session.up) this.session.call("lock", {}, { once: true }).catch((error) => this.#refused(error));
    for (const request of [...this.#all]) request.look();
  }

  /** @param {TabhelmError} error */
  #refused(error) {
    if (error.code === "refused") for (const request of [...this.#all]) request.refuse(error);
  }

  /** @param {string} reason */
  #down(reason) {
    for (const request of [...this.#all]) request.down(reason);
  }

  /**
   * One flight in this page for all of its callers.
   * @param {Wanted} wanted @param {Work} work @param {number | undefined} timeoutMs @param {AbortSignal | undefined} signal
   */
  join(wanted, work, timeoutMs, signal) {
    const name = this.full(wanted);
    let flight = this.#flights.get(name);
    if (!flight) {
      const request = new Request(this, wanted, work);
      const over = () => this.#flights.get(name) === flight && this.#flights.delete(name);
      flight = new Flight(wanted.name, request, over);
      this.#flights.set(name, flight);
      request.lost = over; // work that is deaf to its signal goes on, and nobody else shall wait for that
      request.outcome.then(over, over);
    }
    return flight.join(timeoutMs, signal);
  }
}

/** Those in this page who wait for one request. Who gives up stops it only if nobody else waits. */
class Flight {
  #callers = 0;

  /** @param {string} key @param {Request} request @param {() => void} over */
  constructor(key, request, over) {
    this.key = key;
    this.request = request;
    this.over = over;
  }

  /** @param {number | undefined} timeoutMs @param {AbortSignal | undefined} signal @returns {Promise<any>} */
  join(timeoutMs, signal) {
    this.#callers++;
    return new Promise((resolve, reject) => {
      let waits = true;
      const done = (/** @type {() => void} */ settle) => {
        if (!waits) return;
        waits = false;
        this.#callers--;
        clearTimeout(timer);
        signal?.removeEventListener("abort", aborted);
        settle();
      };
      const leave = (/** @type {unknown} */ error) =>
        done(() => {
          reject(error);
          if (this.#callers) return;
          this.over(); // whoever asks from now on begins anew
          this.request.abandon(error);
        });
      const aborted = () => leave(signal?.reason);
      const late = () => leave(problem("lock-timeout", `single flight "${this.key}" gave nothing within ${timeoutMs} ms`));
      const timer = timeoutMs === undefined ? undefined : setTimeout(late, timeoutMs);
      signal?.addEventListener("abort", aborted);
      this.request.outcome.then(
        (value) => done(() => resolve(value)),
        (error) => done(() => reject(error)),
      );
    });
  }
}

/** One request, from the call until its body has settled. */
class Request {
  /** Under which the engine knows it; empty while it does not. */
  handle = "";
  /** @type {Promise<any>} */
  outcome;
  /** Called when it is lost under its body. @type {() => void} */
  lost = () => {};
  #locks;
  #wanted;
  #work;
  #name;
  #deadline;
  /** Even with no time to wait, a free lock is to be had. */
  #tried = false;
  #granted = false;
  /** @type {AbortController | null} of the body's signal */
  #running = null;
  /** @type {TabhelmError | null} */
  #lost = null;
  #abandoned = false;
  #over = false;
  /** @type {(value: any) => void} */
  #resolve = () => {};
  /** @type {(error: unknown) => void} */
  #reject = () => {};

  /** @param {Locks} locks @param {Wanted} wanted @param {Work} work */
  constructor(locks, wanted, work) {
    this.#locks = locks;
    this.#wanted = wanted;
    this.#work = work;
    this.#name = locks.full(wanted);
    this.#deadline = wanted.timeoutMs === undefined ? Infinity : performance.now() + wanted.timeoutMs;
    this.outcome = new Promise((resolve, reject) => {
      this.#resolve = resolve;
      this.#reject = reject;
    });
    locks.add(this);
  }

  /** Whatever can be done now. */
  look() {
    const { session } = this.#locks;
    if (this.#over) return;
    if (this.#running) {
      if (session.doubts()) this.#lose("doubt");
    } else if (this.#granted) {
      // Only who is heard may believe a grant: it may have been taken back while this page stood still.
      if (session.able()) this.#begin(this.handle);
    } else if (!this.handle && session.up && !session.frozen && (!this.#tried || performance.now() < this.#deadline)) {
      this.#ask();
    } else if (performance.now() >= this.#deadline + (this.handle ? LATE_MS : 0)) {
      const { name, timeoutMs } = this.#wanted;
      this.#end(() => this.#reject(problem("lock-timeout", `lock "${name}" was not free within ${timeoutMs} ms, and no engine says who holds it`, { name: "LockTimeout", holder: null, heldForMs: null })));
    }
  }

  #ask() {
    const { name, scope, shared, ifAvailable, flight } = this.#wanted;
    const timeoutMs = this.#deadline === Infinity ? undefined : Math.max(0, this.#deadline - performance.now());
    this.#tried = true;
    this.handle = this.#locks.ask(this);
    this.#locks.session.post({ type: "lock", lock: this.handle, name, scope, shared, ifAvailable, flight, timeoutMs });
  }

  /** The engine says something of it. @param {any} data */
  told({ state, reason, error, value }) {
    if (state === "granted") {
      this.#granted = true;
      this.look();
    } else if (state === "gone") {
      if (this.#running) this.#lose(String(reason));
      else this.#granted = false; // asked for again at the next look: the page stood still, and goes on
      this.#locks.forget(this);
    } else if (state === "refused") {
      const { code, message: text, ...more } = error ?? {};
      const name = String(code).replace(/(?:^|-)(.)/g, (_, letter) => letter.toUpperCase());
      this.#end(() => this.#reject(problem(String(code), String(text), { name, ...more })));
    } else if (state === "answered") {
      if (error) this.#end(() => this.#reject(problem(error.code || "flight-failed", String(error.message), { name: String(error.name) })));
      else this.#end(() => this.#resolve(typeof value === "string" ? JSON.parse(value) : undefined));
    }
  }

  /** The connection is gone, or the page stands still from now on. Whatever the engine held for it is let go. @param {string} reason */
  down(reason) {
    this.#locks.forget(this);
    this.#granted = false;
    if (this.#running) this.#lose(reason);
    else if (this.#locks.session.left) this.#end(() => this.#reject(problem("not-joined", "this tab has left; call join() again")));
  }

  /** No engine will ever take this page again. @param {TabhelmError} error */
  refuse(error) {
    if (!this.#running) this.#end(() => this.#reject(error));
  }

  /** Nobody waits for it any more. A body of a lock that runs goes on; that of a flight is told. @param {unknown} reason */
  abandon(reason) {
    if (!this.#running) this.#end(() => this.#reject(reason));
    else if (this.#wanted.flight) {
      this.#abandoned = true;
      this.#running.abort(reason);
    }
  }

  /** @param {string} reason */
  #lose(reason) {
    if (!this.#lost) this.lost();
    this.#lost ??= lockLost(this.#name, reason);
    this.#running?.abort(this.#lost);
  }

  /** @param {string} handle */
  #begin(handle) {
    const running = (this.#running = new AbortController());
    const request = this;
    const { session } = this.#locks;
    /** @type {Lock} */
    const lock = {
      name: this.#name,
      mode: this.#wanted.shared ? "shared" : "exclusive",
      signal: running.signal,
      get held() {
        if (!request.#over && session.doubts()) request.#lose("doubt");
        return !request.#over && !request.#lost;
      },
      check() {
        if (!this.held) throw request.#lost ?? lockLost(this.name, "released");
      },
    };
    Promise.resolve()
      .then(() => {
        lock.check();
        return this.#work(lock);
      })
      .then(
        (value) => this.#settle(handle, true, value),
        (error) => this.#settle(handle, false, error),
      );
  }

  /** The body has settled. @param {string} handle @param {boolean} well @param {any} given its value or error */
  #settle(handle, well, given) {
    const { session } = this.#locks;
    if (session.doubts()) this.#lose("doubt"); // it stood still, and the timers that would tell are late
    let outcome;
    if (this.#wanted.flight && !this.#lost && !this.#abandoned) {
      if (well) {
        try {
          outcome = { value: resultText(this.#wanted.name, given) };
        } catch (error) {
          well = false;
          given = error;
        }
      }
      if (!well) outcome = { error: { name: nameOf(given), message: message(given).slice(0, 2_000), code: codeOf(given) } };
    }
    const lost = this.#lost;
    const expected = lost && (well || given === lost || given?.name === "AbortError");
    this.#end(() => (expected ? this.#reject(lost) : well ? this.#resolve(given) : this.#reject(given)), handle, outcome);
  }

  /** First of all the lock is let go. @param {() => void} settle @param {string} [handle] @param {object} [outcome] */
  #end(settle, handle = this.handle, outcome = undefined) {
    if (this.#over) return;
    this.#over = true;
    if (handle) this.#locks.session.post({ type: "unlock", lock: handle, outcome });
    this.#locks.remove(this);
    settle();
  }
}

/** JSON text of a flight's result; none for `undefined`. @param {string} key @param {unknown} value */
function resultText(key, value) {
  if (value === undefined) return undefined;
  let text;
  try {
    text = payloadText("result", value);
  } catch (error) {
    throw problem("not-cloneable", message(error), { name: "NotCloneable", cause: error });
  }
  const size = JSON.stringify(text).replace(/[^\x00-\x7f]/g, "\\u0000").length; // as the engine will quote it
  if (size <= MOST) return text;
  const limit = `at most ${MOST} can go to other tabs: store it, and give them where it is`;
  throw problem("not-cloneable", `the result of "${key}" is ${size} characters long as quoted JSON; ${limit}`, { name: "NotCloneable" });
}

/** @param {any} error */
function codeOf(error) {
  try {
    return error instanceof core.TabhelmError ? error.code : "";
  } catch {
    return "";
  }
}
