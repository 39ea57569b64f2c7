// What the types of tabhelm.mjs, guard.mjs and offline.mjs must take, and what they must refuse; compiled, never run.
import { MemoryGuard, StaleOwner, applyIfCurrent, check, rejectStale } from "./guard.mjs";
import { keepOffline } from "./offline.mjs";
import type { ErrorCode, LeaderContext, Tab, TabEvent, TabhelmError } from "./tabhelm.js";

export async function guarded(ctx: LeaderContext, db: IDBDatabase, worker: Worker) {
  const transaction = db.transaction(["fence", "cases"], "readwrite");
  await check(transaction.objectStore("fence"), ctx.nextToken(), { rule: "epoch" });
  // @ts-expect-error there is no such rule
  await check(transaction.objectStore("fence"), ctx.nextToken(), { rule: "lax" });
  const shown: number = await applyIfCurrent(ctx, async () => "text", (text) => text.length);
  const loaded: string = await applyIfCurrent(ctx, async () => "text");
  const kept: string = await new MemoryGuard("strict").applyIfCurrent(ctx.nextToken(), () => "text");
  const run = rejectStale(async ({ job }: { job: string }, { isCurrent }) => isCurrent() && job.length);
  const answer = await run({ job: "case" });
  if (answer.ok) worker.postMessage(answer.value);
  else if (answer.error === "STALE_OWNER") worker.postMessage(answer.highWater.epoch);
  else worker.postMessage(answer.message);
  const mark = (error: unknown) => error instanceof StaleOwner && error.highWater.owner;
  return [shown, loaded, kept, mark];
}

export async function kept(tab: Tab) {
  const offline = keepOffline({ files: ["/", new URL("https://app.example/app.mjs")], version: "104.2", tab });
  offline.addEventListener("state", ({ detail }) => detail.state === "failed" && detail.code === "quota");
  offline.addEventListener("update", ({ detail }) => detail.waiting && offline.activate());
  // @ts-expect-error it is told, not set
  offline.state = "ready";
  return (await offline.status())?.buildId;
}

export function watched(tab: Tab, log: (text: string, ms?: number) => void) {
  tab.addEventListener("event", ({ detail }) => {
    if (detail.type === "leadership-changed" && detail.to === "backing-off") log(detail.detail ?? detail.reason);
    if (detail.type === "loop-overran") log(detail.resource, detail.graceMs);
    // @ts-expect-error there is no such event
    if (detail.type === "leader-changed") log("never");
  });
  const types: TabEvent["type"][] = ["host-fallback", "queue-failed"];
  // @ts-expect-error there is no such code
  const wrong: ErrorCode = "no-such-code";
  return [types, wrong, (error: TabhelmError) => error.code === "no-leader" || error.code === "the app's own"];
}
