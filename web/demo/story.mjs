// What happened, told from what this tab sees: the roster and its leaders (a hint, but of every engine), and its engine's events.
import { duration, resourceName, tabName } from "./names.mjs";
import { eventText, lifecycleText, reasonText } from "./words.mjs";

/** A new engine knows the others only after their next word, so absence counts after a while. */
const ABSENT_MS = 2_000;
const NEW_HERE_MS = 3_000;
/** A longer gap than this is none that was measured. */
const GAP_MS = 120_000;
/** A handover is told as one line if the next leader comes within this time. */
const HANDOVER_MS = 700;

export class Story {
  #tab;
  #tell;
  #tabs = new Map(); // tab id → {lifecycle, generation, online}
  #leaders = new Map(); // resource → {tabId, epoch}
  #ends = new Map(); // resource → {tabId, epoch, reason, at}
  #farewells = new Map(); // tab id → reason
  #absent = new Map(); // tab id → timer
  #vacant = new Map(); // resource → timer
  #lostAt = 0;
  #connectedAt = 0;

  /** `tell(text, tone)` writes a line. */
  constructor(tab, tell) {
    this.#tab = tab;
    this.#tell = tell;
    tab.addEventListener("event", ({ detail }) => this.#event(detail));
    tab.addEventListener("presence", ({ detail }) => this.#presence(detail));
    tab.addEventListener("host", ({ detail }) => this.#host(detail));
    this.#host(tab.hostState);
    this.#presence(tab.presence());
  }

  #event(event) {
    if (event.type === "leadership-changed" && event.from === "leading") {
      const resource = this.#own(event.resource);
      this.#ends.set(resource, { tabId: event.tab, epoch: event.epoch, reason: event.reason, at: Date.now() });
    }
    if (event.type === "tab-left") this.#farewells.set(event.tab, event.reason);
    const told = eventText(event);
    if (told) this.#tell(told.text, told.tone);
  }

  #host({ state, reason, engine }) {
    if (state === "connected") {
      this.#connectedAt = Date.now();
      const place = this.#tab.host === "window" ? "its own engine" : `engine ${engine.id.slice(0, 6)}`;
      this.#tell(`This tab, ${tabName(this.#tab.id)}, is connected to ${place}${engine.incarnation > 1 ? ` (#${engine.incarnation})` : ""}`, "good");
    } else {
      this.#lostAt = Date.now();
      this.#tell(state === "lost" ? `No engine can be reached: ${reason}` : `The engine is gone (${reason}); connecting to the next`, "warn");
    }
  }

  #presence({ tabs, leaders }) {
    this.#roster(tabs);
    for (const [resource, leader] of Object.entries(leaders)) {
      const before = this.#leaders.get(resource);
      clearTimeout(this.#vacant.get(resource));
      if (before?.epoch === leader.epoch && before.tabId === leader.tabId) continue;
      this.#leaders.set(resource, leader);
      this.#tell(this.#leaderText(resource, before, leader), "leads");
    }
    for (const [resource, leader] of this.#leaders) {
      if (resource in leaders || leader.gone) continue;
      leader.gone = true;
      this.#vacant.set(resource, setTimeout(() => {
        const end = this.#endOf(resource, leader);
        this.#tell(`Nobody is ${resourceName(resource)}${end ? `: ${tabName(leader.tabId)} ${reasonText(end.reason)}` : ""}`, "warn");
      }, HANDOVER_MS));
    }
  }

  #leaderText(resource, before, leader) {
    const now = `${tabName(leader.tabId)} leads: ${resourceName(resource)} (epoch ${leader.epoch ?? "–"})`;
    if (!before) return now;
    const end = this.#endOf(resource, before);
    const mine = before.tabId === this.#tab.id && leader.tabId !== this.#tab.id;
    const why = !end ? mine && "this tab stood still meanwhile" : `${before.tabId === leader.tabId ? "it" : tabName(before.tabId)} ${reasonText(end.reason)}`;
    const from = end ? end.at : this.#lostAt;
    const gap = from && Math.abs(leader.sinceMs - from) < GAP_MS ? `${duration(leader.sinceMs - from)} without a leader` : null;
    return [now, [why, gap].filter(Boolean).join("; ")].filter(Boolean).join(" – ");
  }

  /** How a leader ended: its engine's word, with the time; of other engines' tabs the roster knows at most why. */
  #endOf(resource, { tabId, epoch }) {
    const end = this.#ends.get(resource);
    if (end?.tabId === tabId && end.epoch === epoch) return end;
    const known = this.#tabs.get(tabId);
    if (tabId === this.#tab.id || !known) return null;
    if (known.lifecycle === "frozen" || known.lifecycle === "stalled") return { reason: known.lifecycle };
    return known.online ? null : { reason: "offline" };
  }

  #roster(tabs) {
    const present = new Set();
    for (const { tabId, lifecycle, generation, online } of tabs) {
      present.add(tabId);
      clearTimeout(this.#absent.get(tabId));
      this.#absent.delete(tabId);
      const before = this.#tabs.get(tabId);
      this.#tabs.set(tabId, { lifecycle, generation, online });
      const moment = Date.now() - this.#connectedAt < NEW_HERE_MS; // whom a new engine tells of were there before
      if (tabId === this.#tab.id) continue;
      if (!before) this.#tell(`${tabName(tabId)} ${moment ? "is here" : "joined"}`, "good");
      else if (before.generation < generation && !moment) this.#tell(`${tabName(tabId)} came again (generation ${generation})`, "good");
      const told = before && lifecycleText(tabId, before.lifecycle, lifecycle);
      if (told) this.#tell(told.text, told.tone);
      if (before && before.online !== online) this.#tell(`${tabName(tabId)} is ${online ? "online again" : "offline"}`, online ? "good" : "warn");
    }
    for (const id of this.#tabs.keys()) {
      if (present.has(id) || this.#absent.has(id)) continue;
      const wait = this.#farewells.has(id) ? 0 : ABSENT_MS;
      this.#absent.set(id, setTimeout(() => this.#left(id), wait));
    }
  }

  #left(id) {
    const reason = this.#farewells.get(id);
    this.#absent.delete(id);
    this.#farewells.delete(id);
    this.#tabs.delete(id);
    this.#tell(`${tabName(id)} ${reason ? reasonText(reason) : "vanished"}`, "warn");
  }

  #own(resource) {
    return resource.slice(resource.indexOf(":") + 1);
  }
}
