/**
 * One connection of this page to one engine: its lifeline, its words, its silence.
 *
 * Every lock that the page holds or waits for hangs on an `AbortSignal`, so that leaving a link, or the page, is one
 * `abort()`: released and withdrawn at the same moment.
 */
import { TabhelmError, buildId, message } from "./checks.mjs";

const BOOT_SILENCE_MS = 30_000; // Python may boot in one long synchronous piece, in which the engine cannot ping
const BOOT_LIMIT_MS = 90_000;
const LOAD_LIMIT_MS = 4_000; // the window host's scripts, which an import() may wait for without end
const EXPLAIN_MS = 1_000;

/** @typedef {import("./session.mjs").Session} Session */

/** @typedef {{id: string, incarnation: number, buildId: string, from: string, bootMs: number, fallbackReason?: string}} Engine */

/**
 * @typedef {object} Loss
 * @property {string} message
 * @property {boolean} next do not ask the same engine again
 * @property {string} refused the code of a refusal
 * @property {boolean} [alike] any engine of this build would fail in the same way
 * @property {number} mute 0: the engine gave a sign of life; 1: none; 2: this page can have no such engine at all
 */

/**
 * The way to an engine. `patience`: an engine in the page itself may be late for so long where the browser holds back the
 * page's timers.
 * @typedef {{post: (data: object) => void, close: () => void, patience?: (limitMs: number, sinceMs: number) => number}} Transport
 */

/** @typedef {{createScriptURL: (url: string) => string}} Policy */

/** @type {Policy | undefined} it says yes to everything: nobody else gets hold of it */
let policy;

/**
 * Under `require-trusted-types-for 'script'` no text makes a worker. Where our policy's name is not allowed, the page's own
 * default policy is asked, if it has one.
 * @param {string} url @returns {string}
 */
function trusted(url) {
  try {
    policy ??= /** @type {any} */ (globalThis).trustedTypes?.createPolicy("tabhelm", { createScriptURL: (/** @type {string} */ given) => given });
  } catch {
    // not allowed
  }
  return policy?.createScriptURL(url) ?? url;
}

/** Load a script of this build that few pages need. @param {string} name @param {string} engineUrl @returns {Promise<any>} */
const load = (name, engineUrl) => import(/* @vite-ignore */ new URL(`${name}.mjs`, engineUrl).href);

/**
 * The error of a page that can have no engine: why, and the way out.
 * @param {string} code @param {string} what @param {import("./session.mjs").Settings} settings
 */
export async function explained(code, what, settings) {
  const why = await Promise.race([
    load("explain", settings.engineUrl).then(
      ({ explain }) => explain({ ...settings, buildId }),
      // This build is served no more, or not there.
      (error) => `is all of dist/ there? Set engineUrl or reload: ${message(error)}`,
    ),
    new Promise((resolve) => setTimeout(resolve, EXPLAIN_MS, "no answer")),
  ]);
  return new TabhelmError(code, `${what}: ${why}`);
}

/**
 * Hold a Web Lock until `signal` aborts. Resolves to false if it was not granted in time, or the signal aborted.
 * @param {string} name @param {AbortSignal} signal @param {number} [patienceMs]
 * @returns {Promise<boolean>}
 */
export function hold(name, signal, patienceMs) {
  return new Promise((resolve, reject) => {
    const withdrawal = new AbortController();
    const withdraw = () => withdrawal.abort();
    // What nobody holds has been granted by the time that the query is answered, however late both are.
    const timer = patienceMs === undefined ? 0 : setTimeout(() => navigator.locks.query().then(withdraw, withdraw), patienceMs);
    signal.addEventListener("abort", withdraw);
    if (signal.aborted) withdraw();
    navigator.locks
      .request(name, { signal: withdrawal.signal }, () => {
        clearTimeout(timer);
        if (signal.aborted) return undefined;
        resolve(true);
        return new Promise((release) => signal.addEventListener("abort", release));
      })
      .then(() => resolve(false), (error) => {
        clearTimeout(timer);
        if (withdrawal.signal.aborted) resolve(false);
        else reject(new TabhelmError("no-locks", `locks are denied, allow site data: ${message(error)}`, { cause: error }));
      });
  });
}

