// Boot Pyodide with tabhelm inside: from the memory snapshot (a fraction of the time), else plainly; never for ever.
//
// Works in pages and in module workers, under a policy without eval and blob:. Every file is fetched and checked here
// against what was built, before the runtime sees it: the runtime's own loader waits for ever on a wrong WebAssembly
// file, and starts with half a standard library without a word. The bytes that were checked are what the runtime gets,
// but for its two scripts, which the browser alone can load (from its HTTP cache, where they have just been put).

import { version } from "./build-info.mjs";
import { files, lock, snapshot as snapshotName, wheel as wheelName } from "./runtime-info.mjs";

const SCRIPTS = ["pyodide/pyodide.mjs", "pyodide/pyodide.asm.mjs"];
/** What the runtime asks the server for, and of which type it must be. */
const LENT = Object.entries({ "pyodide/pyodide.asm.wasm": "application/wasm", "pyodide/python_stdlib.zip": "application/zip" });
/** So long without a byte, and a download has stalled. With all that follows, it is told within ten seconds. */
const STALL_MS = 6_000;
const HASTE = 2 / 3; // of that for the snapshot: there is another way, which takes its time too
const TICKS = 8; // in which a time limit is counted
const SMALLEST_MODULE = [0, 0x61, 0x73, 0x6d, 1, 0, 0, 0];

/** The boot failed for good. `code`: see `boot`. */
export class BootError extends Error {
  /** @param {string} code @param {string} message @param {unknown} [cause] */
  constructor(code, message, cause) {
    super(message, { cause });
    this.name = "BootError";
    this.code = code;
  }
}

/**
 * Boot an interpreter that can `import tabhelm`, its entropy its own.
 *
 * Stages: "download", then "start", then "ready" or "failed". Rejects with a `BootError` whose code is "no-runtime" (no
 * WebAssembly, no secure context), "download" (not reachable, or an error status), "stalled" (no byte came for `stallMs`),
 * "content" (not the file that was built: a login page, cut off, of another build) or "start" (the interpreter failed,
 * or did nothing for `timeoutMs`).
 *
 * `fallbackReason` says why the snapshot could not be used, else it is null. `unpackWheel()` puts the files of our wheel
 * where Python finds them: a restored interpreter has the imported modules alone, no files (no resources, no metadata,
 * no source lines in tracebacks). After a plain boot they are there.
 *
 * @param {{indexURL?: string | URL, onStage?: (stage: "download" | "start" | "ready" | "failed") => void,
 *   timeoutMs?: number, stallMs?: number, snapshot?: boolean}} [options] `indexURL`: where the bundle is served, default:
 *   beside this file; `snapshot: false`: a plain boot
 * @returns {Promise<{pyodide: any, from: "snapshot" | "plain", fallbackReason: string | null, version: string,
 *   unpackWheel: () => Promise<void>}>}
 */
export async function boot({
  indexURL = new URL("./", import.meta.url),
  onStage = () => {},
  timeoutMs = 30_000,
  stallMs = STALL_MS,
  snapshot = true,
} = {}) {
  const work = new Boot(new URL(indexURL, import.meta.url), onStage, timeoutMs, stallMs);
  try {
    const booted = await work.run(snapshot);
    onStage("ready");
    return booted;
  } catch (error) {
    onStage("failed");
    throw error instanceof BootError ? error : new BootError("start", `Python did not start: ${text(error)}`, error);
  } finally {
    work.end();
  }
}

/**
 * A time limit, put off by every `moved()`. It is counted in ticks of at most their nominal length: after the machine
 * slept, or a worker was suspended, what has arrived meanwhile must be read before anything is called late.
 */
class Limit {
  #left = TICKS;
  #timer;

  /** @param {number} limitMs @param {() => void} over */
  constructor(limitMs, over) {
    this.#timer = setInterval(() => {
      if (--this.#left > 0) return;
      this.end();
      over();
    }, limitMs / TICKS);
  }

  moved() {
    this.#left = TICKS;
  }

  end() {
    clearInterval(this.#timer);
  }
}

