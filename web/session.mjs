/** One page's membership: its identity, its lifecycle, its calls, and which engine it is with. It survives links. */
import { TabhelmError, message, randomId } from "./checks.mjs";
import { Link, explained, hold } from "./link.mjs";

const TAB_LOCK_PATIENCE_MS = 300; // a reload's old document may need that long to let go of the tab's lock
const ENGINES = 4; // incarnations of an engine; one attempt asks each before it gives up
const MUTE = 2; // of them without a sign in a row: shared engines cannot be had here
const RETRY_LIMIT_MS = 30_000;
const CALL_LIMIT_MS = 60_000; // an engine that goes on pinging may still owe an answer: its database may hang
const FINAL = /^(wrong-|malformed|invalid-)/; // refusals that another attempt cannot change

/**
 * @typedef {object} Settings
 * @property {string} app
 * @property {number} protocol
 * @property {string} version
 * @property {string[]} capabilities
 * @property {string | null} userSession
 * @property {number} stallAfterMs
 * @property {number} enginePatienceMs
 * @property {"auto" | "shared" | "window"} host
 * @property {string} engineUrl
 * @property {string[]} wheels
 * @property {boolean} testHooks
 */

/** Ids that sessions of this very page have held. */
const OURS = new Set();

/** @typedef {import("./link.mjs").Engine} Engine */

/**
 * @typedef {object} Handlers
 * @property {(engine: Engine) => void} up the engine took the session: open everything again
 * @property {(reason: string) => void} down abort every loop, now; called synchronously inside `freeze` and `pagehide`
 * @property {(state: "connecting" | "lost", reason: string) => void} trouble
 * @property {() => void} doubt the engine may not count on this page any more: running loops must end
 * @property {() => void} heard the engine has just been heard: a waiting grant may be accepted now
 * @property {(data: any) => void} receive every message that is not about the connection itself
 * @property {(name: string, ...given: unknown[]) => Promise<any>} extra call what lies in extras.mjs
 */

/**
 * @typedef {{id: number, method: string, params: object, again: object, sent: boolean, waitedMs: number, once: boolean,
 *   resolve: (value?: any) => void, reject: (error: Error) => void}} Call
 */

export class Session {
  id = "";
  connectionId = "";
  generation = 0;
  /** Messages that were not understood. */
  malformed = 0;
  /** @type {Engine | null} */
  engine = null;
  /** The engine that this page was joined to and that fell silent: it may hang with its locks. Told to the next one. */
  silentEngine = "";
  frozen = false;
  left = false;
  /** @type {Promise<void>} settles with the outcome of the first attempt */
  ready;
  /** @type {"shared" | "window"} */
  host;
  /** Why it is not the host that was asked for first. */
  fallback = "";
  /** Signs in a row that no shared engine can be had. */
  #mute = 0;
  #incarnation = 1;
  /** Attempts since an engine last proved itself. */
  #retries = 0;
  #upMs = 0;
  /** @type {TabhelmError | null} final */
  #refusal = null;
  /** What was told last. */
  #online = true;
  /** @type {Link | null} */
  #link = null;
  /** Aborted when the page goes away or the tab leaves: releases the tab's lock, ends attempts and retries. */
  #stay = new AbortController();
  #listening = new AbortController();
  #holdsTab = false;
  /** @type {Map<number, Call>} */
  #calls = new Map();
  #lastCall = 0;
  #settleReady;

  /** @param {Settings} settings @param {Handlers} handlers */
  constructor(settings, handlers) {
    this.settings = settings;
    this.handlers = handlers;
    const { promise, resolve, reject } = deferred();
    this.ready = promise;
    this.#settleReady = { resolve, reject };
    this.host = settings.host === "window" ? "window" : "shared";
    if (!window.SharedWorker) this.#fallBack("this browser has no SharedWorker");
    this.#listen();
    void this.#connect();
  }

  get up() {
    return this.#link?.joined ?? false;
  }

  /** @param {string} kind @param {string} resource */
  lock(kind, resource) {
    return `${this.settings.app}:v${this.settings.protocol}:${kind}:${resource}`;
  }

