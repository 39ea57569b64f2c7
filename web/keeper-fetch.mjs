// What is kept for pages without a network is fetched here: whole, unchanged, and no login page.

/** Addresses of what is never a page. */
const OF_CODE = /\.(m?js|css|wasm|json)(\?|$)/;

export class Failure extends Error {
  /** @param {"download" | "content" | "quota" | "storage"} code @param {string} message @param {unknown} [cause] */
  constructor(code, message, cause) {
    super(message, { cause });
    this.code = code;
  }
}

/**
 * Fetch one file; of the bundle, only as it was built. The response is a plain one: a redirected one answers no navigation.
 * @param {string} address @param {{size: number, integrity: string} | null} entry @param {AbortSignal} [signal]
 */
export async function fetched(address, entry, signal) {
  let wrong = "";
  // The browser may have kept another build's file: it is asked past that once more.
  for (const cache of /** @type {RequestCache[]} */ (["no-cache", "reload"])) {
    // What nobody can check is not followed to another address: that is where login pages are.
    const redirect = entry ? "follow" : "manual";
    const response = await fetch(address, { cache, credentials: "same-origin", redirect, signal }).catch((error) => {
      throw new Failure("download", `${address} cannot be fetched: ${error.message}`, error);
    });
    if (response.type === "opaqueredirect") throw new Failure("content", `${address} is redirected: list the address that it leads to, unless it is a login page`);
    if (!response.ok) throw new Failure("download", `${address} is answered with status ${response.status}`);
    const bytes = await response.arrayBuffer().catch((error) => {
      throw new Failure("download", `${address} broke off: ${error.message}`, error);
    });
    const headers = new Headers(response.headers);
    if (!entry && OF_CODE.test(address) && headers.get("content-type")?.startsWith("text/html")) {
      throw new Failure("content", `${address} is answered with a page of HTML: is it there, and is a login needed?`);
    }
    for (const name of ["content-encoding", "content-length"]) headers.delete(name);
    if (!entry || (await integrityOf(bytes)) === entry.integrity) return new Response(bytes, { headers });
    wrong = `${bytes.byteLength} bytes of ${headers.get("content-type") ?? "no type"} came, of ${entry.size}`;
  }
  throw new Failure("content", `${address} is not the file that was built (${wrong}): serve all files of one build together, and unchanged`);
}

/** @param {ArrayBuffer} bytes */
export async function integrityOf(bytes) {
  const digest = new Uint8Array(await crypto.subtle.digest("SHA-384", bytes));
  return `sha384-${btoa(String.fromCharCode(...digest))}`;
}
