/**
 * What few pages use, in one file that the client fetches when it is first asked for. It is bundled apart from the client, and
 * shares nothing with it but what it is given: classes that a page compares by `instanceof` come from the client.
 */
import { ask, publish, published, serve } from "./asking.mjs";
import { buildId } from "./build-info.mjs";
import { core, use } from "./core.mjs";
import { deadLetters, exportDead, removeDead, resume, retryDead } from "./letters.mjs";
import { lock, singleFlight } from "./locks.mjs";
import { digested, explain } from "./payloads.mjs";
import { attend } from "./sending.mjs";
import { breaker, health, progress, stand } from "./standing.mjs";
import { diagnose, history, hooks, metrics, persist } from "./support.mjs";

/** @typedef {import("./core.mjs").Core} Core */
/**
 * @typedef {object} Listening
 * @property {Map<string, (data: any) => void>} messages of the engine that the client itself does not know, by type
 * @property {Set<(reason: string) => void>} downs called inside `freeze` and `pagehide`, and when the connection is gone
 */
/**
 * @typedef {object} Parts a joined tab, from inside
 * @property {import("./tabhelm.js").Tab} tab
 * @property {import("./session.mjs").Session} session
 * @property {Map<string, import("./election.mjs").Election>} elections by their handles
 * @property {Map<string, import("./queue.mjs").Queue>} queues by their handles
 * @property {(type: string, detail: unknown) => void} emit an event of the tab
 */
/** @typedef {Parts & Listening} Inside */

/** @type {Map<Function, Promise<typeof import("./extras.mjs")>>} for further copies of the client in this page, by their class of errors */
const copies = new Map();

/**
 * @param {Core} given
 * @returns {any} that, or a promise of it
 * @throws Error a newer bundle lies at this URL by now
 */
export function of(given) {
  if (given.buildId !== buildId) {
    throw new Error(`it is of build ${buildId}, this page of ${given.buildId}: reload the page, or serve each build at its own URL`);
  }
  if (core && core.TabhelmError !== given.TabhelmError) {
    // A copy of the client at another URL, which found the same file: it gets a copy of this one. Same file, no request.
    const known = copies.get(given.TabhelmError) ?? import(`${import.meta.url}#${copies.size + 1}`);
    copies.set(given.TabhelmError, known);
    return known.then((copy) => copy.of(given));
  }
  use(given);
  return {
    ask, breaker, deadLetters, diagnose, digested, explain, exportDead, health, heard, history, hooks, lock, metrics, persist, progress,
    publish, removeDead, resume, retryDead, serve, singleFlight, stand,
  }; // prettier-ignore
}

/** A message that the client does not know, or at each connection what is told of the engine. @param {Inside} inside @param {any} data */
function heard(inside, data) {
  attend(inside);
  if (data.type === "state") published(inside, data);
  else inside.messages.get(data.type)?.(data); // else from a newer engine
}
