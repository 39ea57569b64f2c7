/** What a person does about a queue: look at its dead letters, send them again, go on. Part of extras.mjs. */
import { checkTexts } from "./checks.mjs";
import { unboxed } from "./payloads.mjs";

/** @typedef {import("./extras.mjs").Inside} Inside */
/** @typedef {import("./queue.mjs").Queue} Queue */

/** @param {Inside} _ @param {Queue} queue */
export async function deadLetters(_, queue) {
  const { letters, values } = await queue.call("deadLetters");
  return letters.map((/** @type {any} */ { value, ...letter }) => (value === undefined ? letter : { ...letter, payload: unboxed(values[value]) }));
}

/** @param {Inside} _ @param {Queue} queue @param {readonly string[]} ids */
export const retryDead = async (_, queue, ids) => queue.call("retryDead", { ids: checkTexts("ids", ids) });

/** @param {Inside} _ @param {Queue} queue @param {readonly string[]} ids */
export const removeDead = async (_, queue, ids) => queue.call("removeDead", { ids: checkTexts("ids", ids) });

/** @param {Inside} _ @param {Queue} queue */
export const exportDead = async (_, queue) => queue.call("exportDead");

/** @param {Inside} _ @param {Queue} queue */
export const resume = async (_, queue) => void (await queue.call("resumeQueue"));
