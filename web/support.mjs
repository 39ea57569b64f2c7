/** What a tab and its engine know of themselves: for support tickets, and for test builds. */
import { buildId } from "./build-info.mjs";
import { bad, checkKeys, checkWhole, message, version } from "./checks.mjs";

/** @typedef {import("./extras.mjs").Inside} Inside */

const PATIENCE_MS = 2_000;

/** @param {Inside} inside */
export async function diagnose(inside) {
  const { tab, session, elections, queues } = inside;
  const salt = hex(crypto.getRandomValues(new Uint8Array(16)));
  const hide = (/** @type {string | null} */ text) => hashed(salt, text);
  /** The first part says what it is, the others for whom. @param {string} key */
  const hideScope = async (key) => {
    const [name, ...scope] = key.split(":");
    return [name, ...(await Promise.all(scope.map(hide)))].join(":");
  };
  const page = {
    version,
    buildId,
    tab: await hide(tab.id),
    connection: await hide(tab.connectionId),
    generation: tab.generation,
    host: tab.host,
    hostState: tab.hostState.state,
    hostReason: tab.hostState.reason,
    ...session.state(),
    doubts: session.doubts(),
    malformed: session.malformed,
    elections: await Promise.all([...elections.values()].map(async ({ key, status }) => ({ resource: await hideScope(key), status }))),
    queues: await Promise.all([...queues.values()].map(async ({ name, scope }) => ({ name, scope: await hide(scope) }))),
  };
  return { page, engine: await ask(inside, "diagnose", { salt }) };
}

/** @param {Inside} inside @param {unknown} [options] */
export async function metrics({ session }, options) {
  const { format = "numbers" } = checkKeys("metrics", options, ["format"]);
  if (format !== "numbers" && format !== "prometheus") {
    throw bad("format", format, '"numbers" or "prometheus" is expected');
  }
  return session.call("metrics", { format }, { once: true });
}

/** @param {Inside} inside @param {unknown} [options] */
export async function history({ session }, options) {
  const { count } = checkKeys("history", options, ["count"]);
  return session.call("history", { count: count === undefined ? undefined : checkWhole("count", count, 1) }, { once: true });
}

/** What test builds expose as `window.__orchestration`. @param {Inside} inside @returns {import("./tabhelm.js").Orchestration} */
export function hooks(inside) {
  const { tab, session, elections } = inside;
  return {
    presenceSnapshot: () => tab.presence(),
    leadershipState: (resource) => {
      const election = [...elections.values()].find(({ key }) => key === resource);
      return { status: election?.status ?? null, leader: election?.leader() ?? tab.presence().leaders[resource] ?? null };
    },
    forceElection: (resource) => session.call("forceElection", { resource }),
    simulateFreeze: () => session.freeze(),
    simulateRestore: () => session.resume(),
    metrics: async () => ({ page: { malformed: session.malformed }, engine: await ask(inside, "metrics") }),
  };
}

/** A call that never rejects, and waits no longer than a person would. @param {Inside} inside @param {string} method @param {object} [params] */
function ask({ session }, method, params = {}) {
  const silence = new Promise((resolve) => {
    setTimeout(() => resolve({ error: `no answer within ${PATIENCE_MS} ms` }), PATIENCE_MS);
  });
  return Promise.race([session.call(method, params, { once: true }).catch((error) => ({ error: message(error) })), silence]);
}

/** The engine hides ids in the same way: what is the same on both sides is the same word. @param {string} salt @param {string | null} text */
async function hashed(salt, text) {
  if (!text) return text;
  const digest = await crypto.subtle.digest("SHA-256", new TextEncoder().encode(`${salt}:${text}`));
  return `~${hex(new Uint8Array(digest)).slice(0, 10)}`;
}

/** @param {Uint8Array} bytes */
function hex(bytes) {
  return Array.from(bytes, (byte) => byte.toString(16).padStart(2, "0")).join("");
}
