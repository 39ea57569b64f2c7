/**
 * Which release each living tab, and each engine, began with. A service worker forgets all it knows whenever the browser
 * likes, and the next one must know what the one before it served: so it is written down, one record for each, in a cache.
 */

/** @typedef {import("./keeper.mjs").Release} Release */

/**
 * A tab, or an engine, is no client yet while its first file is on its way: its record is not called superfluous before this,
 * by whichever service worker.
 */
const UNBORN_MS = 60_000;

export class Tabs {
  #name;
  #scope;
  /** @type {Map<string, Release>} */
  #known = new Map();

  /** @param {string} name of the cache @param {string} scope */
  constructor(name, scope) {
    this.#name = name;
    this.#scope = scope;
  }

  /** @param {string} id of a client @returns {Promise<Release | null>} */
  async recall(id) {
    const known = this.#known.get(id);
    if (known) return known;
    const record = await (await caches.open(this.#name)).match(this.#key(id));
    if (!record) return null;
    const { build, version } = await record.json();
    this.#known.set(id, { build, version });
    return { build, version };
  }

  /** @param {string} id @param {Release} release @param {boolean} [anew] else what is known of it stays */
  async remember(id, release, anew = true) {
    if (!id || (!anew && (await this.recall(id)))) return;
    this.#known.set(id, release);
    await (await caches.open(this.#name)).put(this.#key(id), Response.json({ ...release, at: Date.now() }));
  }

  /** The releases of these; the others' records are forgotten. @param {Set<string>} living ids @returns {Promise<Release[]>} */
  async releases(living) {
    const cache = await caches.open(this.#name);
    const found = [];
    for (const request of await cache.keys()) {
      const id = new URL(request.url).searchParams.get("tab");
      if (id === null) continue; // a mark of the keeper's
      const record = await cache.match(request);
      const { build, version, at } = record ? await record.json() : {};
      if (living.has(id) || Math.abs(Date.now() - at) < UNBORN_MS) {
        found.push({ build, version });
        if (at && living.has(id)) await cache.put(request, Response.json({ build, version, at: 0 })); // born: from now on it is there, or gone
      } else {
        this.#known.delete(id);
        await cache.delete(request);
      }
    }
    return found;
  }

  /** @param {string} id */
  #key(id) {
    return new URL(`?tab=${encodeURIComponent(id)}`, this.#scope).href;
  }
}
