"""Scripts that the harness' tests run in pages."""

TICK = "() => { globalThis.ticks = 0; setInterval(() => { ticks += 1; }, 50); }"
"""Count in steps of 50 ms."""

HOLD = """(name) => new Promise((held) => {
  navigator.locks.request(name, () => {
    held(true);
    return new Promise((release) => { globalThis.release = release; });
  });
})"""
"""Hold a Web Lock until ``release()``; resolves once it is held."""

WAIT = "(name) => { navigator.locks.request(name, () => { globalThis.got = true; return new Promise(() => {}); }); }"
"""Queue for a Web Lock; ``got`` tells when it was granted."""

CONNECT = """() => {
  const worker = new SharedWorker("/worker.js", "echo");
  globalThis.port = worker.port;
  return new Promise((ready) => {
    port.onmessage = ({ data }) => { globalThis.answer = data; ready(data); };
    port.postMessage("hello");
  });
}"""
"""Join the site's shared worker; resolves with its first answer."""

OPEN_DATABASE = """() => new Promise((done, failed) => {
  const opening = indexedDB.open("store", 1);
  opening.onupgradeneeded = () => opening.result.createObjectStore("items");
  opening.onerror = () => failed(opening.error);
  opening.onsuccess = () => {
    globalThis.database = opening.result;
    database.onclose = () => { globalThis.databaseClosed = true; };
    done(true);
  };
})"""
"""Open an IndexedDB connection; ``databaseClosed`` tells when the browser closed it."""

PUT = """(size) => new Promise((done) => {
  const transaction = database.transaction("items", "readwrite");
  const bytes = new Uint8Array(size);  // random, as the browser compresses what it stores
  for (let start = 0; start < size; start += 65536) crypto.getRandomValues(bytes.subarray(start, start + 65536));
  transaction.objectStore("items").put(bytes, "key");
  transaction.oncomplete = () => done("complete");
  transaction.onabort = () => done(`abort ${transaction.error?.name}`);
})"""
"""Write so many bytes; resolves with how the transaction ended."""
