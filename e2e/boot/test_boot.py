"""Booting the real bundle in a real browser: from the snapshot, plainly, and with all that can be wrong with it."""

from __future__ import annotations

import base64
import gzip
import hashlib
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from e2e.answers import LOGIN

from tabhelm.testing import ChaosBrowser, ChaosTab

from .site import Site, serve

BUNDLE = Path(os.environ.get("TABHELM_DIST") or Path(__file__).resolve().parents[2] / "dist")
RUNTIME = ("pyodide/pyodide.mjs", "pyodide/pyodide.asm.mjs", "pyodide/pyodide.asm.wasm", "pyodide/python_stdlib.zip")
SNAPSHOT = "snapshot.bin.gz"

BOOT = """async ([path, options, code]) => {
  const stages = [];
  const began = performance.now();
  const { boot } = await import("/tabhelm/boot.mjs");
  try {
    const indexURL = new URL(path, location.href);
    const booted = await boot({ indexURL, onStage: (stage) => stages.push(stage), ...options });
    const { from, fallbackReason, version } = booted;
    const ms = performance.now() - began;
    return { from, fallbackReason, version, stages, ms, answer: code ? booted.pyodide.runPython(code) : null };
  } catch (error) {
    const { name, code, message } = error;
    return { error: name, code, message, stages, ms: performance.now() - began };
  }
}"""
DRAWN = """
import json, os, random, secrets, uuid
json.dumps({
    "random": random.random(),
    "randbytes": random.randbytes(8).hex(),
    "urandom": os.urandom(8).hex(),
    "secrets": secrets.token_hex(8),
    "uuid4": str(uuid.uuid4()),
    "uuid7": str(uuid.uuid7()),
})
"""


@pytest.fixture(scope="module")
def site() -> Iterator[Site]:
    with serve(BUNDLE) as served:
        yield served


@pytest_asyncio.fixture(loop_scope="session")
async def tab(browser: ChaosBrowser, site: Site) -> ChaosTab:
    return await browser.new_tab(f"{site.url}/blank")


async def boot(tab: ChaosTab, path: str = "/tabhelm/", code: str = "", **options: object) -> dict[str, Any]:
    """Boot in a page; what came of it."""
    result: dict[str, Any] = await tab.evaluate(BOOT, [path, options, code])
    return result


def broken(how: str, name: str) -> str:
    return f"/broken/{how}/{name.replace('/', '~')}/"


# -- the ordinary ways -------------------------------------------------------------------------------------------------


async def test_boots_from_the_snapshot_with_our_modules_imported(tab: ChaosTab) -> None:
    code = "import sys; import tabhelm; sorted(m for m in sys.modules if m.startswith('tabhelm.browser.'))[0]"
    result = await boot(tab, code=code)
    assert (result.get("from"), result.get("fallbackReason")) == ("snapshot", None), result
    assert result["stages"] == ["download", "start", "ready"]
    assert result["answer"].startswith("tabhelm.browser.")


async def test_boots_plainly_when_asked_to(tab: ChaosTab) -> None:
    result = await boot(tab, code="import tabhelm; tabhelm.__version__", snapshot=False)
    assert (result.get("from"), result.get("fallbackReason")) == ("plain", None), result
    assert result["answer"] == result["version"]


async def test_all_that_are_restored_from_one_snapshot_draw_their_own(browser: ChaosBrowser, site: Site) -> None:
    drawn = []
    for number in range(4):
        tab = await browser.new_tab(f"{site.url}/blank")
        result = await boot(tab, code=DRAWN)
        assert result["from"] == "snapshot"
        drawn.append(json.loads(result["answer"]))
        ask = """([name, code]) => new Promise((answered, failed) => {
          const worker = new SharedWorker("/worker.mjs", { type: "module", name });
          worker.onerror = (event) => failed(new Error(event.message));
          worker.port.onmessage = (event) => answered(event.data);
          worker.port.postMessage(code);
        })"""
        result = await tab.evaluate(ask, [f"engine {number}", DRAWN])
        assert result["from"] == "snapshot"
        drawn.append(json.loads(result["answer"]))
    for kind in drawn[0]:
        values = {each[kind] for each in drawn}
        assert len(values) == len(drawn), f"{kind} repeats: {values}"


