// The queue: figures, progress of what is under way, what it waits for, and what will not be sent again.
import { $, element, keyedList, say } from "./dom.mjs";
import { duration, plural } from "./names.mjs";

const PATIENCE_MS = 1_000; // an answer that takes longer is worth a word

const KINDS = { add: "Add", rename: "Rename to", complete: "Complete", reject: "Inspect" };
const FIGURES = { queued: "queued", "in-flight": "inFlight", done: "done", dead: "dead" };

export class QueueView {
  #queue;
  #attempt;
  #leads;
  #stats = null;
  #at = 0; // when the figures came
  #sendingSince = 0;
  #doneBefore = 0; // how many were done when the queue was last empty
  #showDead;

  /** `attempt(work)` makes a listener that tells what failed; `leads()`: the queue's leader or undefined. */
  constructor(queue, attempt, leads) {
    this.#queue = queue;
    this.#attempt = attempt;
    this.#leads = leads;
    this.#showDead = keyedList($("dead-letters"), ({ id }) => id, (letter) => this.#row(letter));
    $("resume").addEventListener("click", attempt(() => queue.resume()));
    $("retry-all").addEventListener("click", attempt(async () => queue.retryDead((await queue.deadLetters()).map(({ id }) => id))));
  }

  /** Nothing is queued or on its way. */
  get drained() {
    return this.#stats !== null && this.#open === 0;
  }

  get #open() {
    return this.#stats.queued + this.#stats.inFlight;
  }

  async show(stats) {
    const before = this.#stats;
    this.#stats = stats;
    this.#at = performance.now();
    if (!stats.inFlight) this.#sendingSince = 0;
    else if (!before?.inFlight || before.done !== stats.done) this.#sendingSince = this.#at;
    if (this.drained || !before) this.#doneBefore = stats.done;
    const done = Math.max(0, stats.done - this.#doneBefore);
    for (const [id, name] of Object.entries(FIGURES)) say($(id), String(stats[name]));
    $("progress").max = Math.max(1, this.#open + done);
    $("progress").value = this.#open ? done : $("progress").max;
    $("progress-text").textContent = this.#open ? `${done} of ${this.#open + done}` : "";
    $("resume").hidden = !stats.paused;
    $("retry-all").hidden = stats.dead < 2;
    $("dead-part").hidden = !stats.dead;
    this.tick();
    if (stats.dead || before?.dead) this.#showDead(stats.dead ? await this.#queue.deadLetters() : []);
  }

  /** Time has passed. */
  tick() {
    if (!this.#stats) return;
    const [text, tone] = this.#state();
    say($("queue-note"), text);
    $("queue-note").className = `note ${tone}`;
    const oldest = this.#stats.oldestAgeMs;
    say($("oldest"), oldest === null || !this.#open ? "–" : duration(oldest + performance.now() - this.#at));
  }

  #state() {
    const { paused, lastError, inFlight, queued } = this.#stats;
    if (paused) return [`Paused: ${paused}`, "warn"];
    if (!this.#open) return ["Everything is sent.", "good"];
    if (!this.#leads()) {
      const why = navigator.onLine ? "no tab leads at the moment" : "this tab is offline, and no other tab sends";
      return [`${plural(this.#open, "change")} kept safely: ${why}.`, "wait"];
    }
    if (lastError && !inFlight) return [`${explained(lastError)} The leader tries again; nothing is lost.`, "warn"];
    if (this.#sendingSince && performance.now() - this.#sendingSince > PATIENCE_MS) {
      return [`Waiting for the server's answer to ${plural(inFlight, "change")}.`, "wait"];
    }
    return [queued || inFlight ? "Sending…" : "", "wait"];
  }

  #row({ id, payload, reason }) {
    const what = `${KINDS[payload?.kind] ?? "Change"} “${payload?.title ?? payload?.case ?? id}”`;
    const retry = element("button", { type: "button", class: "quiet", "aria-label": `Try again: ${what}` }, "Try again");
    const remove = element("button", { type: "button", class: "quiet", "aria-label": `Remove: ${what}` }, "Remove");
    retry.addEventListener("click", this.#attempt(() => this.#queue.retryDead([id])));
    remove.addEventListener("click", this.#attempt(() => this.#queue.removeDead([id])));
    return element(
      "li",
      {},
      element("span", { class: "title" }, element("strong", {}, what), element("br"), element("span", { class: "muted" }, reason)),
      element("span", { class: "line actions" }, retry, remove),
    );
  }
}

/** The last error for people; the exact words are in the diagnosis. */
function explained(error) {
  const status = /\bHTTP (\d+)/.exec(error)?.[1];
  if (status) return `The server answered ${status}.`;
  if (/whether it had an effect is unknown|unknown/.test(error)) return "No answer came, so the same changes are sent again under the same ids.";
  return `Not sent yet: ${error.slice(0, 120)}.`;
}