/** Only the newest link of a session is listened to. */
export class Link {
  /** The page's own `performance.now()` that the engine last echoed; nothing echoed yet: believe nothing. */
  heard = -Infinity;
  #floor = 0;
  #phase = /** @type {"opening" | "greeting" | "booting" | "joined" | "closed"} */ ("opening");
  #ending = new AbortController();
  #timer = 0;
  #quietMs = 0;
  #bootingMs = 0;
  #engine = { id: "", buildId: "" };
  /** @type {Transport | null} */
  #transport = null;
  /** @type {(loss: Loss) => void} */
  #lost;

  /**
   * @param {Session} session @param {number} incarnation @param {string} connectionId @param {(loss: Loss) => void} lost
   */
  constructor(session, incarnation, connectionId, lost) {
    this.session = session;
    this.incarnation = incarnation;
    this.connectionId = connectionId;
    this.#lost = lost;
  }

  get joined() {
    return this.#phase === "joined";
  }

  get engineName() {
    const { app, protocol } = this.session.settings;
    return `tabhelm:${app}:v${protocol}:${buildId}${this.incarnation > 1 ? `#${this.incarnation}` : ""}`;
  }

  /** Hold the lifeline, then say hello: an engine must never know of a page whose death it could not see. */
  async open() {
    const { session } = this;
    const { settings } = session;
    // Time without a word is counted in own ticks, each at most its nominal length: a page whose timers were throttled
    // or that hung itself must first read what has arrived meanwhile, before it calls its engine silent.
    const tickMs = Math.min(settings.enginePatienceMs, settings.stallAfterMs) / 4;
    this.#timer = setInterval(() => this.#tick(tickMs), tickMs);
    const lifeline = session.lock("lifeline", `${session.id}:${this.connectionId}`);
    try {
      if (!(await hold(lifeline, this.#ending.signal)) || this.#closed) return;
      const transport = await (session.host === "window" ? this.#inPage() : this.#inWorker());
      if (this.#closed) return transport.close();
      this.#transport = transport;
    } catch (error) {
      this.#fail(`could not be started: ${message(error)}`, true, 2);
      return;
    }
    this.#phase = "greeting";
    this.#quietMs = 0;
    this.#floor = performance.now();
    const { engineUrl, enginePatienceMs, host, ...about } = settings;
    this.post({
      type: "hello",
      wire: 1,
      session: this.connectionId,
      tab: session.id,
      generation: session.generation,
      lifeline,
      at: this.#floor,
      silentEngine: session.silentEngine || undefined,
      ...about,
      ...session.state(),
    });
  }

  /** @returns {Transport} */
  #inWorker() {
    const worker = new SharedWorker(trusted(this.session.settings.engineUrl), { type: "module", name: this.engineName });
    const { port } = worker;
    worker.onerror = (event) => {
      event.preventDefault();
      // Once joined, pings tell whether it lives; an error somewhere inside it does not say that it is gone.
      if (!this.joined) this.#fail("its script did not load or failed at once", true, 1);
    };
    port.onmessage = (event) => this.#receive(event.data);
    return {
      post: (data) => port.postMessage(data),
      close: () => {
        port.onmessage = worker.onerror = null; // and so it keeps the worker for its error events until now
        port.close();
      },
    };
  }

  /** What only the window host needs is loaded only here. @returns {Promise<Transport>} */
  async #inPage() {
    const { connect } = await load("window", this.session.settings.engineUrl);
    return connect(this.engineName, (/** @type {unknown} */ data) => this.#receive(data));
  }

  /** @param {object} data */
  post(data) {
    if (!this.#closed) this.#transport?.post(data);
  }

  /** Until when, by this page's clock, may it count on what it last heard? @param {number} limitMs */
  trust(limitMs) {
    return this.heard + (this.#transport?.patience?.(limitMs, this.heard) ?? limitMs);
  }

  /** After a freeze only an echo of this moment counts: what was queued before it says nothing about now. */
  resumed() {
    this.heard = -Infinity;
    this.#floor = performance.now();
    return this.#floor;
  }

  close() {
    this.#phase = "closed";
    clearInterval(this.#timer);
    this.#ending.abort();
    this.#transport?.close();
  }

  get #closed() {
    return this.#phase === "closed";
  }

  /** @param {string} reason @param {boolean} next @param {number} [mute] @param {string} [refused] @param {boolean} [alike] */
  #fail(reason, next, mute = 0, refused = "", alike = false) {
    if (this.#closed) return;
    if (next) this.post({ type: "bye", reason: "engine-abandoned" });
    this.close();
    this.#lost({ message: reason, next, refused, mute, alike });
  }

  /** @param {number} tickMs */
  #tick(tickMs) {
    if (this.session.frozen) return; // a frozen page is not pinged
    this.#quietMs += tickMs;
    const { enginePatienceMs, stallAfterMs } = this.session.settings;
    const greeting = this.#phase === "greeting";
    const starting = this.#phase === "opening" ? LOAD_LIMIT_MS : Math.max(BOOT_SILENCE_MS, stallAfterMs);
    const limitMs = greeting ? enginePatienceMs : this.joined ? stallAfterMs : starting;
    if (this.#phase === "booting") this.#bootingMs += tickMs;
    if (this.#quietMs >= limitMs) {
      if (this.joined) this.session.silentEngine = this.#engine.id;
      this.#fail(`said nothing for ${limitMs} ms (${this.#phase})`, true, greeting ? 1 : 0);
    } else if (!this.joined && this.#bootingMs > BOOT_LIMIT_MS) {
      this.#fail("did not finish booting Python", true);
    } else if (this.joined) this.session.tick(tickMs);
  }

  /** @param {any} data */
  #receive(data) {
    if (this.#closed) return;
    if (typeof data !== "object" || data === null || typeof data.type !== "string") {
      this.session.malformed++;
      return;
    }
    this.#quietMs = 0;
    switch (data.type) {
      case "welcome":
        if (this.#phase !== "greeting") return;
        if (typeof data.engine !== "string" || typeof data.engineLock !== "string" || !data.engineLock) {
          this.session.malformed++;
          return;
        }
        this.#phase = "booting";
        this.#engine = { id: data.engine, buildId: String(data.buildId ?? "") };
        this.#hear(data.heard);
        this.#watch(data.engineLock);
        return;
      case "ping":
        this.post({ type: "pong", n: data.n, at: performance.now() });
        this.#hear(data.heard);
        return;
      case "joined":
        if (this.#phase !== "booting") return;
        this.#phase = "joined";
        this.session.joined(this, {
          ...this.#engine,
          incarnation: this.incarnation,
          from: String(data.from),
          bootMs: Number(data.bootMs),
          ...(data.fallbackReason && { fallbackReason: String(data.fallbackReason) }),
        });
        return;
      case "refused":
        this.#fail(`refused this page: ${message(data.error)}`, false, 0, String(data.error?.code ?? "unknown"));
        return;
      case "failed":
        this.#fail(`failed: ${message(data.error)}`, true, 0, "", data.error?.alike);
        return;
      default:
        this.session.receive(data);
    }
  }

  /** @param {unknown} heard */
  #hear(heard) {
    if (typeof heard !== "number" || !(heard <= performance.now())) {
      this.session.malformed++;
      return;
    }
    if (heard < this.#floor) return;
    this.heard = Math.max(this.heard, heard);
    this.session.heard();
  }

  /** The engine holds its lock while it lives: being granted it, shared, means that it died. @param {string} name */
  #watch(name) {
    const { signal } = this.#ending;
    navigator.locks.request(name, { mode: "shared", signal }, () => {}).then(
      () => this.#fail("died", false),
      (error) => this.#fail(`cannot be watched: ${message(error)}`, true),
    );
  }
}
