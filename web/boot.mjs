/**
 * Boot Pyodide with tabhelm inside: from the memory snapshot (a fraction of the time), else plainly, never for ever.
 *
 * Works in pages and module workers, under a CSP without eval and blob:. What can be wrong with a served bundle (a file that
 * is missing, a login page instead of it, cut off, of another build) is found here and named.
 */
import { files, pyodideVersion, pythonVersion, abiVersion, platform, wheel } from "./build-info.mjs";

const SNAPSHOT = "snapshot.bin.gz";
const WASM = "pyodide/pyodide.asm.wasm";
const LIMIT_MS = 60_000;

/** The boot failed for good. `code` is a short stable word: "download", "content", "timeout" or "start". */
export class BootError extends Error {
  /** @param {string} code @param {string} text @param {ErrorOptions} [options] */
  constructor(code, text, options) {
    super(text, options);
    this.name = "BootError";
    this.code = code;
  }
}

/**
 * @param {object} [options]
 * @param {(stage: "download" | "start" | "ready" | "failed") => void} [options.onStage]
 * @param {string | URL} [options.base] where the bundle is served
 * @param {boolean} [options.snapshot] false: a plain boot
 * @returns {Promise<{pyodide: any, from: "snapshot" | "plain", fallbackReason: string | null, version: string}>}
 */
export async function boot({ onStage = () => {}, base = new URL("./", import.meta.url), snapshot = true } = {}) {
  let timer;
  const limit = new Promise((_, reject) => {
    timer = setTimeout(() => reject(new BootError("timeout", `Python did not start within ${LIMIT_MS / 1000} s`)), LIMIT_MS);
  });
  try {
    onStage("download");
    const booted = await Promise.race([start(new URL(base), snapshot, onStage), limit]);
    onStage("ready");
    return booted;
  } catch (error) {
    onStage("failed");
    throw error instanceof BootError ? error : new BootError("start", `Python did not start: ${text(error)}`, { cause: error });
  } finally {
    clearTimeout(timer);
  }
}

/** @param {URL} base @param {boolean} withSnapshot @param {(stage: "start") => void} onStage */
async function start(base, withSnapshot, onStage) {
  // The runtime's own loader waits for ever on some kinds of wrong wasm: look at it beforehand, beside everything else.
  const sound = checkWasm(base);
  sound.catch(() => {});
  const memory = withSnapshot ? fetchSnapshot(base) : null;
  memory?.catch(() => {});
  const { loadPyodide } = await loader(base);
  onStage("start");
  /** @param {object} [more] */
  const load = async (more) => {
    const loading = loadPyodide({
      indexURL: new URL("pyodide/", base).href,
      // No packages come from the runtime's own lock file: a hundred kilobytes that need not be read.
      lockFileContents: { info: { abi_version: abiVersion, arch: "wasm32", platform, python: pythonVersion, version: pyodideVersion }, packages: {} },
      packageBaseUrl: base.href,
      ...more,
    });
    return Promise.race([loading, sound.then(() => loading)]);
  };
  let fallbackReason = null;
  if (memory) {
    try {
      const pyodide = await load({ _loadSnapshot: memory });
      reseed(pyodide);
      return { pyodide, from: /** @type {const} */ ("snapshot"), fallbackReason, version: pyodideVersion };
    } catch (error) {
      if (error instanceof BootError && error.code !== "snapshot") throw error;
      fallbackReason = text(error);
    }
  }
  const [pyodide, bytes] = await Promise.all([load(), fetchChecked(base, wheel)]);
  pyodide.unpackArchive(bytes, "wheel");
  return { pyodide, from: /** @type {const} */ ("plain"), fallbackReason, version: pyodideVersion };
}

/** @param {URL} base */
async function loader(base) {
  const url = new URL("pyodide/pyodide.mjs", base).href;
  try {
    return await import(/* @vite-ignore */ /* webpackIgnore: true */ url);
  } catch (error) {
    throw new BootError("download", `${url} could not be loaded: ${text(error)}`, { cause: error });
  }
}

/** Tabs restored from one snapshot would draw the same "random" numbers. @param {any} pyodide */
function reseed(pyodide) {
  pyodide.runPython("import os, random; random.seed(os.urandom(32)); del os, random");
}

/** @param {URL} base @returns {Promise<Uint8Array>} */
async function fetchSnapshot(base) {
  try {
    const packed = await fetchChecked(base, SNAPSHOT);
    const stream = new Response(packed).body;
    if (!stream) throw new Error("empty");
    const memory = await new Response(stream.pipeThrough(new DecompressionStream("gzip"))).arrayBuffer();
    return new Uint8Array(memory);
  } catch (error) {
    throw new BootError("snapshot", `the memory snapshot cannot be used: ${text(error)}`, { cause: error });
  }
}

/** The whole file, if it is the one that was built. @param {URL} base @param {string} name */
async function fetchChecked(base, name) {
  const expected = files[name];
  if (!expected) throw new BootError("content", `${name} is not part of this build`);
  const url = new URL(name, base).href;
  let response;
  try {
    response = await fetch(url, { integrity: expected.integrity });
  } catch (error) {
    throw new BootError("download", `${url} could not be fetched, or is not the file that was built: ${text(error)}`, { cause: error });
  }
  if (!response.ok) throw new BootError("download", `${url} answered ${response.status}`);
  return response.arrayBuffer();
}

/** Status and first bytes of the runtime; the rest is left to the streaming compiler. @param {URL} base */
async function checkWasm(base) {
  const url = new URL(WASM, base).href;
  const abort = new AbortController();
  let response;
  try {
    response = await fetch(url, { signal: abort.signal });
  } catch (error) {
    throw new BootError("download", `${url} could not be fetched: ${text(error)}`, { cause: error });
  }
  if (!response.ok) throw new BootError("download", `${url} answered ${response.status}`);
  const reader = response.body?.getReader();
  const first = (await reader?.read())?.value ?? new Uint8Array();
  const rest = Number(response.headers.get("content-length") ?? NaN);
  abort.abort();
  if (first[0] !== 0 || first[1] !== 0x61 || first[2] !== 0x73 || first[3] !== 0x6d) {
    throw new BootError("content", `${url} is no WebAssembly: is it a login or error page?`);
  }
  const expected = files[WASM]?.size;
  if (!response.headers.has("content-encoding") && rest && expected && rest !== expected) {
    throw new BootError("content", `${url} has ${rest} bytes, ${expected} were built: cut off, or of another build`);
  }
}

/** @param {any} error */
function text(error) {
  return String(error?.message ?? error);
}
