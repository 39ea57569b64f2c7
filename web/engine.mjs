// The engine's JavaScript: the entry of the SharedWorker, and what window.mjs runs in a page. What must be quick or must
// not depend on Python is done here: the welcome while Python boots, lifelines, and letting go of a vanished page's
// locks (docs/wire.md); pings in pulse.mjs.
//
// The worker's name says what it is: tabhelm:<app>:v<protocol>:<buildId>, with #2, #3, … for later incarnations.

import { boot } from "./boot.mjs";
import { LockDesk } from "./desk.mjs";
import { Pulse } from "./pulse.mjs";
import { Wheels } from "./wheels.mjs";

const WIRE = 1;
const NAME = /^tabhelm:([A-Za-z0-9][A-Za-z0-9._-]*):v([1-9][0-9]*):([^#]+?)(?:#[1-9][0-9]*)?$/;
const LEAST_STALL_MS = 100;
/** A boot that neither succeeds nor fails (browsers do that on a truncated download) is given up after this long. */
const BOOT_LIMIT_MS = 120_000;
/** A worker's Python has so long to begin what its last page asked for before its goodbye. */
const SETTLE_MS = 3;
/** So long after a page left for another engine, one that nobody uses ends itself. */
const ABANDONED_MS = 10_000;
/** Messages that only this file makes: a page may not say them. */
const OURS = new Set(["gone", "stalled", "answering"]);

const isText = (/** @type {unknown} */ value) => typeof value === "string" && value !== "";
const isTime = (/** @type {unknown} */ value) => typeof value === "number" && Number.isFinite(value);
const SUSPEND = '{"type":"suspend"}';
const CUT = '{"type":"cut"}';
const RESUME = '{"type":"resume"}';
/** @param {string} code @param {string} message */
const problem = (code, message) => ({ code, message });
const textOf = (/** @type {any} */ error) => String(error?.message ?? error);

/**
 * What is needed of a `MessagePort`; the window host makes one of its own.
 * @typedef {{onmessage: ((event: any) => void) | null, postMessage: (data: unknown) => void, close: () => void}} Port
 */
/** @typedef {{port: Port, session: Session | null}} Link */
/** The interpreter, and what is told of its boot. @typedef {{pyodide: any, from: string, fallbackReason: string | null, version: string}} Runtime */
/** What ends a boot: it is the files or the browser, and every other engine of this build would end in the same way. */
const ALIKE = new Set(["no-runtime", "download", "stalled", "content"]);

/** One connection of one page, from its `hello` until it is gone. */
class Session {
  known = false; // whether Python has heard of it
  ready = false; // its wheels are unpacked
  frozen = false;
  /** @type {[string, unknown[] | undefined][]} */
  early = []; // what Python is to be told, once it is there and the wheels are
  /** @type {{abort: () => void} | null} */
  lifeline = null;

  /** @param {Link} link @param {string} id @param {Pulse} pulse */
  constructor(link, id, pulse) {
    this.link = link;
    this.id = id;
    this.pulse = pulse;
  }
}

export class Engine {
  /** @type {Map<string, Session>} */
  #sessions = new Map();
  /** @type {[Link, any][]} */
  #waiting = []; // what ports said before our own lock was granted
  /** @type {{code: string, message: string, alike: boolean} | null} */
  #failure = null;
  /** @type {((session: string, text: string, values?: unknown[]) => void) | null} */
  #deliver = null;
  /** @type {ReturnType<typeof setTimeout> | undefined} */
  #bootTimer = undefined;
  /** @type {ReturnType<typeof setTimeout> | undefined} */
  #sleepTimer = undefined;
  #started = performance.now();
  /** @type {Wheels | null} */
  #wheels = null;
  #locked = false;
  /** The request for our own lock that counts. @type {object | null} */
  #own = null;
  #suspended = false;
  #away = false; // what Python believes of `#suspended`
  /** @type {(() => void)[]} */
  #untold = []; // what Python is about to hear
  ignored = 0; // messages that made no sense
  stage = "begin"; // of the boot

  /**
   * @param {string} name the worker's name
   * @param {{boot?: typeof boot, desk?: LockDesk, close?: () => void, patience?: (limitMs: number, sinceMs: number) => number}}
   *   parts `boot` and `desk` are replaced by tests. `patience`: this engine runs in the page itself, which may be late for so
   *   long where the browser holds back its timers
   */
  constructor(name, { boot: bootWith = boot, desk = new LockDesk(), close = () => {}, patience } = {}) {
    this.desk = desk;
    this.close = close;
    this.patience = patience;
    const [, app, protocol, buildId] = NAME.exec(name) ?? [];
    this.app = app;
    this.protocol = Number(protocol);
    this.buildId = buildId;
    const bytes = crypto.getRandomValues(new Uint8Array(16));
    this.engine = Array.from(bytes, (byte) => byte.toString(16).padStart(2, "0")).join("");
    this.engineLock = `${app}:v${protocol}:engine:${this.engine}`;
    if (app === undefined) {
      this.fail("engine-name", `the engine's name ${JSON.stringify(name)} is not tabhelm:<app>:v<protocol>:<buildId>`);
      return;
    }
    this.#live();
    this.#limitBoot();
    const runtime = Promise.resolve(bootWith({ onStage: (stage) => (this.stage = stage) }));
    this.#wheels = new Wheels(runtime);
    this.#start(runtime).catch((error) => this.fail(error?.code ?? "boot", textOf(error)));
  }

  /** It has given up, and serves nobody any more. */
  get failed() {
    return this.#failure !== null;
  }

  /** A page has connected. @param {Port} port */
  connect(port) {
    /** @type {Link} */
    const link = { port, session: null };
    port.onmessage = (event) => this.#came(link, event.data);
    if (this.#failure) this.#post(link, { type: "failed", error: this.#failure });
  }

  /**
   * The page that this engine runs in, or the last page of a worker, is going away, perhaps to come back out of the cache, where
   * it may hold nothing and wait for nothing. All is let go before this returns, and before Python hears of it.
   * @param {string} reason "pagehide" if it may be cached
   */
  suspend(reason) {
    if (this.#suspended || this.#failure) return;
    this.#suspended = true;
    this.#locked = false;
    this.#own = null;
    clearTimeout(this.#bootTimer); // time in the cache is no time to boot
    const gone = [...this.#sessions.values()];
    const ended = [...gone.map((session) => this.#forget(session)), this.desk.letGo("")];
    for (const { link } of gone) link.port.close();
    if (reason === "pagehide" && this.#deliver) {
      // First of all: a transaction that stands still with us keeps everybody else out of the database, for a minute.
      this.#away = true;
      this.#hand("", CUT);
    }
    for (const tell of ended) this.#later(tell);
    for (const session of gone) this.#gone(session, reason);
    if (this.patience) this.#later(() => this.#suspended && this.#sleep());
    else if (reason === "pagehide") this.#settle(); // there are ten milliseconds, for all
    else this.#later(() => this.#suspended && this.#settle()); // the time that Python takes to hear of it comes on top
  }

  /** A page says hello, for the first time since. */
  resume() {
    if (!this.#suspended || this.#failure) return;
    this.#suspended = false;
    clearTimeout(this.#sleepTimer);
    if (!this.#deliver) this.#limitBoot();
    // By force: another engine that watched for our death, was granted the lock when we let go and hangs now, would keep it.
    this.#live(true);
  }

  #limitBoot() {
    const limit = () => this.fail("boot", `Python did not start within two minutes (stage: ${this.stage})`);
    this.#bootTimer = setTimeout(limit, BOOT_LIMIT_MS);
  }

  #settle() {
    clearTimeout(this.#sleepTimer);
    this.#sleepTimer = setTimeout(() => this.#sleep(), SETTLE_MS);
  }

  #sleep() {
    this.#drop(""); // Python may have asked again meanwhile
    this.#away = this.#deliver !== null;
    this.#hand("", SUSPEND);
  }

  // -- our own life ----------------------------------------------------------------------------------------------

  /** @param {boolean} [steal] */
  #live(steal = false) {
    const own = this.desk.request("", this.engineLock, "exclusive", false, steal, (what, message) => {
      if (this.#own === own) this.#ownLock(what, message); // else it was let go of, perhaps to be asked for again at once
    });
    this.#own = own;
  }

  /** @param {string} what @param {string} [message] */
  #ownLock(what, message) {
    if (what === "granted") {
      this.#locked = true;
      if (this.#away) this.#hand("", RESUME);
      this.#away = false;
      const waiting = this.#waiting;
      this.#waiting = [];
      for (const [link, data] of waiting) this.#came(link, data);
    } else if (what === "stolen") this.fail("deposed", "the engine's own lock was stolen: another engine took over");
    else if (!this.#failure) this.fail("no-authority", message ?? `the engine's own lock was ${what}`);
  }

  /** @param {Promise<Runtime>} runtime */
  async #start(runtime) {
    const { pyodide, from, fallbackReason, version } = await runtime;
    if (this.#failure) return;
    // An interpreter that has broken down goes on answering now and then. Nothing that it says may be believed.
    if (pyodide._api) pyodide._api.on_fatal = (/** @type {unknown} */ error) => this.fail("engine-crashed", textOf(error));
    const info = {
      engine: this.engine,
      engineLock: this.engineLock,
      app: this.app,
      protocol: this.protocol,
      buildId: this.buildId,
      version: version ?? null,
      from,
      fallbackReason: fallbackReason ?? null,
      bootMs: Math.round(performance.now() - this.#started),
      host: this.patience ? "window" : "shared",
    };
    const bridge = {
      info: JSON.stringify(info),
      desk: this.desk,
      post: (/** @type {string} */ session, /** @type {string} */ text, /** @type {unknown[]} */ values) => this.#postText(session, text, values),
      report: (/** @type {string} */ text) => this.report(text),
      counters: () => JSON.stringify({ sessions: this.#sessions.size, ignored: this.ignored }),
    };
    const deliver = await this.#python(pyodide, bridge);
    if (this.#failure) return;
    clearTimeout(this.#bootTimer);
    this.#deliver = deliver;
    if (this.#suspended) this.#sleep();
    for (const session of [...this.#sessions.values()]) this.#flush(session);
  }

  /**
   * Start the Python side. What is left to the garbage collector of two languages is cleaned up by a callback, at any time: in
   * a page in the back/forward cache that is the end of it. So nothing is left.
   * @param {any} pyodide @param {object} bridge @returns {Promise<(session: string, text: string, values?: unknown[]) => void>}
   */
  async #python(pyodide, bridge) {
    const module = pyodide.pyimport("tabhelm.browser.engine");
    const start = module.start;
    const starting = start(bridge);
    try {
      return await starting;
    } finally {
      for (const proxy of [starting, start, module]) proxy.destroy?.();
    }
  }

  /** The end of this engine: told to every page, its locks let go. The pages join the next incarnation. @param {string} code @param {string} message */
  fail(code, message) {
    if (this.#failure) return;
    this.#failure = { ...problem(code, message), alike: ALIKE.has(code) };
    console.error(`tabhelm: the engine gives up (${code}): ${message}`);
    clearTimeout(this.#bootTimer);
    const links = new Set(this.#waiting.map(([link]) => link));
    this.#waiting = [];
    const sessions = [...this.#sessions.values()];
    const ended = [...sessions.map((session) => this.#forget(session)), this.desk.letGo("")];
    for (const { link } of sessions) links.add(link);
    for (const link of links) this.#post(link, { type: "failed", error: this.#failure });
    // Also of a page's interpreter that has broken down: it cannot be ended, and its loops must not go on.
    for (const tell of ended) this.patience ? queueMicrotask(tell) : this.#later(tell);
    for (const session of sessions) this.#gone(session, code);
    if (this.patience) this.#hand("", SUSPEND); // it cannot be ended as a worker is
    this.#deliver = null;
    // Not at once: what was just posted, and pages that are connecting right now, must get their answer.
    setTimeout(() => this.close(), 100);
  }

  /** Something that should not happen, told where support will look. @param {string} text */
  report(text) {
    console.error(`tabhelm: ${text}`);
    for (const { link } of this.#sessions.values())
      this.#post(link, { type: "event", event: { type: "engine-error", message: text } });
  }

  // -- what pages say --------------------------------------------------------------------------------------------

  /** @param {Link} link @param {any} data */
  #came(link, data) {
    if (typeof data !== "object" || data === null || !isText(data.type) || OURS.has(data.type)) {
      this.ignored += 1;
    } else if (this.#failure) {
      this.#post(link, { type: "failed", error: this.#failure });
    } else if (!this.#locked) {
      this.#waiting.push([link, data]);
      if (data.type === "hello") this.resume();
    } else if (data.type === "hello") {
      this.#hello(link, data);
    } else if (link.session === null) {
      this.ignored += 1;
    } else {
      this.#says(link.session, data);
    }
  }

  /** @param {Link} link @param {{code: string, message: string}} error */
  #refuse(link, error) {
    this.#post(link, { type: "refused", error });
    if (this.#sessions.size === 0) this.suspend("refused");
  }

  /** @param {Link} link @param {any} hello */
  #hello(link, hello) {
    const { wire, session, app, protocol, stallAfterMs, at, lifeline, wheels = [] } = hello;
    if (!isText(session) || link.session !== null || this.#sessions.has(session)) {
      this.ignored += 1;
      return;
    }
    const refusal = this.#refusal(wire, app, protocol);
    if (refusal) {
      this.#refuse(link, refusal);
      return;
    }
    const lifelines = `${this.app}:v${this.protocol}:lifeline:`;
    const fits = isTime(at) && isTime(stallAfterMs) && stallAfterMs >= LEAST_STALL_MS && stallAfterMs < 2 ** 31 && isText(lifeline);
    if (!fits || !lifeline.startsWith(lifelines) || !Array.isArray(wheels) || !wheels.every(isText)) {
      this.ignored += 1;
      this.#refuse(link, problem("malformed", "hello: a field is missing or of a wrong type"));
      return;
    }
    /** @type {Session} */
    const joined = new Session(link, session, new Pulse(hello, {
      ping: (n, heard) => this.#post(link, { type: "ping", n, heard }),
      stalled: () => this.#stalled(joined),
      answering: () => this.#answering(joined),
      patience: this.patience,
    }));
    link.session = joined;
    this.#sessions.set(session, joined);
    this.desk.admit(session);
    joined.lifeline = this.desk.request("", lifeline, "exclusive", false, false, (what, message) => {
      if (what === "granted") this.#end(joined, "lifeline");
      else if (what === "failed") this.fail("no-authority", message ?? "a lifeline cannot be watched");
    });
    this.#post(link, {
      type: "welcome",
      engine: this.engine,
      engineLock: this.engineLock,
      buildId: this.buildId,
      heard: joined.pulse.heard,
    });
    joined.pulse.start();
    this.#tell(joined, hello);
    this.#prepare(joined, wheels);
  }

  /** @param {unknown} wire @param {unknown} app @param {unknown} protocol */
  #refusal(wire, app, protocol) {
    if (wire !== WIRE) return problem("wrong-wire", `this engine speaks wire ${WIRE}, the page ${JSON.stringify(wire)}`);
    if (app === this.app && protocol === this.protocol) return null;
    const asked = `${JSON.stringify(app)} protocol ${JSON.stringify(protocol)}`;
    return problem("wrong-engine", `this engine serves ${this.app} protocol ${this.protocol}, the page asked for ${asked}`);
  }

  /** @param {Session} session @param {any} data */
  #says(session, data) {
    const { type } = data;
    if (type === "pong") {
      if (!isTime(data.at) || !session.pulse.pong(data.n)) this.ignored += 1;
      else if (!session.frozen) session.pulse.hear(data.at);
    } else if (type === "bye") {
      this.#end(session, isText(data.reason) ? data.reason : "bye");
    } else if (type === "freeze") {
      this.#drop(session.id); // before anything else: we may be suspended with the page at any moment
      session.frozen = true;
      session.pulse.stop();
      this.#tell(session, data);
    } else if (type === "resume") {
      if (!isTime(data.at)) {
        this.ignored += 1;
        return;
      }
      session.frozen = false;
      session.pulse.resume(data.at);
      this.#admit(session);
      this.#tell(session, data);
      session.pulse.start();
      session.pulse.ping(); // the page accepts no grant before it knows that we heard it
    } else this.#tell(session, data);
  }

  // -- is the page still there? ----------------------------------------------------------------------------------

  /** @param {Session} session */
  #stalled(session) {
    this.#drop(session.id);
    this.#tell(session, { type: "stalled" });
  }

  /** @param {Session} session */
  #answering(session) {
    this.#admit(session);
    this.#tell(session, { type: "answering" });
  }

  /** In its turn: when Python hears why the page was shut out, it finds it so. @param {Session} session */
  #admit(session) {
    this.#later(() => !session.frozen && this.#sessions.get(session.id) === session && this.desk.admit(session.id));
  }

  /** @param {Session} session @param {string} reason */
  #end(session, reason) {
    if (this.#sessions.get(session.id) !== session) return;
    if (this.#sessions.size === 1) this.suspend(reason); // the page may be in the cache, and we with it in some milliseconds
    else {
      const tell = this.#forget(session);
      session.link.port.close();
      const part = () => {
        this.#later(tell);
        this.#gone(session, reason);
      };
      // Its page may have more sessions, whose goodbyes are next in our queue: their locks go before Python's time does.
      if (reason === "pagehide" && !this.patience) setTimeout(part, 1);
      else part();
    }
    // Pages that found us silent are with another engine now, but keep this worker alive: nobody would ever end it.
    if (reason === "engine-abandoned") setTimeout(() => this.#endIfAlone(), ABANDONED_MS);
  }

  #endIfAlone() {
    if (this.#sessions.size === 0) this.fail("deposed", "every page has left this engine for another");
  }

  /** Let go of all that belongs to a session, and of itself. @param {Session} session @returns {() => void} tells Python of its locks */
  #forget(session) {
    const tell = this.desk.letGo(session.id);
    this.#sessions.delete(session.id);
    session.pulse.stop();
    session.lifeline?.abort();
    session.link.session = null;
    session.early = [];
    return tell;
  }

  /** Let go of all that an owner has; Python hears of it later. @param {string} owner */
  #drop(owner) {
    this.#later(this.desk.letGo(owner));
  }

  // -- to Python and back ----------------------------------------------------------------------------------------

  /**
   * Hand a message to Python, or keep it until Python is there and has what the session needs. It goes as text, and beside it,
   * as they are, the `values` among the parameters of a call: whatever structured clone takes.
   * @param {Session} session @param {any} data
   */
  #tell(session, data) {
    let text, values;
    try {
      if (Array.isArray(data.params?.values)) {
        ({ values } = data.params);
        data = { ...data, params: { ...data.params, values: undefined } };
      }
      text = JSON.stringify(data);
    } catch {
      this.ignored += 1; // a BigInt or a cycle: nothing that this protocol knows
      return;
    }
    if (session.known) this.#hand(session.id, text, values);
    else session.early.push([text, values]);
  }

  /** @param {Session} session */
  #flush(session) {
    if (!this.#deliver || !session.ready || this.#sessions.get(session.id) !== session) return;
    session.known = true;
    const early = session.early;
    session.early = [];
    for (const [text, values] of early) this.#hand(session.id, text, values);
  }

  /** @param {Session} session @param {string} reason */
  #gone(session, reason) {
    if (session.known) this.#hand(session.id, JSON.stringify({ type: "gone", reason }));
  }

  /**
   * Python hears everything in its order, in microtasks: it takes milliseconds, in which a browser may stop this worker in the
   * midst of its work, and what was let go before is released only when the running script has ended. An interpreter that has
   * broken down hears nothing more. @param {() => void} work
   */
  #later(work) {
    this.#untold.push(work);
    queueMicrotask(() => this.#tellNext());
  }

  #tellNext() {
    const work = this.#untold.shift();
    if (this.#failure?.code !== "engine-crashed") work?.();
  }

  /** Python hears now what it has not yet: in a frame that a script takes out of its page no microtask runs any more. */
  tellAll() {
    while (this.#untold.length > 0) this.#tellNext();
  }

  /** @param {string} id @param {string} text @param {unknown[]} [values] */
  #hand(id, text, values) {
    const deliver = this.#deliver;
    if (!deliver) return;
    this.#later(() => {
      try {
        if (values) deliver(id, text, values);
        else deliver(id, text);
      } catch (error) {
        // Python's side catches all that Python can catch: the interpreter itself is broken.
        this.fail("engine-crashed", textOf(error));
      }
    });
  }

  /** The `values` of an answer are in its result, those of another message in itself. @param {string} id @param {string} text @param {unknown[]} [values] */
  #postText(id, text, values) {
    const session = this.#sessions.get(id);
    if (!session) return;
    const message = JSON.parse(text);
    if (values) (message.result ?? message).values = values;
    this.#post(session.link, message);
  }

  /** @param {Link} link @param {object} message */
  #post(link, message) {
    link.port.postMessage(message);
  }

  /**
   * Fetch and unpack what the page's Python loops are made of, before Python hears of the page.
   * @param {Session} session @param {string[]} wheels
   */
  async #prepare(session, wheels) {
    try {
      for (const wheel of wheels) await /** @type {Wheels} */ (this.#wheels).unpack(new URL(wheel, globalThis.location.href).href);
    } catch (error) {
      if (this.#sessions.get(session.id) !== session) return;
      this.#later(this.#forget(session));
      this.#refuse(session.link, problem("wheel", textOf(error)));
      return;
    }
    session.ready = true;
    this.#flush(session);
  }
}

const worker = /** @type {any} */ (globalThis);
if (typeof worker.SharedWorkerGlobalScope === "function" && worker instanceof worker.SharedWorkerGlobalScope) {
  const engine = new Engine(worker.name, { close: () => worker.close() });
  worker.onconnect = (/** @type {MessageEvent} */ event) => engine.connect(event.ports[0]);
  worker.addEventListener("error", (/** @type {ErrorEvent} */ event) => engine.report(`uncaught error: ${event.message}`));
  worker.addEventListener("unhandledrejection", (/** @type {PromiseRejectionEvent} */ { reason }) => engine.report(`unhandled rejection: ${reason}`));
}
