// This app's own switch for "offline": this page is told what a browser without a network would tell it. Pages cannot cut the
// real one, and the other tabs shall stay online.

export const isOff = () => Object.hasOwn(navigator, "onLine");

export function setOffline(off) {
  if (off) Object.defineProperty(navigator, "onLine", { value: false, configurable: true });
  else delete navigator.onLine;
  window.dispatchEvent(new Event(navigator.onLine ? "online" : "offline"));
}
