/** What is refused before it reaches the engine, and the errors and ids of the page client. */
export { buildId, version } from "./build-info.mjs";

/** Base of every error that tabhelm raises on purpose; bad arguments are plain `TypeError`s. */
export class TabhelmError extends Error {
  /** @param {string} code @param {string} message @param {ErrorOptions} [options] */
  constructor(code, message, options) {
    super(message, options);
    this.name = "TabhelmError";
    this.code = code;
  }
}

/** This holder no longer leads; its loop must end. */
export class LeadershipLost extends TabhelmError {
  /** @param {string} resource @param {string} reason */
  constructor(resource, reason) {
    super("leadership-lost", `no longer the leader of "${resource}": ${reason}`);
    this.name = "LeadershipLost";
    this.resource = resource;
    this.reason = reason;
  }
}

/**
 * `EventTarget`, with listeners as loosely typed as the overloads of tabhelm.d.ts need.
 * @type {new () => Omit<EventTarget, "addEventListener"> & {addEventListener(type: string, listener: any, options?: boolean | AddEventListenerOptions): void}}
 */
export const Emitter = EventTarget;

const MAX_NAME = 512;
const PART = /^[A-Za-z0-9][A-Za-z0-9._-]*$/;
const ALLOWED = "allowed are letters, digits, '.', '_' and '-', starting with a letter or digit";

/** `[object Map]` and the like. @param {unknown} value @returns {string} */
export const kindOf = (value) => Object.prototype.toString.call(value);

/** @param {unknown} value */
function shown(value) {
  let text;
  try {
    const plain = typeof value === "string" || Array.isArray(value) || (value && Object.getPrototypeOf(value) === Object.prototype);
    text = plain ? JSON.stringify(value) : typeof value === "object" && value ? kindOf(value) : String(value);
  } catch {
    text = kindOf(value);
  }
  return text.length <= 80 ? text : `${text.slice(0, 77)}...`;
}

/**
 * A `TypeError` that names the thing, the value and the way out.
 * @param {string} what @param {unknown} value @param {string} wanted
 */
export function bad(what, value, wanted) {
  return new TypeError(`${what} ${shown(value)} is not valid: ${wanted}`);
}

/** @param {string} what @param {unknown} value @returns {string} */
export function checkPart(what, value) {
  if (typeof value !== "string" || value.length > MAX_NAME || !PART.test(value)) throw bad(what, value, ALLOWED);
  return value;
}

/** @param {string} what @param {unknown} value @returns {string | undefined} */
export function checkScope(what, value) {
  if (value === undefined || value === null) return undefined;
  if (typeof value !== "string" || value.length > MAX_NAME || !value.split(":").every((part) => PART.test(part))) {
    throw bad(what, value, `${ALLOWED}; parts joined by ':'`);
  }
  return value;
}

/** @param {string} what @param {unknown} value @param {string} [wanted] @returns {string} */
export function checkText(what, value, wanted = `a text of 1 to ${MAX_NAME} characters is expected`) {
  if (typeof value !== "string" || !value || value.length > MAX_NAME) throw bad(what, value, wanted);
  return value;
}

/** An id or a partition. @param {string} what @param {unknown} value */
export function checkLabel(what, value) {
  if (typeof value !== "string" || !/^[\x20-\x7e]{1,200}$/.test(value)) throw bad(what, value, "1 to 200 printable ASCII characters are expected");
  return value;
}

/** @param {string} what @param {unknown} value @returns {string[]} */
export function checkTexts(what, value) {
  if (!Array.isArray(value)) throw bad(what, value, "an array of texts is expected");
  return value.map((item, index) => checkText(`${what}[${index}]`, item));
}

/**
 * @param {string} what @param {unknown} value @param {number} least
 * @returns {number}
 */
export function checkNumber(what, value, least) {
  // A browser's timers count in 32 bits: what is longer would fire at once.
  if (typeof value !== "number" || !(value >= least && value < 2 ** 31)) {
    throw bad(what, value, `a number of milliseconds, at least ${least} and below 2^31, is expected`);
  }
  return value;
}

/** @param {string} what @param {unknown} value @param {number} least @returns {number} */
export function checkWhole(what, value, least) {
  if (!Number.isSafeInteger(value) || Number(value) < least) throw bad(what, value, `a whole number of at least ${least} is expected`);
  return Number(value);
}

