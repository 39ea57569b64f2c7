/** What a tab and its engine know of themselves: for support tickets, and for test builds. */
import { buildId } from "./build-info.mjs";
import { message, version } from "./checks.mjs";

/** @typedef {import("./extras.mjs").Inside} Inside */

const PATIENCE_MS = 2_000;

/** @param {Inside} inside */
export async function diagnose(inside) {
  const { tab, session, elections, queues } = inside;
  const page = {
    version,
    buildId,
    tab: tab.id,
    connection: tab.connectionId,
    generation: tab.generation,
    host: tab.host,
    hostState: tab.hostState,
    ...session.state(),
    doubts: session.doubts(session.settings.stallAfterMs),
    malformed: session.malformed,
    elections: [...elections.values()].map(({ key, status }) => ({ resource: key, status })),
    queues: [...queues.values()].map(({ name, scope }) => ({ name, scope })),
  };
  return { page, engine: await ask(inside, "diagnose") };
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

/** A call that never rejects, and waits no longer than a person would. @param {Inside} inside @param {string} method */
function ask({ session }, method) {
  const silence = new Promise((resolve) => {
    setTimeout(() => resolve({ error: `no answer within ${PATIENCE_MS} ms` }), PATIENCE_MS);
  });
  return Promise.race([session.call(method, {}, { once: true }).catch((error) => ({ error: message(error) })), silence]);
}
