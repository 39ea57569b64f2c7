/** Guards for an app's own data and state: docs/guards.md. For pages and workers; imports nothing. */

/** As `ctx.nextToken()` gives it. */
export interface FencingToken {
  domain: string;
  resource: string;
  epoch: number;
  stream: string;
  seq: number;
  owner: string;
}

/** The highest epoch seen, who owns it, and how far each of its streams has come. */
export interface Marks {
  epoch: number;
  owner: string;
  streams: Record<string, number>;
}

/** The mark that a token of its stream has to exceed. */
export interface HighWater {
  epoch: number;
  seq: number;
  owner: string;
}

/**
 * `strict`: epoch and owner, then a growing `seq` in each stream. `epoch`: epoch and owner alone, for writes that come in any
 * order; each then needs a key by which a repeated one is known.
 */
export type Rule = "strict" | "epoch";

/** A newer owner was seen; or, `overtaken`, a later token of the same stream and owner: then a new token will do. */
export class StaleOwner extends Error {
  constructor(token: FencingToken, highWater: HighWater, overtaken: boolean);
  readonly code: "stale-owner";
  readonly resource: string;
  readonly highWater: HighWater;
  readonly overtaken: boolean;
}

export type Judged = { verdict: "accepted"; marks: Marks } | { verdict: "stale" | "overtaken"; highWater: HighWater };

/** The rule by itself, for stores of another kind. `marks`: null if none were seen. */
export function judge(marks: Marks | null, token: FencingToken, rule?: Rule): Judged;

/**
 * Raise the marks in `store` to `token`, inside your own readwrite transaction, which writes what the token protects as well.
 *
 * `store` has the key path `["domain", "resource"]`. It may be awaited in the transaction; or not, for what is refused aborts
 * the transaction (`abort: false`: you do it).
 * Rejects with {@link StaleOwner}; with a `TypeError` for what is no token, no readwrite transaction or no record of marks.
 */
export function check(store: IDBObjectStore, token: FencingToken, options?: { rule?: Rule; abort?: boolean }): Promise<void>;

/** Marks in memory, for state that is gone when this page or worker is, and for nothing else. */
export class MemoryGuard {
  constructor(rule?: Rule);
  /** Raise the marks. @throws StaleOwner @throws TypeError */
  check(token: FencingToken): void;
  /** Whether no newer owner was seen since. */
  isCurrent(token: FencingToken): boolean;
  /** Check the token, do the work, and give its result if no newer owner was seen meanwhile. Rejects with {@link StaleOwner}. */
  applyIfCurrent<T>(token: FencingToken, work: () => T | Promise<T>): Promise<T>;
}

/** Whoever leads: a `LeaderContext`. */
export interface Holder {
  readonly signal: AbortSignal;
  nextToken(): FencingToken;
}

/**
 * Do `work`, which may be async, and apply its result if this page leads still: for local state. `apply(result)` is called in
 * the same step in which that was seen. Rejects with `LeadershipLost`, before `work` or after it; then nothing was applied.
 */
export function applyIfCurrent<T>(context: Holder, work: () => T | Promise<T>): Promise<T>;
export function applyIfCurrent<T, U>(context: Holder, work: () => T | Promise<T>, apply: (result: T) => U): Promise<U>;

export type FencedAnswer<T> =
  | { ok: true; value: T }
  | { ok: false; error: "STALE_OWNER"; highWater: HighWater; overtaken: boolean }
  | { ok: false; error: "MALFORMED_TOKEN"; message: string };

/**
 * For a worker that takes commands: `const run = rejectStale(handle)`, then `postMessage(await run(command))`. `handle` is called
 * for commands whose token is current; what it throws is thrown. `isCurrent()` tells it whether a newer owner came meanwhile.
 */
export function rejectStale<C, T>(
  handle: (command: C, still: { isCurrent: () => boolean }) => T | Promise<T>,
  options?: {
    guard?: MemoryGuard;
    /** Default: the command's property `token`. */
    tokenOf?: (command: C) => FencingToken;
  },
): (command: C) => Promise<FencedAnswer<T>>;
