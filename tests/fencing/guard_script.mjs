// Plays the vectors through web/guard.mjs, without a browser: what needs no storage.
import { readFileSync } from "node:fs";
import { pathToFileURL } from "node:url";

const [script, vectors] = process.argv.slice(2);
const guard = await import(pathToFileURL(script).href);
const { sequences, malformed_tokens } = JSON.parse(readFileSync(vectors, "utf8"));

function outcome(work) {
  try {
    return work();
  } catch (error) {
    if (error instanceof guard.StaleOwner) return { verdict: error.overtaken ? "overtaken" : "stale", high_water: error.highWater };
    return { verdict: error.constructor.name };
  }
}

const played = sequences.map(({ rule, steps }) => {
  const memory = new guard.MemoryGuard(rule);
  const marks = new Map();
  return steps.map(({ token }) => {
    const key = `${token.domain} ${token.resource}`;
    const judged = guard.judge(marks.get(key) ?? null, token, rule);
    if (judged.marks) marks.set(key, judged.marks);
    return {
      judged: judged.marks ? { verdict: judged.verdict, marks: judged.marks } : { verdict: judged.verdict, high_water: judged.highWater },
      memory: outcome(() => (memory.check(token), { verdict: "accepted" })),
      current: memory.isCurrent(token),
    };
  });
});
const refused = malformed_tokens.map(({ token }) => outcome(() => new guard.MemoryGuard().check(token)));

// Work that ends after its tenure did.
const late = { lost: false, shown: [] };
const context = {
  signal: new AbortController().signal,
  nextToken() {
    if (late.lost) throw Object.assign(new Error("lost"), { code: "leadership-lost" });
    return {};
  },
};
const inTime = await guard.applyIfCurrent(context, async () => 6, (result) => result * 7);
const unfenced = { signal: context.signal, nextToken: () => { throw Object.assign(new Error(), { code: "not-fenced" }); } };
const byItself = await guard.applyIfCurrent(unfenced, () => "no token is needed");
const applied = [];
for (const begin of [false, true]) {
  late.lost = begin;
  await guard.applyIfCurrent(context, async () => (applied.push("begun"), (late.lost = true), "late"), (result) => applied.push(result)).catch(({ code }) => applied.push(code));
}

// A worker's commands.
const run = guard.rejectStale(async ({ job }, { isCurrent }) => {
  if (job === "bad") throw new RangeError("of the job");
  if (job === "long") await run({ job: "other", token: token(3, 1) });
  return [job, isCurrent()];
});
const token = (epoch, seq) => ({ domain: "d", resource: "r", epoch, stream: "s", seq, owner: `o${epoch}` });
const commands = [
  { job: "a", token: token(1, 1) },
  { job: "b", token: token(2, 1) },
  { job: "late", token: token(1, 2) },
  { job: "again", token: token(2, 1) },
  { job: "none" },
  { job: "long", token: token(2, 2) },
  { job: "bad", token: token(3, 2) },
];
const answers = [];
for (const command of commands) answers.push(await run(command).catch(({ name }) => name));
console.log(JSON.stringify({ played, refused, inTime, byItself, applied, answers }));
