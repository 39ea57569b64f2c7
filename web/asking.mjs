/** Asking the leader: a page's questions, its handlers while it leads, and what it publishes. Part of extras.mjs. */
import { bad, checkKeys, checkNumber, checkText, checkTexts, message, nameOf, randomId } from "./checks.mjs";
import { payloadText } from "./payloads.mjs";
import { core } from "./core.mjs";

/** @typedef {import("./extras.mjs").Inside} Inside */
/** @typedef {import("./election.mjs").Run} Run a tenure of this page's */
/** @typedef {{handlers: Map<string, import("./tabhelm.js").Handler>, signal: AbortSignal}} Served */

const TIMEOUT_MS = 10_000;
const MAX_TIMEOUT_MS = 86_400_000;
const MAX_BODY = 100_000; // characters of JSON in ASCII, as the engine counts them
const LATE_MS = 1_000; // the engine says first that the time is over: it knows more

/** An error with a code, under its own name, and with what else is known. @param {any} told */
function failure({ code, message: text, name, ...facts }) {
  const error = new core.TabhelmError(String(code), String(text));
  if (typeof name === "string") error.name = name;
  return Object.assign(error, facts);
}

/**
 * A value as JSON text, small enough for one message.
 * @param {string} what @param {unknown} value @returns {string}
 */
function bodyText(what, value) {
  let text;
  try {
    text = payloadText(what, value === undefined ? null : value);
  } catch (error) {
    throw failure({ code: "not-cloneable", name: "NotCloneable", message: message(error) });
  }
  const length = text.replace(/[^\x00-\x7f]/g, "\\u0000").length;
  if (length <= MAX_BODY) return text;
  const long = `${what} takes ${length} characters as JSON in ASCII: at most ${MAX_BODY} are allowed`;
  throw failure({ code: "not-cloneable", name: "NotCloneable", message: long });
}

// ---- asking -------------------------------------------------------------------------------------------------------------

/** @param {Inside} inside @param {string} election @param {unknown} method @param {unknown} [args] @param {unknown} [options] */
export async function ask(inside, election, method, args, options) {
  const { session } = inside;
  const { timeoutMs, idempotencyKey, signal } = checkKeys("ask options", options, ["timeoutMs", "idempotencyKey", "signal"]);
  const name = checkText("method", method);
  const limitMs = checkNumber("timeoutMs", timeoutMs ?? TIMEOUT_MS, 1);
  if (limitMs > MAX_TIMEOUT_MS) throw bad("timeoutMs", timeoutMs, "a day at most is expected");
  const key = idempotencyKey === undefined ? {} : { key: checkText("idempotencyKey", idempotencyKey) };
  if (signal !== undefined && !(signal instanceof AbortSignal)) throw bad("signal", signal, "an AbortSignal is expected");
  signal?.throwIfAborted();
  const id = randomId();
  const about = { election, id, method: name, args: bodyText("args", args), ...key };
  const due = performance.now() + limitMs;
  let asked = false;
  let over = false;
  /** @type {number} */
  let late = 0;
  let abandon = () => {};
  const end = new Promise((_, reject) => {
    late = setTimeout(() => {
      if (!asked) reject(unopened(name, limitMs));
      else late = setTimeout(() => reject(timedOut(name, limitMs)), LATE_MS);
    }, limitMs);
    abandon = () => reject(signal?.reason);
    signal?.addEventListener("abort", abandon, { once: true });
  });
  /** What the engine is told, as things are when it is: that may be much later, and another engine. @param {boolean} fresh @param {string} resource */
  const words = (fresh, resource) => ({
    ...about,
    resource,
    fresh,
    get leftMs() {
      return Math.max(1, Math.ceil(due - performance.now()));
    },
    get abandoned() {
      return over;
    },
  });
  const answer = async () => {
    const resource = await opened(inside, election);
    for (let fresh = true; !over; fresh = false) {
      asked = true;
      // Said again to another engine: the first may have given it to the leader.
      const told = await session.call("ask", words(fresh, resource), { again: words(false, resource) });
      if (!told?.pending) return told ?? {};
    }
    return {};
  };
  let told;
  try {
    told = await Promise.race([answer(), end]);
  } finally {
    clearTimeout(late);
    signal?.removeEventListener("abort", abandon);
    over = true;
    if (!told && asked) session.post({ type: "unask", id });
  }
  if (told.error) throw failure(told.error);
  return told.value;
}

/**
 * Wait until the engine was told of an election: not before one that this tab stopped, for the same resource, has ended.
 * @param {Inside} inside @param {string} id @returns {Promise<string>} the resource
 */
