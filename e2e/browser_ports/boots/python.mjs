// A boot of the real interpreter with the sources as they are and a stand-in for the host room.
import { loadPyodide } from "/runtime/pyodide.mjs";

export async function boot({ onStage }) {
  onStage("interpreter");
  const pyodide = await loadPyodide({ indexURL: new URL("/runtime/", location.href).href });
  const files = await (await fetch("/sources.json")).json();
  const host = await (await fetch("/parts/stand_in_host.py")).text();
  for (const [path, text] of Object.entries({ ...files, "tabhelm/host/__init__.py": "", "tabhelm/host/engine.py": host })) {
    const full = `/lib/python3.14/site-packages/${path}`;
    pyodide.FS.mkdirTree(full.slice(0, full.lastIndexOf("/")));
    pyodide.FS.writeFile(full, text);
  }
  pyodide.runPython("import importlib; importlib.invalidate_caches()");
  return { pyodide, from: "plain", fallbackReason: null, version: "0" };
}
