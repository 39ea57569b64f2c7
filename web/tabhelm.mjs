/**
 * tabhelm, the page client: one joined tab. It runs no Python; it talks to an engine, which does: in a SharedWorker or, on
 * the window host, beside it in the page (docs/wire.md).
 * The typed and documented face is in tabhelm.d.ts.
 */
import {
  Emitter,
  LeadershipLost,
  TabhelmError,
  bad,
  buildId,
  checkFlag,
  checkFunction,
  checkKeys,
  checkNumber,
  checkPart,
  checkScope,
  checkText,
  checkTexts,
  checkUrl,
  checkWhole,
  message,
  oneOf,
  version,
} from "./checks.mjs";
import { Election, lately } from "./election.mjs";
import { explained } from "./link.mjs";
import { Queue } from "./queue.mjs";
import { Session, notJoined } from "./session.mjs";

export { LeadershipLost, TabhelmError, buildId, version };

const JOIN_OPTIONS = [
  "app", "protocol", "version", "capabilities", "session", "stallAfterMs", "enginePatienceMs", "host", "engineUrl", "python",
  "testHooks", "signal",
]; // prettier-ignore
/** @typedef {(name: string, value: any, least: number) => unknown} Check */

/** @type {Check} */
const headers = (_, value) => (typeof value === "function" ? value : Object.fromEntries(new Headers(value)));
/** @type {Check} what is checked by the engine alone: its answer ends the election */
const later = (_, value) => value;
/** @type {Check} */
const time = (name, value, least) => ((value ?? "never") === "never" ? value : checkNumber(name, value, least));
/** @type {Check} */
const pause = (name, value) => time(name, value, 0);
/** @type {Record<string, Check>} */
const POLICY = {
  scope: checkScope, requires: checkTexts, prefers: checkTexts, visible: oneOf("any", "prefer", "require"),
  online: later, session: later, newest: later, authorities: later, actingAlarmMs: later,
  eligible: checkFunction, score: checkFunction,
  fence: checkUrl, fenceHeaders: headers, lease: checkUrl, leaseHeaders: headers,
  graceMs: pause, coolDownMs: pause, maxHoldMs: time, stallAfterMs: time, healthEveryMs: time, enginePatienceMs: time,
  backoffMs: time, maxBackoffMs: time, takeoverAfterMs: (name, value) => time(name, value, 10_000),
}; // prettier-ignore
/** @type {Record<string, Check>} options of a queue; the engine checks more of them */
const QUEUE = {
  endpoint: checkUrl, scope: checkScope, flush: checkFlag, send: checkFunction, sendBatch: checkFunction, sendTimeoutMs: checkNumber,
  baseDelayMs: checkNumber, maxDelayMs: checkNumber, batch: checkWhole, lanes: checkWhole, maxAttempts: checkWhole,
  maxOperations: checkWhole, maxBytes: checkWhole, mode: oneOf("batch", "single"),
  rejected: oneOf("dead", "block"), payloads: oneOf("json", "clone"),
  headers,
}; // prettier-ignore

/** What few pages use: fetched from beside this module when it is first asked for. @returns {Promise<ReturnType<typeof import("./extras.mjs").of>>} */
const extras = async () => {
  try {
    return (await import("./extras.mjs")).of({ TabhelmError, LeadershipLost, buildId });
  } catch (error) {
    throw new TabhelmError("no-extras", `extras.mjs beside tabhelm.mjs: ${message(error)}`);
  }
};

/** @param {import("./tabhelm.js").JoinOptions} options @returns {Promise<import("./tabhelm.js").Tab>} */
export async function join(options) {
  const { settings, signal } = readJoin(options);
  const fit = typeof document === "object" && origin !== "null" && navigator.locks;
  if (!fit || (settings.host === "shared" && !window.SharedWorker)) {
    throw await explained(fit ? "no-host" : "no-locks", "no engine", settings);
  }
  // Before there is a tab: whoever joins misses nothing of what it is told.
  const hooked = settings.testHooks && (await extras());
  signal?.throwIfAborted();
  const tab = new Tab(settings, hooked);
  const abandon = () => void tab.leave("aborted");
  signal?.addEventListener("abort", abandon, { once: true });
  try {
    await tab.ready;
  } catch (error) {
    signal?.removeEventListener("abort", abandon);
    void tab.leave("join-failed");
    signal?.throwIfAborted();
    throw error;
  }
  return /** @type {any} */ (tab); // with what its class makes from a list
}

