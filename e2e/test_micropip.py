"""The bundle's micropip installs the bundle's wheel, with nothing fetched from elsewhere."""

from __future__ import annotations

import json
from pathlib import Path

from tabhelm.testing import ChaosBrowser
from tabhelm_build.demo_server import DemoServer

DIST = Path(__file__).resolve().parent.parent / "dist"

_INSTALL = """async () => {
  const manifest = await (await fetch("/tabhelm/manifest.json")).json();
  const wheel = (name) => Object.keys(manifest.files).find((file) => file.startsWith(name) && file.endsWith(".whl"));
  const { loadPyodide } = await import("/tabhelm/pyodide/pyodide.mjs");
  const pyodide = await loadPyodide({ indexURL: new URL("/tabhelm/pyodide/", location.href).href });
  await pyodide.loadPackage(new URL(`/tabhelm/${wheel("micropip-")}`, location.href).href);
  await pyodide.runPythonAsync(`
import micropip
await micropip.install("${new URL(`/tabhelm/${wheel("tabhelm-")}`, location.href).href}")
`);
  return pyodide.runPython("import tabhelm, tabhelm.tab, tabhelm.browser; tabhelm.__version__");
}"""


async def test_micropip_installs_our_wheel_offline(browser: ChaosBrowser) -> None:
    with DemoServer(DIST) as server:
        tab = await browser.new_tab(f"{server.url}/blank")
        version = await tab.evaluate(_INSTALL, timeout=60)
        assert version == json.loads((DIST / "manifest.json").read_text())["version"]
        asked = await tab.evaluate("() => performance.getEntriesByType('resource').map((entry) => entry.name)")
        assert all(url.startswith(server.url) for url in asked)
