// Boot Pyodide with tabhelm inside: from the memory snapshot (a fraction of the time), else plainly; never for ever.
//
// Works in pages and in module workers, under a policy without eval and blob:. Every file is fetched and checked here
// against what was built before the runtime asks for it again (and gets it from the HTTP cache): the runtime's own
// loader waits for ever on a wrong WebAssembly file, and starts with half a standard library without a word.

import { version } from "./build-info.mjs";
import { files, lock, snapshot as snapshotName, wheel as wheelName } from "./runtime-info.mjs";

const RUNTIME = ["pyodide/pyodide.mjs", "pyodide/pyodide.asm.mjs", "pyodide/pyodide.asm.wasm", "pyodide/python_stdlib.zip"];

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
 * Stages: "download", then "start", then "ready" or "failed". Rejects with a `BootError` whose code is "download" (not
 * reachable, or an error status), "content" (not the file that was built: a login page, cut off, of another build),
 * "timeout" (nothing moved for `timeoutMs`: no byte came in, or the interpreter does not start) or "start".
 *
 * `fallbackReason` says why the snapshot could not be used, else it is null. `unpackWheel()` puts the files of our wheel
 * where Python finds them: a restored interpreter has the imported modules alone, no files (no resources, no metadata,
 * no source lines in tracebacks). After a plain boot they are there.
 *
 * @param {{indexURL?: string | URL, onStage?: (stage: "download" | "start" | "ready" | "failed") => void,
 *   timeoutMs?: number, snapshot?: boolean}} [options] `indexURL`: where the bundle is served, default: beside this file;
 *   `snapshot: false`: a plain boot
 * @returns {Promise<{pyodide: any, from: "snapshot" | "plain", fallbackReason: string | null, version: string,
 *   unpackWheel: () => Promise<void>}>}
 */
export async function boot({
  indexURL = new URL("./", import.meta.url),
  onStage = () => {},
  timeoutMs = 30_000,
  snapshot = true,
} = {}) {
  const patience = new Patience(timeoutMs);
  try {
    const work = new Boot(new URL(indexURL, import.meta.url), patience, onStage).run(snapshot);
    const booted = await Promise.race([work, patience.over]);
    onStage("ready");
    return booted;
  } catch (error) {
    onStage("failed");
    throw error instanceof BootError ? error : new BootError("start", `Python did not start: ${text(error)}`, error);
  } finally {
    patience.end();
  }
}