/** @param {unknown} options */
function readJoin(options) {
  if (options === undefined) throw new TypeError('join() needs options, as in join({ app: "my-app" })');
  const given = checkKeys("join", options, JOIN_OPTIONS);
  const python = checkKeys("python", given.python, ["wheels"]);
  const { signal } = given;
  if (signal !== undefined && !(signal instanceof AbortSignal)) throw bad("signal", signal, "an AbortSignal is expected");
  const settings = {
    app: checkPart("app", given.app),
    protocol: checkWhole("protocol", given.protocol ?? 1, 1),
    version: given.version === undefined ? "" : checkText("version", given.version),
    capabilities: checkTexts("capabilities", given.capabilities ?? []),
    userSession: checkUser(given.session),
    stallAfterMs: checkNumber("stallAfterMs", given.stallAfterMs ?? 10_000, 500),
    enginePatienceMs: checkNumber("enginePatienceMs", given.enginePatienceMs ?? 2_000, 100),
    host: oneOf("auto", "shared", "window")("host", given.host ?? "auto"),
    engineUrl: checkUrl("engineUrl", given.engineUrl ?? new URL("./engine.mjs", import.meta.url)),
    wheels: checkTexts("python.wheels", python.wheels ?? []).map((wheel, index) => checkUrl(`python.wheels[${index}]`, wheel)),
    testHooks: checkFlag("testHooks", given.testHooks ?? false),
  };
  return { settings, signal };
}

/** @param {unknown} value @returns {string | null} */
function checkUser(value) {
  return value === undefined || value === null ? null : (checkScope("session", value) ?? null);
}

/** @param {string} what @param {unknown} options @param {Record<string, Check>} table @param {string} [prefix] */
function readOptions(what, options, table, prefix = "") {
  const given = checkKeys(what, options, Object.keys(table));
  for (const name in given) if (given[name] !== undefined) given[name] = table[name](prefix + name, given[name], 1);
  const { scope, ...read } = given;
  return { scope: /** @type {string | undefined} */ (scope), read };
}

class Tab extends Emitter {
  #session;
  /** @type {Map<string, Election>} */
  #elections = new Map();
  /** By key: the last candidacy, until its loop, too, has ended. @type {Map<string, Election>} */
  #last = new Map();
  /** @type {Map<string, Queue>} */
  #queues = new Map();
  /** @type {import("./tabhelm.js").Presence} */
  #presence = { self: null, tabs: [], leaders: {} };
  /** @type {import("./tabhelm.js").HostState} */
  #hostState = { state: "connecting", reason: "join" };
  /** Messages and falls of the connection that an extra listens for. @type {import("./extras.mjs").Listening} */
  #listening = { messages: new Map(), downs: new Set() };
  /** @type {Map<string, unknown>} grants for loops of this tab that run in the engine: Python ones, a queue's flusher */
  #offers = new Map();
  #made = 0;
  #toldFallback = false;

  /**
   * Call what few pages use: it lies beside this module, and is fetched when it is first asked for.
   * @param {string} name @param {unknown[]} given @returns {Promise<any>}
   */
  #extra = async (name, ...given) => /** @type {any} */ (await extras())[name](this.#inside, ...given);

