// A boot whose "Python" is a few lines of JavaScript: it tells the page what it was told, and takes a few orders.
// A boot whose name ends in "-slow" takes three seconds. One whose name ends in "-late" hears for as long that its last
// page has gone or a page is frozen, and then says so to everybody; "-parting": that any page has gone. "-settling" is busy
// for a while when it hears that one has gone, and tells everybody how many tasks it began from then until it sleeps.
export async function boot({ onStage }) {
  onStage("waiting");
  if (named("slow")) await new Promise((resolve) => setTimeout(resolve, 3_000));
  return { pyodide: pyodide(), from: "plain", fallbackReason: "a test", version: "0" };
}

export const pyodide = () => ({
  unpackArchive: (bytes) => {
    if (bytes.byteLength < 10) throw new Error("not a zip file");
  },
  runPython: () => undefined,
  pyimport: () => ({ start: async (bridge) => deliver(bridge) }),
});

function busy(ms) {
  for (const end = performance.now() + ms; performance.now() < end; );
}

function hearLate() {
  busy(3_000);
  new BroadcastChannel("late").postMessage("heard");
}

const named = (kind) => new RegExp(`-${kind}(#|$)`).test(self.name);
let tasks = 0;

function deliver(bridge) {
  const handles = new Map();
  const say = (session, event) => bridge.post(session, JSON.stringify({ type: "event", event }));
  return (session, text) => {
    const message = JSON.parse(text);
    if (message.type === "x-lock") {
      const { name, mode = "exclusive", ifAvailable = false, steal = false } = message;
      const listener = (what, detail) => say(session, { type: "lock", name, what, detail });
      handles.set(name, bridge.desk.request(session, name, mode, ifAvailable, steal, listener));
    } else if (message.type === "x-release") handles.get(message.name).release();
    else if (message.type === "x-crash") throw new Error("memory access out of bounds");
    else if (message.type === "x-busy") busy(message.ms);
    else if (["cut", "freeze"].includes(message.type) && named("late")) hearLate();
    else if (message.type === "gone" && named("parting")) hearLate();
    else if (message.type === "gone" && named("settling")) {
      busy(50);
      const { port1, port2 } = new MessageChannel();
      port1.onmessage = () => ((tasks += 1), port2.postMessage(0));
      port2.postMessage(0);
    } else if (message.type === "suspend") new BroadcastChannel("slept").postMessage(tasks);
    else if (message.type === "x-facts")
      say(session, {
        type: "facts",
        info: JSON.parse(bridge.info),
        counters: JSON.parse(bridge.counters()),
        admitted: bridge.desk.admitted(session),
        size: bridge.desk.size,
      });
    else say(session, { type: "told", message });
    // What is told about a page that is gone goes to the others.
    if (message.type === "gone") for (const other of message.tell ?? []) say(other, { type: "told", message });
  };
}
