// A job that one tab does for all of them: a status report to the server, from a leader loop of the page.
import { LeadershipLost } from "/tabhelm/tabhelm.mjs";

const EVERY_MS = 60_000;
const AGAIN_MS = 2_000;
export const RECEIVER = "/api/operations";

/** `text()`: what to report; `wrote(status)`: the server's answer. Returns `{ctx}` of the newest loop, for experiments. */
export function leadReport(tab, text, wrote) {
  const job = { ctx: null };
  tab.lead(
    "status-report",
    async (ctx) => {
      job.ctx = ctx;
      while (!ctx.signal.aborted) {
        const report = makeReport(ctx, text());
        while (!(await send(ctx, report, wrote))) await ctx.sleep(AGAIN_MS);
        await ctx.sleep(EVERY_MS);
      }
    },
    { online: true, fence: RECEIVER },
  );
  return job;
}

/** True once the server has it. However often it is sent: the id stays the same, the token is a new one each time. */
async function send(ctx, report, wrote) {
  try {
    const response = await fetch(RECEIVER, { ...request(ctx, report), signal: ctx.signal });
    wrote(response.status);
    if (response.status === 409) await ctx.check(); // LeadershipLost if somebody newer leads: the loop ends with it
    return response.ok;
  } catch (error) {
    if (error instanceof LeadershipLost || ctx.signal.aborted) throw error;
    return false; // the network: try again
  }
}

export function makeReport(ctx, text) {
  return { id: `report-${ctx.epoch}-${crypto.getRandomValues(new Uint32Array(2)).join("-")}`, body: JSON.stringify({ kind: "report", text }) };
}

/** One fenced write; throws LeadershipLost once the leadership is over. */
export function request(ctx, { id, body }) {
  return { method: "POST", headers: { "Content-Type": "application/json", ...ctx.headers(id) }, body };
}
