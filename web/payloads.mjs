/**
 * Payloads: what makes two of them the same, and why one cannot be had, by its place in it. Part of extras.mjs.
 */
import { fitsJson, kindOf, message } from "./checks.mjs";

/** @typedef {import("./extras.mjs").Inside} Inside */
/** @typedef {import("./queue.mjs").Queue} Queue */

// -- JSON -----------------------------------------------------------------------------------------------------------------

/** What JSON would drop, change or choke on, in words; or null. @param {any} original @param {any} value what its `toJSON` made of it */
function beyondJson(original, value) {
  if (fitsJson(original, value)) return null;
  if (original instanceof Date && value === null) return "an invalid date";
  if (typeof value === "number" || value === undefined) return String(value);
  return typeof value === "object" ? `of the kind ${nameOfKind(value)}` : `a ${typeof value}`; // Map, Set, Blob, Error, …
}

/**
 * A payload as JSON text. What JSON cannot hold without loss is refused by its place in the payload.
 * @param {string} what @param {unknown} payload @returns {string}
 */
export function payloadText(what, payload) {
  /** @type {{holder: object, path: string}[]} from the payload down to the object that is being read */
  const above = [];
  try {
    return JSON.stringify(payload, function (key, value) {
      while (above.length && above.at(-1)?.holder !== this) above.pop();
      const parent = above.at(-1);
      const path = parent ? parent.path + step(this, key) : what;
      const problem = beyondJson(this[key], value);
      if (problem) throw new TypeError(`${path} is ${problem}, which JSON cannot hold: convert it, or leave it out`);
      if (typeof value === "object" && value) {
        const cycle = above.find(({ holder }) => holder === value);
        if (cycle) throw new TypeError(`${path} is ${cycle.path} again: JSON cannot hold a cycle`);
        above.push({ holder: value, path });
      }
      return value;
    });
  } catch (error) {
    // A toJSON or getter of the app's that throws, or a payload too deep to be read.
    throw error instanceof TypeError ? error : new TypeError(`${what} cannot be read: ${message(error)}`, { cause: error });
  }
}

/** @param {object} holder @param {string} key */
const step = (holder, key) => (Array.isArray(holder) ? `[${key}]` : /^[\w$]+$/.test(key) ? `.${key}` : `[${JSON.stringify(key)}]`);

/** @param {unknown} value */
const nameOfKind = (value) => kindOf(value).slice(8, -1);

// -- structured clones ----------------------------------------------------------------------------------------------------

/** What a page can clone but not every browser stores. */
const UNSTORED = ["SharedArrayBuffer", "WebAssembly.Module", "ImageBitmap", "VideoFrame"];

/** Where in a value is what cannot be cloned? Null if nowhere. @param {string} path @param {any} value @param {Set<unknown>} seen @returns {string | null} */
function unclonable(path, value, seen = new Set()) {
  if (UNSTORED.includes(nameOfKind(value))) return `${path} is of the kind ${nameOfKind(value)}`;
  if (typeof value === "function" || typeof value === "symbol") return `${path} is a ${typeof value}`;
  if (typeof value !== "object" || !value || seen.has(value)) return null;
  seen.add(value);
  for (const [name, inner] of partsOf(value)) {
    const found = unclonable(path + name, inner, seen);
    if (found) return found;
  }
  try {
    structuredClone(value);
    return null;
  } catch (error) {
    return `${path} is of the kind ${nameOfKind(value)} (${message(error)})`;
  }
}

/** @param {string} what @param {unknown} payload @throws TypeError */
function checkClonable(what, payload) {
  let problem;
  try {
    problem = unclonable(what, payload);
  } catch (error) {
    throw new TypeError(`${what} cannot be read: ${message(error)}`, { cause: error }); // a getter of the app's that throws
  }
  if (problem) throw new TypeError(`${problem}, which cannot be stored: convert it, or leave it out`);
}

