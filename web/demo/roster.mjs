// Who this tab is, who leads what, who is here.
import { $, element, keyedList, say } from "./dom.mjs";
import { clockTime, duration, resourceName, tabLabel, tabName } from "./names.mjs";

const HOSTS = { shared: "shared by all tabs (SharedWorker)", window: "inside this page", worker: "inside a worker" };

export class Roster {
  #tab;
  #showTabs;
  #showLeaders;

  constructor(tab) {
    this.#tab = tab;
    this.#showTabs = keyedList($("tabs"), ({ connectionId }) => connectionId, (each) => this.#tabRow(each));
    this.#showLeaders = keyedList($("leaders"), ([resource, leader]) => `${resource} ${leader?.tabId} ${leader?.epoch}`, (each) => this.#leaderRow(each));
  }

  /** The resources that this tab leads. */
  get leading() {
    const { leaders } = this.#tab.presence();
    return Object.keys(leaders).filter((resource) => leaders[resource].tabId === this.#tab.id);
  }

  show() {
    const { tabs, leaders } = this.#tab.presence();
    this.#showLeaders(Object.entries(leaders).sort());
    $("nobody").hidden = Object.keys(leaders).length > 0;
    this.#showTabs(tabs);
    this.#showSelf();
  }

  #showSelf() {
    const tab = this.#tab;
    const { self, tabs, leaders } = tab.presence();
    const { leading } = this;
    const name = tabName(tab.id);
    document.title = `${leading.length ? "★ " : ""}${name} – Field inspections`;
    $("self").replaceChildren(tabLabel(tab.id));
    const all = leading.length === Object.keys(leaders).length;
    say($("role"), !leading.length ? "stands by" : all ? "leads" : `leads: ${leading.map(resourceName).join(", ")}`);
    $("role").className = leading.length ? "badge leads" : "badge";
    const lifecycle = self?.lifecycle ?? "unknown";
    facts($("me"), {
      Name: `${name} (id ${tab.id.slice(0, 8)}…)`,
      State: `${lifecycle}, ${navigator.onLine ? "online" : "offline"}, one of ${tabs.length}`,
      Generation: `${tab.generation}: one more at each reload or reconnection`,
      Engine: tab.engine ? engineText(tab) : "none",
    });
  }

  #tabRow() {
    const label = element("span");
    const badges = element("span", { class: "badges" });
    const row = element("li", {}, label, badges);
    row.show = (each) => {
      const mine = each.tabId === this.#tab.id;
      row.className = mine ? "self" : "";
      label.replaceChildren(tabLabel(each.tabId, this.#tab.id));
      const leads = Object.values(this.#tab.presence().leaders).some(({ tabId }) => tabId === each.tabId);
      badges.replaceChildren(
        ...[
          leads && badge("leads", "leads"),
          badge(each.lifecycle, ["frozen", "stalled"].includes(each.lifecycle) ? "warn" : ""),
          badge(each.liveness, { alive: "good", suspect: "warn", expired: "bad" }[each.liveness]),
          !each.online && badge("offline", "warn"),
        ].filter(Boolean),
      );
    };
    return row;
  }

  #leaderRow([resource, { tabId, epoch, sinceMs }]) {
    const mine = tabId === this.#tab.id;
    const held = element("span", { class: "muted" });
    const row = element(
      "li",
      { class: mine ? "self" : "" },
      element("span", { class: "what" }, resourceName(resource)),
      element("span", {}, tabLabel(tabId, this.#tab.id)),
      element("span", { class: "badges" }, badge(`epoch ${epoch ?? "–"}`, "leads"), held),
    );
    row.show = () => {
      // "Since" is a time of day of that tab's own clock; a count of seconds would tick for nothing.
      say(held, Number.isFinite(sinceMs) ? `since ${clockTime(sinceMs)}` : "");
    };
    return row;
  }
}

const badge = (text, tone = "") => element("span", { class: `badge ${tone}` }, text);

function engineText({ host, engine: { incarnation, from, bootMs, id } }) {
  const place = HOSTS[host] ?? host;
  return `${place}; ${id.slice(0, 6)}${incarnation > 1 ? ` #${incarnation}` : ""}, booted in ${duration(bootMs)} (${from})`;
}

function facts(list, pairs) {
  list.replaceChildren(
    ...Object.entries(pairs).map(([name, value]) => element("div", {}, element("dt", {}, name), element("dd", {}, value))),
  );
}
