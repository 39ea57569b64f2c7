/**
 * tabhelm, the page client: one joined tab, what it may lead, what it enqueues, who else is here.
 *
 * Times are milliseconds and end in `Ms`. Bad arguments are `TypeError`s that name the option, the value and the way out;
 * everything else that goes wrong is a {@link TabhelmError} with a `code`.
 */

/** The version of tabhelm. */
export const version: string;
/** Which build this is: only pages of the same build share an engine. Different builds exclude each other by Web Locks. */
export const buildId: string;

/**
 * Join the tabs of an app. Resolves when the engine has taken this tab in.
 *
 * @throws TypeError an option is unknown or not valid
 * @throws TabhelmError `no-locks` (no secure context, an opaque origin, site data blocked, a worker), `no-host` (`shared`
 *   asked for without SharedWorker), `no-engine` (none could be had: told within ten seconds, with what was tried, the URL and
 *   what came), `refused` (the engine will not have this page, or cannot fetch one of its wheels), `not-joined` (the page left
 *   meanwhile). If `signal` aborts first: its reason.
 */
export function join(options: JoinOptions): Promise<Tab>;

export interface JoinOptions {
  /** Name of the app: letters, digits, `.`, `_`, `-`. Locks, channel and database are named after it. */
  app: string;
  /** The app's own protocol version, at least 1. Tabs of other protocols neither see nor lead this one's resources. Default 1. */
  protocol?: number;
  /** The app's version, shown to other tabs and in events. */
  version?: string;
  /** What this tab can do; a policy may require or prefer some of it. */
  capabilities?: readonly string[];
  /** Whose session this is (an id such as `user:123`, never a secret), or null. A change steps down what depends on it. */
  session?: string | null;
  /** A page that the engine has not heard for so long loses its leadership. At least 500, default 10,000. */
  stallAfterMs?: number;
  /** How long an engine may take to say welcome before this page joins the next one. At least 100, default 2,000. */
  enginePatienceMs?: number;
  /**
   * Where the Python runs: `shared`, in one SharedWorker for all tabs of the build; `window`, in this page itself (about
   * 100 MB more for each tab). `auto`, the default, is `shared`, or `window` where SharedWorker is missing or cannot be
   * started, or where two engines in a row give no sign of life. An event (`host-fallback`) says so.
   */
  host?: "auto" | "shared" | "window";
  /** The engine's script. Default: `engine.mjs` beside this module. */
  engineUrl?: string | URL;
  /** Wheels with Python leader loops, by URL. */
  python?: { wheels?: readonly string[] };
  /** Expose `window.__orchestration`. For test builds only. */
  testHooks?: boolean;
  /** Aborting it cancels the join; afterwards it makes the tab leave. */
  signal?: AbortSignal;
}

/** One joined tab. It outlives its engine: when that dies or hangs, the tab joins another and opens everything again. */
export interface Tab extends EventTarget {
  /** The tab's id: kept over reloads, new in a duplicated tab. May change when the page returns from the back/forward cache. */
  readonly id: string;
  /** New at every connection to an engine. */
  readonly connectionId: string;
  /** One more at every reload, restore and reconnection. */
  readonly generation: number;
  /** Where its Python runs. `auto` may change it from `shared` to `window`, once. */
  readonly host: "shared" | "window";
  /** The engine that this tab is connected to, or null while there is none. */
  readonly engine: Engine | null;
  /** The connection's state, as last told by a `host` event. */
  readonly hostState: HostState;

