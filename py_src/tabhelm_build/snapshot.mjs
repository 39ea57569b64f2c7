// Make the memory snapshot: Pyodide under Node.js, our modules imported, its memory written out gzipped.
//
//   node snapshot.mjs <folder of pyodide> <wheel> <output.gz>
//
// The snapshot is the WebAssembly heap alone. Files (the unpacked wheel) are not in it: what is to be there after a
// restore has to be imported here. A JavaScript object can be kept only if it is reachable by a path of names from
// globalThis in every place of restore, so modules keep none at all.

import nodeCrypto from "node:crypto";
import { readFileSync, writeFileSync } from "node:fs";
import { pathToFileURL } from "node:url";
import { gzipSync } from "node:zlib";

// The heap that the runtime is compiled with: a larger one cannot be restored, whatever memory is asked for.
const LARGEST_HEAP = 30 * 1024 * 1024;

// Node.js prints the source line of an uncaught error, which in the runtime is a megabyte long.
process.on("uncaughtException", (error) => {
  console.error(String(error?.stack ?? error).slice(-2000));
  process.exit(1);
});

// The same sources make the same bytes: while this memory is made the clock stands, and entropy is constant. That gives
// nothing away, for whatever is drawn here is public with the snapshot, and boot.mjs seeds anew after every restore.
Date.now = () => 1767225600000;
performance.now = () => 0;
nodeCrypto.randomFillSync = (view) => (new Uint8Array(view.buffer, view.byteOffset, view.byteLength).fill(7), view);

const [folder, wheel, output] = process.argv.slice(2);
const { loadPyodide } = await import(pathToFileURL(`${folder}/pyodide.mjs`).href);
const { info } = JSON.parse(readFileSync(`${folder}/pyodide-lock.json`, "utf8"));
const pyodide = await loadPyodide({
  indexURL: `${folder}/`,
  packageBaseUrl: `${folder}/`,
  lockFileContents: { info, packages: {} },
  env: { PYTHONHASHSEED: "0", PYTHONDONTWRITEBYTECODE: "1" },
  // As in a page; by itself it would be the path of this script on the machine that builds.
  _sysExecutable: "./this.program",
  _makeSnapshot: true,
});
pyodide.unpackArchive(new Uint8Array(readFileSync(wheel)), "wheel");
const modules = pyodide.runPython(`
def import_all():
    import gc, importlib

    importlib.invalidate_caches()
    from tabhelm.browser import snapshot_modules

    names = snapshot_modules()
    for name in names:
        importlib.import_module(name)
    gc.collect()
    return len(names)

count = import_all()
del import_all
count
`);
const heap = pyodide._module.HEAP8.length;
if (heap > LARGEST_HEAP) {
  console.error(`the heap has ${heap} bytes, and over ${LARGEST_HEAP} it cannot be restored: import fewer modules`);
  process.exit(1);
}
const memory = pyodide.makeMemorySnapshot();
writeFileSync(output, gzipSync(memory, { level: 9 }));
const used = pyodide._module.HEAPU32[pyodide._module._emscripten_get_sbrk_ptr() >> 2];
console.log(JSON.stringify({ modules, used, limit: LARGEST_HEAP }));
process.exit(0);