async def test_the_wheel_is_unpacked_on_demand_after_a_restore(tab: ChaosTab) -> None:
    found = await tab.evaluate("""async () => {
      const { boot } = await import("/tabhelm/boot.mjs");
      const { pyodide, unpackWheel } = await boot({});
      const look = () => pyodide.runPython("import os, tabhelm; os.path.exists(tabhelm.__file__)");
      const before = look();
      await Promise.all([unpackWheel(), unpackWheel()]);
      pyodide.runPython("import tabhelm.simulated, importlib.metadata as m; m.version('tabhelm')");
      return [before, look()];
    }""")
    assert found == [False, True]


@pytest.mark.parametrize("own_boot", [True, False], ids=["our boot", "the runtime alone"])
async def test_micropip_installs_our_wheel_from_the_bundle(tab: ChaosTab, own_boot: bool) -> None:
    installed = await tab.evaluate(
        """async (ownBoot) => {
          const { wheel } = await import("/tabhelm/runtime-info.mjs");
          let pyodide;
          if (ownBoot) ({ pyodide } = await (await import("/tabhelm/boot.mjs")).boot({}));
          else {
            const { loadPyodide } = await import("/tabhelm/pyodide/pyodide.mjs");
            pyodide = await loadPyodide({ indexURL: new URL("/tabhelm/pyodide/", location.href).href });
          }
          await pyodide.loadPackage("micropip");
          await pyodide.pyimport("micropip").install(new URL(`/tabhelm/${wheel}`, location.href).href);
          const version = "import importlib.metadata as m, tabhelm; [m.version('tabhelm'), tabhelm.__version__]";
          return pyodide.runPython(version).toJs();
        }""",
        own_boot,
        timeout=60,
    )
    assert installed[0] == installed[1]


# -- a runtime that is not what was built ------------------------------------------------------------------------------


async def test_a_wrong_runtime_is_named_at_once(tab: ChaosTab) -> None:
    for how, code, text in (
        ("missing", "download", "was answered with status 404"),
        ("page", "content", f"{len(LOGIN)} bytes of text/html came"),
        ("short", "content", "is not the file that was built"),
        ("changed", "content", "its SHA-384 is another"),
    ):
        for name in RUNTIME:
            result = await tab.evaluate(BOOT, [broken(how, name), {}, ""], timeout=10)
            assert (result.get("error"), result.get("code")) == ("BootError", code), (how, name, result)
            assert name in result["message"]
            assert text in result["message"], result
            assert result["stages"] == ["download", "failed"]


async def test_webassembly_may_be_served_as_any_type(tab: ChaosTab) -> None:
    """The browser compiles it from its own type alone, and the runtime then waits for ever: so it is handed over."""
    result = await boot(tab, broken("untyped", "pyodide/pyodide.asm.wasm"), "'fine'")
    assert (result.get("from"), result.get("answer")) == ("snapshot", "fine"), result


@pytest.mark.parametrize("how", ["silent", "stuck"])
@pytest.mark.parametrize("name", RUNTIME)
async def test_a_server_that_stops_answering_is_named(tab: ChaosTab, how: str, name: str) -> None:
    result = await boot(tab, broken(how, name), stallMs=5_000)  # which the other files are measured by, too
    assert (result.get("error"), result.get("code")) == ("BootError", "stalled"), result
    assert f"{name} stalled: the server sent nothing for 5000 ms" in result["message"]
    assert result["ms"] < 20_000


async def test_a_slow_server_is_waited_for_as_long_as_something_comes(tab: ChaosTab) -> None:
    result = await boot(tab, broken("slow", "pyodide/python_stdlib.zip"), "'fine'", stallMs=5_000)
    assert result.get("answer") == "fine", result
    assert result["ms"] > 5_100, "the file took longer than the limit, or this proves nothing"