  /**
   * Stand for leadership of a resource. While this tab leads, `loop` runs, once at a time; it must end when
   * `ctx.signal` aborts, and until it has settled this tab does not lead the resource again.
   * @throws TypeError @throws TabhelmError `not-joined`, `already-standing` (one candidacy for each resource and scope)
   */
  lead(resource: string, loop: LeaderLoop | PythonLoop, policy?: LeadPolicy): Election;
  /**
   * Open an offline queue. The same name and scope give the same object. A tab that names an `endpoint`, `send` or `sendBatch`
   * also stands for flushing the queue, unless `flush` is false. Options that contradict each other are told by the event
   * `queue-failed`, and every call on the queue rejects with `invalid-options`.
   * @throws TypeError also if it is already open with other options @throws TabhelmError `not-joined`
   */
  queue(name: string, options?: QueueOptions): Queue;
  /**
   * Run `body` while this tab holds a lock: one tab at a time, or several that share it. Waiters are served in order. Resolves
   * with what `body` gives; whatever it throws arrives as itself, and the lock is free at once. When the page may hold nothing
   * any more (it froze, hung, went into the back/forward cache, left), `lock.signal` aborts with {@link LockLost} as its
   * reason, and so does the promise, once the body has settled. A request that waits when that happens is made again
   * when the page goes on.
   * @throws TypeError @throws TabhelmError `lock-timeout` (a {@link LockTimeout}), `lock-unavailable` (with `ifAvailable`: the
   *   body does not run), `lock-lost`, `not-joined`, `too-many-locks` (1,000 in one page)
   */
  lock<T>(name: string, body: (lock: Lock) => T | PromiseLike<T>, options?: LockOptions): Promise<T>;
  /**
   * Let one tab do it, and give its result, or its error, to all that asked meanwhile: in this page, in others, in other
   * engines. The result goes to other tabs as JSON. A tab that dies, freezes or hangs meanwhile is replaced by one that waits.
   * @throws TypeError @throws TabhelmError `not-cloneable` (it was done here, and the result cannot go to other tabs),
   *   `lock-lost` (it was being done here), `lock-timeout`, `not-joined`. An error of another tab has that error's `name` and
   *   `message`, and its `code` or `flight-failed`
   */
  singleFlight<T>(key: string, work: (lock: Lock) => T | PromiseLike<T>, options?: FlightOptions): Promise<T>;
  /**
   * Ask the browser not to clear this origin's storage when space is short; some ask the user. True: it will not. Best called
   * when the user does something that shall not be lost.
   */
  persist(): Promise<boolean>;
  /** Who is here, as last told: a hint. */
  presence(): Presence;
  /** Change what this tab is. @throws TypeError @throws TabhelmError `not-joined` */
  update(changes: { session?: string | null; capabilities?: readonly string[] }): void;
  /** Leave: loops are aborted, locks released, unanswered calls rejected with `not-joined`. Never rejects. */
  leave(reason?: string): Promise<void>;
  /**
   * What was counted since this tab's engine began, for all its tabs: numbers, or the text that Prometheus reads (scopes
   * hashed, no ids of tabs). @throws TypeError @throws TabhelmError `engine-lost`, `not-joined`
   */
  metrics(options?: { format?: "numbers" }): Promise<Metrics>;
  metrics(options: { format: "prometheus" }): Promise<string>;
  /**
   * Who led what, when, and why it ended: the last 200 entries (or `count`) of all tabs, newest first. It outlives tabs and
   * engines, not the origin's storage. @throws TypeError @throws TabhelmError `engine-lost`, `not-joined`, a `database-…` code
   */
  history(options?: { count?: number }): Promise<Reign[]>;
  /**
   * What this tab and its engine know of themselves, for a support ticket: ids and scopes are hashed, the same way all over one
   * report and in no other. Never rejects; waits at most 2 s for the engine.
   */
  diagnose(): Promise<{ page: Record<string, unknown>; engine: unknown }>;

  addEventListener<K extends keyof TabEvents>(type: K, listener: (event: CustomEvent<TabEvents[K]>) => void, options?: boolean | AddEventListenerOptions): void;
  addEventListener(type: string, listener: EventListenerOrEventListenerObject | null, options?: boolean | AddEventListenerOptions): void;
}

export interface TabEvents {
  /** The roster or its leaders changed. */
  presence: Presence;
  /** Something happened: for logs and support. */
  event: TabEvent;
  /** Who is said to lead a resource. */
  leader: { resource: string; leader: Leader | null };
  /** A queue's figures changed. */
  queue: { name: string; scope: string | null; stats: QueueStats };
  /** The connection to the engine changed. */
  host: HostState;
}

type StateName = ElectionStatus["state"];

/**
 * What happened, in this tab, its engine and the tabs that it serves. They hold ids and short words, never payloads or tokens.
 * `resource` is a token resource, with the app's name before it.
 */