  /** What the page says of itself. */
  state() {
    const visible = document.visibilityState === "visible";
    this.#online = navigator.onLine;
    return { lifecycle: this.frozen ? "frozen" : visible ? "active" : "hidden", visible, online: this.#online };
  }

  /**
   * Does the page have to doubt that its engine still counts on it? The margin (a tenth, at least 250 ms) is for a write
   * that is on its way while the limit passes.
   */
  doubts() {
    const limitMs = this.settings.stallAfterMs;
    const margin = Math.max(250, limitMs / 10);
    return !this.#link || performance.now() > this.#link.trust(limitMs) - margin;
  }

  /** May this page begin to lead now? */
  able() {
    return this.up && !this.frozen && !this.doubts();
  }

  /** @param {object} data */
  post(data) {
    if (this.up) this.#link?.post(data);
  }

  /**
   * Ask the engine. An unanswered call is sent again, with the same id and contents, to the next engine.
   * @param {string} method @param {object} params
   * @param {{once?: boolean, again?: object}} [options] `once`: only this connection can answer it; `again`: what to say
   *   instead of `params` when it is sent once more
   * @returns {Promise<any>}
   */
  call(method, params, { once = false, again = params } = {}) {
    if (this.left) return Promise.reject(notJoined());
    if (this.#refusal) return Promise.reject(this.#refusal);
    if (once && !this.up) return Promise.reject(new TabhelmError("engine-lost", `no engine is connected to answer "${method}"`));
    const { promise, resolve, reject } = deferred();
    const waiting = { id: ++this.#lastCall, method, params, again, sent: false, waitedMs: 0, once, resolve, reject };
    this.#calls.set(waiting.id, waiting);
    this.#ask(waiting);
    return promise;
  }

  /** Send what is still unanswered: when the queues that it speaks of were opened again, and before the app hears of that. */
  resend() {
    for (const waiting of this.#calls.values()) this.#ask(waiting);
  }

  /** @param {Call} waiting */
  #ask(waiting) {
    if (!this.up) return;
    const { id, method, params, again, sent } = waiting;
    waiting.sent = true;
    waiting.waitedMs = 0;
    this.post({ type: "call", id, method, params: sent ? again : params });
  }

  /** @param {string} reason */
  leave(reason) {
    if (this.left) return;
    this.left = true;
    this.#listening.abort();
    this.#depart(reason);
    this.#rejectCalls(notJoined, true);
    this.#settleReady.reject(notJoined());
  }

  // ---- called by the link -------------------------------------------------------------------------------------------

  /** @param {any} data */
  receive(data) {
    if (data.type === "answer") {
      const waiting = this.#calls.get(data.id);
      if (!waiting) return;
      this.#calls.delete(data.id);
      if (data.error) waiting.reject(new TabhelmError(String(data.error.code ?? "tabhelm"), message(data.error)));
      else waiting.resolve(data.result);
      return;
    }
    this.handlers.receive(data);
  }

  heard() {
    if (!this.up) return;
    if (this.#online !== navigator.onLine) this.#tell(); // the event may never come
    this.handlers.heard();
  }

  #tell = () => this.post({ type: "state", ...this.state() });

  /** @param {number} tickMs */
  tick(tickMs) {
    const { stallAfterMs } = this.settings;
    if (this.doubts()) this.handlers.doubt();
    this.#upMs += tickMs;
    if (this.#upMs >= stallAfterMs) this.#retries = 0;
    for (const [id, waiting] of this.#calls) {
      waiting.waitedMs += tickMs;
      if (waiting.waitedMs <= CALL_LIMIT_MS) continue;
      this.#calls.delete(id);
      waiting.reject(new TabhelmError("no-answer", `the engine lives but has not answered "${waiting.method}" for ${CALL_LIMIT_MS} ms; its outcome is unknown`));
    }
  }

  /** @param {Link} link @param {Engine} engine */
  joined(link, engine) {
    this.engine = engine;
    this.silentEngine = "";
    this.#mute = this.#upMs = 0;
    // What changed since `hello` was said: nothing may be sent in the name of a user who has gone meanwhile.
    const { userSession, capabilities } = this.settings;
    link.post({ type: "update", userSession, capabilities });
    link.post({ type: "state", ...this.state() });
    this.handlers.up(engine);
    this.#settleReady.resolve();
  }

  // ---- connecting ---------------------------------------------------------------------------------------------------

  async #connect() {
    const { signal } = this.#stay;
    try {
      await this.#prerendered();
      if (signal.aborted || !(await this.#identify(signal))) return;
    } catch (error) {
      this.#giveUp(/** @type {Error} */ (error));
      return;
    }
    this.#attempt([]);
  }

  /** @param {string[]} tried */
  #attempt(tried) {
    this.connectionId = randomId();
    const link = new Link(this, this.#incarnation, this.connectionId, (loss) => {
      const wasUp = this.engine !== null;
      this.#drop(loss.message);
      this.#mute = loss.mute && this.#mute + loss.mute;
      const fell = this.#mute >= MUTE && this.#fallBack(`the engine "${link.engineName}" ${loss.message}`);
      const alone = this.host === "window"; // an engine in this very page is not joined by going round
      // An engine that is said to be dead again perhaps lives, with locks that this page cannot see: the user cleared the
      // site's data under older tabs.
      if ((loss.next || tried[0] || this.#retries) && !alone) this.#incarnation = (this.#incarnation % ENGINES) + 1;
      if (loss.refused) {
        const error = new TabhelmError("refused", `the engine "${link.engineName}" ${loss.message}`);
        if (FINAL.test(loss.refused)) this.#refusal = error;
        this.#giveUp(error);
      } else if (wasUp) {
        this.handlers.trouble("connecting", loss.message);
        this.#again(0);
      } else {
        tried.push(`"${link.engineName}" ${loss.message}`);
        if (fell || (!alone && !loss.alike && tried.length < ENGINES)) this.#attempt(tried);
        else void this.#noEngine(tried, loss.alike);
      }
    });
    this.#link = link;
    void link.open();
  }

  /** @param {string[]} tried @param {boolean} [alike] */
  async #noEngine(tried, alike) {
    const { engineUrl, host } = this.settings;
    const { signal } = this.#stay;
    const what = `no engine at ${engineUrl}: ${tried.join("; ")}`;
    const error = alike ? new TabhelmError("no-engine", what) : await explained("no-engine", what, this.settings);
    if (signal.aborted) return;
    this.#incarnation = 1;
    if (host === "auto" && window.SharedWorker) {
      this.host = "shared"; // what is not served now may be so next time
      this.fallback = "";
    }
    this.#giveUp(error);
  }

  /** From shared engines to one in this page, if that is left to us. @param {string} reason */
  #fallBack(reason) {
    if (this.host === "window" || this.settings.host !== "auto") return false;
    this.host = "window";
    this.fallback = reason;
    this.#incarnation = 1;
    return true;
  }

  /** A tab that never joined is told; one that had joined goes on trying, ever more slowly. @param {Error} error */
  #giveUp(error) {
    this.#settleReady.reject(error);
    this.handlers.trouble("lost", error.message);
    this.#rejectCalls(() => this.#refusal ?? new TabhelmError("engine-lost", error.message), true);
    if (!this.#refusal) this.#again(1000);
  }

  /** At once, or after `leastMs`, if the last engine had proved itself; else ever later. @param {number} leastMs */
  #again(leastMs) {
    const { signal } = this.#stay;
    const delayMs = Math.max(leastMs, this.#retries && Math.min(RETRY_LIMIT_MS, 500 * 2 ** this.#retries));
    this.#retries++;
    if (signal.aborted) return;
    if (!delayMs) return void this.#connect(); // no timer: a hidden page's are late
    setTimeout(() => void (signal.aborted || this.#connect()), delayMs);
  }

  /** @param {string} reason */
  #drop(reason) {
    this.#link?.close();
    this.#link = null;
    this.engine = null;
    this.handlers.down(reason);
    this.#rejectCalls(() => new TabhelmError("engine-lost", `the engine ${reason}`), false);
  }

  /** @param {() => Error} error @param {boolean} all */
  #rejectCalls(error, all) {
    for (const [id, { once, reject }] of this.#calls) {
      if (!all && !once) continue;
      this.#calls.delete(id);
      reject(error());
    }
  }

  async #prerendered() {
    const page = /** @type {Document & {prerendering?: boolean}} */ (document);
    if (page.prerendering) await new Promise((shown) => page.addEventListener("prerenderingchange", shown, { once: true }));
  }

  /**
   * Who is this tab? A duplicated tab has a copy of the stored id, but cannot get the lock that goes with it.
   * @param {AbortSignal} signal
   */
  async #identify(signal) {
    const key = `tabhelm:${this.settings.app}:tab`;
    const stored = readIdentity(key);
    if (!this.#holdsTab) {
      const candidate = this.id || stored?.id;
      const mine = candidate && (await hold(this.lock("tab", candidate), signal, TAB_LOCK_PATIENCE_MS));
      if (signal.aborted) return false;
      if (mine) {
        this.id = candidate;
      } else {
        this.id = randomId();
        this.generation = 0;
        if (!(await hold(this.lock("tab", this.id), signal)) || signal.aborted) return false;
      }
      this.#holdsTab = true;
    }
    this.generation = 1 + Math.max(this.generation, stored?.id === this.id ? stored.generation : 0);
    // A second join of one page takes an id of its own, but the tab keeps the first one's over reloads.
    if (!stored || stored.id === this.id || !OURS.has(stored.id)) writeIdentity(key, { id: this.id, generation: this.generation });
    OURS.add(this.id);
    return true;
  }

  // ---- lifecycle ----------------------------------------------------------------------------------------------------

  #listen() {
    const options = { signal: this.#listening.signal };
    for (const type of ["visibilitychange", "online", "offline"]) window.addEventListener(type, this.#tell, options);
    document.addEventListener("freeze", () => this.freeze(), options);
    document.addEventListener("resume", () => this.resume(), options);
    window.addEventListener("pagehide", () => this.#depart("pagehide"), options);
    window.addEventListener("pageshow", (event) => event.persisted && this.#return(), options);
  }

  freeze() {
    if (this.frozen) return;
    this.frozen = true;
    this.handlers.down("freeze"); // first: a thawed loop must see its aborted signal before anything else
    this.#link?.post({ type: "freeze" });
  }

  resume() {
    if (!this.frozen) return;
    this.frozen = false;
    if (this.#link) this.#link.post({ type: "resume", at: this.#link.resumed(), ...this.state() });
  }

  /**
   * Leave without a trace: a page in the back/forward cache that holds a lock, or waits for one, starves the others.
   * @param {string} reason
   */
  #depart(reason) {
    this.handlers.down(reason);
    this.#link?.post({ type: "bye", reason });
    this.#stay.abort();
    this.#holdsTab = false;
    this.#drop(reason);
  }

  #return() {
    if (!this.#stay.signal.aborted) return;
    this.#stay = new AbortController();
    this.#refusal = null;
    this.frozen = false;
    this.handlers.trouble("connecting", "restored");
    void this.#connect();
  }
}

export function notJoined() {
  return new TabhelmError("not-joined", "this tab has left; call join() again");
}

/** @returns {{promise: Promise<any>, resolve: (value?: any) => void, reject: (error: Error) => void}} */
export function deferred() {
  /** @type {any} */
  const parts = {};
  parts.promise = new Promise((resolve, reject) => Object.assign(parts, { resolve, reject }));
  return parts;
}

/** Storage may be denied (cookies blocked, sandboxed frame): then the id lives as long as the page. @param {string} key */
function readIdentity(key) {
  try {
    const { id, generation } = JSON.parse(sessionStorage.getItem(key) ?? "{}");
    if (/^[A-Za-z0-9][A-Za-z0-9._-]{0,99}$/.test(id) && Number.isSafeInteger(generation)) return { id: String(id), generation };
  } catch {
    // denied or damaged: a new identity
  }
  return null;
}

/** @param {string} key @param {{id: string, generation: number}} identity */
function writeIdentity(key, identity) {
  try {
    sessionStorage.setItem(key, JSON.stringify(identity));
  } catch {
    // denied or full
  }
}
