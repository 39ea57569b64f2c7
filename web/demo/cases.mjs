// The cases as the server knows them, with this tab's own unsent changes on top.

const KEPT = "inspections:unsent";

export class Cases {
  #known = [];
  /** In the order they were made: {kind, case, title?}; `durable` once enqueued, `counted` once the queue's figures include it. */
  #unsent = read();

  /** Show a change at once; it is settled when the server shows it. */
  add(change) {
    this.#unsent.push(change);
  }

  /** It is in the queue and survives everything. */
  durable(change) {
    change.durable = true;
    this.#keep();
  }

  /** It could not be kept. */
  forget(change) {
    this.#unsent = this.#unsent.filter((each) => each !== change);
  }

  /** The queue told new figures: what is durable is among them. */
  counted() {
    for (const change of this.#unsent) if (change.durable) change.counted = true;
  }

  /** What the server's next answer will settle in any case: all that was in a queue which has run dry. */
  settled(drained) {
    return new Set(drained ? this.#unsent.filter((change) => change.counted) : []);
  }

  /** The server's list, asked for when `settled` had been sent. */
  learn(known, settled) {
    this.#known = known;
    this.#unsent = this.#unsent.filter((change) => !settled.has(change) && !shows(known, change));
    this.#keep();
  }

  /** Open cases first: {id, title, completed, pending}. */
  list() {
    const cases = new Map(this.#known.map((each) => [each.id, { ...each, pending: false }]));
    for (const change of this.#unsent) {
      const before = cases.get(change.case) ?? { id: change.case, title: change.title ?? change.case, completed: false };
      const after = { ...before, pending: true };
      if (change.kind === "complete") after.completed = true;
      else after.title = change.title;
      cases.set(change.case, after);
    }
    return [...cases.values()].reverse().sort((one, other) => Number(one.completed) - Number(other.completed));
  }

  #keep() {
    try {
      sessionStorage.setItem(KEPT, JSON.stringify(this.#unsent));
    } catch {
      // storage denied: they are in the queue all the same, only this view forgets them on reload
    }
  }
}

function read() {
  try {
    return JSON.parse(sessionStorage.getItem(KEPT) ?? "[]");
  } catch {
    return [];
  }
}

function shows(known, change) {
  const found = known.find((each) => each.id === change.case);
  if (change.kind === "add") return Boolean(found);
  if (change.kind === "rename") return found?.title === change.title;
  return Boolean(found?.completed);
}