async function opened({ session, elections }, id) {
  for (;;) {
    const election = elections.get(id);
    if (session.left) return ""; // the session says so itself
    if (!election || election.stopping) {
      const text = `the election${election ? ` for "${election.key}"` : ""} has stopped: stand again with tab.lead()`;
      throw failure({ code: "election-stopped", name: "ElectionStopped", message: text });
    }
    if (!election.before) return election.key;
    await election.before;
  }
}

/** The engine owes even the word that there is no answer. @param {string} method @param {number} limitMs */
function timedOut(method, limitMs) {
  const text = `no answer to "${method}" within ${limitMs} ms, and the engine is silent: outcome unknown`;
  return failure({ code: "ask-timeout", name: "AskTimeout", message: text, outcome: "unknown" });
}

/** Not even asked: an election that was stopped before this one has yet to end. @param {string} method @param {number} limitMs */
function unopened(method, limitMs) {
  const text = `"${method}" could not be asked within ${limitMs} ms: the election that this tab stopped before has yet to end`;
  return failure({ code: "no-leader", name: "NoLeader", message: text });
}

// ---- leading ------------------------------------------------------------------------------------------------------------

/** The tenures of each page that serve, by election and grant. @type {WeakMap<object, Map<string, Served>>} */
const tenures = new WeakMap();

/** @param {Inside} inside */
function tenuresOf(inside) {
  const { session, messages } = inside;
  let known = tenures.get(session);
  if (!known) {
    tenures.set(session, (known = new Map()));
    messages.set("asked", (data) => void asked(inside, data));
  }
  return known;
}

/** @param {Inside} inside @param {Run} run @param {unknown} handlers @param {unknown} [options] */
export function serve(inside, run, handlers, options) {
  if (typeof handlers !== "object" || handlers === null) throw bad("handlers", handlers, "an object of functions by method is expected");
  const { idempotent } = checkKeys("serve options", options, ["idempotent"]);
  const names = idempotent === undefined ? [] : checkTexts("idempotent", idempotent);
  const entries = Object.entries(handlers);
  for (const [name, handler] of entries) {
    checkText("method", name);
    if (typeof handler !== "function") throw bad(`the handler of "${name}"`, handler, "a function is expected");
  }
  const unknown = names.find((name) => !Object.hasOwn(handlers, name));
  if (unknown !== undefined) throw bad("idempotent", unknown, "one of the handlers given is expected");
  const { election, grant, lost } = run;
  lost.signal.throwIfAborted();
  const known = tenuresOf(inside);
  const key = `${election} ${grant}`;
  let served = known.get(key);
  if (!served) {
    known.set(key, (served = { handlers: new Map(), signal: lost.signal }));
    lost.signal.addEventListener("abort", () => known.delete(key), { once: true });
  }
  for (const [name, handler] of entries) served.handlers.set(name, handler);
  const methods = entries.map(([name]) => name);
  inside.session.post({ type: "serve", election, grant, methods, idempotent: names });
}

/** @param {Inside} inside @param {any} data */
async function asked(inside, data) {
  const { election, grant, call, method, args, from } = data;
  const served = tenuresOf(inside).get(`${election} ${grant}`);
  const handler = served?.handlers.get(method);
  if (!served || !handler) return; // over: the engine knows
  const about = { type: "replied", election, grant, call };
  const { session } = inside;
  const { connectionId } = session;
  const reply = (/** @type {object} */ outcome) => {
    if (session.connectionId === connectionId) session.post({ ...about, ...outcome });
  };
  /** @type {unknown} what this handler itself throws to refuse: another leader may have refused something to it */
  let refusal;
  const refuse = (/** @type {unknown} */ reason) => {
    throw (refusal = failure({ code: "ask-refused", name: "AskRefused", message: String(reason) }));
  };
  try {
    const value = await handler(args, { ...from, method, signal: served.signal, refuse });
    reply({ value: bodyText(`the answer of "${method}"`, value) });
  } catch (error) {
    const code = /** @type {any} */ (error)?.code;
    const refused = refusal !== undefined && error === refusal;
    reply({ error: { name: nameOf(error), message: message(error), code: typeof code === "string" ? code : null, refused } });
  }
}

/** @param {Inside} inside @param {Run} run @param {unknown} value */
export function publish({ session }, { election, grant, lost }, value) {
  const text = bodyText("the published value", value);
  lost.signal.throwIfAborted();
  session.post({ type: "publish", election, grant, value: text });
}

// ---- following ----------------------------------------------------------------------------------------------------------

/** What a leader published, from the engine. @param {Inside} inside @param {any} data */
export function published({ elections }, { election, state }) {
  const known = elections.get(election);
  if (!known) return;
  known.state = state;
  known.dispatchEvent(new CustomEvent("state", { detail: state }));
}
