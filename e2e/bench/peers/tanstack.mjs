/** @tanstack/offline-transactions with its own IndexedDB store: "offline" until `flush`, which sends one by one. */
import { createCollection } from "@tanstack/db";
import { IndexedDBAdapter, WebLocksLeader, startOfflineExecutor } from "@tanstack/offline-transactions";

let executor, notes, online = false;
const listeners = new Set();
const commits = [];
/** By the key under which a transaction is stored: its `commit` resolves only once it was sent, so the store is watched. */
const stored = new Map();

class Watched extends IndexedDBAdapter {
  async set(key, value) {
    await super.set(key, value);
    stored.get(key)?.();
    stored.delete(key);
  }
}

export default {
  async open({ name, post }) {
    notes = createCollection({ id: "notes", getKey: ({ op_id }) => op_id, sync: { sync: ({ markReady }) => markReady() } });
    executor = startOfflineExecutor({
      collections: { notes },
      storage: new Watched(`tanstack-${name}`, "transactions"),
      leaderElection: new WebLocksLeader(`tanstack-${name}`),
      onlineDetector: {
        isOnline: () => online,
        subscribe: (listener) => (listeners.add(listener), () => listeners.delete(listener)),
        notifyOnline: () => listeners.forEach((listener) => listener()),
        dispose() {},
      },
      mutationFns: {
        send: ({ transaction }) => {
          const { op_id, partition, payload } = transaction.mutations[0].modified;
          return post([{ op_id, partition, payload }]);
        },
      },
    });
    await executor.waitForInit();
  },
  enqueue(operation) {
    const transaction = executor.createOfflineTransaction({ mutationFnName: "send", autoCommit: false });
    const durable = new Promise((resolve) => stored.set(`tx:${transaction.id}`, resolve));
    transaction.mutate(() => notes.insert({ ...operation }));
    const sent = transaction.commit();
    commits.push(sent);
    return Promise.race([durable, sent]);
  },
  async flush() {
    online = true;
    listeners.forEach((listener) => listener());
    await Promise.all(commits.splice(0));
  },
  size: async () => (await executor.peekOutbox()).length,
};
