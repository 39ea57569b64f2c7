/**
 * What a service worker does for pages that shall open without a network: it keeps the bundle, and files of the app if it is
 * told which, each release in a cache of its own; and it answers each tab, and each engine, from the release that this tab
 * began with, for as long as the tab lives, whichever service worker is in charge by then.
 *
 * Nothing but these files is answered here: whatever else a page asks for goes past, as if there were no service worker.
 */
import { buildId, files as built, version as builtVersion } from "./service-worker-files.mjs";
import { Failure, fetched, integrityOf } from "./keeper-fetch.mjs";
import { passBy } from "./keeper-routes.mjs";
import { Tabs } from "./keeper-tabs.mjs";

/**
 * @typedef {object} Kept
 * @property {string} base where the bundle is served, from the service worker's own address
 * @property {string[]} [files] of the app, from the service worker's own address; a page's without its query
 * @property {string} [version] the release that `files` are of: with each new one they are fetched anew
 * @property {boolean} [claim] whether pages that were there before the very first service worker are served too (default: yes)
 * @property {boolean} [alone] whether nothing else in this service worker answers requests (default: no)
 */
/**
 * What is used of a ServiceWorkerGlobalScope.
 * @typedef {{location: Location, registration: ServiceWorkerRegistration, clients: any, skipWaiting: () => Promise<void>,
 *   addEventListener: (type: string, listener: (event: any) => void) => void}} WorkerScope
 */
/** @typedef {{build: string, version: string}} Release */

const AT_ONCE = 4;
/**
 * A page that a newer release of the server's shall replace is waited for so long, then the kept one comes; and so long may the
 * comparing take, for browsers let no new service worker take over while the old one is at work.
 */
const SLOW_MS = 5_000;
/** Asked of the server always: what lies there now is the question. */
const NEVER_KEPT = new Set(["manifest.json", "service-worker.js"]);
/** Caches of ours, of any release of this registration, begin with these words. */
const MARK = "tabhelm-offline";
const COMPLETE = "?complete";
/** Beside what is kept of the app: the server has something else by now. */
const OUTDATED = "?outdated";
/** Beside the tabs' records: a page has taken all away, and nothing more is to be kept. */
const REMOVED = "?removed";
/** What a tab is of that began with a page of the server's: nothing that is kept here. @type {Release} */
const SERVED = { build: "", version: "" };

export class Keeper {
  #worker;
  #prefix;
  #base = new URL("about:blank");
  /** @type {Set<string>} addresses of the app's files */
  #files = new Set();
  /** @type {Release} */
  #own = { build: buildId, version: "" };
  #claim = true;
  #alone = false;
  #first = false;
  #tabs;
  /** Whether a changed script tells of each new release: not if all that is kept stands in the script's address. */
  #told = false;
  /** @type {Promise<void> | null} */
  #comparing = null;

