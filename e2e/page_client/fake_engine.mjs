// A small engine without Python, for tests of the page client alone: it speaks docs/wire.md, keeps real locks, and
// misbehaves on command (BroadcastChannel "fake-engine": {to: <incarnation or 0>, do: "die" | "mute" | "fail" | "garbage"}), and as
// long as a page holds a lock of the name "fake:refuse:<code>" (refuses every hello) or "fake:crash" (fails once joined).
const engine = crypto.randomUUID();
const incarnation = Number(self.name.split("#")[1] ?? 1);
const engineLock = `${self.name.split(":")[1]}:v1:engine:${engine}`;
const sessions = new Map();
const calls = [];
let muted = false;
let epoch = incarnation * 1000;
const locked = new Promise((resolve) => navigator.locks.request(engineLock, () => (resolve(), new Promise(() => {}))));

new BroadcastChannel("fake-engine").onmessage = ({ data }) => {
  if (data.to && data.to !== incarnation) return;
  const everyone = (message) => sessions.forEach((session) => session.post(message));
  if (data.do === "die") self.close();
  if (data.do === "mute") muted = true;
  if (data.do === "fail") fail();
  if (data.do === "garbage") [null, 42, "sched$x", {}, { type: 7 }, { type: "lead" }, { type: "status", election: "e1" }].forEach(everyone);
  if (data.do === "say") everyone(data.message);
};

function fail() {
  sessions.forEach((session) => session.post({ type: "failed", error: { code: "boot", message: "told to" } }));
  setTimeout(() => self.close(), 100); // its lock goes after the message has arrived: pages are told, they need not guess
}

class Session {
  elections = new Map();
  locks = new AbortController();

  constructor(port, hello) {
    Object.assign(this, { port, hello, heard: hello.at, n: 0 });
    sessions.set(hello.session, this);
    navigator.locks.request(hello.lifeline, { signal: this.locks.signal }, () => this.gone("lifeline")).catch(() => {});
    this.pings = setInterval(() => this.ping(), hello.stallAfterMs / 4);
  }
  post(message) {
    if (!muted) this.port.postMessage(message);
  }
  ping() {
    this.post({ type: "ping", n: ++this.n, heard: this.heard });
  }
  gone(reason) {
    clearInterval(this.pings);
    this.release(reason);
    this.elections.clear();
    this.locks.abort();
    sessions.delete(this.hello.session);
  }
  release(reason) {
    for (const election of this.elections.values()) election.end?.(reason);
  }
  elect(data) {
    const election = { ...data, grant: null };
    this.elections.set(data.election, election);
    this.stand(election);
  }
  async stand(election) {
    const wait = new AbortController();
    election.end = () => wait.abort();
    this.post({ type: "status", election: election.election, status: { state: "waiting", standby: true, rank: 0 } });
    const name = `${this.hello.app}:v1:leader:${election.resource}`;
    await navigator.locks
      .request(name, { signal: wait.signal }, async () => {
        const grant = (election.grant = crypto.randomUUID());
        const over = new Promise((end) => (election.end = end));
        const ready = new Promise((ack) => (election.ack = ack));
        this.post({ type: "grant", election: election.election, grant });
        let reason = await Promise.race([over, ready, new Promise((r) => setTimeout(r, 2000, "no-ack"))]);
        if (reason === "acked") {
          const token = { domain: "d", resource: `${this.hello.app}:${election.resource}`, epoch: ++epoch, stream: 'pa"ge', owner: this.hello.session };
          this.post({ type: "lead", election: election.election, grant, token });
          this.post({ type: "status", election: election.election, status: { state: "leading", epoch, since: 0 } });
          reason = await over;
        }
        this.post({ type: "revoke", election: election.election, grant, reason });
      })
      .catch(() => {});
    if (!sessions.has(this.hello.session) || !this.elections.has(election.election) || this.frozen) return;
    setTimeout(() => this.stand(election), 50);
  }
  says(data) {
    const election = this.elections.get(data.election);
    if (data.type === "pong") this.heard = data.at;
    else if (data.type === "bye") this.gone(data.reason);
    else if (data.type === "freeze") (this.frozen = true), this.release("freeze");
    else if (data.type === "resume") {
      (this.frozen = false), (this.heard = data.at), this.ping();
      for (const each of this.elections.values()) this.stand(each);
    } else if (data.type === "lead") this.elect(data);
    else if (data.type === "ack" && data.election.startsWith("engine:")) calls.push(`${data.election} ${data.grant}`);
    else if (data.type === "ack" && election?.grant === data.grant) election.ack("acked");
    else if (data.type === "ended" && election?.grant === data.grant) election.end(data.error?.name ?? "ended");
    else if (data.type === "step-down") election?.end(data.reason);
    else if (data.type === "stop" && election) {
      this.elections.delete(data.election);
      election.end(data.reason);
      this.post({ type: "status", election: data.election, status: { state: "stopped", reason: data.reason } });
    } else if (data.type === "call") {
      calls.push(`${data.method}:${data.params.operations?.[0].fresh ?? ""}`);
      if (data.params.operations?.some(({ payload }) => payload === '"never"')) return;
      const refused = data.params.operations?.some(({ payload }) => payload === '"refuse"');
      const error = refused ? { code: "quota-exceeded", message: "full" } : undefined;
      this.post({ type: "answer", id: data.id, ...(error ? { error } : { result: { method: data.method, engine, incarnation, params: data.params, calls } }) });
    }
  }
}

self.onconnect = ({ ports: [port] }) => {
  let session = null;
  port.onmessage = async ({ data }) => {
    await locked;
    if (muted) return;
    if (data.type !== "hello") return session?.says(data);
    const told = (await navigator.locks.query()).held.map(({ name }) => name).filter((name) => name.startsWith("fake:"));
    const code = told.find((name) => name.startsWith("fake:refuse:"))?.slice(12);
    if (code) return port.postMessage({ type: "refused", error: { code, message: "not this page" } });
    session = new Session(port, data);
    session.post({ type: "welcome", engine, engineLock, buildId: "dev", heard: data.at });
    session.post({ type: "joined", from: "plain", bootMs: 1 });
    session.post({ type: "event", event: { type: "hello", silentEngine: data.silentEngine ?? null } });
    session.post({ type: "presence", self: data.tab, tabs: [{ tabId: data.tab, generation: data.generation, liveness: "alive" }], leaders: {} });
    if (told.includes("fake:crash")) fail();
  };
};