export type TabEvent =
  /** The engine booted; `fallbackReason`: why the memory snapshot could not be used. */
  | { type: "engine-ready"; engine: string; boot: string; bootMs: number; fallbackReason: string | null }
  | { type: "tab-joined"; tab: string; connection: string; generation: number }
  | { type: "tab-left"; tab: string; connection: string; reason: string }
  /** One step of one tab's election. `detail`: what failed, in words, where it backs off because of that. */
  | { type: "leadership-changed"; resource: string; tab: string; from: StateName; to: StateName; reason: string; epoch: number | null; lifecycle: TabInfo["lifecycle"]; visible: boolean; detail: string | null }
  /** A grant: its epoch is durable. */
  | { type: "epoch-issued"; resource: string; domain: string; epoch: number; owner: string; authority: string }
  /** Another authority than the first on the policy's list decides (null: none can). */
  | { type: "degraded"; resource: string; from: string; to: string | null; reason: string }
  /** A lease service is of no use now; null: it is again. */
  | { type: "lease-trouble"; resource: string; detail: string | null }
  /** A holder without any sign of life was robbed of its lock. */
  | { type: "took-over"; resource: string; epoch: number; silentForMs: number }
  | { type: "loop-failed"; resource: string; error: string }
  /** A loop outlived its grace; what it still writes is refused. */
  | { type: "loop-overran"; resource: string; graceMs: number }
  /** Something on the channel or a port was not for us: told at 1, 10, 100, … of a reason. */
  | { type: "message-ignored"; reason: string; count: number }
  /** A receiver refused a token. */
  | { type: "write-refused"; resource: string; epoch: number; verdict: "stale" | "overtaken" }
  | { type: "queue-paused"; queue: string; reason: string }
  /** A queue's endpoint cannot be used: where, what it answered, what to look at; null: it works again. */
  | { type: "queue-trouble"; queue: string; detail: string | null }
  /** An operation went to the dead letters. */
  | { type: "operation-died"; queue: string; operation: string; reason: string }
  /** The storage that held a queue was deleted, and with it so many operations. */
  | { type: "queue-lost"; queue: string; operations: number }
  /** A lock of the app's own, or of a single flight, ended under a body that was running. */
  | { type: "held-lock-lost"; lock: string; tab: string; reason: string; heldMs: number }
  /** A lock of the app's own was not free in time; `holder`: the tab that held it, if known. */
  | { type: "lock-timed-out"; lock: string; tab: string; waitedMs: number; holder: string | null }
  /** For longer than the policy's `actingAlarmMs` nobody led though somebody could, or several did. */
  | { type: "acting-alarm"; resource: string; acting: number; forMs: number }
  /** The end of an alarm. */
  | { type: "acting-restored"; resource: string; acting: number; forMs: number }
  /** A tab runs a newer version of the app than this one. */
  | { type: "update-available"; tab: string; connection: string; version: string; buildId: string }
  /** `wiped`: it is another one than before, and empty; `newer`: a later release upgraded it. */
  | { type: "storage-changed"; database: string; change: "opened" | "closed" | "versionchange" | "blocked" | "wiped" | "newer" }
  /** A background task of tabhelm itself failed: a fault to report. */
  | { type: "task-failed"; task: string; error: string }
  /** The engine booted plainly: why its memory snapshot could not be used. */
  | { type: "boot-fallback"; reason: string }
  /** A message of this page made no sense to the engine: a fault to report. */
  | { type: "refused"; code: string; message: string }
  /** The engine's own script failed at something: a fault to report. */
  | { type: "engine-error"; message: string }
  /** `host: "auto"` is not on a shared engine. */
  | { type: "host-fallback"; reason: string }
  /** A queue cannot be opened or read, by its options or its storage. */
  | { type: "queue-failed"; queue: string; code: ErrorCode; message: string };

export interface Engine {
  id: string;
  /** 1 for the engine that all pages of this build share, more where an earlier one did not answer. */
  incarnation: number;
  buildId: string;
  /** How it booted: from the memory snapshot, or plainly. */
  from: string;
  bootMs: number;
  /** Why the snapshot could not be used. */
  fallbackReason?: string;
}

export type HostState =
  | { state: "connecting"; reason: string }
  /** `reason`: `joined`, or why `auto` is not on a shared engine. */
  | { state: "connected"; reason: string; engine: Engine }
  /**
   * No engine answered, or it refused this page; unanswered calls were rejected with `engine-lost`. The tab tries again, ever
   * more slowly (1 s doubling to 30 s), unless the refusal is final (another wire version, app or protocol): then every
   * call is rejected with `refused`.
   */
  | { state: "lost"; reason: string }
  | { state: "left"; reason: string };

/** `visible` and `online` are the tab's own view; `liveness` is this engine's judgement. Times are hints. */
export interface TabInfo {
  tabId: string;
  connectionId: string;
  generation: number;
  lifecycle: "active" | "hidden" | "frozen" | "restored" | "closing" | "stalled" | "unknown";
  liveness: "alive" | "suspect" | "expired";
  visible: boolean;
  online: boolean;
  version: string;
  capabilities: string[];
  [field: string]: unknown;
}

export interface Leader {
  /** With its scope after a colon. */
  resource: string;
  tabId: string;
  /** The tenure's fencing epoch; null where nothing is fenced. */
  epoch: number | null;
  /** Unix time, by the leader's clock: for display. */
  sinceMs: number;
  /** This engine's judgement: late by the leader's own word (`suspect`), or twice as late (`expired`). */
  liveness: "alive" | "suspect" | "expired";
  /** Of the leader's app, as it said when it joined. */
  version: string;
  /** The Web Lock that it holds, if Web Locks decided. */
  lockName: string;
  /** What decided; null where its engine did not say. */
  authority: string | null;
  /** `ok` or `failing` by its own checks; null where it does not check, and from older versions. */
  health: string | null;
  /** What it last said with `ctx.progress()`; as old as its last beat (5 s). */
  progress: string | number | boolean | null;
  /** When that was: Unix time, for display. */
  progressAtMs: number | null;
  [field: string]: unknown;
}

/** One time of leadership. */
export interface Reign {
  /** The token resource: `app:resource[:scope]`. */
  resource: string;
  epoch: number | null;
  tabId: string;
  engineId: string;
  version: string;
  authority: string | null;
  /** Unix time. */
  beganMs: number;
  /** Null: it still leads, or its engine died before it could write down the end. */
  endedMs: number | null;
  /** Why it ended; `unknown` where a later leader is known and nobody wrote it down. */
  reason: string | null;
}

export interface Durations {
  count: number;
  sumMs: number;
  longestMs: number;
}

