/** One page's candidacy for one resource, and the loop that runs while it leads. */
import { Emitter, LeadershipLost, TabhelmError, bad, checkNumber, message, nameOf, plain, quoted } from "./checks.mjs";
import { deferred } from "./session.mjs";

/** @typedef {import("./session.mjs").Session} Session */
/** @typedef {import("./tabhelm.js").LeaderLoop} LeaderLoop */
/** @typedef {import("./tabhelm.js").ElectionStatus} ElectionStatus */
/** @typedef {{domain: string, resource: string, epoch: number, stream: string, owner: string}} Token */
/** @typedef {{election: string, grant: unknown, connectionId: string, lost: AbortController, settled?: Promise<void>}} Run */

/** A string of RFC 9651 holds printable ASCII only. @param {string} what @param {string} text */
function fieldString(what, text) {
  if (!/^[\x20-\x7e]*$/.test(text)) throw bad(what, text, "printable ASCII is expected in an HTTP header");
  return quoted(text);
}

class LeaderContext {
  #ensure;
  #check;
  #token;
  #seq = 0;

  /**
   * @param {string} resource @param {AbortSignal} signal @param {Token | null} token
   * @param {() => void} ensure throws once the page no longer leads, or doubts it
   * @param {() => Promise<void>} check @param {(name: string, ...given: unknown[]) => Promise<any>} extra
   */
  constructor(resource, signal, token, ensure, check, extra) {
    this.resource = resource;
    this.signal = signal;
    this.#token = token;
    this.#ensure = ensure;
    this.#check = check;
    lately(this, extra, ["serve", "publish", "progress", "health", "breaker"]);
  }

  get epoch() {
    return this.#token?.epoch ?? null;
  }

