// The window host: the engine in the page itself. Loaded only by pages that cannot have a shared engine, or want none.
//
// What the page says to its engine is handed over by a plain call: `freeze` and `bye` are said inside the handlers of `freeze`
// and `pagehide`, and before those return every lock must be let go and every request withdrawn. A frozen or cached page runs
// no message handler, and one that holds a lock, or is next in line for it, starves the living. What the engine says
// comes as messages, as from a worker.

import { Engine } from "./engine.mjs";

/** A hidden page's timers may be held back to one a minute: that nothing happened for so long does not prove that it hung. */
const THROTTLED_MS = 65_000;

/** The page's engines by name, each with its interpreter, booted once. @type {Map<string, Engine>} */
const engines = new Map();
let hiddenAt = document.hidden ? -Infinity : Infinity; // when the page last learned that it is hidden…
let shownAt = -Infinity; // …and that it is not

document.addEventListener("visibilitychange", () => {
  if (document.hidden) hiddenAt = performance.now();
  else shownAt = performance.now();
});
// Whether or not the page client has said `bye` by then for all its sessions. They say `hello` again on `pageshow`.
window.addEventListener("pagehide", () => {
  for (const engine of engines.values()) {
    engine.suspend("pagehide");
    engine.tellAll();
  }
});

/**
 * How long nothing need to have happened since then before the page must have stood still. One that hangs is hidden when its
 * user turns to another tab, and learns that only at the end: until then its timers were not held back.
 * @param {number} limitMs @param {number} sinceMs by `performance.now()`
 */
function patience(limitMs, sinceMs) {
  const throttled = (document.hidden || shownAt >= sinceMs) && hiddenAt <= sinceMs + limitMs;
  return throttled ? Math.max(limitMs, THROTTLED_MS) : limitMs;
}

/** @param {string} name */
function engineOf(name) {
  let engine = engines.get(name);
  if (!engine || engine.failed) {
    engine = new Engine(name, { patience });
    engines.set(name, engine);
  }
  return engine;
}

/**
 * Connect a session of this page to its engine, which is started if there is none yet.
 * @param {string} name as the worker's would be
 * @param {(data: unknown) => void} receive
 */
export function connect(name, receive) {
  const { port1, port2 } = new MessageChannel();
  const port = {
    /** @type {((event: {data: unknown}) => void) | null} */
    onmessage: null,
    postMessage: (/** @type {unknown} */ data) => port1.postMessage(data),
    close: () => port1.close(),
  };
  port2.onmessage = (event) => receive(event.data);
  engineOf(name).connect(port);
  return {
    post: (/** @type {object} */ data) => port.onmessage?.({ data }),
    close: () => {
      port2.onmessage = null;
      port2.close();
    },
    patience,
  };
}