export interface ResourceMetrics {
  /** How many are said to lead now. */
  leadersActing: number;
  acquisitions: number;
  /** Standing by that came to nothing, by reason. */
  failures: Record<string, number>;
  stepDowns: Record<string, number>;
  overruns: number;
  loopFailures: number;
  takeovers: number;
  /** Writes that a receiver refused: `stale`, `overtaken`. Those of loops in pages are not seen here. */
  refused: Record<string, number>;
  /** Alarms: `none` led, or `several`. */
  alarms: Record<string, number>;
  /** From first asking until leading. */
  wait: Durations;
  /** From leading until the lock was given back. */
  hold: Durations;
}

export interface Metrics {
  /** By token resource. */
  resources: Record<string, ResourceMetrics>;
  /** Messages that were not for us, by cause. */
  ignored: Record<string, number>;
  /** Events by type. */
  events: Record<string, number>;
  /** Tabs in the roster. */
  tabs: number;
  /** The app's own locks, and those of single flights: held now, ended under a running body, not free in time. */
  locks: { held: number; lost: number; timedOut: number };
  tasks: number;
}

export interface Presence {
  /** This tab in the roster; null until the first word of it. */
  self: TabInfo | null;
  tabs: TabInfo[];
  /** By resource, with its scope after a colon. */
  leaders: Record<string, Leader>;
}

/** A Python coroutine function `package.module:function`, from one of `join`'s wheels. It runs in the engine. */
export interface PythonLoop {
  python: string;
}

export type LeaderLoop = (ctx: LeaderContext) => unknown;

export interface LeadPolicy {
  /** Narrows the resource, e.g. to a user: `user:123`. */
  scope?: string;
  /** Capabilities without which this tab does not stand. */
  requires?: readonly string[];
  /** Capabilities that make a tab a better candidate; a leader yields to a tab that has more of them (see `coolDownMs`). */
  prefers?: readonly string[];
  /**
   * Does the leader have to be visible? Default `any`. `prefer`: visible tabs come first, and a hidden leader yields to one (see
   * `coolDownMs`).
   */
  visible?: "any" | "prefer" | "require";
  /** Does the leader have to be online? */
  online?: boolean;
  /**
   * Whose tab may lead: `"any"` needs somebody signed in (`join`'s `session`); another text needs that session, or its first
   * parts. Under every policy a change of session ends a tenure.
   */
  session?: "any" | (string & {});
  /** True: a tab does not lead while one with a newer `version` of the app (as dotted numbers) stands. */
  newest?: boolean;
  /**
   * The app's own say: true, or why this tab may not lead, in one word. Called in the page, whenever the page changes and every
   * second. One that throws, or answers with a promise, counts as `eligible-failed`.
   */
  eligible?: () => boolean | string;
  /** How good a leader this tab would be: the highest ranks first. Called as `eligible` is; the other tabs are told. */
  score?: () => number;
  /**
   * A leader is outranked only after it has led for so long; a tab that resigned as `unhealthy` does not stand for so long, unless
   * it is the only one. Default 30,000.
   */
  coolDownMs?: number;
  /** How often `ctx.health()` looks, where it is not told. Default 5,000. */
  healthEveryMs?: number;
  /** How long a loop that was asked to end may take before the lock goes on. */
  graceMs?: number;
  /** Yield after so long if another tab could lead; a leader that is alone goes on, and looks again after the same time. */
  maxHoldMs?: number;
  /**
   * How long the loop may go on without `ctx.progress()`: then it is taken for stalled, and its tenure ends. Not set: the loop is
   * not asked. That the page itself hangs is noticed in any case, after `join`'s `stallAfterMs`.
   */
  stallAfterMs?: number;
  /** How long this page may take to accept a grant before it goes to another tab. */
  enginePatienceMs?: number;
  /**
   * After how long without a sign of life of any leader, while its lock stays held, another tab takes over: at least
   * 10,000, or `never`. For leaders on the window host, which alone can free their locks; the late writes of the one that was
   * robbed are refused by their epoch. Default 60,000.
   */
  takeoverAfterMs?: number | "never";
  /**
   * What may decide who leads, in order: the first that is possible here. Default `["web-locks", "indexeddb-lease"]`; the same
   * for all tabs of a resource. See docs/authorities.md.
   */
  authorities?: readonly ("web-locks" | "indexeddb-lease" | "server-lease")[];
  /**
   * The URL of a lease service (docs/leases.md), with `authorities: ["server-lease"]` and only then: all devices of a user compete.
   * Leaders of queues cannot use it.
   */
  lease?: string | URL;
  /** The same as `fenceHeaders`, for the lease service. */
  leaseHeaders?: HeadersInit | (() => HeadersInit | PromiseLike<HeadersInit>);
  /**
   * After how long without anybody who leads though this tab may, or with more than one, an `acting-alarm` event is given; at its
   * end an `acting-restored`. Default 30,000.
   */
  actingAlarmMs?: number | "never";
  /** First and longest wait after a failure; it doubles between. */
  backoffMs?: number;
  maxBackoffMs?: number;
  /**
   * The receiver whose marks are raised before the loop starts: an empty batch is posted to it, which it must answer with
   * 200 and `{"results": []}`, as a `FencedReceiver` does (docs/receiver.md). Without it an older leader's late write may
   * still land between the grant and the first write of the new one.
   */
  fence?: string | URL;
  /**
   * The app's own headers for that request, such as a bearer token; cookies of this origin go by themselves. A function is
   * asked before each request, for at most ten seconds.
   */
  fenceHeaders?: HeadersInit | (() => HeadersInit | PromiseLike<HeadersInit>);
}

