// Why a page cannot have an engine, in words: loaded by the page client in that case only, so that no other page pays for it.

const SERVE = "serve all files of one build together, with a JavaScript type for .mjs";

/**
 * @param {{engineUrl: string, host: string, buildId: string}} page
 * @returns {Promise<string>} what is missing, and the way out
 */
export async function explain({ engineUrl, host, buildId }) {
  return lacking(host) ?? (await served(engineUrl, buildId));
}

/** What this page lacks, whatever is served to it. @param {string} host @returns {string | null} */
function lacking(host) {
  if (typeof document === "undefined") return "join() runs in a page; a worker has no lifecycle of its own";
  if (globalThis.origin === "null") {
    return "this frame has an opaque origin, and so no locks, no storage and no workers of its own: allow-same-origin in its sandbox gives it back, or join in the page around it";
  }
  if (!globalThis.isSecureContext) {
    return `${location.origin} is no secure context, where browsers have no Web Locks (navigator.locks): serve the page over https, or from localhost`;
  }
  if (!navigator.locks) return "this browser has no Web Locks (navigator.locks): Chromium 69, Firefox 96 and Safari 15.4 are the first that have them";
  if (host === "shared" && typeof SharedWorker !== "function") return 'this browser has no SharedWorker: use host "auto" or "window"';
  return null;
}

/** @param {string} engineUrl @param {string} buildId */
async function served(engineUrl, buildId) {
  const manifest = await answer(new URL("manifest.json", engineUrl).href);
  const engine = await answer(engineUrl);
  const there = await manifest.response?.json().then(
    (content) => String(content?.buildId ?? ""),
    () => "",
  );
  if (there && there !== buildId) return `build ${there} is served at ${engineUrl} now, and this page is of build ${buildId}: reload it`;
  if (!engine.response?.ok || !/javascript/.test(engine.type)) return `${engine.said}: ${SERVE}; if a newer build was deployed, reload the page`;
  const policies = "worker-src and script-src of the page's Content-Security-Policy, and that of the script's own answer";
  return `${engine.said}, as it should be: look at ${policies} ('self', 'wasm-unsafe-eval'; under require-trusted-types-for, trusted-types tabhelm)`;
}

/** @param {string} url */
async function answer(url) {
  try {
    const response = await fetch(url, { cache: "no-cache" });
    const type = response.headers.get("content-type") ?? "no type";
    return { response, type, said: `${url} is answered with status ${response.status} and ${type}` };
  } catch (error) {
    return { response: null, type: "", said: `${url} cannot be fetched (${/** @type {Error} */ (error).message})` };
  }
}
