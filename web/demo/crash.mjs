// A crash that is real: the page's process dies, without any farewell.

/** An XPath expression so deep that evaluating it overruns the stack of Chromium and WebKit. */
const DEEP = `1${"+1".repeat(400_000)}`;

/**
 * Firefox keeps all tabs of a site in one process: a crash would take every tab along, and leave nobody to take over. There,
 * and wherever the page survives, it leaves at once.
 */
export const canCrash = !navigator.userAgent.includes("Firefox/");

export function crash() {
  if (canCrash) document.evaluate(DEEP, document, null, XPathResult.NUMBER_TYPE, null);
  location.assign("/blank");
}
