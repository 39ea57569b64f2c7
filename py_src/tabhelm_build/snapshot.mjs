// Make the memory snapshot: Pyodide under Node.js, our modules imported, its memory written out gzipped.
//   node snapshot.mjs <folder of pyodide> <wheel> <output.gz>
import { readFileSync, writeFileSync } from "node:fs";
import { pathToFileURL } from "node:url";
import { gzipSync } from "node:zlib";

// Node.js prints the source line of an uncaught error, which in the runtime is a megabyte long.
process.on("uncaughtException", (error) => {
  console.error(String(error?.stack ?? error).slice(-2000));
  process.exit(1);
});

const [folder, wheel, output] = process.argv.slice(2);
const { loadPyodide } = await import(pathToFileURL(`${folder}/pyodide.mjs`).href);
const pyodide = await loadPyodide({ indexURL: `${folder}/`, _makeSnapshot: true });
pyodide.unpackArchive(new Uint8Array(readFileSync(wheel)), "wheel");
const modules = pyodide.runPython(`
import importlib, gc
importlib.invalidate_caches()
from tabhelm.browser import snapshot_modules
names = snapshot_modules()
for name in names:
    importlib.import_module(name)
gc.collect()
len(names)
`);
const memory = pyodide.makeMemorySnapshot();
if (memory.length > 40 * 1024 * 1024) throw new Error(`the snapshot has ${memory.length} bytes: its heap is too large to be restored`);
writeFileSync(output, gzipSync(memory, { level: 9 }));
console.log(JSON.stringify({ modules, bytes: memory.length }));