  get #inside() {
    return {
      tab: /** @type {any} */ (this),
      session: this.#session,
      elections: this.#elections,
      queues: this.#queues,
      ...this.#listening,
      emit: (/** @type {string} */ type, /** @type {unknown} */ detail) => this.#emit(type, detail),
    };
  }

  /** A queue's own sender cannot be asked without it: its leader shall be another tab. @param {any} data */
  #hear = (data) => this.#extra("heard", data).catch(() => data.call && this.#session.post({ type: "sent", call: data.call, lost: "no-extras" }));

  /** @param {import("./session.mjs").Settings} settings @param {false | Awaited<ReturnType<typeof extras>>} hooked in test builds */
  constructor(settings, hooked) {
    super();
    lately(this, this.#extra, ["metrics", "history", "lock", "singleFlight", "persist"]);
    this.#session = new Session(settings, {
      up: (engine) => {
        for (const election of this.#elections.values()) election.open();
        for (const queue of this.#queues.values()) queue.open();
        this.#session.resend();
        const { fallback } = this.#session;
        this.#tellHost({ state: "connected", reason: fallback || "joined", engine });
        // Beforehand, for it could not be fetched offline; whether it can be used is told to whoever uses it.
        this.#hear(engine);
        // Not before whoever waits for join() can listen.
        if (fallback && !this.#toldFallback) setTimeout(() => this.#emit("event", { type: "host-fallback", reason: fallback }));
        this.#toldFallback = true;
      },
      down: (reason) => {
        this.#offers.clear();
        for (const election of this.#elections.values()) election.down(reason, this.#session.up);
        for (const fall of this.#listening.downs) fall(reason);
      },
      doubt: () => {
        for (const election of this.#elections.values()) election.doubt();
      },
      heard: () => {
        for (const election of this.#elections.values()) election.consider();
        this.#consider();
      },
      trouble: (state, reason) => this.#tellHost({ state, reason }),
      extra: this.#extra,
      receive: (data) => {
        if (!this.#receive(data)) this.#session.malformed++;
      },
    });
    if (hooked) this.#hooks = window.__orchestration = hooked.hooks(this.#inside);
  }

  get ready() {
    return this.#session.ready;
  }

  get id() {
    return this.#session.id;
  }

  get connectionId() {
    return this.#session.connectionId;
  }

  get generation() {
    return this.#session.generation;
  }

  get host() {
    return this.#session.host;
  }

  get engine() {
    return this.#session.engine;
  }

  get hostState() {
    return this.#hostState;
  }

  presence() {
    return this.#presence;
  }

  /** @param {string} resource @param {unknown} work @param {unknown} [policy] */
  lead(resource, work, policy) {
    this.#joined();
    checkPart("resource", resource);
    let python;
    if (typeof work !== "function") {
      const wanted = 'a function or { python: "module:function" } is expected';
      ({ python } = checkKeys("the second argument of lead()", work ?? null, ["python"], wanted));
      if (!/^[A-Za-z_][\w.]*:[A-Za-z_][\w.]*$/.test(/** @type {any} */ (python))) {
        throw bad("python", python, wanted);
      }
    }
    const { scope, read } = readOptions("policy", policy, POLICY, "policy.");
    const key = scope === undefined ? resource : `${resource}:${scope}`;
    const earlier = this.#last.get(key);
    if (earlier && !earlier.stopping) {
      throw new TabhelmError("already-standing", `this tab already stands for "${key}": stop() it first`);
    }
    const id = `e${++this.#made}`;
    const loop = /** @type {import("./tabhelm.js").LeaderLoop | null} */ (typeof work === "function" ? work : null);
    const election = new Election(this.#session, id, resource, scope, loop, /** @type {string | undefined} */ (python), read, earlier);
    this.#elections.set(id, election);
    this.#last.set(key, election);
    void election.stopped.then(() => this.#elections.delete(id));
    void election.settled.then(() => this.#last.get(key) === election && this.#last.delete(key));
    return election;
  }

  /** @param {string} name @param {unknown} [options] */
  queue(name, options) {
    this.#joined();
    checkPart("queue", name);
    const { scope, read } = readOptions("queue options", options, QUEUE);
    for (const queue of this.#queues.values()) {
      if (!queue.is(name, scope)) continue;
      if (Object.keys(read).length && !queue.sameOptions(read)) {
        throw new TypeError(`queue "${name}" is open with other options`);
      }
      return queue;
    }
    const handle = `q${++this.#made}`;
    const queue = new Queue(this.#session, handle, name, scope, read);
    this.#queues.set(handle, queue);
    return queue;
  }

  /** @param {unknown} changes */
  update(changes) {
    this.#joined();
    const given = checkKeys("update", changes, ["session", "capabilities"]);
    const { settings } = this.#session;
    /** @type {{userSession?: string | null, capabilities?: string[]}} */
    const told = {};
    if ("session" in given) told.userSession = settings.userSession = checkUser(given.session) ?? "";
    if (given.capabilities !== undefined) told.capabilities = settings.capabilities = checkTexts("capabilities", given.capabilities);
    this.#session.post({ type: "update", ...told });
  }

  /** @param {string} [reason] */
  async leave(reason = "left") {
    if (this.#session.left) return;
    this.#session.leave(String(reason));
    for (const election of this.#elections.values()) election.finish(String(reason));
    if (window.__orchestration === this.#hooks) delete window.__orchestration;
    this.#tellHost({ state: "left", reason: String(reason) });
  }

  async diagnose() {
    try {
      return await this.#extra("diagnose");
    } catch (error) {
      return { page: { hostState: this.#hostState }, engine: { error: message(error) } };
    }
  }

  /** Leaders are known by resource, or by token resource, which the app's name precedes. @param {string} resource @param {Election} election */
  #names(resource, { key }) {
    return resource === key || resource === `${this.#session.settings.app}:${key}`;
  }

  /** This page is alive and may lead, even if the loop is none of its own. */
  #consider() {
    if (!this.#session.able()) return;
    for (const [election, grant] of this.#offers) this.#session.post({ type: "ack", election, grant });
    this.#offers.clear();
  }

  #joined() {
    if (this.#session.left) throw notJoined();
  }

  /** @param {import("./tabhelm.js").HostState} state */
  #tellHost(state) {
    this.#hostState = state;
    this.#emit("host", state);
  }

  /** @param {string} type @param {unknown} detail @param {Pick<EventTarget, "dispatchEvent">} [target] */
  #emit(type, detail, target = this) {
    target.dispatchEvent(new CustomEvent(type, { detail }));
  }

  /** @param {any} data @returns {boolean} false if it made no sense */
  #receive(data) {
    switch (data.type) {
      case "grant":
        if (typeof data.election === "string" && data.election.startsWith("engine:")) {
          this.#offers.set(data.election, data.grant);
          this.#consider();
          return true;
        }
      // falls through
      case "lead":
      case "revoke":
      case "status":
        return this.#elections.get(data.election)?.receive(data) ?? true;
      case "leader": {
        if (typeof data.resource !== "string") return false;
        const leader = data.leader ?? null;
        for (const election of this.#elections.values()) if (this.#names(data.resource, election)) election.lead(leader);
        this.#emit("leader", { resource: data.resource, leader });
        return true;
      }
      case "queue-stats": {
        const queue = this.#queues.get(data.queue);
        if (queue && data.error) {
          this.#emit("event", { type: "queue-failed", queue: queue.name, ...data.error });
          return true;
        }
        if (typeof data.stats !== "object" || data.stats === null) return false;
        if (!queue) return true;
        this.#emit("stats", data.stats, queue);
        this.#emit("queue", { name: queue.name, scope: queue.scope, stats: data.stats });
        return true;
      }
      case "presence":
        if (!Array.isArray(data.tabs) || typeof data.leaders !== "object" || !data.leaders) return false;
        this.#presence = { self: data.self ?? null, tabs: data.tabs, leaders: data.leaders };
        this.#emit("presence", this.#presence);
        return true;
      case "event":
        if (typeof data.event?.type !== "string") return false;
        this.#emit("event", data.event);
        return true;
      default:
        (this.#listening.messages.get(data.type) ?? this.#hear)(data);
        return true; // a newer engine may say more
    }
  }

  /** @type {import("./tabhelm.js").Orchestration | undefined} */
  #hooks;
}