  /** @param {WorkerScope} worker @param {Kept} kept */
  constructor(worker, kept) {
    this.#worker = worker;
    this.#prefix = `${MARK} ${worker.registration.scope} `;
    this.#tabs = new Tabs(this.#tabsName, worker.registration.scope);
    this.keep(kept);
    this.#told = false;
    worker.addEventListener("install", (event) => {
      event.waitUntil(this.#install());
      if (this.#alone) passBy(event, this.#base, this.#files);
    });
    worker.addEventListener("activate", (event) => event.waitUntil(this.#activate()));
    worker.addEventListener("fetch", (event) => this.#fetch(event));
    worker.addEventListener("message", (event) => this.#message(event));
  }

  /** Say what to keep. Only while the script runs for the first time. @param {Kept} kept */
  keep({ base, files = [], version = "", claim = true, alone = false }) {
    if (files.length && !version) {
      throw new TypeError("tabhelmOffline: files without a version would never be fetched again: name the release that they are of");
    }
    this.#alone = alone;
    const { href } = this.#worker.location;
    this.#base = new URL(base, href);
    if (!this.#base.pathname.endsWith("/")) throw new TypeError(`tabhelmOffline: base ${JSON.stringify(base)} must end with "/"`);
    this.#files = new Set(files.map((file) => plain(new URL(file, href))));
    for (const file of this.#files) {
      if (new URL(file).origin !== this.#worker.location.origin) throw new TypeError(`tabhelmOffline: ${file} is of another origin`);
    }
    this.#own = { build: buildId, version };
    this.#claim = claim;
    this.#told = true;
  }

  // ---- its life ------------------------------------------------------------------------------------------------------

  async #install() {
    this.#first = !this.#worker.registration.active;
    await this.#keepAll();
    await this.#tell({ state: "installed" });
  }

  /** What is not there yet; nothing half-written stays. */
  async #keepAll() {
    const names = [this.#bundleCache(this.#own), ...(this.#files.size ? [this.#appCache(this.#own)] : [])];
    const begun = [];
    try {
      await (await caches.open(this.#tabsName)).delete(this.#marked(REMOVED));
      for (const name of names) if (!(await this.#isComplete(name))) begun.push(name);
      for (const name of begun) {
        await caches.delete(name); // what an attempt before left
        await (name === names[0] ? this.#keepBundle(name) : this.#keepFiles(name));
      }
    } catch (error) {
      const failure = error instanceof Failure ? error : stored(error);
      for (const name of begun) await caches.delete(name).catch(() => {});
      await this.#tell({ state: "failed", code: failure.code, reason: failure.message });
      throw failure; // the browser drops this service worker; pages go on as before, and the next registration tries again
    }
  }

  async #activate() {
    const { clients } = this.#worker;
    if (this.#first) {
      // The pages that are there were loaded from the server, and are of this release.
      const all = await clients.matchAll({ includeUncontrolled: true, type: "all" });
      for (const { id } of all) await this.#tabs.remember(id, this.#own, false);
      if (this.#claim) await clients.claim();
    }
    await this.#sweep();
    await this.#tell({ state: "activated" });
  }

  /** @param {any} event */
  #message(event) {
    const { data, ports, source } = event;
    if (data?.type !== MARK) return;
    if (data.ask === "activate") event.waitUntil(this.#worker.skipWaiting());
    if (data.ask === "keep") event.waitUntil(this.#keepAgain());
    if (data.ask === "status") (ports[0] ?? source)?.postMessage({ ...this.#about(), state: "status" });
  }

  /** All of it was taken away (by a page's `remove()`, an app's own tidying), and a page wants it kept. @type {Promise<void> | null} */
  #keeping = null;

  #keepAgain() {
    const { active } = this.#worker.registration;
    if (active?.state !== "activated") return; // an installing one does it, or has just done it
    this.#keeping ??= this.#keepAll()
      .catch(() => {}) // told
      .finally(() => (this.#keeping = null));
    return this.#keeping;
  }

  #about() {
    const bytes = Object.values(built).reduce((sum, { size }) => sum + size, 0);
    return { type: MARK, scope: this.#worker.registration.scope, buildId, bundleVersion: builtVersion, version: this.#own.version, files: this.#files.size, bytes };
  }

  /** Every page of this registration hears it, also those that no service worker serves yet. @param {object} news */
  async #tell(news) {
    const { clients, registration } = this.#worker;
    const pages = await clients.matchAll({ includeUncontrolled: true, type: "window" });
    for (const page of pages) if (page.url.startsWith(registration.scope)) page.postMessage({ ...this.#about(), ...news });
  }

  // ---- what is kept --------------------------------------------------------------------------------------------------

  /** @param {Release} release */
  #bundleCache({ build }) {
    return `${this.#prefix}bundle ${this.#base.pathname} ${build}`;
  }

  /** @param {Release} release */
  #appCache({ version }) {
    return `${this.#prefix}app ${version}`;
  }

  /** Names of the caches of all releases of this registration. */
  async #releases() {
    const names = await caches.keys();
    return names.filter((name) => name.startsWith(this.#prefix) && name !== this.#tabsName);
  }

  get #tabsName() {
    return `${this.#prefix}tabs`;
  }

  /** @param {string} mark */
  #marked(mark) {
    return new URL(mark, this.#worker.registration.scope).href;
  }

  /** @param {string} name @returns {Promise<Record<string, string> | null>} the hashes of what it keeps, by address */
  async #isComplete(name) {
    if (!(await caches.has(name))) return null;
    const mark = await (await caches.open(name)).match(this.#marked(COMPLETE));
    return mark ? mark.json() : null;
  }

  /** @param {string} name */
  async #keepBundle(name) {
    const cache = await caches.open(name);
    const entries = Object.entries(built).filter(([file]) => !NEVER_KEPT.has(file));
    /** @type {Record<string, string>} */
    const hashes = Object.fromEntries(entries.map(([file, { integrity }]) => [this.#address(file), integrity]));
    const older = await this.#older(hashes);
    await some(entries, async ([file, entry]) => {
      const address = this.#address(file);
      const kept = older.get(entry.integrity)?.clone() ?? (await fetched(address, entry));
      await cache.put(address, kept);
    });
    await cache.put(this.#marked(COMPLETE), Response.json(hashes));
  }

  /** @param {string} name */
  async #keepFiles(name) {
    const cache = await caches.open(name);
    await some([...this.#files], async (address) => cache.put(address, await fetched(address, null)));
    await cache.put(this.#marked(COMPLETE), Response.json({}));
  }

  /** What other builds have kept of the same files: most of a new build's megabytes are the old one's. @param {Record<string, string>} wanted */
  async #older(wanted) {
    const hashes = new Set(Object.values(wanted));
    /** @type {Map<string, Response>} */
    const found = new Map();
    for (const name of await this.#releases()) {
      for (const [address, integrity] of Object.entries((await this.#isComplete(name)) ?? {})) {
        const kept = hashes.has(integrity) && !found.has(integrity) && (await (await caches.open(name)).match(address));
        if (kept) found.set(integrity, kept);
      }
    }
    return found;
  }

  /** Delete releases that no living tab is of. Not while another service worker is on its way: one of them is its own. */
  async #sweep() {
    const names = await this.#releases();
    const { clients, registration } = this.#worker;
    const living = await clients.matchAll({ includeUncontrolled: true, type: "all" });
    const used = [this.#own, ...(await this.#tabs.releases(new Set(living.map((/** @type {{id: string}} */ { id }) => id))))];
    const needed = new Set(used.flatMap((release) => [this.#bundleCache(release), this.#appCache(release)]));
    if (registration.installing || registration.waiting) return;
    await Promise.all(names.filter((name) => !needed.has(name)).map((name) => caches.delete(name)));
  }

  // ---- answers -------------------------------------------------------------------------------------------------------

  /** @param {any} event a FetchEvent */
  #fetch(event) {
    const { request } = event;
    const url = new URL(request.url);
    if (request.method !== "GET" || url.origin !== this.#base.origin || request.headers.has("range")) return;
    const address = plain(url, request.mode === "navigate");
    const file = url.pathname.startsWith(this.#base.pathname) ? url.pathname.slice(this.#base.pathname.length) : "";
    const ofBundle = file !== "" && !NEVER_KEPT.has(file);
    if (!ofBundle && !this.#files.has(address)) return;
    // Whoever else listens here, in an app's own service worker, would fail by answering once more.
    event.stopImmediatePropagation();
    event.respondWith(this.#answer(event, ofBundle ? this.#address(file) : address, ofBundle));
  }

  /** @param {any} event @param {string} address @param {boolean} ofBundle @returns {Promise<Response>} */
  async #answer(event, address, ofBundle) {
    const { request, clientId, resultingClientId } = event;
    try {
      // Written down before the answer: the next service worker, which may take over at any moment, must know of it.
      const remember = (/** @type {[string, Release, boolean?]} */ ...record) => this.#tabs.remember(...record).catch(() => {});
      // A page begins with what is in charge when it is opened, an engine with what its page is of.
      if (request.mode === "navigate") {
        const newer = await this.#newerPage(request);
        await remember(resultingClientId, newer ? SERVED : this.#own);
        event.waitUntil(this.#sweep().catch(() => {}));
        event.waitUntil(this.#compare());
        if (newer) return newer;
      }
      const release = request.mode === "navigate" ? this.#own : (clientId && (await this.#tabs.recall(clientId))) || this.#own;
      if (request.mode !== "navigate") {
        await remember(clientId, release, false);
        await remember(resultingClientId, release);
      }
      const afresh = request.cache === "reload" || request.cache === "no-store"; // somebody doubts what was kept
      const kept = await this.#kept(release, address, ofBundle);
      if (kept && !afresh) return kept;
      if (kept) return await fetch(request).catch(() => kept);
      const mended = ofBundle && release.build === buildId ? await this.#mend(address) : null;
      if (mended) return mended;
    } catch {
      // the storage fails: then it is as if nothing were kept
    }
    return fetch(request);
  }

  /**
   * Where all that is kept stands in this script's address, no script tells of a new release, and pages that are answered
   * from what was kept never name the new one's address. So with each page that is opened the kept files are compared with
   * the server's, and when one differs the next page is the server's, with all its files.
   */
  #compare() {
    if (this.#told || !this.#files.size) return null;
    this.#comparing ??= this.#outdated()
      .then(async (outdated) => {
        const cache = await caches.open(this.#appCache(this.#own));
        await (outdated ? cache.put(this.#marked(OUTDATED), new Response()) : cache.delete(this.#marked(OUTDATED)));
      })
      .catch(() => {}) // no network: it stays as it is
      .finally(() => (this.#comparing = null));
    return this.#comparing;
  }

  /** Whether the server has another release of the app's files. */
  async #outdated() {
    if (!(await this.#isComplete(this.#appCache(this.#own)))) throw new Error("nothing is kept");
    let outdated = false;
    const signal = AbortSignal.timeout(SLOW_MS);
    await some([...this.#files], async (address) => {
      const [kept, served] = await Promise.all([this.#kept(this.#own, address, false), fetched(address, null, signal)]);
      outdated ||= !kept || (await integrityOf(await kept.arrayBuffer())) !== (await integrityOf(await served.arrayBuffer()));
    });
    return outdated;
  }

  /** The server's page, if what is kept is outdated and the server answers. @param {Request} request @returns {Promise<Response | null>} */
  async #newerPage(request) {
    const name = this.#appCache(this.#own);
    if (this.#told || !(await caches.has(name)) || !(await (await caches.open(name)).match(this.#marked(OUTDATED)))) return null;
    const late = new Promise((resolve) => setTimeout(resolve, SLOW_MS, null));
    const response = await Promise.race([fetch(request).catch(() => null), late]);
    return response && response.status < 500 ? response : null;
  }

  /** @param {Release} release @param {string} address @param {boolean} ofBundle */
  async #kept(release, address, ofBundle) {
    const name = ofBundle ? this.#bundleCache(release) : this.#appCache(release);
    return (await caches.has(name)) ? (await caches.open(name)).match(address, { ignoreVary: true }) : undefined;
  }

  /** A file that was kept and is gone (the browser, or the user, took it) is fetched and kept again. @param {string} address */
  async #mend(address) {
    const entry = built[address.slice(this.#address("").length)];
    const response = entry && (await fetched(address, entry).catch(() => null));
    if (!response) return null;
    if (await (await caches.open(this.#tabsName)).match(this.#marked(REMOVED))) return response;
    const copy = response.clone();
    await caches.open(this.#bundleCache(this.#own)).then((cache) => cache.put(address, copy)).catch(() => {});
    return response;
  }

  /** @param {string} file */
  #address(file) {
    return new URL(file, this.#base).href;
  }
}

/** An address without what no server sees, and, for a page, without its query. @param {URL} url @param {boolean} [ofPage] */
function plain(url, ofPage = false) {
  return url.origin + url.pathname + (ofPage ? "" : url.search);
}

/** @param {any} error */
function stored(error) {
  if (error?.name === "QuotaExceededError") return new Failure("quota", `the storage of this origin is full: ${error.message}`, error);
  return new Failure("storage", `the browser could not keep the files: ${error?.message ?? error}`, error);
}

/**
 * A few at a time; the first failure ends it, after those that were begun.
 * @template T @param {T[]} items @param {(item: T) => Promise<unknown>} work
 */
async function some(items, work) {
  const left = [...items];
  /** @type {unknown[]} */
  const failures = [];
  const lane = async () => {
    for (let item = left.shift(); item !== undefined; item = left.shift()) {
      await work(item).catch((error) => void (failures.push(error), (left.length = 0)));
    }
  };
  await Promise.all(Array.from({ length: AT_ONCE }, lane));
  if (failures.length) throw failures[0];
}