/** What a loop holds while it leads. */
export interface LeaderContext {
  /** The resource, with its scope after a colon. */
  readonly resource: string;
  /** The tenure's epoch; null where nothing is fenced. */
  readonly epoch: number | null;
  /** Aborts, with a {@link LeadershipLost} as its reason, the moment this tab must stop; pass it to `fetch`. */
  readonly signal: AbortSignal;
  /**
   * The token for one protected write; each write, retries included, needs its own.
   * @throws LeadershipLost also when the page has not heard its engine for `stallAfterMs` less a tenth (at least 250 ms);
   *   the signal is then aborted too @throws TabhelmError `not-fenced`
   */
  nextToken(): FencingToken;
  /**
   * The next token as HTTP headers (RFC 9651), with the operation's id as `Idempotency-Key` if given.
   * @throws LeadershipLost @throws TabhelmError `not-fenced`
   */
  headers(operationId?: string): Record<string, string>;
  /** Rejects with {@link LeadershipLost} as soon as the signal aborts. */
  sleep(ms: number): Promise<void>;
  /** Ask the engine whether lock and epoch are still this tab's: before something irreversible. @throws LeadershipLost */
  check(): Promise<void>;
  /** Say that the work goes on, and how far it is: other tabs see it, and the policy's `stallAfterMs` counts from here. */
  progress(value?: number | string | boolean | null): Promise<void>;
  /**
   * Call `check()` now and again while this tab leads. False, a rejection, or no answer in time is a failure; then the tab
   * resigns as `unhealthy`. It runs beside the loop.
   */
  health(check: () => unknown, options?: HealthOptions): Promise<void>;
  /** A circuit breaker for calls to something that this leader depends on; the same one for the same name. */
  breaker(name: string, options?: BreakerOptions): Promise<CircuitBreaker>;
  /**
   * Answer those who ask this leader ({@link Election.ask}), by method. Handlers run beside the loop. Called again, it adds
   * methods and replaces those of the same name. Questions that come before the first `serve` wait for it.
   * `idempotent`: methods that may be repeated on the next leader, with the same `idempotencyKey`.
   * @throws TypeError @throws LeadershipLost
   */
  serve(handlers: Record<string, Handler>, options?: { idempotent?: readonly string[] }): Promise<void>;
  /**
   * Let every tab that stands for this resource see `value` ({@link Election.state}); it replaces the one before.
   * @throws LeadershipLost @throws TabhelmError `not-cloneable`
   */
  publish(value: unknown): Promise<void>;
}

/** What it returns goes to the asker as JSON; what it throws, as an error `handler-failed`. */
export type Handler = (args: any, call: Call) => unknown;

/** Who asks, in its own words: a hint, no proof. Every page of the origin could say the same. */
export interface Call {
  readonly method: string;
  readonly tabId: string;
  readonly connectionId: string;
  readonly version: string;
  readonly capabilities: readonly string[];
  /** The asker's own, or one drawn for this question: the same if it is repeated on another leader. */
  readonly idempotencyKey: string;
  /** Aborts when this tab leads no more: what the handler answers then is not believed. */
  readonly signal: AbortSignal;
  /** Do not do it for this tab: the asker gets `ask-refused` with this reason. Throws. */
  refuse(reason: string): never;
}

export interface AskOptions {
  /** How long to wait for the answer, and for a leader where there is none. At most a day, default 10,000. */
  timeoutMs?: number;
  /** For the handler. 1 to 512 characters; drawn if not given. */
  idempotencyKey?: string;
  /** Aborting it ends the waiting, not a handler that has begun. */
  signal?: AbortSignal;
}

/** What a leader published last. */
export interface LeaderState {
  value: any;
  /** Who published it. */
  tabId: string;
  /** Its epoch; null where nothing is fenced. */
  epoch: number | null;
  /** 1 for the first value of a leader, one more for each that follows. */
  number: number;
  /** Whether it leads still. Else nobody does, or the next leader has not published yet. */
  current: boolean;
  /** How many values of the same leader, between this and the one seen before it, were not seen. */
  missed: number;
}

export interface HealthOptions {
  /** Default: the policy's `healthEveryMs`. */
  everyMs?: number;
  /** An answer that takes longer has failed. Default: `everyMs`. */
  timeoutMs?: number;
  /** How many in a row make the tab resign. Default 1. */
  failures?: number;
}

export interface BreakerOptions {
  /** How many failures in a row open it. Default 5. */
  failures?: number;
  /** After how long one call is tried. Default 10,000. */
  openForMs?: number;
  /** The tab resigns as `unhealthy` when it has not been closed for so long. Default 60,000; null: never. */
  resignAfterMs?: number | null;
  /** …or when it has opened so many times. Default 5; null: never. */
  resignOpens?: number | null;
}