  nextToken() {
    this.#ensure();
    if (!this.#token) throw new TabhelmError("not-fenced", `the authority of "${this.resource}" issues no tokens; protected writes are refused`);
    return { ...this.#token, seq: ++this.#seq };
  }

  /** @param {string} [operationId] @returns {Record<string, string>} */
  headers(operationId) {
    /** @type {Record<string, string>} */
    const key = operationId === undefined ? {} : { "Idempotency-Key": fieldString("operation id", String(operationId)) };
    const { resource, domain, epoch, stream, seq, owner } = this.nextToken();
    const fields = [
      fieldString("resource", resource),
      `domain=${fieldString("domain", domain)}`,
      `epoch=${epoch}`,
      `stream=${fieldString("stream", stream)}`,
      `seq=${seq}`,
      `owner=${fieldString("owner", owner)}`,
    ];
    return { "Fencing-Token": fields.join(";"), ...key };
  }

  /** @param {number} ms @returns {Promise<void>} */
  sleep(ms) {
    checkNumber("sleep", ms, 0);
    const { signal } = this;
    return new Promise((resolve, reject) => {
      const stop = () => {
        clearTimeout(timer);
        reject(signal.reason);
      };
      const timer = setTimeout(() => {
        signal.removeEventListener("abort", stop);
        resolve();
      }, ms);
      if (signal.aborted) stop();
      else signal.addEventListener("abort", stop, { once: true });
    });
  }

  check() {
    return this.#check();
  }

}

/**
 * Give an object methods that lie in extras.mjs.
 * @param {any} owner @param {(name: string, ...given: unknown[]) => Promise<any>} extra @param {string[]} names
 */
export function lately(owner, extra, names) {
  for (const name of names) owner[name] = (/** @type {unknown[]} */ ...given) => extra(name, ...given);
}

export class Election extends Emitter {
  #session;
  #id;
  #loop;
  #python;
  /** @type {ElectionStatus} */
  #status = { state: "idle", reason: "new" };
  /** @type {import("./tabhelm.js").Leader | null} */
  #leader = null;
  /** @type {Run | null} the loop that has not settled yet, leading or not */
  #run = null;
  /** Set by extras.mjs. @type {import("./tabhelm.js").LeaderState | null} */
  state = null;
  /** @type {unknown} offered, not yet accepted */
  #offered = undefined;
  /** @type {unknown} accepted, leadership not yet begun */
  #accepted = undefined;
  #stopping = "";
  /** What has to end before the engine is told of this candidacy. @type {Promise<void> | undefined} */
  #before;
  #over = deferred();

  /**
   * @param {Session} session @param {string} id @param {string} resource @param {string | undefined} scope
   * @param {LeaderLoop | null} loop @param {string | undefined} python @param {Record<string, unknown>} policy
   * @param {Election} [earlier] this tab's last candidacy for the same resource, if that or its loop has yet to end
   */
  constructor(session, id, resource, scope, loop, python, policy, earlier) {
    super();
    this.#session = session;
    this.#id = id;
    this.resource = resource;
    this.scope = scope ?? null;
    this.#loop = loop;
    this.#python = python;
    this.policy = policy;
    this.#before = earlier?.settled.then(() => {
      this.#before = undefined;
      this.open();
    });
    void earlier?.stopped.then(() => this.#before && (earlier.#run || earlier.#before) && this.#show({ state: "idle", reason: "loop-still-running" }));
    this.open();
  }

  get stopping() {
    return this.#stopping !== "";
  }

  get status() {
    return this.#status;
  }

  get key() {
    return this.scope === null ? this.resource : `${this.resource}:${this.scope}`;
  }

  /** @type {Promise<ElectionStatus>} */
  get stopped() {
    return this.#over.promise;
  }

  /** It is over, and so is its loop, and those before it. @returns {Promise<void>} */
  get settled() {
    const before = this.#before;
    return this.stopped.then(() => before).then(() => this.#run?.settled);
  }

  get before() {
    return this.#before;
  }

  leader() {
    return this.#leader;
  }

  /** @param {unknown[]} given */
  ask(...given) {
    return this.#session.handlers.extra("ask", this.#id, ...given);
  }

  stepDown(reason = "requested") {
    this.#session.post({ type: "step-down", election: this.#id, reason: String(reason) });
  }

  stop(reason = "requested") {
    if (this.#stopping) return;
    this.#stopping = String(reason) || "requested";
    if (this.#session.up && !this.#before) this.#session.post({ type: "stop", election: this.#id, reason: this.#stopping });
    else this.finish(this.#stopping);
  }

  // ---- called by the tab --------------------------------------------------------------------------------------------

  /** Tell the engine of this candidacy, at first and after every reconnection. */
  open() {
    if (this.#stopping || this.#before) return;
    const { policy } = this;
    const asked = policy.eligible ?? policy.score;
    this.#session.post({
      type: "lead",
      election: this.#id,
      resource: this.resource,
      scope: this.scope,
      policy: plain(policy),
      python: this.#python,
      unfit: asked && "asking",
    });
    // Nobody could ask the policy's functions then: it may not lead, and says why.
    const mute = () => this.#session.post({ type: "candidacy", election: this.#id, unfit: "no-extras", score: 0 });
    if (asked) this.#session.handlers.extra("stand", this.#id, policy).catch(mute);
  }

  /** Stop believing, now: the signal is aborted and no earlier grant may still begin. @param {string} reason */
  abort(reason) {
    this.#offered = this.#accepted = undefined;
    this.#run?.lost.abort(new LeadershipLost(this.key, reason));
  }

  /** The engine may have given up on this page; a grant that is only offered may still be good. */
  doubt() {
    if (this.#status.state === "leading") this.#show({ state: "stepping-down", reason: "doubt" });
    this.#run?.lost.abort(new LeadershipLost(this.key, "doubt"));
  }

  /** The connection is gone, or the page is about to stop. @param {string} reason @param {boolean} connected */
  down(reason, connected) {
    this.abort(reason);
    if (connected) return;
    if (this.#stopping) this.finish(this.#stopping);
    else if (this.#status.state !== "stopped") this.#show({ state: "idle", reason });
    this.lead(null);
  }

  /** @param {string} reason @param {ElectionStatus} [status] */
  finish(reason, status = { state: "stopped", reason }) {
    this.abort(reason);
    this.#stopping ||= reason;
    this.#show(status);
    this.#over.resolve(status);
  }

  /** @param {import("./tabhelm.js").Leader | null} leader */
  lead(leader) {
    if (JSON.stringify(leader) === JSON.stringify(this.#leader)) return;
    this.#leader = leader;
    this.dispatchEvent(new CustomEvent("leader", { detail: leader }));
  }

  /** @param {any} data @returns {boolean} false if the message made no sense */
  receive(data) {
    switch (data.type) {
      case "grant":
        if (data.grant === undefined) return false;
        this.#offered = data.grant;
        this.consider();
        return true;
      case "lead":
        return this.#begin(data.grant, data.token ?? null);
      case "revoke":
        if (this.#offered === data.grant) this.#offered = undefined;
        if (this.#accepted === data.grant) this.#accepted = undefined;
        if (this.#run?.grant === data.grant) this.#run?.lost.abort(new LeadershipLost(this.key, String(data.reason ?? "revoked")));
        else this.#ended(data.grant, null);
        return true;
      case "status":
        if (typeof data.status?.state !== "string") return false;
        if (data.status.state === "stopped") this.finish(String(data.status.reason ?? "stopped"), data.status);
        else this.#show(data.status);
        return true;
      default:
        return true;
    }
  }

  /**
   * Accept an offered grant, if this page can work. A loop never runs twice at once: while the last one has not settled,
   * the grant stays unanswered, and the engine passes it on after its patience. So a loop that ignores its signal keeps
   * only its own tab from leading.
   */
  consider() {
    if (this.#offered === undefined || this.#run || !this.#session.able()) return;
    this.#accepted = this.#offered;
    this.#offered = undefined;
    this.#session.post({ type: "ack", election: this.#id, grant: this.#accepted });
  }

  // ---- the loop -----------------------------------------------------------------------------------------------------

  /** @param {unknown} grant @param {Token | null} token */
  #begin(grant, token) {
    if (this.#python) return true; // its loop runs in the engine
    if (!this.#loop || grant === undefined || grant !== this.#accepted || this.#run || this.#session.doubts()) {
      this.#ended(grant, new LeadershipLost(this.key, "the page could no longer take it"));
      return true;
    }
    this.#accepted = undefined;
    if (!validToken(token)) {
      this.#ended(grant, new TabhelmError("malformed-token", "the token could not be read"));
      return false;
    }
    const session = this.#session;
    const lost = new AbortController();
    /** @type {Run} */
    const run = { election: this.#id, grant, connectionId: session.connectionId, lost };
    let doubted = false;
    const ensure = () => {
      if (!lost.signal.aborted && session.doubts()) {
        doubted = true;
        lost.abort(new LeadershipLost(this.key, "doubt"));
      }
      if (lost.signal.aborted) throw new LeadershipLost(this.key, lost.signal.reason.reason);
    };
    const check = async () => {
      ensure();
      try {
        await session.call("check", { election: this.#id, grant }, { once: true });
      } catch (error) {
        if (!(error instanceof TabhelmError) || !["leadership-lost", "split-authority", "engine-lost", "not-joined"].includes(error.code)) throw error;
        lost.abort(new LeadershipLost(this.key, error.code));
      }
      ensure();
    };
    const settle = (/** @type {unknown} */ error) => {
      const expected = lost.signal.aborted && (error instanceof LeadershipLost || /** @type {any} */ (error)?.name === "AbortError");
      const outcome = expected ? null : error;
      if (outcome) console.error(outcome); // with its stack, which the engine is not told
      const doubt = doubted || lost.signal.reason?.reason === "doubt" ? lost.signal.reason : null;
      lost.abort(new LeadershipLost(this.key, "ended")); // what the loop left running must not write either
      this.#run = null;
      if (run.connectionId === session.connectionId) this.#ended(grant, outcome ?? doubt);
      this.consider();
    };
    this.#run = run;
    const context = new LeaderContext(this.key, lost.signal, token, ensure, check, (name, ...given) => session.handlers.extra(name, run, ...given));
    const loop = this.#loop;
    run.settled = Promise.resolve()
      .then(() => loop(/** @type {any} */ (context)))
      .then(() => settle(null), (error) => settle(error ?? Error("no reason given")));
    return true;
  }

  /** @param {unknown} grant @param {unknown} error */
  #ended(grant, error) {
    const told = error === null ? null : { name: nameOf(error), message: message(error) };
    this.#session.post({ type: "ended", election: this.#id, grant, error: told });
  }

  /** @param {ElectionStatus} status */
  #show(status) {
    if (this.#status.state === "stopped") return;
    this.#status = status;
    this.dispatchEvent(new CustomEvent("status", { detail: status }));
  }
}

/** @param {any} token */
function validToken(token) {
  if (token === null) return true;
  const texts = [token.domain, token.resource, token.stream, token.owner];
  return texts.every((text) => typeof text === "string" && /^[\x20-\x7e]+$/.test(text)) && Number.isSafeInteger(token.epoch);
}
