/**
 * workbox-background-sync's Queue, run in the page: it stores whole requests and sends them one by one. It reads
 * `self.registration`, which a page lacks: with an empty one it takes its way for browsers without Background Sync.
 */
import { Queue } from "workbox-background-sync";

let queue, given;

export default {
  async open(options) {
    given = options;
    globalThis.registration ??= {};
    queue = new Queue(options.name, { forceSyncFallback: true, onSync: async () => {} });
  },
  enqueue: (operation) => queue.pushRequest({ request: new Request(given.url, given.request([operation])) }),
  flush: () => queue.replayRequests(),
  size: () => queue.size(),
};