async def test_a_file_of_an_earlier_build_in_the_browsers_cache_is_fetched_anew(tab: ChaosTab) -> None:
    for name in (*RUNTIME, SNAPSHOT):
        result = await boot(tab, broken("once", name), "'fine'")
        assert (result.get("from"), result.get("answer")) == ("snapshot", "fine"), (name, result)


async def test_files_may_be_compressed_on_the_way_but_not_the_snapshot(tab: ChaosTab) -> None:
    for name in RUNTIME:
        result = await boot(tab, broken("packed", name), "'fine'")
        assert (result.get("from"), result.get("answer")) == ("snapshot", "fine"), (name, result)
    result = await boot(tab, broken("packed", SNAPSHOT), "'fine'")
    assert (result.get("from"), result.get("answer")) == ("plain", "fine"), result
    assert "a .gz file without Content-Encoding" in result["fallbackReason"]


async def test_nothing_is_downloaded_twice(tab: ChaosTab, site: Site) -> None:
    """The runtime gets the bytes that were checked; only a script must be asked for by its address."""
    site.asked.clear()
    result = await boot(tab, code="'fine'")
    assert result.get("answer") == "fine", result
    names = [path.removeprefix("/tabhelm/") for path in site.asked]
    for name in ("pyodide/pyodide.asm.wasm", "pyodide/python_stdlib.zip", SNAPSHOT):
        assert names.count(name) == 1, names


async def test_the_page_has_its_own_fetch_back(tab: ChaosTab) -> None:
    same = await tab.evaluate("""async () => {
      const usual = fetch;
      const { boot } = await import("/tabhelm/boot.mjs");
      await Promise.all([boot({}), boot({ snapshot: false })]);
      return fetch === usual;
    }""")
    assert same is True


# -- a snapshot that cannot be used ------------------------------------------------------------------------------------


@pytest.mark.parametrize("how", ["missing", "page", "short", "changed", "silent", "stuck"])
async def test_a_wrong_snapshot_is_done_without_and_told(tab: ChaosTab, how: str) -> None:
    result = await boot(tab, broken(how, SNAPSHOT), "import tabhelm, random; str(random.random())", stallMs=5_000)
    assert result.get("from") == "plain", result
    assert result["fallbackReason"].startswith("the memory snapshot cannot be used: ")
    assert SNAPSHOT in result["fallbackReason"]
    assert result["stages"] == ["download", "start", "ready"]


@pytest.mark.parametrize("spoil", ["another build", "no memory"])
async def test_a_snapshot_that_the_runtime_refuses_is_done_without(tab: ChaosTab, site: Site, spoil: str) -> None:
    """Such a one has the right hash: it was built so."""
    memory = bytearray(gzip.decompress((BUNDLE / SNAPSHOT).read_bytes()))
    if spoil == "another build":
        memory[16:48] = bytes(32)
    else:
        memory[:] = b"not a snapshot at all, whatever its length"
    packed = gzip.compress(memory, compresslevel=1)
    integrity = f"sha384-{base64.b64encode(hashlib.sha384(packed).digest()).decode()}"
    lines = (BUNDLE / "runtime-info.mjs").read_text(encoding="utf-8").splitlines()
    entry = f'  "{SNAPSHOT}": {{ size: {len(packed)}, integrity: "{integrity}" }},'
    altered = "\n".join(entry if line.startswith(f'  "{SNAPSHOT}"') else line for line in lines)
    folder = f"/altered-{spoil.split()[0]}"
    for path in BUNDLE.rglob("*"):
        if path.is_file():
            site.extra[f"{folder}/{path.relative_to(BUNDLE).as_posix()}"] = path.read_bytes()
    site.extra[f"{folder}/{SNAPSHOT}"] = packed
    site.extra[f"{folder}/runtime-info.mjs"] = altered.encode()
    result = await tab.evaluate(
        BOOT.replace("/tabhelm/boot.mjs", f"{folder}/boot.mjs"), [f"{folder}/", {}, "import tabhelm; 'fine'"]
    )
    assert (result.get("from"), result.get("answer")) == ("plain", "fine"), result
    assert "snapshot" in result["fallbackReason"].lower()
