/** What a tab and its engine know of themselves: for support tickets, and for test builds. */
import { buildId } from "./build-info.mjs";
import { bad, checkKeys, checkWhole, message, version } from "./checks.mjs";

/** @typedef {import("./extras.mjs").Inside} Inside */

const PATIENCE_MS = 2_000;

/** @param {Inside} inside */
export async function diagnose(inside) {
  const { tab, session, elections, queues } = inside;
  const salt = hex(crypto.getRandomValues(new Uint8Array(16)));
  const hidden = new Pseudonyms(salt);
  const stands = [...elections.values()].map(({ key, status }) => ({ key, status }));
  const words = { hostReason: tab.hostState.reason, statuses: stands.map(({ status }) => status) };
  const page = {
    version,
    buildId,
    tab: await hidden.parts(tab.id),
    connection: await hidden.parts(tab.connectionId),
    generation: tab.generation,
    host: tab.host,
    hostState: tab.hostState.state,
    ...session.state(),
    doubts: session.doubts(),
    malformed: session.malformed,
    queues: await Promise.all([...queues.values()].map(async ({ name, scope }) => ({ name, scope: await hidden.parts(scope) }))),
  };
  const resources = await Promise.all(stands.map(({ key }) => hidden.resource(key)));
  await hidden.all([session.engine?.id, session.settings.userSession], Object.keys(tab.presence().leaders), tab.presence().tabs);
  const told = await hidden.cleaned(words);
  // The engine knows more: what has gone, locks, scopes of other tabs.
  const { told: again, ...engine } = await ask(inside, "diagnose", { salt, told: JSON.stringify(told) });
  const { hostReason, statuses } = again === undefined ? told : JSON.parse(again);
  return {
    page: { ...page, hostReason, elections: resources.map((resource, at) => ({ resource, status: statuses[at] })) },
    engine: engine.error === undefined ? engine : await hidden.cleaned(engine),
  };
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

/** May the browser be kept from clearing this origin's storage when space is short? Asks it to, and the user where it does so. */
export async function persist() {
  return (await navigator.storage?.persist?.()) ?? false;
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

const LEAST = 3; // shorter parts of a scope are hidden only together with the rest of their name
const RANDOM = "(?:[a-z]-)?[0-9a-f]{16,}"; // how an id looks whose tab nobody knows any more

/** One report's names. The engine hides them in the same way: what is the same on both sides is the same word. */
class Pseudonyms {
  #salt;
  /** All that was hidden so far, and as what. @type {Map<string, string>} */
  #known = new Map();

  /** @param {string} salt */
  constructor(salt) {
    this.#salt = salt;
  }

  /** @param {string} text */
  async hide(text) {
    if (!text) return text;
    const digest = await crypto.subtle.digest("SHA-256", new TextEncoder().encode(`${this.#salt}:${text}`));
    const shown = `~${hex(new Uint8Array(digest)).slice(0, 10)}`;
    this.#known.set(text, shown);
    return shown;
  }

  /** Each of an id's or a scope's parts. @template {string | null | undefined} T @param {T} text @returns {Promise<string | T>} */
  async parts(text) {
    if (!text) return text;
    const shown = (await Promise.all(text.split(":").map((part) => this.hide(part)))).join(":");
    this.#known.set(text, shown);
    return shown;
  }

  /** The first part (of a queue the first two) says what it is, the others for whom. @param {string} key */
  async resource(key) {
    const parts = key.split(":");
    const name = parts.splice(0, parts[0] === "offline-queue" ? 2 : 1).join(":");
    if (!parts.length) return key;
    const shown = `${name}:${await this.parts(parts.join(":"))}`;
    this.#known.set(key, shown);
    return shown;
  }

  /** Learn these. @param {(string | null | undefined)[]} ids @param {string[]} keys @param {any[]} tabs of the roster */
  async all(ids, keys, tabs) {
    /** @type {string[]} */
    const stands = tabs.flatMap((tab) => tab.stands ?? []).map((token) => token.slice(token.indexOf(":") + 1));
    const found = tabs.flatMap(({ tabId, connectionId, engineId }) => [tabId, connectionId, engineId]);
    await Promise.all([...[...keys, ...stands].map((key) => this.resource(key)), ...[...ids, ...found].map((id) => this.parts(id))]);
  }

  /** A copy in which every text shows what is known, or looks like an id, as it is shown elsewhere. @param {object} value @returns {Promise<any>} */
  async cleaned(value) {
    const json = JSON.stringify(value);
    for (const [id] of json.matchAll(bounded(RANDOM))) if (!this.#known.has(id)) await this.hide(id);
    const words = [...this.#known.keys()].filter((word) => word.includes(":") || word.length >= LEAST);
    words.sort((one, other) => other.length - one.length);
    if (!words.length) return JSON.parse(json);
    const pattern = bounded(words.map((word) => word.replace(/[^A-Za-z0-9]/g, "\\$&")).join("|"));
    return JSON.parse(json, (key, item) =>
      typeof item === "string" && key !== "state" ? item.replace(pattern, (word) => /** @type {string} */ (this.#known.get(word))) : item,
    );
  }
}

/** @param {string} words */
function bounded(words) {
  return new RegExp(`(?<![A-Za-z0-9])(?:${words})(?![A-Za-z0-9])`, "g");
}

/** @param {Uint8Array} bytes */
function hex(bytes) {
  return Array.from(bytes, (byte) => byte.toString(16).padStart(2, "0")).join("");
}