export interface CircuitBreaker {
  readonly name: string;
  readonly state: "closed" | "open" | "half-open";
  /** How often it opened after it had been closed. */
  readonly opened: number;
  /** @throws TabhelmError `circuit-open`, with `retryInMs`: the work was not called; or whatever the work throws */
  call<T>(work: () => T | Promise<T>): Promise<T>;
}

export interface FencingToken {
  domain: string;
  resource: string;
  epoch: number;
  stream: string;
  seq: number;
  owner: string;
}

/** What a tab's candidacy is at. Only `leading` says that the loop may run; nothing here says that it may write. */
export type ElectionStatus =
  | { state: "idle"; reason: string }
  | { state: "waiting"; standby: boolean; rank: number }
  | { state: "leading"; epoch: number | null; since: number /* Unix time in ms, for display */ }
  | { state: "stepping-down"; reason: string }
  /** `detail`: what failed, such as what a receiver answered: for people. */
  | { state: "backing-off"; reason: string; retryInMs: number; detail?: string }
  | { state: "stopped"; reason: string; error?: unknown };

export interface Election extends EventTarget {
  readonly resource: string;
  readonly scope: string | null;
  readonly status: ElectionStatus;
  /** Resolves with the last status once the candidacy is over. Never rejects. */
  readonly stopped: Promise<ElectionStatus>;
  /** Who is said to lead: a hint. */
  leader(): Leader | null;
  /**
   * Ask whoever leads, from any tab that stands, leading or not; resolves with what its handler returns. While nobody leads
   * it waits for the next leader. Errors have a `code`, and `outcome: "unknown"` where the handler may have acted.
   * @throws TypeError @throws TabhelmError `no-leader`, `leader-changed` (with `outcome`: `unknown` or `not-sent`),
   *   `ask-timeout`, `handler-failed` (with `handler: {name, message, code}`), `ask-refused`, `no-handler`, `not-cloneable`
   *   (nothing was sent), `too-many-calls`, `election-stopped`, `engine-lost`, `no-answer`, `refused`, `not-joined`, `no-extras`
   */
  ask(method: string, args?: unknown, options?: AskOptions): Promise<any>;
  /** What the leader published last, as last told; null before anything was. */
  readonly state: LeaderState | null;
  /** Let another tab lead; this one goes on standing. */
  stepDown(reason?: string): void;
  /** End the candidacy. */
  stop(reason?: string): void;

  addEventListener<K extends keyof ElectionEvents>(type: K, listener: (event: CustomEvent<ElectionEvents[K]>) => void, options?: boolean | AddEventListenerOptions): void;
  addEventListener(type: string, listener: EventListenerOrEventListenerObject | null, options?: boolean | AddEventListenerOptions): void;
}

export interface ElectionEvents {
  status: ElectionStatus;
  leader: Leader | null;
  /** The leader published something, or leads no more. */
  state: LeaderState;
}

/** How a queue is filled and emptied (docs/queue.md). */
export interface QueueOptions {
  /** The URL of a fenced receiver (docs/receiver.md), relative to the page: where operations are sent, as `POST`. */
  endpoint?: string | URL;
  /**
   * The app's own way of sending, instead of HTTP: called for one operation at a time, in the page that leads the queue. What it
   * returns is the operation's outcome, nothing means `committed`. One that throws has failed, with an outcome that nobody
   * knows: the operation is sent again.
   */
  send?: (operation: Operation, sending: Sending) => Outcome | PromiseLike<Outcome>;
  /** The same for a whole batch: an outcome for each operation, in the same order, or nothing if all are committed. */
  sendBatch?: (operations: Operation[], sending: Sending) => void | readonly Outcome[] | PromiseLike<void | readonly Outcome[]>;
  /**
   * Whose operations these are. A tab that named another `session` does not send them; one that named none sends those of
   * every scope it opens: name the session where several users share a browser.
   */
  scope?: string;
  /** False: this tab only enqueues. */
  flush?: boolean;
  /** HTTP requests: `batch` (the default) sends many operations in one; `single` one in each, with an `Idempotency-Key`. */
  mode?: "batch" | "single";
  /** How many operations are taken at a time, and go into one request. 1 to 1,000, default 100. */
  batch?: number;
  /** How many batches, of different partitions, may be on their way at once. 1 to 16, default 1. */
  lanes?: number;
  /** How long one attempt may take. Default 30,000. */
  sendTimeoutMs?: number;
  /** After an operation that is dead, its partition goes on with the next (`dead`, the default), or waits until a person has dealt with it (`block`). */
  rejected?: "dead" | "block";
  /** After so many failed attempts an operation is dead. Default 20. */
  maxAttempts?: number;
  /** How long an operation waits after its first failure; twice as long after each further one, with jitter. Default 500. */
  baseDelayMs?: number;
  /** The longest such wait. Default 60,000. */
  maxDelayMs?: number;
  /** How many operations the queue may hold (queued, in flight and dead) for this tab to add another. Default: no limit. */
  maxOperations?: number;
  /** How many bytes of payloads it may hold. Default: no limit. */
  maxBytes?: number;
  /**
   * Further HTTP headers, such as the app's own bearer token, or a function that gives them: called in the page before
   * each request. `Fencing-Token`, `Idempotency-Key` and `Content-Type` are tabhelm's own.
   */
  headers?: HeadersInit | (() => HeadersInit | PromiseLike<HeadersInit>);
  /** What a payload may be: what JSON holds without loss, or whatever structured clone takes, which needs a sender of one's own (and is the default with one). */
  payloads?: "json" | "clone";
}

