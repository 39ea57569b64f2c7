// A field-inspection app in one page, several tabs of which work as one: whatever a tab records goes through the offline queue,
// and the tab that leads sends it, once and in order.
import { keepOffline } from "/tabhelm/offline.mjs";
import { join } from "/tabhelm/tabhelm.mjs";
import { caseList } from "./case-list.mjs";
import { Cases } from "./cases.mjs";
import { chaos } from "./chaos.mjs";
import { $, say } from "./dom.mjs";
import { effectsView } from "./effects-view.mjs";
import { plural } from "./names.mjs";
import { QueueView } from "./queue-view.mjs";
import { RECEIVER, leadReport } from "./report.mjs";
import { Roster } from "./roster.mjs";
import { Server } from "./server.mjs";
import { Story } from "./story.mjs";
import { tell } from "./timeline.mjs";
import { welcome } from "./welcome.mjs";

const BATCH = 10; // small, so that progress can be watched
const parameters = new URLSearchParams(location.search);
const test = parameters.has("test"); // for tests and "demo --play": window.demo

let tab;
let queue;
let queueView;

// ---- cases: what the server knows, and what this tab has not sent yet -----------------------------------------------

const cases = new Cases();
const server = new Server(() => cases.settled(queueView?.drained));
const showEffects = effectsView(() => tab?.id);
const showList = caseList((change) => void record(change));
let refused = null;

function showCases() {
  showList(cases.list(), !server.problem ? "" : navigator.onLine ? `The list may be old: ${server.problem}.` : "Offline: the list may be old.");
}

server.addEventListener("news", ({ detail: settled }) => {
  if (!server.problem && server.overview) {
    cases.learn(server.overview.cases, settled);
    showEffects(server.overview);
    if (refused !== null && server.overview.refused > refused) {
      tell(`The server refused ${plural(server.overview.refused - refused, "late write")} of a tab that no longer leads`, "shield");
    }
    refused = server.overview.refused;
  }
  showCases();
});

/** One change: shown at once, durable when `enqueue` resolves, settled when the server shows it. */
async function record(change) {
  change = { case: newCase(), ...change };
  if (change.kind !== "reject") cases.add(change);
  showCases();
  try {
    const id = await queue.enqueue(change, { partition: change.case });
    cases.durable(change);
    if (test) window.demo.acks.push({ id, partition: change.case });
  } catch (error) {
    cases.forget(change);
    showCases();
    problem(`The change was not saved: ${error.message}`);
  }
}

const newCase = () => `case-${Array.from(crypto.getRandomValues(new Uint8Array(4)), (byte) => byte.toString(16).padStart(2, "0")).join("")}`;

// ---- what went wrong ------------------------------------------------------------------------------------------------

function problem(text) {
  say($("problem"), text);
  $("problem").hidden = !text;
}

/** A listener that tells what failed. */
const attempt = (work) => async () => {
  try {
    await work();
  } catch (error) {
    problem(error.message);
  }
};

// ---- this tab among the others --------------------------------------------------------------------------------------

const CONNECTION = { connected: "connected", connecting: "connecting…", lost: "no engine, trying again", left: "left" };

function showHost({ state, reason }) {
  say($("connection"), state === "connected" && tab.host === "window" ? "connected, own engine" : CONNECTION[state] ?? state);
  $("connection").className = `pill ${state}`;
  problem(state === "lost" ? `The engine cannot be reached: ${reason}. This page goes on trying; nothing is lost.` : "");
}

/** A service worker keeps this page for when there is no network. */
function keep() {
  const offline = keepOffline({ worker: "/service-worker.js", tab });
  if (test) window.demo.offline = offline;
  offline.addEventListener("state", ({ detail: { state, reason } }) => {
    say($("kept"), reason ? `Does not open offline: ${reason}.` : state === "ready" ? "Opens offline, too." : "");
  });
  offline.addEventListener("update", ({ detail }) => ($("update").hidden = !detail.waiting));
  $("update").addEventListener("click", () => {
    // Other tabs go on with what they have.
    navigator.serviceWorker.oncontrollerchange = () => location.reload();
    offline.activate();
  });
}

async function start() {
  welcome();
  void server.ask();
  const began = performance.now();
  try {
    tab = await join({
      app: "inspections",
      version: "2.0",
      capabilities: ["offline.flush.v1"],
      host: parameters.get("host") ?? "auto",
      testHooks: test,
    });
  } catch (error) {
    say($("connection"), "not joined");
    $("connection").className = "pill lost";
    problem(`This tab could not join the others: ${error.message}. Nothing can be recorded here until you reload the page.`);
    return;
  }
  queue = tab.queue("mutations", { endpoint: RECEIVER, batch: BATCH }); // this tab also stands for sending
  if (test) {
    window.demo = { tab, queue, readyMs: performance.now() - began, acks: [], events: [] };
    tab.addEventListener("event", ({ detail }) => demo.events.push({ at: Date.now(), ...detail }));
  }
  const job = leadReport(tab, () => $("cases-state").textContent, () => server.soon());

  const roster = new Roster(tab);
  queueView = new QueueView(queue, attempt, () => tab.presence().leaders["offline-queue:mutations"]);
  const story = new Story(tab, tell);
  const showTabs = () => (roster.show(), queueView.tick());
  tab.addEventListener("presence", showTabs);
  tab.addEventListener("host", ({ detail }) => (showHost(detail), showTabs()));
  queue.addEventListener("stats", ({ detail }) => {
    cases.counted();
    void queueView.show(detail);
    server.soon();
  });
  showHost(tab.hostState);
  showTabs();
  setInterval(() => document.visibilityState === "visible" && queueView.tick(), 1_000);
  for (const type of ["online", "offline"]) window.addEventListener(type, () => (showTabs(), server.soon()));
  document.addEventListener("visibilitychange", () => server.soon());

  $("add").addEventListener("submit", (event) => {
    event.preventDefault();
    const title = $("title").value.trim();
    if (!title) return;
    $("add").reset();
    void record({ kind: "add", title });
  });
  $("diagnose").addEventListener("click", attempt(async () => {
    $("diagnosis").textContent = JSON.stringify(await tab.diagnose(), null, 2);
    $("diagnosis").hidden = false;
  }));
  chaos({ record: (change) => void record(change), server, job, tell, attempt });
  for (const button of document.querySelectorAll("[data-needs-tab]")) button.disabled = false;
  keep();
  return story;
}

void start();
