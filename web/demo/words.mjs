// Reasons and events in the words of people.
import { resourceName, tabName } from "./names.mjs";

const REASONS = {
  frozen: "was frozen",
  stalled: "hung, silent for 10 s",
  offline: "went offline",
  hidden: "was hidden",
  closing: "closed",
  pagehide: "closed or left the page",
  lifeline: "vanished", // crashed, was killed, or left so quickly that its farewell was lost
  "lock-lost": "lost its lock",
  "lock-stolen": "gave no sign of life and was replaced",
  "taken-over": "gave no sign of life and was replaced",
  "max-hold": "had led long enough",
  "loop-failed": "had an error in its loop",
  "loop-finished": "finished its work",
  "newer-epoch": "was replaced",
  "storage-wiped": "lost the stored data",
  "step-down": "stepped down",
  forced: "was asked to step down",
  "not-acknowledged": "did not answer",
};

/** "Otter 3f was frozen". */
export const reasonText = (reason) => REASONS[reason] ?? `stepped down (${reason})`;

/** One event as `{text, tone, about}`, or null where it says nothing to people or is told by the roster. */
export function eventText({ type, ...fields }) {
  switch (type) {
    case "boot-fallback":
      return entry(`The engine booted the slow way: ${fields.reason}`, "warn");
    case "host-fallback":
      return entry(`The shared engine cannot be used here (${fields.reason}); this tab runs its own`, "warn");
    case "took-over":
      return entry(
        `Whoever was ${resourceName(fields.resource)} gave no sign for ${Math.round(fields.silentForMs / 1000)} s: its lock was taken over with epoch ${fields.epoch}`,
        "warn",
      );
    case "write-refused":
      return fields.verdict === "stale"
        ? entry(`The server refused a write of the old epoch ${fields.epoch} (${resourceName(fields.resource)})`, "shield")
        : null; // overtaken: repeated with a new token, nothing is lost
    case "operation-died":
      return entry(`The server refuses a change for good: ${fields.reason}. It is kept under “Refused for good”`, "bad");
    case "queue-paused":
      return entry(`Sending is paused: ${fields.reason}`, "warn");
    case "storage-changed":
      return fields.change === "opened" ? null : entry(`The browser's database: ${fields.change}`, "warn");
    case "loop-failed":
      return entry(`The loop “${resourceName(fields.resource)}” failed: ${fields.error}`, "bad");
    case "loop-overran":
      return entry(`The loop “${resourceName(fields.resource)}” did not end in time; what it still writes is refused`, "warn");
    case "task-failed":
    case "engine-error":
      return entry(`A fault in tabhelm: ${fields.error ?? fields.message}`, "bad");
    case "queue-failed":
      return entry(`The queue cannot be opened: ${fields.message}`, "bad");
    case "tab-joined":
    case "tab-left":
    case "leadership-changed":
    case "epoch-issued":
    case "engine-ready":
    case "message-ignored":
      return null;
    default:
      return entry(`${type} ${Object.entries(fields).map(([name, value]) => `${name}=${value}`).join(" ")}`, "");
  }
}

/** What the roster says of a tab that changed; null where it is not worth a line. */
export function lifecycleText(id, before, after) {
  if (before === after) return null;
  if (after === "frozen") return entry(`${tabName(id)} is frozen`, "warn");
  if (after === "stalled") return entry(`${tabName(id)} hangs: its page answers no more`, "warn");
  if (before === "frozen" || before === "stalled") return entry(`${tabName(id)} is back`, "good");
  return null;
}

const entry = (text, tone) => ({ text, tone });
