// This page opens without a network: a service worker keeps it. Opted in here, a little after the tab has joined.
import { keepOffline } from "/tabhelm/offline.mjs";
import { $, say } from "./dom.mjs";

const WORDS = {
  starting: "",
  installing: "Being kept for offline use…",
  ready: "Opens offline, too.",
  failed: "Does not open offline",
  unsupported: "Does not open offline",
  removed: "Does not open offline.",
};

export function keep(tab) {
  const offline = keepOffline({ worker: "/service-worker.js", tab });
  const show = () => say($("kept"), offline.reason ? `${WORDS[offline.state]}: ${offline.reason}.` : WORDS[offline.state]);
  offline.addEventListener("state", show);
  offline.addEventListener("update", ({ detail }) => {
    $("update").hidden = !detail.waiting;
    if (detail.reason) say($("kept"), `Opens offline, too. A newer version could not be kept: ${detail.reason}.`);
  });
  $("update-now").addEventListener("click", () => {
    // Other tabs go on with what they have; this one asked for the new version.
    navigator.serviceWorker.addEventListener("controllerchange", () => location.reload(), { once: true });
    offline.activate();
  });
  show();
  return offline;
}
