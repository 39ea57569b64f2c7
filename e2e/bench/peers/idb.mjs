/** The loop that one would write by hand, over idb, the wrapper that most would write it with. */
import { openDB } from "idb";

let database, given;

export default {
  async open(options) {
    given = options;
    database = await openDB(`idb-${options.name}`, 1, {
      upgrade: (opening) => opening.createObjectStore("operations", { autoIncrement: true }),
    });
  },
  enqueue: (operation) => database.add("operations", operation),
  flush: () => navigator.locks.request(`idb-${given.name}`, async () => {
    for (;;) {
      const { store } = database.transaction("operations");
      const [keys, operations] = await Promise.all([store.getAllKeys(null, given.batch), store.getAll(null, given.batch)]);
      if (!keys.length) return;
      await given.post(operations);
      await database.delete("operations", IDBKeyRange.bound(keys[0], keys.at(-1)));
    }
  }),
  size: () => database.count("operations"),
};
