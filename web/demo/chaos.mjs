// Buttons that break things on purpose. Nothing here is an example to follow.
import { canCrash, crash } from "./crash.mjs";
import { $, element } from "./dom.mjs";
import { isOff, setOffline } from "./offline.mjs";
import { RECEIVER, makeReport, request } from "./report.mjs";

const FREEZE_MS = 8_000;
const HANG_MS = 15_000;
const MANY = 30;

const SERVER = {
  fine: {},
  slow: { delay_ms: 3_000 },
  failing: { status: 503 },
  silent: { drop_answers: true },
};

/** `record(change)`, `server`, `job` (see report.mjs), `tell(text, tone)`, `attempt(work)`: what the app has for it. */
export function chaos({ record, server, job, tell, attempt }) {
  const on = (id, work) => $(id).addEventListener("click", attempt(work));

  on("offline", () => {
    setOffline(!isOff());
    $("offline").setAttribute("aria-pressed", String(isOff()));
  });

  on("freeze", () => frozen(job, tell));

  on("hang", async () => {
    await veil("This tab hangs", `Nothing answers here for ${HANG_MS / 1_000} s. Watch the other tabs: once it has been silent for 10 s, they lead.`);
    const end = performance.now() + HANG_MS;
    while (performance.now() < end); // a script that never comes back, as far as the browser can tell
    unveil();
  });

  $("crash-note").textContent = canCrash
    ? "The whole process of this page dies at once. Reload the tab afterwards."
    : "Firefox runs all tabs of a site in one process, and a crash would take them all: here the tab leaves instead.";
  on("crash", async () => {
    await veil("This tab crashes", "Reload it afterwards.");
    crash();
  });

  on("many", () => {
    for (let n = 1; n <= MANY; n++) record({ kind: "add", title: `Hydrant ${n}` });
  });
  on("reject", () => record({ kind: "reject", title: "Boiler 13", reason: "boiler 13 belongs to another district" }));

  for (const choice of document.querySelectorAll("input[name=server]")) {
    choice.addEventListener("change", attempt(() => server.order(SERVER[choice.value])));
  }
  server.addEventListener("news", () => server.overview && showFaults(server.overview.faults));
}

/** Another tab may have changed what the server does. */
function showFaults(faults) {
  const same = JSON.stringify(faults);
  const name = Object.keys(SERVER).find((each) => JSON.stringify(SERVER[each]) === same);
  for (const choice of document.querySelectorAll("input[name=server]")) choice.checked = choice.value === name;
}

/**
 * What a browser does to a page in the background: the page is told, then nothing runs. A report that was about to leave
 * leaves only afterwards, with the old token, as that of a loop would that never noticed: the server must refuse it.
 */
async function frozen(job, tell) {
  let late = null;
  try {
    late = job.ctx && request(job.ctx, makeReport(job.ctx, "a late write"));
  } catch {
    // this tab does not lead the report: it freezes all the same
  }
  await veil("This tab is frozen", `For ${FREEZE_MS / 1_000} s, like a tab in the background. Another tab leads meanwhile.`);
  document.dispatchEvent(new Event("freeze"));
  await new Promise((resolve) => setTimeout(resolve, FREEZE_MS));
  document.dispatchEvent(new Event("resume"));
  unveil();
  if (!late) return;
  const { status } = await fetch(RECEIVER, late);
  if (status === 409) tell("The report that this tab had ready before it froze was refused: another tab leads now", "shield");
  else if (status === 200) tell("The report that this tab had ready before it froze was accepted: nobody else had led meanwhile", "good");
}

/** Resolves once it is painted. */
async function veil(title, text) {
  $("veil").replaceChildren(element("h2", {}, title), element("p", {}, text));
  $("veil").showModal();
  // Hidden tabs get no frames; a timer is good enough for what nobody sees.
  await Promise.race([
    new Promise((painted) => requestAnimationFrame(() => requestAnimationFrame(painted))),
    new Promise((later) => setTimeout(later, 250)),
  ]);
}

const unveil = () => $("veil").close();
