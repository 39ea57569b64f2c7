// The entry of service-worker.js, which is a service worker by itself, and a part of an app's own one. It has no import, no
// export and no import.meta, so that `importScripts()`, `import` and `register()` all take it as it is.

import { Keeper } from "./keeper.mjs";

const worker = /** @type {import("./keeper.mjs").WorkerScope} */ (/** @type {unknown} */ (globalThis));
const own = new URL(worker.location.href);

// Listeners must be there when this script has run, and so they are, with what the address says. An app's own service worker
// says it anew, in the same task, by calling `tabhelmOffline({base: "/tabhelm/", files, version})`.
const keeper = new Keeper(worker, {
  base: "./",
  files: own.searchParams.getAll("file"),
  version: own.searchParams.get("version") ?? "",
  alone: own.pathname.endsWith("/service-worker.js"), // else it is a part of the app's own, which may answer more
});
Reflect.set(globalThis, "tabhelmOffline", (/** @type {import("./keeper.mjs").Kept} */ kept) => keeper.keep(kept));
