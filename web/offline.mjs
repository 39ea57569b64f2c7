// For pages that shall open without a network: registers the bundle's service worker, or the app's own, and tells what became
// of it. A module of its own, so that no other page pays for it (docs/offline.md).

const MARK = "tabhelm-offline";
const STATUS_MS = 5_000;

/** @type {{createScriptURL: (url: string) => any} | undefined} */
let policy;

/** Under `require-trusted-types-for 'script'` no text makes a worker. @param {string} url */
function trusted(url) {
  try {
    policy ??= /** @type {any} */ (globalThis).trustedTypes?.createPolicy(MARK, { createScriptURL: (/** @type {string} */ given) => given });
  } catch {
    // the page's policy does not list this name: its default policy, if it has one, is asked
  }
  return policy?.createScriptURL(url) ?? url;
}

/** @typedef {import("./offline.mjs").OfflineState} OfflineState */
/** @typedef {import("./offline.mjs").OfflineCode} OfflineCode */

class Offline extends EventTarget {
  /** @type {OfflineState} */
  state = "starting";
  /** @type {OfflineCode | null} */
  code = null;
  /** @type {string | null} */
  reason = null;
  updateWaiting = false;
  /** @type {ServiceWorkerRegistration | null} */
  registration = null;
  /** Its address. */
  #scope;
  #registered;

  /** @param {string} scope @param {(offline: Offline) => Promise<void>} register */
  constructor(scope, register) {
    super();
    this.#scope = new URL(scope, document.baseURI).href;
    this.#registered = register(this);
  }

  /** Whether a service worker's word is for this page. @param {any} data */
  concerns(data) {
    return data?.type === MARK && (data.scope === undefined || data.scope === this.#scope);
  }

  activate() {
    this.registration?.waiting?.postMessage({ type: MARK, ask: "activate" });
  }

  async status() {
    const worker = this.registration?.active;
    if (!worker) return null;
    const { port1, port2 } = new MessageChannel();
    const answered = new Promise((resolve) => {
      port1.onmessage = ({ data }) => resolve(data);
      setTimeout(resolve, STATUS_MS, null); // another service worker of the app's, which does not know us
    });
    worker.postMessage({ type: MARK, ask: "status" }, [port2]);
    const answer = await answered;
    port1.close();
    if (!answer) return null;
    const { buildId, bundleVersion, version, files, bytes } = answer;
    return { buildId, bundleVersion, version, files, bytes };
  }

  async remove() {
    if (this.state === "unsupported") return;
    await this.#registered;
    const registration = this.registration ?? (await navigator.serviceWorker.getRegistration(this.#scope));
    // One that serves another scope is not ours.
    const ours = registration?.scope === this.#scope;
    if (ours) await registration.unregister();
    // As long as pages are left it goes on serving them: it shall not begin anew to keep what they ask for.
    const tabs = `${MARK} ${this.#scope} tabs`;
    if (ours && registration.active) await (await caches.open(tabs)).put(`${this.#scope}?removed`, new Response());
    const names = await caches.keys();
    const mine = names.filter((name) => name.startsWith(`${MARK} ${this.#scope} `) && name !== tabs);
    await Promise.all(mine.map((name) => caches.delete(name)));
    this.registration = null;
    set(this, "removed");
  }
}

/** @param {Offline} offline @param {OfflineState} state @param {OfflineCode | null} [code] @param {string | null} [reason] */
function set(offline, state, code = null, reason = null) {
  if (offline.state === state && offline.code === code) return;
  Object.assign(offline, { state, code, reason });
  offline.dispatchEvent(new CustomEvent("state", { detail: { state, code, reason } }));
}

/** @type {typeof import("./offline.mjs").keepOffline} */
export function keepOffline({ worker, scope = "/", type = "classic", files = [], version = "", tab } = {}) {
  const url = new URL(worker ?? new URL("service-worker.js", import.meta.url), document.baseURI);
  for (const file of files) url.searchParams.append("file", new URL(file, document.baseURI).href);
  if (version) url.searchParams.set("version", version);
  const offline = new Offline(scope, (made) => register(made, url.href, scope, type));
  tab?.addEventListener("event", ({ detail }) => {
    // Another tab runs a newer version of the app: its service worker cannot be far.
    if (detail.type === "update-available") offline.registration?.update().catch(() => {});
  });
  return offline;
}

/** @param {Offline} offline @param {string} url @param {string} scope @param {WorkerType} type */
async function register(offline, url, scope, type) {
  const container = navigator.serviceWorker;
  if (!container) {
    const why = isSecureContext ? "this browser, or this private window, has no service workers" : `${location.origin} is no secure context: serve the page over https, or from localhost`;
    return set(offline, "unsupported", "no-service-worker", why);
  }
  container.addEventListener("message", ({ data }) => {
    if (offline.concerns(data) && data.state === "failed") failed(offline, data.code, String(data.reason));
  });
  container.startMessages();
  try {
    // A page of the older release, kept and opened once more, takes nothing back from a newer one that waits.
    const there = await container.getRegistration(scope);
    const superseded = there?.active?.scriptURL === url && (there.installing || there.waiting);
    const registration = superseded ? there : await container.register(trusted(url), { scope, type, updateViaCache: "none" });
    watch(offline, registration);
    // What it kept may have been taken away, by `remove()` in another tab or by an app that tidies caches up.
    if (!registration.installing && !registration.waiting) registration.active?.postMessage({ type: MARK, ask: "keep" });
  } catch (error) {
    const { name, message } = /** @type {Error} */ (error);
    const hint = name === "SecurityError" ? `; where its script lies in another folder than ${scope}, it must be served with Service-Worker-Allowed: ${scope}` : "";
    const reason = `the service worker could not be registered: ${message}${hint}`;
    // Without a network no new one is registered; the one that is there serves this page all the same.
    const registration = await container.getRegistration(scope).catch(() => undefined);
    if (!registration?.active || !offline.concerns({ type: MARK, scope: registration.scope })) return set(offline, "failed", "not-registered", reason);
    watch(offline, registration);
    failed(offline, "not-registered", reason);
  }
}

/** @param {Offline} offline @param {ServiceWorkerRegistration} registration */
function watch(offline, registration) {
  offline.registration = registration;
  registration.addEventListener("updatefound", () => follow(offline, registration));
  follow(offline, registration);
  if (registration.active) look(offline, registration);
}

/** @param {Offline} offline @param {ServiceWorkerRegistration} registration */
function follow(offline, registration) {
  const { installing } = registration;
  if (!installing) return;
  if (!registration.active) set(offline, "installing");
  installing.addEventListener("statechange", () => {
    // Its own words come first where they come at all.
    if (installing.state === "redundant" && !registration.active) setTimeout(failed, 100, offline, "not-installed", "the browser gave the service worker up while it was being installed");
    look(offline, registration);
  });
}

/** What is there by now. @param {Offline} offline @param {ServiceWorkerRegistration} registration */
function look(offline, registration) {
  if (registration.active?.state === "activated" && offline.state !== "removed") set(offline, "ready");
  const waiting = registration.waiting !== null && registration.active !== null;
  if (waiting === offline.updateWaiting) return;
  offline.updateWaiting = waiting;
  offline.dispatchEvent(new CustomEvent("update", { detail: { waiting } }));
}

/** @param {Offline} offline @param {OfflineCode} code @param {string} reason */
function failed(offline, code, reason) {
  // While an older one is in charge, this page is as ready as it was.
  if (offline.registration?.active) offline.dispatchEvent(new CustomEvent("update", { detail: { waiting: false, code, reason } }));
  else if (offline.state !== "failed") set(offline, "failed", code, reason);
}