/** Ends when nothing moved for a while. */
class Patience {
  #limitMs;
  #timer = /** @type {ReturnType<typeof setTimeout> | undefined} */ (undefined);
  #giveUp = /** @type {(error: BootError) => void} */ (() => {});
  #abort = new AbortController();
  /** @type {Promise<never>} rejects when patience ends */
  over = new Promise((_, reject) => (this.#giveUp = reject));
  doing = "loading";

  /** @param {number} limitMs */
  constructor(limitMs) {
    this.#limitMs = limitMs;
    this.over.catch(() => {});
    this.moved();
  }

  /** Aborts what is still being fetched. */
  get signal() {
    return this.#abort.signal;
  }

  /** Something moved. */
  moved() {
    clearTimeout(this.#timer);
    this.#timer = setTimeout(() => {
      this.#giveUp(new BootError("timeout", `Python did not start: nothing moved for ${this.#limitMs} ms while ${this.doing}`));
      this.#abort.abort();
    }, this.#limitMs);
  }

  end() {
    clearTimeout(this.#timer);
    this.#abort.abort();
  }
}

class Boot {
  #base;
  #patience;
  #onStage;

  /** @param {URL} base @param {Patience} patience @param {(stage: "download" | "start") => void} onStage */
  constructor(base, patience, onStage) {
    this.#base = base;
    this.#patience = patience;
    this.#onStage = onStage;
  }

  /** @param {boolean} withSnapshot */
  async run(withSnapshot) {
    this.#onStage("download");
    const memory = withSnapshot ? this.#memory() : null;
    memory?.catch(() => {}); // told below; the runtime may fail first
    await Promise.all(RUNTIME.map((name) => this.#checked(name)));
    this.#patience.doing = "starting the interpreter";
    this.#patience.moved();
    this.#onStage("start");
    const { loadPyodide } = await import(/* @vite-ignore */ /* webpackIgnore: true */ this.#url("pyodide/pyodide.mjs"));
    let reason = null;
    if (memory) {
      try {
        // The runtime awaits the memory when it is ready for it: unpacking runs beside the compiling.
        const pyodide = await loadPyodide({ ...this.#options(), _loadSnapshot: memory });
        // All that are restored from one snapshot would draw the same "random" numbers.
        pyodide.runPython("import random; random.seed()");
        return this.#booted(pyodide, "snapshot", null, once(() => this.#unpack(pyodide)));
      } catch (error) {
        reason = `the memory snapshot cannot be used: ${text(error)}`;
        this.#patience.moved();
      }
    }
    const [pyodide, wheel] = await Promise.all([loadPyodide(this.#options()), this.#checked(wheelName)]);
    unpack(pyodide, wheel);
    return this.#booted(pyodide, "plain", reason, async () => {});
  }

  /**
   * @param {any} pyodide @param {"snapshot" | "plain"} from @param {string | null} fallbackReason
   * @param {() => Promise<void>} unpackWheel
   */
  #booted(pyodide, from, fallbackReason, unpackWheel) {
    return { pyodide, from, fallbackReason, version, unpackWheel };
  }

  #options() {
    // The lock of this bundle alone: the runtime's own names hundreds of packages, which are not served here.
    return { indexURL: this.#url("pyodide/"), lockFileContents: lock, packageBaseUrl: this.#url("") };
  }

  /** @param {string} name */
  #url(name) {
    return new URL(name, this.#base).href;
  }

  async #memory() {
    const packed = await this.#checked(snapshotName);
    const unpacked = new Blob([packed]).stream().pipeThrough(new DecompressionStream("gzip"));
    return new Uint8Array(await new Response(unpacked).arrayBuffer());
  }

  /** @param {any} pyodide */
  async #unpack(pyodide) {
    const patience = new Patience(30_000);
    try {
      const wheel = new Boot(this.#base, patience, () => {}).#checked(wheelName);
      unpack(pyodide, await Promise.race([wheel, patience.over]));
    } finally {
      patience.end();
    }
  }

  /** The whole file, if it is the one that was built. @param {string} name @returns {Promise<Uint8Array<ArrayBuffer>>} */
  async #checked(name) {
    const url = this.#url(name);
    const { size, integrity } = files[name];
    const bytes = new Uint8Array(size);
    let length = 0;
    try {
      const response = await fetch(url, { signal: this.#patience.signal });
      if (!response.ok) throw new BootError("download", `${url} answered with status ${response.status}`);
      const type = response.headers.get("content-type") ?? "none";
      if (name.endsWith(".wasm") && !type.startsWith("application/wasm"))
        throw new BootError("content", `${url} is served as ${type}: let the server send Content-Type application/wasm for .wasm`);
      for (const reader = response.body?.getReader(); reader; ) {
        const { done, value } = await reader.read();
        if (done) break;
        this.#patience.moved();
        if (length + value.length <= size) bytes.set(value, length);
        length += value.length;
      }
    } catch (error) {
      throw error instanceof BootError ? error : new BootError("download", `${url} could not be fetched: ${text(error)}`, error);
    }
    if (length !== size) throw new BootError("content", `${url} has ${length} bytes, but ${size} were built${name.endsWith(".gz") ? " (a .gz file must be served without Content-Encoding)" : ""}`);
    const digest = new Uint8Array(await crypto.subtle.digest("SHA-384", bytes));
    if (`sha384-${btoa(String.fromCharCode(...digest))}` !== integrity)
      throw new BootError("content", `${url} is not the file that was built: its SHA-384 is another`);
    return bytes;
  }
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
