/** What extras.mjs and its parts have from the client. In a file of its own, for the bundle of extras.mjs imports nothing from itself. */

/**
 * @typedef {object} Core what both must have in one copy
 * @property {typeof import("./checks.mjs").TabhelmError} TabhelmError
 * @property {typeof import("./checks.mjs").LeadershipLost} LeadershipLost
 * @property {string} buildId
 */

/** @type {Core} */
export let core;

/** @param {Core} given */
export function use(given) {
  core = given;
}
