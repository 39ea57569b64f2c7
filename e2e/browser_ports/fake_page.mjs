// The page's side of the wire, as small and as obedient (or not) as a test wants it.
let drawn = 0;

export class FakePage {
  messages = [];
  answers = true; // whether pings are answered
  #readers = new Set();
  #release = null;

  constructor(port, { app = "regcase", protocol = 3, session } = {}) {
    this.port = port;
    this.app = app;
    this.protocol = protocol;
    this.session = session ?? `s${Date.now()}-${Math.random().toString(16).slice(2)}-${(drawn += 1)}`;
    this.lifeline = `${app}:v${protocol}:lifeline:t1:${this.session}`;
    port.onmessage = ({ data }) => {
      this.messages.push({ ...data, cameAt: performance.now() });
      for (const read of [...this.#readers]) read();
      if (data.type === "ping" && this.answers) this.post({ type: "pong", n: data.n, at: performance.now() });
    };
  }

  static worker(variant, name, options) {
    const worker = new SharedWorker(`/engine/${variant}/engine.mjs`, { type: "module", name });
    return new FakePage(worker.port, options);
  }

  post(message) {
    this.port.postMessage(message);
  }

  async hello(fields = {}) {
    await new Promise((held) => {
      navigator.locks.request(this.lifeline, () => {
        held();
        return new Promise((release) => (this.#release = release));
      });
    });
    this.post({
      type: "hello", wire: 1, session: this.session, tab: "t1", generation: 1, lifeline: this.lifeline, app: this.app,
      protocol: this.protocol, version: "1", capabilities: [], userSession: null, lifecycle: "active", visible: true,
      online: true, stallAfterMs: 400, at: performance.now(), wheels: [], testHooks: true, ...fields,
    });
    return this;
  }

  /** Let go of the lifeline, as the death of a page does. */
  die() {
    this.#release();
  }

  find(type, test = () => true) {
    return this.messages.find((message) => message.type === type && test(message));
  }

  /** The first message of this type (from index `from` on) that passes `test`, once it is there. */
  until(type, test = () => true, { from = 0, ms = 10_000 } = {}) {
    return new Promise((resolve, reject) => {
      const end = (settle, value) => {
        clearTimeout(timer);
        this.#readers.delete(read);
        settle(value);
      };
      const read = () => {
        const found = this.messages.slice(from).find((message) => message.type === type && test(message));
        if (found) end(resolve, found);
      };
      const timer = setTimeout(() => {
        const last = JSON.stringify(this.messages.slice(-8));
        end(reject, new Error(`no "${type}" within ${ms} ms; came: ${last}`));
      }, ms);
      this.#readers.add(read);
      read();
    });
  }

  event(type, test = () => true, options = {}) {
    return this.until("event", ({ event }) => event.type === type && test(event), options).then(({ event }) => event);
  }

  async facts() {
    const from = this.messages.length;
    this.post({ type: "x-facts" });
    return this.event("facts", undefined, { from });
  }
}

/** Wait until `test()` is true. */
export async function eventually(test, what, ms = 10_000) {
  const deadline = performance.now() + ms;
  while (!(await test())) {
    if (performance.now() > deadline) throw new Error(`not within ${ms} ms: ${what}`);
    await new Promise((resolve) => setTimeout(resolve, 5));
  }
}

/** Names of all locks that are held or waited for in this origin, as [held, pending]. */
export async function locks(part = "") {
  const { held, pending } = await navigator.locks.query();
  return [held, pending].map((list) => list.map((lock) => lock.name).filter((name) => name.includes(part)));
}

/** What `indexedDB.open` does where storage is forbidden. */
export function forbidden() {
  const error = new DOMException("access is denied for this document", "SecurityError");
  // The browser's own throws have a stack; without one, the interpreter takes it for a thrown value that is no error.
  Object.defineProperty(error, "stack", { value: String(new Error().stack) });
  throw error;
}