class Boot {
  #base;
  #onStage;
  #timeoutMs;
  #stallMs;
  #end = new AbortController();
  /** @type {Map<string, Uint8Array<ArrayBuffer>>} what was checked and is still needed */
  #bytes = new Map();

  /** @param {URL} base @param {(stage: "download" | "start") => void} onStage @param {number} timeoutMs @param {number} stallMs */
  constructor(base, onStage, timeoutMs, stallMs) {
    this.#base = base;
    this.#onStage = onStage;
    this.#timeoutMs = timeoutMs;
    this.#stallMs = stallMs;
  }

  /** @param {boolean} withSnapshot */
  async run(withSnapshot) {
    checkEnvironment();
    this.#onStage("download");
    const memory = withSnapshot ? this.#memory() : null;
    memory?.catch(() => {}); // told below; the runtime may fail first
    const lent = LENT.map(async ([name]) => this.#bytes.set(this.#url(name), await this.#checked(name)));
    await Promise.all([...lent, ...SCRIPTS.map(async (name) => free(await this.#checked(name)))]);
    this.#onStage("start");
    const script = this.#url("pyodide/pyodide.mjs");
    const { loadPyodide } = await this.#started(import(/* @vite-ignore */ /* webpackIgnore: true */ script));
    let reason = null;
    if (memory) {
      try {
        // The runtime awaits the memory when it is ready for it: it is unpacked while the scripts are loaded.
        const starting = this.#lend(loadPyodide, { _loadSnapshot: memory, createPyodideModule: this.#fitting(memory) });
        await Promise.race([memory, starting]); // its download has limits of its own
        const pyodide = await this.#started(starting);
        // All that are restored from one snapshot would draw the same "random" numbers.
        pyodide.runPython("import random; random.seed()");
        return this.#booted(pyodide, "snapshot", null);
      } catch (error) {
        if (error instanceof BootError && error.code === "start") throw error;
        reason = `the memory snapshot cannot be used: ${text(error)}`;
      } finally {
        // The runtime keeps its options, and with them 30 MB that nobody needs any more.
        memory.then(free, () => {});
      }
    }
    const [pyodide, wheel] = await Promise.all([this.#started(this.#lend(loadPyodide, {})), this.#checked(wheelName)]);
    unpack(pyodide, wheel);
    return this.#booted(pyodide, "plain", reason);
  }

  /**
   * Makes the runtime's module, and the memory fit it. CPython calls functions through one whose place in the table of
   * WebAssembly functions is written into the memory when the module starts, and a restore overwrites that with the place
   * where it was when the snapshot was made. In WebKit it is another one.
   * @param {Promise<Uint8Array<ArrayBuffer>>} memory @returns {(settings: object) => Promise<any>}
   */
  #fitting(memory) {
    return async (settings) => {
      const script = this.#url("pyodide/pyodide.asm.mjs");
      const { default: create } = await import(/* @vite-ignore */ /* webpackIgnore: true */ script);
      const module = await create(settings);
      const address = module.__PyRuntime + module.HEAP32[module.__PyEM_EMSCRIPTEN_TRAMPOLINE_OFFSET >> 2];
      const snapshot = new DataView((await memory).buffer);
      const begin = snapshot.getUint32(4, true); // of the memory, behind its header
      snapshot.setInt32(begin + address, module.HEAP32[address >> 2], true);
      return module;
    };
  }

  /** Nothing is fetched or kept any longer. */
  end() {
    this.#end.abort();
    for (const bytes of this.#bytes.values()) free(bytes);
    this.#bytes.clear();
  }

  /** @param {any} pyodide @param {"snapshot" | "plain"} from @param {string | null} fallbackReason */
  #booted(pyodide, from, fallbackReason) {
    const unpackWheel = from === "plain" ? async () => {} : once(() => this.#unpack(pyodide));
    return { pyodide, from, fallbackReason, version, unpackWheel };
  }

  /** @param {any} pyodide */
  async #unpack(pyodide) {
    const later = new Boot(this.#base, () => {}, this.#timeoutMs, this.#stallMs);
    unpack(pyodide, await later.#checked(wheelName));
  }

  /**
   * Start the runtime on the bytes that were checked: what it asks `fetch` for is handed over, for as long as it has not
   * asked. Nothing is downloaded twice, and nothing unchecked is executed.
   * @param {(options: object) => Promise<any>} loadPyodide @param {object} more
   */
  async #lend(loadPyodide, more) {
    const usual = globalThis.fetch;
    const asked = new Map(LENT.map(([name, type]) => [this.#url(name), type]));
    const give = () => Reflect.set(globalThis, "fetch", lending);
    const take = () => void (globalThis.fetch === lending && Reflect.set(globalThis, "fetch", usual));
    /** @type {typeof fetch} */
    const lending = async (input, init) => {
      const url = String(input);
      const bytes = this.#bytes.get(url);
      const type = asked.get(url);
      if (!bytes || !type) return usual(input, init);
      asked.delete(url);
      if (!asked.size) take();
      return new Response(piecewise(bytes), { headers: { "Content-Type": type } });
    };
    give();
    try {
      // The lock of this bundle alone: the runtime's own names hundreds of packages, which are not served here.
      const options = { indexURL: this.#url("pyodide/"), lockFileContents: lock, packageBaseUrl: this.#url("") };
      return await loadPyodide({ ...options, ...more });
    } finally {
      take();
    }
  }

  /** @template T @param {Promise<T>} work @returns {Promise<T>} */
  #started(work) {
    return new Promise((resolve, reject) => {
      const late = new BootError("start", `Python did not start: the interpreter did nothing for ${this.#timeoutMs} ms`);
      const limit = new Limit(this.#timeoutMs, () => reject(late));
      work.then(resolve, reject).finally(() => limit.end());
    });
  }

  /** @param {string} name */
  #url(name) {
    return new URL(name, this.#base).href;
  }

  async #memory() {
    const packed = await this.#checked(snapshotName);
    const bytes = new Uint8Array(new DataView(packed.buffer).getUint32(packed.length - 4, true)); // the end of a gzip file
    const unpacked = new Response(piecewise(packed)).body?.pipeThrough(new DecompressionStream("gzip"));
    await fill(bytes, /** @type {ReadableStream<Uint8Array>} */ (unpacked), () => {});
    free(packed);
    return bytes;
  }

  /** The whole file, if it is the one that was built. @param {string} name @returns {Promise<Uint8Array<ArrayBuffer>>} */
  async #checked(name) {
    try {
      return await this.#fetched(name, "default");
    } catch (error) {
      if (!(error instanceof BootError) || error.code !== "content") throw error;
      return this.#fetched(name, "reload"); // perhaps the browser has kept the file of an earlier build
    }
  }

  /** @param {string} name @param {RequestCache} cache @returns {Promise<Uint8Array<ArrayBuffer>>} */
  async #fetched(name, cache) {
    const url = this.#url(name);
    const { size, integrity } = files[name];
    const bytes = new Uint8Array(size);
    const abort = new AbortController();
    const stop = () => abort.abort();
    this.#end.signal.addEventListener("abort", stop, { once: true });
    let stalled = false;
    const stallMs = Math.round(this.#stallMs * (name === snapshotName ? HASTE : 1));
    const limit = new Limit(stallMs, () => ((stalled = true), stop()));
    let length = 0;
    let what = "";
    try {
      const response = await fetch(url, { cache, signal: abort.signal });
      const redirected = response.redirected ? ` (redirected to ${response.url})` : "";
      if (!response.ok) throw new BootError("download", `${url}${redirected} was answered with status ${response.status}: ${SERVE}`);
      what = `${response.headers.get("content-type") ?? "no type"}${redirected}`;
      length = await fill(bytes, response.body, () => limit.moved());
    } catch (error) {
      if (error instanceof BootError) throw error;
      if (stalled) throw new BootError("stalled", `${url} stalled: the server sent nothing for ${stallMs} ms`);
      const way = "is the server reachable, and does the Content-Security-Policy's connect-src allow it?";
      throw new BootError("download", `${url} could not be fetched (${text(error)}): ${way}`, error);
    } finally {
      limit.end();
      this.#end.signal.removeEventListener("abort", stop);
    }
    if (length !== size) {
      const way = name.endsWith(".gz") ? `${SERVE}, a .gz file without Content-Encoding` : SERVE;
      throw new BootError("content", `${url} is not the file that was built: ${length} bytes of ${what} came, of ${size}: ${way}`);
    }
    const digest = new Uint8Array(await crypto.subtle.digest("SHA-384", bytes));
    if (`sha384-${btoa(String.fromCharCode(...digest))}` !== integrity) {
      throw new BootError("content", `${url} is not the file that was built: its SHA-384 is another: ${SERVE}`);
    }
    return bytes;
  }
}

const SERVE = "serve all files of one build together, and unchanged";

/** What must be told before the runtime would wait for it in vain. */
function checkEnvironment() {
  if (!globalThis.crypto?.subtle) {
    throw new BootError("no-runtime", "this is not a secure context, so that nothing can be checked (crypto.subtle is missing): serve it over https, or from localhost");
  }
  if (typeof WebAssembly !== "object") {
    throw new BootError("no-runtime", "this browser has no WebAssembly, which Python needs, or it is switched off");
  }
  try {
    new WebAssembly.Module(new Uint8Array(SMALLEST_MODULE));
  } catch (error) {
    const way = "the Content-Security-Policy must allow script-src 'wasm-unsafe-eval'; a worker obeys the one that its script came with";
    throw new BootError("no-runtime", `WebAssembly is not allowed here (${text(error)}): ${way}`, error);
  }
}

/**
 * Read a body into `bytes`; what is too much is only counted. Returns the body's length.
 * @param {Uint8Array} bytes @param {ReadableStream<Uint8Array> | null} body @param {() => void} moved
 */
async function fill(bytes, body, moved) {
  let length = 0;
  for (const reader = body?.getReader(); reader; ) {
    const { done, value } = await reader.read();
    if (done) break;
    moved();
    if (length + value.length <= bytes.length) bytes.set(value, length);
    length += value.length;
  }
  return length;
}

/** A body that makes no copy of the whole. @param {Uint8Array<ArrayBuffer>} bytes */
function piecewise(bytes) {
  const step = 2 ** 18;
  let at = 0;
  return new ReadableStream({
    pull(controller) {
      if (at >= bytes.length) return controller.close();
      controller.enqueue(bytes.subarray(at, (at += step)));
    },
  });
}

/** Give memory back at once, not when the collector finds out; whoever still looks sees an empty array. @param {Uint8Array<ArrayBuffer>} bytes */
function free(bytes) {
  /** @type {{transfer?: (length: number) => void}} */ (bytes.buffer).transfer?.(0);
}

/** @param {any} pyodide @param {Uint8Array<ArrayBuffer>} wheel */
function unpack(pyodide, wheel) {
  pyodide.unpackArchive(wheel, "wheel");
  pyodide.runPython("import importlib; importlib.invalidate_caches()");
}

/** The same promise for every call; a failure may be tried again. @param {() => Promise<void>} work */
function once(work) {
  /** @type {Promise<void> | null} */
  let promise = null;
  return () => (promise ??= work().catch((error) => Promise.reject(((promise = null), error))));
}

/** @param {any} error */
function text(error) {
  return String(error?.message ?? error);
}