/** @param {any} value @returns {[string, unknown][]} each with its step of the path */
function partsOf(value) {
  if (value instanceof Map) return [...value].flatMap(([key, inner], at) => [[`.keys()[${at}]`, key], [`.get(${typeof key === "string" ? JSON.stringify(key) : `#${at}`})`, inner]]);
  if (value instanceof Set) return [...value].map((inner, at) => [`.values()[${at}]`, inner]);
  if (Array.isArray(value) || nameOfKind(value) === "Object") return Object.keys(value).map((key) => [step(value, key), value[key]]);
  return [];
}

/**
 * The parts of a value in a form that is the same for the same content, whatever the order of its keys; text and bytes.
 * @param {any} value @param {(string | BufferSource | Blob)[]} parts @param {Map<unknown, number>} seen
 */
function write(value, parts, seen) {
  const say = (/** @type {(string | BufferSource | Blob)[]} */ ...each) => void parts.push(...each);
  if (value === null || typeof value === "boolean") return say(`${value};`);
  if (typeof value === "number") return say(Object.is(value, -0) ? "-0;" : `${value};`);
  if (typeof value === "string") return say(JSON.stringify(value));
  if (typeof value !== "object") return say(`${typeof value} ${value};`); // undefined, bigint
  const known = seen.get(value);
  if (known !== undefined) return say(`#${known};`);
  seen.set(value, seen.size);
  const kind = nameOfKind(value);
  if (UNSTORED.includes(kind)) throw kind;
  const inner = (/** @type {Iterable<unknown>} */ values) => {
    say(`${kind}(`);
    for (const each of values) write(each, parts, seen);
    say(")");
  };
  if (value instanceof Map) inner([...value].flat());
  else if (value instanceof Set) inner(value);
  else if (value instanceof Date) say(`Date ${value.getTime()};`);
  else if (value instanceof RegExp) inner([value.source, value.flags]);
  else if (value instanceof Error) inner([value.name, value.message, ...("cause" in value ? [value.cause] : [])]);
  else if (value instanceof Blob) say(`${kind} ${value.size} ${JSON.stringify([value.type, ...(value instanceof File ? [value.name, value.lastModified] : [])])};`, value);
  else if (value instanceof ArrayBuffer) say(`${kind} ${value.byteLength};`, value);
  else if (ArrayBuffer.isView(value)) say(`${kind} ${value.byteLength};`, /** @type {BufferSource} */ (value));
  else if (["Boolean", "Number", "String", "BigInt"].includes(kind)) inner([value.valueOf()]);
  else if (Array.isArray(value)) inner([value.length, ...Object.entries(value).flat()]); // holes are no entries
  else if (kind === "Object") inner(Object.keys(value).sort().flatMap((key) => [key, value[key]]));
  else {
    // Of the browser's other kinds (ImageData, DOMRect, …) what they show.
    const shown = [];
    for (const key in value) if (typeof value[key] !== "function") shown.push(key, value[key]);
    inner(shown);
  }
}

const encoder = new TextEncoder();

/** @param {unknown} value */
async function digest(value) {
  /** @type {(string | BufferSource | Blob)[]} */
  const parts = [];
  write(value, parts, new Map());
  const text = parts.every((part) => typeof part === "string");
  const bytes = text ? encoder.encode(parts.join("")) : new Uint8Array(await new Blob(/** @type {BlobPart[]} */ (parts)).arrayBuffer());
  const hash = new Uint8Array(await crypto.subtle.digest("SHA-256", bytes));
  return { digest: Array.from(hash, (byte) => byte.toString(16).padStart(2, "0")).join(""), size: bytes.length };
}

/** The last enqueueing of a queue: what is called first comes first, however long its Blobs take to read. @type {WeakMap<Queue, Promise<unknown>>} */
const last = new WeakMap();

/**
 * Operations whose payloads go as structured clones, each with its payload's digest and size.
 * @param {Inside} _ @param {Queue} queue @param {object[]} operations @param {unknown[]} values
 */
export async function digested(_, queue, operations, values) {
  const read = (/** @type {unknown} */ value, /** @type {number} */ at) =>
    digest(value).catch((error) => {
      const what = `${values.length > 1 ? `items[${at}].` : ""}payload`;
      checkClonable(what, value);
      throw new TypeError(`${what} cannot be read: ${message(error)}`, { cause: error });
    });
  const work = Promise.all(values.map(read));
  work.catch(() => {}); // it is told in turn
  const turn = Promise.resolve(last.get(queue)).then(() => work);
  last.set(queue, turn.catch(() => {}));
  const digests = await turn;
  // In the engine Python would make an int of a bigint, and a number of that: it goes in a box.
  values.forEach((value, at) => typeof value === "bigint" && (values[at] = Object(value)));
  return operations.map((operation, at) => ({ ...operation, ...digests[at] }));
}

/** A value as it was enqueued. @param {unknown} value */
export const unboxed = (value) => (value instanceof BigInt ? value.valueOf() : value);

/**
 * Something in these items cannot be had: say what, and where.
 * @param {Inside} _ @param {Queue} __ @param {{payload?: unknown}[]} items @param {(index: number) => string} where @param {unknown} clones
 * @throws TypeError if it is in a payload
 */
export async function explain(_, __, items, where, clones) {
  for (const [at, { payload }] of items.entries()) {
    const what = `${where(at)}payload`;
    if (clones) checkClonable(what, payload);
    else payloadText(what, payload);
  }
}