/** What a sender is given. */
export interface Operation {
  readonly id: string;
  readonly partition: string;
  readonly payload: any;
  /** Failed attempts so far. */
  readonly attempts: number;
  /** Unix time. */
  readonly enqueuedAtMs: number;
}

/** One attempt. */
export interface Sending {
  /** Drawn for this attempt alone: whatever is written to should check it. */
  readonly token: FencingToken;
  /** 1 for the first; of a batch, the highest of its operations. */
  readonly attempt: number;
  /** As the queue's options name it. */
  readonly endpoint?: string;
  /**
   * Aborts when this page must stop: it leads no more ({@link LeadershipLost}), also inside its own `freeze` and `pagehide`
   * handlers, or the attempt took longer than `sendTimeoutMs` (a `TimeoutError`). What comes afterwards is ignored.
   */
  readonly signal: AbortSignal;
  /** The token as an HTTP header, and the id as `Idempotency-Key` where it is one operation. @throws LeadershipLost send nothing */
  headers(): Record<string, string>;
}

/**
 * `committed` (or nothing), `duplicate` (it was before), `rejected` for good (a dead letter, with `detail` as its reason), `retry`
 * later, `skipped` (not tried: an earlier one of its partition did not commit).
 */
export type Outcome = void | null | OutcomeWord | { status: OutcomeWord; detail?: string; retryAfterMs?: number };
export type OutcomeWord = "committed" | "duplicate" | "rejected" | "retry" | "skipped";

export interface QueueStats {
  queued: number;
  inFlight: number;
  done: number;
  dead: number;
  /** Of all payloads, dead ones included. */
  bytes: number;
  /** Operations done in a second, over the last ten, whichever tab sent them: as this tab's engine saw it. */
  ratePerSecond: number;
  /** Partitions that wait for a person (`rejected: "block"`). */
  blocked: number;
  /** Since the oldest that is not done was enqueued, by wall clock. */
  oldestAgeMs: number | null;
  /** Why nothing is sent at the moment, or null. */
  paused: string | null;
  /** What the endpoint or the storage last did wrong, until it works; else why an operation is sent again. */
  lastError: string | null;
}

export interface EnqueueOptions {
  /** Operations of one partition are applied in order. 1 to 200 printable ASCII characters. Default `default`. */
  partition?: string;
  /** The operation's id, by which it is applied once. 1 to 200 printable ASCII characters. Default: a new UUIDv7. */
  id?: string;
}

export interface DeadLetter {
  id: string;
  partition: string;
  payload: any;
  reason: string;
  attempts: number;
  /** Unix time. */
  enqueuedAtMs: number;
  /** When it died, in Unix time. */
  diedAtMs: number;
  /** Its partition waits until this one is retried or removed (`rejected: "block"`). */
  blocks: boolean;
  [field: string]: unknown;
}

/**
 * Every call goes to the engine; one that its engine could not answer any more is sent again to the next, with the same id.
 * While the tab is not connected, calls wait, at most until an attempt to connect has failed (`engine-lost`). An engine that
 * lives but owes an answer for 60 s costs that call a `no-answer`: its outcome is unknown.
 */
export interface Queue extends EventTarget {
  readonly name: string;
  readonly scope: string | null;
  /**
   * Resolves with the operation's id once it is durable.
   * @throws TypeError the payload, in a place that the message names, is not JSON without loss: `undefined`, a bigint, a
   *   function, NaN, a Map, a cycle. What has a `toJSON` (a Date, a URL) counts as what that returns. With payloads that are
   *   structured clones: it cannot be cloned, or stored
   * @throws TabhelmError `queue-full`, `quota-exceeded`, `identifier-reused`, `invalid-options` (of the queue), a
   *   `database-…` code, `engine-lost` or `no-answer` (outcome unknown: enqueue again with the same id), `refused`, `not-joined`, each with
   *   its `operationIds`
   */
  enqueue(payload: unknown, options?: EnqueueOptions): Promise<string>;
  /** All of them in one transaction, or none. */
  enqueueAll(items: readonly ({ payload: unknown } & EnqueueOptions)[]): Promise<string[]>;
  stats(): Promise<QueueStats>;
  /** What will not be sent again, with the reason. */
  deadLetters(): Promise<DeadLetter[]>;
  /** Put dead letters back into the queue. */
  retryDead(ids: readonly string[]): Promise<unknown>;
  /** Remove dead letters for ever. */
  removeDead(ids: readonly string[]): Promise<unknown>;
  /** All dead letters as JSON text, for a file: payloads, reasons, attempts, times and ids. */
  exportDead(): Promise<string>;
  /** Send again after a pause (a receiver that answered 401 or 403). */
  resume(): Promise<void>;

