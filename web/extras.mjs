/**
 * What few pages use, in one file that the client fetches when it is first asked for. It is bundled apart from the client, and
 * shares nothing with it but what it is given: classes that a page compares by `instanceof` come from the client.
 */
import { ask, publish, published, serve } from "./asking.mjs";
import { buildId } from "./build-info.mjs";
import { deadLetters, removeDead, resume, retryDead } from "./letters.mjs";
import { lock, singleFlight } from "./locks.mjs";
import { breaker, health, progress, stand } from "./standing.mjs";
import { diagnose, history, hooks, metrics } from "./support.mjs";

/**
 * @typedef {object} Core what both must have in one copy
 * @property {typeof import("./checks.mjs").TabhelmError} TabhelmError
 * @property {typeof import("./checks.mjs").LeadershipLost} LeadershipLost
 * @property {string} buildId
 */
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

/** @type {Core} */
export let core;

/**
 * @param {Core} given
 * @throws Error a newer bundle lies at this URL by now
 */
export function of(given) {
  if (given.buildId !== buildId) {
    throw new Error(`it is of build ${buildId}, this page of ${given.buildId}: reload the page, or serve each build at its own URL`);
  }
  core = given;
  return { ask, breaker, deadLetters, diagnose, health, heard, history, hooks, lock, metrics, progress, publish, removeDead, resume, retryDead, serve, singleFlight, stand };
}

/** A message that the client does not know. @param {Inside} inside @param {any} data */
function heard(inside, data) {
  if (data.type === "state") published(inside, data); // else from a newer engine
}
