// A field-inspection app in one page: cases are shown as the server knows them, with this tab's own unsent changes on top.
import { join } from "/tabhelm/tabhelm.mjs";

const QUEUE = "mutations";
const BATCH = 10; // small, so that progress can be watched
const KEPT = "inspections:unsent";
const LOG_LINES = 100;

const $ = (id) => document.getElementById(id);
const short = (id) => String(id ?? "").slice(0, 6) || "–";
const element = (name, text = "", className = "") => Object.assign(document.createElement(name), { textContent: text, className });

// ---- what happened --------------------------------------------------------------------------------------------------

function log(text) {
  const line = element("li");
  line.append(element("time", new Date().toLocaleTimeString()), ` ${text}`);
  $("log").prepend(line);
  while ($("log").children.length > LOG_LINES) $("log").lastElementChild.remove();
}

function problem(text) {
  $("problem").textContent = text;
  $("problem").hidden = !text;
}

// ---- cases ----------------------------------------------------------------------------------------------------------

/**
 * This tab's changes that the server is not known to have, in the order they were made: {kind, case, title?}, `durable` once
 * they are in the queue, and `counted` once the queue's figures must include them.
 */
let unsent = readUnsent();
let known = [];
let shown = new Map();
let figures = null;

function readUnsent() {
  try {
    return JSON.parse(sessionStorage.getItem(KEPT) ?? "[]");
  } catch {
    return [];
  }
}

function keepUnsent() {
  try {
    sessionStorage.setItem(KEPT, JSON.stringify(unsent));
  } catch {
    // storage denied: they are in the queue all the same, only this view forgets them on reload
  }
}

/** Has the server's state caught up with this change? */
function reflected(change, cases) {
  const found = cases.find((each) => each.id === change.case);
  if (change.kind === "add") return Boolean(found);
  if (change.kind === "rename") return found?.title === change.title;
  return Boolean(found?.completed);
}

function readCases(body) {
  const list = Array.isArray(body) ? body : body.cases;
  if (!Array.isArray(list)) throw new Error("the server's list of cases could not be read");
  return list.map((each) => ({
    id: String(each.id ?? each.case),
    title: String(each.title ?? ""),
    completed: Boolean(each.completed ?? each.done ?? each.state === "completed"),
  }));
}

let loading = null;
let again = false;

/** Ask the server; calls that come meanwhile are answered by one more round. */
async function refresh() {
  if (loading) {
    again = true;
    return;
  }
  const before = new Set(unsent.filter((change) => change.counted));
  const drained = figures !== null && figures.queued + figures.inFlight === 0;
  loading = fetch("/api/cases", { headers: { accept: "application/json" }, cache: "no-store" });
  try {
    const response = await loading;
    if (!response.ok) throw new Error(`the server answered ${response.status}`);
    known = readCases(await response.json());
    // A change is settled when the server shows it, or when the queue had run dry before we asked.
    unsent = unsent.filter((change) => !reflected(change, known) && !(drained && before.has(change)));
    keepUnsent();
    showCases("");
  } catch (error) {
    showCases(navigator.onLine ? `The list may be old: ${error.message}.` : "Offline: the list may be old, changes are kept.");
  } finally {
    loading = null;
    if (again) {
      again = false;
      refreshSoon();
    }
  }
}

let timer = 0;
function refreshSoon() {
  clearTimeout(timer);
  timer = setTimeout(refresh, 150);
}

function showCases(note) {
  const cases = new Map(known.map((each) => [each.id, { ...each, pending: false }]));
  for (const change of unsent) {
    const before = cases.get(change.case) ?? { id: change.case, title: change.case, completed: false };
    const after = { ...before, pending: true };
    if (change.kind !== "complete") after.title = change.title;
    if (change.kind === "complete") after.completed = true;
    cases.set(change.case, after);
  }
  for (const [id, row] of shown) if (!cases.has(id)) (row.remove(), shown.delete(id));
  for (const each of cases.values()) {
    let row = shown.get(each.id);
    if (!row) {
      row = makeRow(each.id);
      shown.set(each.id, row);
      $("cases").append(row);
    }
    row.show(each);
  }
  const open = [...cases.values()].filter((each) => !each.completed).length;
  $("cases-state").textContent = note || (cases.size ? `${open} open of ${cases.size}` : "No cases yet. Add the first one above.");
}

