// Two service workers, one after the other, and what the first wrote down. Caches are maps here; the clock is ours.
import { pathToFileURL } from "node:url";

const { Tabs } = await import(pathToFileURL(process.argv[2]).href);
const stores = new Map();
globalThis.caches = {
  async open(name) {
    if (!stores.has(name)) stores.set(name, new Map());
    const store = stores.get(name);
    return {
      keys: async () => [...store.keys()].map((url) => ({ url })),
      match: async (key) => store.get(key.url ?? key)?.clone(),
      put: async (key, response) => void store.set(key.url ?? key, response),
      delete: async (key) => store.delete(key.url ?? key),
    };
  },
};
let now = 1_000_000;
Date.now = () => now;
const worker = () => new Tabs("tabs", "https://app.example/");
const old = { build: "b1", version: "1" };
const said = {};

await worker().remember("unborn", old);
said.whileItIsOnItsWay = await worker().releases(new Set());
said.forItsFirstFile = await worker().recall("unborn");
now += 61_000;
said.neverBorn = await worker().releases(new Set());
said.forgotten = await worker().recall("unborn");

await worker().remember("closed", old);
said.seen = await worker().releases(new Set(["closed"]));
said.closedSoonAfter = await worker().releases(new Set());

await worker().remember("tab", old);
now += 1e9;
said.daysLater = await worker().releases(new Set(["tab"]));
await (await caches.open("tabs")).put("https://app.example/?removed", new Response());
said.besideAMark = await worker().releases(new Set(["tab"]));
console.log(JSON.stringify(said));