/** One of these words. @param {...string} words */
export const oneOf = (...words) => (/** @type {string} */ what, /** @type {any} */ value) => {
  if (!words.includes(value)) throw bad(what, value, `"${words.join('" or "')}" is expected`);
  return value;
};

/** @param {string} what @param {unknown} value */
export function checkFunction(what, value) {
  if (typeof value !== "function") throw bad(what, value, "a function is expected");
  return value;
}

/** @param {string} what @param {unknown} value @returns {boolean} */
export function checkFlag(what, value) {
  if (typeof value !== "boolean") throw bad(what, value, "true or false is expected");
  return value;
}

/**
 * An absolute URL: the engine would resolve a relative one against its own script, not against the page.
 * @param {string} what @param {unknown} value @returns {string}
 */
export function checkUrl(what, value) {
  try {
    if ((typeof value === "string" && value) || value instanceof URL) return new URL(value, globalThis.document?.baseURI).href;
  } catch {
    // told below
  }
  throw bad(what, value, "a URL is expected");
}

/**
 * A plain object without unknown keys: a misspelt option must not be ignored silently.
 * @param {string} what @param {unknown} value @param {readonly string[]} allowed @param {string} [wanted]
 * @returns {Record<string, unknown>}
 */
export function checkKeys(what, value, allowed, wanted = "an object is expected") {
  if (value === undefined) return {};
  if (typeof value !== "object" || value === null || Array.isArray(value)) throw bad(what, value, wanted);
  for (const key of Object.keys(value)) {
    if (!allowed.includes(key)) throw new TypeError(`${what} has no option "${key}": it knows ${allowed.join(", ")}`);
  }
  return { ...value };
}

/** Is it what JSON holds without loss? @param {unknown} original @param {unknown} value what its `toJSON` made of it */
export function fitsJson(original, value) {
  if (typeof value === "object") return /t (Object|Array|Null)]$/.test(kindOf(value)) && (value !== null || !(original instanceof Date));
  return Number.isFinite(value) || typeof value === "string" || typeof value === "boolean";
}

/** JSON text of what JSON can hold. Why something cannot be held is told by payloads.mjs. @param {unknown} payload @returns {string} */
export function jsonText(payload) {
  return JSON.stringify(payload, function (key, value) {
    if (!fitsJson(this[key], value)) throw new TypeError("JSON cannot hold this payload");
    return value;
  });
}

/** What the engine is told of options: of a function, that there is one. @param {object} options */
export const plain = (options) => JSON.parse(JSON.stringify(options, (_, value) => typeof value === "function" || value));

/** Of an error, or of one that came over the wire as a plain object. @param {any} error @returns {string} */
export function message(error) {
  try {
    return typeof error?.message === "string" ? error.message : shown(error);
  } catch {
    return "an error that cannot be shown";
  }
}

/** @param {unknown} error */
export function nameOf(error) {
  try {
    return error instanceof Error ? String(error.name) : "Error";
  } catch {
    return "Error"; // whatever a loop rejects with, the engine must learn that it ended
  }
}

/** A string of RFC 9651. @param {string} text printable ASCII */
export const quoted = (text) => `"${text.replace(/["\\]/g, "\\$&")}"`;

/** @param {Uint8Array} bytes */
const hex = (bytes) => Array.from(bytes, (byte) => byte.toString(16).padStart(2, "0")).join("");

/** A random id of 80 bits that is a valid part of a name. `crypto.randomUUID` is missing in insecure contexts. */
export function randomId() {
  return hex(crypto.getRandomValues(new Uint8Array(10)));
}

/** A UUIDv7 (RFC 9562): its first 48 bits are the time, so that operation ids sort by age in logs. */
export function uuid7() {
  const bytes = crypto.getRandomValues(new Uint8Array(16));
  new DataView(bytes.buffer).setBigUint64(0, (BigInt(Date.now()) << 16n) | 0x7000n | BigInt(((bytes[6] & 0x0f) << 8) | bytes[7]));
  bytes[8] = (bytes[8] & 0x3f) | 0x80;
  return hex(bytes).replace(/^(.{8})(.{4})(.{4})(.{4})/, "$1-$2-$3-$4-");
}