function makeRow(id) {
  const row = element("li");
  const title = element("span", "", "title");
  const state = element("span", "", "badge");
  const rename = Object.assign(element("button", "Rename"), { type: "button" });
  const complete = Object.assign(element("button", "Complete"), { type: "button" });
  const form = element("form", "", "row");
  const input = Object.assign(element("input"), { required: true, maxLength: 120, autocomplete: "off" });
  const save = Object.assign(element("button", "Save"), { type: "submit" });
  const actions = element("span", "", "row");
  form.hidden = true;
  form.append(input, save);
  actions.append(rename, complete);
  row.append(title, state, actions, form);

  const edit = (open) => {
    form.hidden = !open;
    rename.setAttribute("aria-expanded", String(open));
    if (open) (input.value = title.textContent), input.focus(), input.select();
    else rename.focus();
  };
  rename.addEventListener("click", () => edit(form.hidden));
  form.addEventListener("keydown", (event) => event.key === "Escape" && edit(false));
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    const name = input.value.trim();
    if (!name) return;
    edit(false);
    if (name !== title.textContent) void record({ kind: "rename", case: id, title: name });
  });
  complete.addEventListener("click", () => void record({ kind: "complete", case: id }));

  row.show = (each) => {
    title.textContent = each.title;
    state.textContent = each.pending ? "pending" : each.completed ? "completed" : "open";
    row.className = [each.pending && "pending", each.completed && "completed"].filter(Boolean).join(" ");
    complete.hidden = each.completed;
    rename.setAttribute("aria-label", `Rename ${each.title}`);
    complete.setAttribute("aria-label", `Complete ${each.title}`);
    input.setAttribute("aria-label", `New title of ${each.title}`);
  };
  return row;
}

/** One change: shown at once, durable when `enqueue` resolves, settled when the server shows it. */
async function record(change) {
  unsent.push(change);
  showCases("");
  try {
    const id = await queue.enqueue({ ...change }, { partition: change.case });
    window.demo?.acks.push({ id, partition: change.case });
    change.durable = true;
    keepUnsent();
    refreshSoon();
  } catch (error) {
    unsent = unsent.filter((each) => each !== change);
    showCases("");
    problem(`The change was not saved: ${error.message}`);
    log(`not saved: ${error.message}`);
  }
}

// ---- tabs, leaders, queue -------------------------------------------------------------------------------------------

let tab;
let queue;

const age = (ms) => (ms < 90_000 ? `${Math.round(ms / 1000)} s` : `${Math.round(ms / 60_000)} min`);

function showMe() {
  const lifecycle = document.visibilityState === "visible" ? "active" : "hidden";
  const { engine } = tab;
  const rows = {
    Tab: tab.id,
    Generation: tab.generation,
    Lifecycle: `${lifecycle}, ${navigator.onLine ? "online" : "offline"}`,
    Host: tab.host,
    Engine: engine ? `${short(engine.id)}, #${engine.incarnation}, from ${engine.from} in ${Math.round(engine.bootMs)} ms` : "none",
  };
  $("me").replaceChildren(
    ...Object.entries(rows).map(([name, value]) => {
      const pair = element("div");
      pair.append(element("dt", name), element("dd", String(value)));
      return pair;
    }),
  );
}

function who(id) {
  return id === tab.id ? `${short(id)} (this tab)` : short(id);
}

function showPresence() {
  const { tabs, leaders } = tab.presence();
  const leading = Object.entries(leaders);
  $("tabs").replaceChildren(
    ...tabs.map((each) => {
      const line = element("li", "", each.tabId === tab.id ? "self" : "");
      line.append(element("strong", who(each.tabId)), element("span", each.liveness, `badge ${each.liveness}`));
      line.append(element("span", each.lifecycle, "badge"));
      if (!each.online) line.append(element("span", "offline", "badge"));
      if (leading.some(([, leader]) => leader.tabId === each.tabId)) line.append(element("span", "leads", "badge leads"));
      line.append(element("span", `generation ${each.generation}`, "muted"));
      return line;
    }),
  );
  $("leaders").replaceChildren(
    ...(leading.length ? leading : [[null, null]]).map(([resource, leader]) => {
      if (!resource) return element("li", "nobody yet", "muted");
      const line = element("li");
      const since = Number.isFinite(leader.sinceMs) ? `, for ${age(Math.max(0, Date.now() - leader.sinceMs))}` : "";
      line.append(element("strong", who(leader.tabId)), element("span", `epoch ${leader.epoch ?? "–"}${since}`, "badge leads"));
      line.append(element("code", resource));
      return line;
    }),
  );
}

