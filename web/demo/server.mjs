// What the server knows, asked after every change and, while somebody looks, every few seconds.

const EVERY_MS = 5_000;
const SOON_MS = 150;

/** Fires `news` after each answer and each failure. */
export class Server extends EventTarget {
  /** The newest answer: {cases, accepted, doubled, repeated, refused, newest, faults}. */
  overview = null;
  /** Why `overview` may be old, or null. */
  problem = null;
  #timer = 0;
  #asking = false;
  #again = false;
  #orders = 0;
  #ordering = 0;
  /** Called before each question; what it returns comes with the `news` event. */
  #before;

  constructor(before) {
    super();
    this.#before = before;
    setInterval(() => document.visibilityState === "visible" && this.soon(), EVERY_MS);
  }

  /** Ask, a little later, once for all who want it. */
  soon() {
    clearTimeout(this.#timer);
    this.#timer = setTimeout(() => this.ask(), SOON_MS);
  }

  async ask() {
    if (this.#asking) {
      this.#again = true;
      return;
    }
    this.#asking = true;
    const before = this.#before();
    const orders = this.#orders;
    try {
      if (!navigator.onLine) throw new Error("offline");
      const response = await fetch("/api/overview", { headers: { accept: "application/json" }, cache: "no-store" });
      if (!response.ok) throw new Error(`the server answered ${response.status}`);
      const overview = await response.json();
      const replaced = orders !== this.#orders || this.#ordering > 0; // the faults that it tells of
      this.overview = replaced && this.overview ? { ...overview, faults: this.overview.faults } : overview;
      if (replaced && !this.#ordering) this.#again = true;
      this.problem = null;
    } catch (error) {
      this.problem = navigator.onLine ? error.message : "offline";
    }
    this.#asking = false;
    this.dispatchEvent(new CustomEvent("news", { detail: before }));
    if (this.#again) {
      this.#again = false;
      this.soon();
    }
  }

  /** Make the receiver misbehave (see demo_faults.py); {} ends it. */
  async order(faults) {
    this.#ordering += 1;
    const before = this.overview?.faults;
    this.#show(faults); // or the next news would show the old ones once more
    try {
      const response = await fetch("/api/faults", {
        method: "POST",
        headers: { "content-type": "application/json" },
        body: JSON.stringify(faults),
      });
      if (!response.ok) throw new Error(`the server answered ${response.status}`);
    } catch (error) {
      this.#show(before);
      this.soon();
      throw error;
    } finally {
      this.#ordering -= 1;
      this.#orders += 1;
    }
    await this.ask();
  }

  #show(faults) {
    if (this.overview) this.overview = { ...this.overview, faults };
  }
}
