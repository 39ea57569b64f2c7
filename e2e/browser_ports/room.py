"""A real page in which the interpreter runs with the real ports, and a way to call Python functions there."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from tabhelm.testing import ChaosBrowser, ChaosTab

from . import site

_BOOT = """async (files) => {
  const { loadPyodide } = await import("/runtime/pyodide.mjs");
  const desk = await import("/web/desk.mjs");
  const pyodide = await loadPyodide({ indexURL: new URL("/runtime/", location.href).href });
  for (const [path, text] of Object.entries(files)) {
    const full = `/lib/python3.14/site-packages/${path}`;
    pyodide.FS.mkdirTree(full.slice(0, full.lastIndexOf("/")));
    pyodide.FS.writeFile(full, text);
  }
  pyodide.registerJsModule("tabhelm_desk", desk);
  pyodide.registerJsModule("tabhelm_parts", await import("/parts/fake_page.mjs"));
  pyodide.runPython("import importlib; importlib.invalidate_caches()");
  globalThis.pyodide = pyodide;
}"""

_CALL = """async ([module, name, args]) => {
  const run = pyodide.pyimport("room_inside").call;
  try { return await run(module, name, args); } finally { run.destroy(); }
}"""

_INSIDE = '''
import json, traceback
from importlib import import_module

async def call(module, name, args):
    """Call ``module.name(*args)`` (arguments and result as JSON); an exception comes back as a traceback."""
    try:
        return json.dumps({"result": await getattr(import_module(module), name)(*json.loads(args))})
    except BaseException as error:
        text = "".join(traceback.format_exception(error))
        return json.dumps({"error": type(error).__name__, "traceback": text})
'''


class FailedInPage(AssertionError):
    """A Python function in the page raised; the message is its traceback there."""


class PythonRoom:
    """One tab with an interpreter. Modules that tests ship are found by their path without ``.py``."""

    def __init__(self, tab: ChaosTab, origin: str) -> None:
        self.tab = tab
        self.origin = origin

    @classmethod
    async def enter(cls, browser: ChaosBrowser, origin: str, files: Mapping[str, str]) -> PythonRoom:
        tab = await browser.new_tab(f"{origin}/blank")
        shipped = {**site.sources(), "room_inside.py": _INSIDE, **files}
        await tab.evaluate(_BOOT, shipped, timeout=120)
        return cls(tab, origin)

    async def call(self, name: str, *args: Any, timeout: float = 60.0) -> Any:
        """Await ``module.function(*args)`` in the page.

        Raises:
            FailedInPage: it raised.
        """
        module, _, function = name.rpartition(".")
        answer = json.loads(await self.tab.evaluate(_CALL, [module, function, json.dumps(args)], timeout=timeout))
        if "error" in answer:
            raise FailedInPage(answer["traceback"])
        return answer["result"]