function showStats(stats) {
  figures = { queued: 0, inFlight: 0, ...stats };
  for (const change of unsent) if (change.durable) change.counted = true;
  const { queued = 0, inFlight = 0, done = 0, dead = 0 } = stats;
  for (const [id, value] of [["queued", queued], ["in-flight", inFlight], ["done", done], ["dead", dead]]) $(id).textContent = value;
  const open = queued + inFlight;
  $("progress").max = Math.max(1, open + done);
  $("progress").value = open ? done : $("progress").max;
  const note = [];
  if (stats.paused) note.push(`paused: ${stats.paused}`);
  if (stats.lastError && open) note.push(`last error: ${stats.lastError}`);
  if (!note.length) note.push(open ? `oldest waits since ${age(stats.oldestAgeMs ?? 0)}` : "everything is sent");
  $("queue-note").textContent = note.join("; ");
  $("resume").hidden = !stats.paused;
  $("retry-dead").hidden = !dead;
  refreshSoon();
}

function showHost({ state, reason, engine }) {
  const texts = { connected: "connected", connecting: "connecting…", lost: "no engine, trying again", left: "left" };
  $("connection").textContent = texts[state] ?? state;
  $("connection").className = `pill ${state}`;
  showMe();
  problem(state === "lost" ? `The engine cannot be reached: ${reason}. This page goes on trying.` : "");
  log(engine ? `connected to engine ${short(engine.id)} #${engine.incarnation}` : `${state}: ${reason}`);
  if (state === "connected") void tellStats();
}

async function tellStats() {
  try {
    showStats(await queue.stats());
  } catch (error) {
    log(`no figures of the queue: ${error.message}`);
  }
}

const attempt = (work) => async () => {
  try {
    await work();
  } catch (error) {
    problem(error.message);
  }
};

// ---- start ----------------------------------------------------------------------------------------------------------

async function start() {
  showCases("Loading…");
  void refresh();
  const test = new URLSearchParams(location.search).has("test");
  const began = performance.now();
  try {
    tab = await join({ app: "inspections", capabilities: ["offline.flush.v1"], testHooks: test });
  } catch (error) {
    $("connection").textContent = "not joined";
    $("connection").className = "pill lost";
    problem(`This tab could not join the others: ${error.message}. Nothing can be recorded here until you reload the page.`);
    return;
  }
  tab.addEventListener("host", (event) => showHost(event.detail));
  tab.addEventListener("presence", showPresence);
  tab.addEventListener("event", ({ detail: { type, ...fields } }) => {
    log(`${type} ${Object.entries(fields).map(([name, value]) => `${name}=${value}`).join(" ")}`);
  });
  queue = tab.queue(QUEUE, { endpoint: "/api/operations", batch: BATCH });
  if (test) window.demo = { tab, queue, readyMs: performance.now() - began, acks: [] }; // for tests and ``demo --play``
  queue.addEventListener("stats", (event) => showStats(event.detail));
  showHost(tab.hostState);
  showPresence();

  $("add").addEventListener("submit", (event) => {
    event.preventDefault();
    const title = $("title").value.trim();
    if (!title) return;
    $("add").reset();
    const id = Array.from(crypto.getRandomValues(new Uint8Array(4)), (byte) => byte.toString(16).padStart(2, "0")).join("");
    void record({ kind: "add", case: `case-${id}`, title });
  });
  $("resume").addEventListener("click", attempt(() => queue.resume()));
  $("retry-dead").addEventListener("click", attempt(async () => queue.retryDead((await queue.deadLetters()).map(({ id }) => id))));
  $("diagnose").addEventListener("click", attempt(async () => {
    $("diagnosis").textContent = JSON.stringify(await tab.diagnose(), null, 2);
    $("diagnosis").hidden = false;
  }));
  for (const type of ["online", "offline"]) window.addEventListener(type, () => (showMe(), refreshSoon()));
  document.addEventListener("visibilitychange", () => (showMe(), refreshSoon()));
}

void start();