  addEventListener(type: "stats", listener: (event: CustomEvent<QueueStats>) => void, options?: boolean | AddEventListenerOptions): void;
  addEventListener(type: string, listener: EventListenerOrEventListenerObject | null, options?: boolean | AddEventListenerOptions): void;
}

export interface LockOptions {
  /** `exclusive` (default), or `shared` with all others that share it. */
  mode?: "exclusive" | "shared";
  /** Do not wait: reject with `lock-unavailable` if it is taken. */
  ifAvailable?: boolean;
  /** Reject with {@link LockTimeout} if it is not free in time. Default: wait for as long as it takes. */
  timeoutMs?: number;
  /** Gives up waiting. Once the body runs it has no effect. */
  signal?: AbortSignal;
  /** Parts joined by ":" that narrow the name, such as `user:123`. */
  scope?: string;
}

export interface FlightOptions {
  /** Reject with `lock-timeout` if nothing came in time. */
  timeoutMs?: number;
  /** Gives up. The work is stopped (by its signal) only if nobody else in this page waits for it. */
  signal?: AbortSignal;
  /** Parts joined by ":" that narrow the key, such as `user:123`. */
  scope?: string;
}

/** A lock that this page holds. */
export interface Lock {
  /** The Web Lock's full name. */
  readonly name: string;
  readonly mode: "exclusive" | "shared";
  /** Aborts with {@link LockLost} when it is lost. */
  readonly signal: AbortSignal;
  /** False also when the page has not heard its engine for `stallAfterMs` less a tenth (at least 250 ms). */
  readonly held: boolean;
  /** Before something that only a holder may do. @throws LockLost */
  check(): void;
}

/** A {@link TabhelmError} with the code `lock-lost`: another tab may hold it from now on. */
export interface LockLost extends TabhelmError {
  /** The Web Lock's full name. */
  readonly lock: string;
  /** `freeze`, `pagehide`, `stalled`, `doubt`, `lock-stolen`, or why the connection to the engine ended. */
  readonly reason: string;
}

/** A {@link TabhelmError} with the code `lock-timeout`; its message names the holder. */
export interface LockTimeout extends TabhelmError {
  /** The tab that held it for longest, if known. */
  readonly holder: string | null;
  /** For how long. */
  readonly heldForMs: number | null;
}

/**
 * The codes of tabhelm's own errors, of this page or of its engine. An error of a handler or of another tab's flight may have
 * one of its own.
 */
export type ErrorCode =
  // of this page and its connection
  | "no-locks" | "no-host" | "no-engine" | "no-extras" | "no-answer" | "refused" | "engine-lost" | "not-joined" | "internal-error"
  // of names, options and values
  | "invalid-name" | "invalid-policy" | "invalid-payload" | "invalid-options" | "not-cloneable" | "malformed-token" | "malformed-message"
  // of leading
  | "already-standing" | "leadership-lost" | "split-authority" | "stale-owner" | "not-fenced" | "no-authority" | "lease-refused"
  | "unreachable" | "no-headers" | "election-stopped" | "circuit-open" | "loop-not-found" | "loop-failed" | "invalid-transition"
  // of asking the leader
  | "no-leader" | "leader-changed" | "ask-timeout" | "ask-refused" | "no-handler" | "handler-failed" | "too-many-calls"
  // of locks and single flights
  | "lock-withdrawn" | "lock-lost" | "lock-timeout" | "lock-unavailable" | "lock-reentered" | "too-many-locks" | "flight-failed"
  // of queues and storage
  | "queue-full" | "wrong-resource" | "identifier-reused" | "page-function-failed" | "database" | "database-closed"
  | "database-blocked" | "database-newer" | "database-denied" | "quota-exceeded" | "key-exists" | "foreign-await";

/** Base of every error that tabhelm raises on purpose. */
export class TabhelmError extends Error {
  constructor(code: string, message: string, options?: ErrorOptions);
  /** A short stable word; never match on messages. */
  readonly code: ErrorCode | (string & {});
  /** Of an `enqueue` or `enqueueAll` that failed: the ids, drawn or given, under which it may be tried again. */
  readonly operationIds?: readonly string[];
}

/** This tab no longer leads the resource; its loop must end. */
export class LeadershipLost extends TabhelmError {
  constructor(resource: string, reason: string);
  readonly resource: string;
  readonly reason: string;
}

/** `window.__orchestration`, with `join({ testHooks: true })`. */
export interface Orchestration {
  presenceSnapshot(): Presence;
  leadershipState(resource: string): { status: ElectionStatus | null; leader: Leader | null };
  forceElection(resource: string): Promise<unknown>;
  /** Do what the page does when the browser freezes it. */
  simulateFreeze(): void;
  /** …and when it thaws. */
  simulateRestore(): void;
  metrics(): Promise<{ page: { malformed: number }; engine: unknown }>;
}

declare global {
  interface Window {
    __orchestration?: Orchestration;
  }
}
