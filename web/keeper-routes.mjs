/** Browsers limit the routes that a service worker may name, at some hundreds. */
const MAX_ROUTES = 200;

/**
 * What is not kept goes to the server without asking the service worker, in browsers that know routes: sooner, and without
 * keeping it at work. Only where nothing else in it answers requests. Chromium ends an old service worker that is to be
 * replaced; a request that comes just then starts it anew, and the new one waits until there was none for 30 seconds, or for
 * 5 minutes.
 * @param {any} event the installation's @param {URL} base of the bundle @param {Set<string>} files addresses of the app's
 */
export function passBy(event, base, files) {
  const Pattern = Reflect.get(globalThis, "URLPattern");
  if (!event.addRoutes || !Pattern || files.size > MAX_ROUTES) return;
  const paths = [...files].map((file) => escaped(new URL(file).pathname));
  const kept = [`${escaped(base.pathname)}*`, ...paths].map((pathname) => ({ urlPattern: new Pattern({ pathname }) }));
  const rules = [
    { condition: { or: kept }, source: "fetch-event" },
    { condition: { urlPattern: new Pattern({}) }, source: "network" },
  ];
  event.addRoutes(rules).catch(() => {}); // then all requests come here, as in other browsers
}

/** A path as a pattern that means just it. @param {string} path */
function escaped(path) {
  return path.replace(/[\\.*+?^${}()|[\]:]/g, "\\$&");
}
