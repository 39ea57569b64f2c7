/**
 * What the queue benchmarks run in a page: tabhelm's queue, and what one would write by hand. Evaluated as one expression;
 * `window.tab` is a joined tab.
 */
(() => {
  const URL = "/api/operations";
  const payload = (n) => ({ kind: "note", n, title: `the title of number ${n}` });
  const timed = async (run) => {
    const began = performance.now();
    await run();
    return performance.now() - began;
  };

  /** Requests to the fenced receiver, as a leader without tabhelm would make them: one owner, one epoch, one stream. */
  const poster = (name) => {
    let seq = 0;
    const request = (operations) => ({
      method: "POST",
      headers: {
        "Content-Type": "application/json",
        "Fencing-Token": `"bench:${name}";domain="bench";epoch=1;stream="lane-0";seq=${++seq};owner="bench"`,
      },
      body: JSON.stringify({ operations }),
    });
    const post = async (operations) => {
      const response = await fetch(URL, request(operations));
      const { results } = await response.json();
      if (!results?.every(({ status }) => status === "committed")) throw new Error(`not committed: ${response.status}`);
    };
    return { request, post, url: URL };
  };

  /** By hand: a strict transaction to enqueue; a loop that reads, posts and deletes. Ids are unique, order is kept. */
  const byHand = async (name) => {
    const database = await new Promise((resolve, reject) => {
      const request = indexedDB.open(`by-hand-${name}`, 1);
      request.onupgradeneeded = () =>
        request.result.createObjectStore("operations", { keyPath: "ordinal", autoIncrement: true })
          .createIndex("id", "id", { unique: true });
      request.onsuccess = () => resolve(request.result);
      request.onerror = () => reject(request.error);
    });
    const within = (mode, options, body) => new Promise((resolve, reject) => {
      const transaction = database.transaction("operations", mode, options);
      const request = body(transaction.objectStore("operations"));
      transaction.oncomplete = () => resolve(request?.result);
      transaction.onabort = () => reject(transaction.error);
    });
    const { post } = poster(name);
    return {
      enqueueAll: (items) => within("readwrite", { durability: "strict" }, (store) => {
        const at = Date.now();
        for (const each of items)
          store.add({ id: crypto.randomUUID(), partition: each.partition, payload: JSON.stringify(each.payload), at });
      }),
      async flush(batch) {
        for (;;) {
          const found = await within("readonly", {}, (store) => store.getAll(null, batch));
          if (!found.length) return;
          await post(found.map(({ id, partition, payload }) => ({ op_id: id, partition, payload: JSON.parse(payload) })));
          const keys = IDBKeyRange.bound(found[0].ordinal, found.at(-1).ordinal);
          await within("readwrite", {}, (store) => store.delete(keys));
        }
      },
    };
  };

  const items = (count) => Array.from({ length: count }, (_, n) => ({ payload: payload(n), partition: `case-${n % 20}` }));

  window.benchQueue = {
    poster,
    payload,
    /** One call with so many operations, by turns: `{ours: [ms], raw: [ms]}`. */
    async burst(count, rounds, warm) {
      const queue = tab.queue("burst", { flush: false });
      const hand = await byHand("burst");
      const found = { ours: [], raw: [] };
      for (let round = -warm; round < rounds; round += 1) {
        const ours = await timed(() => queue.enqueueAll(items(count)));
        const raw = await timed(() => hand.enqueueAll(items(count)));
        if (round >= 0) { found.ours.push(ours); found.raw.push(raw); }
      }
      return found;
    },
    /** One operation at a time, each awaited, by turns: milliseconds for each. */
    async single(count, rounds, warm) {
      const queue = tab.queue("single", { flush: false });
      const hand = await byHand("single");
      const found = { ours: [], raw: [] };
      for (let round = -warm; round < rounds; round += 1) {
        const some = items(count);
        const ours = await timed(async () => { for (const each of some) await queue.enqueue(each.payload, { partition: each.partition }); });
        const raw = await timed(async () => { for (const each of some) await hand.enqueueAll([each]); });
        if (round >= 0) { found.ours.push(ours / count); found.raw.push(raw / count); }
      }
      return found;
    },
    async fill(name, count) {
      const queue = tab.queue(name, { flush: false });
      for (let left = count; left > 0; left -= 2000) await queue.enqueueAll(items(Math.min(left, 2000)));
    },
    /** Milliseconds from opening the queue for sending until it says that it is empty. */
    empty: (name) => timed(async () => {
      const queue = tab.queue(name, { endpoint: URL });
      // By asking: by themselves figures come only every 200 ms.
      for (;; await new Promise((soon) => setTimeout(soon, 50))) {
        const at = await queue.stats();
        if (at.lastError || at.dead) throw new Error(JSON.stringify(at));
        if (at.done && at.queued === 0 && at.inFlight === 0) return;
      }
    }),
    async fillByHand(name, count) {
      window.hand = await byHand(name);
      for (let left = count; left > 0; left -= 2000) await hand.enqueueAll(items(Math.min(left, 2000)));
    },
    emptyByHand: (batch) => timed(() => hand.flush(batch)),
    /** A queue library: so many operations enqueued; milliseconds to flush them. */
    async peer(name, round, count, options) {
      await peer.open({ name: `${name}-${round}`, ...poster(`${name}-${round}`), ...options });
      for (let n = 0; n < count; n += 1)
        await peer.enqueue({ op_id: crypto.randomUUID(), partition: `case-${n % 20}`, payload: payload(n) });
      const ms = await timed(() => peer.flush());
      const left = await peer.size();
      if (left) throw new Error(`${name} left ${left} of ${count}`);
      return ms;
    },
  };
})()
