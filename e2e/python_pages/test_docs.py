"""Every example of docs/python.md runs as it stands there, and meets a tab of the bundle."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from e2e.kit import Site, until

from tabhelm.testing import ChaosBrowser, ChaosTab, wait_for

from .kit import PythonPage
from .site import ROOT, File, PythonSite, serve

SNIPPETS = dict(
    re.findall(r"<!-- file: (\S+) -->\n```\w+\n(.*?)```\n", (ROOT / "docs" / "python.md").read_text(), re.DOTALL)
)
WORKER_PAGE = '<!doctype html><title>worker</title><script type="module" src="/worker-page.mjs"></script>'
NOTEBOOK = """
import { loadPyodide } from "/tabhelm/pyodide/pyodide.mjs";
const pyodide = await loadPyodide({ indexURL: new URL("/tabhelm/pyodide/", location.href).href });
await pyodide.loadPackage("micropip");
const printed = [];
pyodide.setStdout({ batched: (text) => printed.push(text) });
const told = new BroadcastChannel("test:notebook");
try {
  await pyodide.runPythonAsync(await (await fetch("/notebook.py")).text());
  told.postMessage({ printed });
} catch (error) {
  told.postMessage({ printed, error: String(error) });
}
"""
QUEUE = "tab.queue('mutations', { endpoint: '/api/operations' })"
PAGES = {
    "plain.html": ("active", "window"),
    "pyscript.html": ("active", "window"),
    "pyscript-worker.html": ("unknown", "worker"),
    "worker.html": ("unknown", "worker"),
}


@pytest.fixture
def documented(bundle: Path, tmp_path: Path) -> Iterator[PythonSite]:
    policy = SNIPPETS["pyscript.policy"].strip()
    files: dict[str, File | str] = {f"/{name}": text for name, text in SNIPPETS.items()}
    files |= {"/worker.html": WORKER_PAGE, "/notebook.mjs": NOTEBOOK}
    with serve(bundle, tmp_path, files) as site:
        site.put("/pyscript.toml", SNIPPETS["pyscript.toml"].replace("https://app.example", site.url))
        for name in ("pyscript.html", "pyscript-worker.html"):
            site.put(f"/{name}", File(SNIPPETS[name], policy))
        yield site


def test_every_example_is_named_and_used_here() -> None:
    text = (ROOT / "docs" / "python.md").read_text()
    assert len(re.findall(r"^```\w+$", text, re.MULTILINE)) == len(SNIPPETS)
    used = Path(__file__).read_text()
    # Those that another example starts are run with it.
    started = {"plain.mjs", "app.py", "worker.mjs", "worker-page.mjs", "notebook.py"}
    assert {name for name in SNIPPETS if name not in started | {*PAGES} and f'["{name}"]' not in used} == set()


@pytest.mark.parametrize("page", PAGES)
async def test_the_pages_do_the_job_beside_a_tab_of_the_bundle(
    browser: ChaosBrowser, documented: PythonSite, page: str
) -> None:
    lifecycle, host = PAGES[page]
    tab = await Site(documented).joined(browser, app="regcase", protocol=3, capabilities=["offline.flush.v1"])  # type: ignore[arg-type]
    mine = await tab.evaluate("() => tab.id")
    asked: list[str] = []
    python = await browser.new_tab()
    python.page.on("request", lambda request: asked.append(request.url))
    await python.navigate(f"{documented.url}/{page}")

    async def theirs() -> str | None:
        leader = await leads(tab)
        return leader if leader not in (None, mine) else None

    other = await until(theirs, f"the Python of {page} to lead", 60.0)
    seen = await tab.evaluate("(id) => tab.presence().tabs.find(({ tabId }) => tabId === id)", other)
    assert (seen["lifecycle"], seen["version"], seen["capabilities"]) == (lifecycle, "104.2", ["offline.flush.v1"])
    await flushed(documented, "from Python", other)
    await tab.evaluate(f"() => {QUEUE}.enqueue({{ kind: 'note', name: 'from the bundle' }})")
    await flushed(documented, "from the bundle", other)
    if page != "worker.html":  # what a worker of its own prints is not the page's
        await wait_for(lambda: any(f"leads (host: {host})" in line for line in python.log), 10.0, "what it prints")
    if page in ("plain.html", "worker.html"):
        await python.show()
        await python.navigate("/blank2")
    else:
        await python.close()

    async def ours() -> bool:
        return await leads(tab) == mine

    await wait_for(ours, 15.0, "the bundle's tab to lead")
    await tab.evaluate(f"() => {QUEUE}.enqueue({{ kind: 'note', name: 'after' }})")
    await flushed(documented, "after", mine)
    if page in ("plain.html", "worker.html"):
        await tab.evaluate("() => tab.leave()")
        await python.back()
        await tab.close()
        again = await Site(documented).joined(browser, app="regcase", protocol=3)  # type: ignore[arg-type]

        async def theirs_again() -> bool:
            return await leads(again) is not None

        await wait_for(theirs_again, 60.0, "the Python to lead again after coming back")
    foreign = {url for url in asked if not url.startswith((documented.url, "blob:", "about:"))}
    assert foreign == set(), "everything came from one origin"


async def test_a_job_of_one_s_own_and_what_there_is_to_watch(browser: ChaosBrowser, documented: PythonSite) -> None:
    page = await PythonPage.open(browser, documented)
    await page.tab.evaluate(
        """async (snippets) => {
          window.printed = [];
          pyodide.setStdout({ batched: (text) => printed.push(text) });
          const globals = pyodide.toPy({});
          const run = (code) => pyodide.runPythonAsync(code, { globals });
          await run(`import tabhelm
from tabhelm import LeadershipPolicy, Leading
tab = await tabhelm.join(app="docs")`);
          for (const snippet of snippets) await run(snippet);
          await run("await tab.leave()");
          globals.destroy();
        }""",
        [SNIPPETS["job.py"], SNIPPETS["watch.py"]],
        timeout=60.0,
    )
    printed = await page.tab.evaluate("() => printed")
    assert printed[0].startswith("1 t-"), printed
    counts = [list(map(int, line.split())) for line in printed if re.fullmatch(r"\d+ \d+ \d+ \d+", line)]
    assert [sum(each) for each in counts] == [1], printed
    names = {effect["payload"]["name"] for effect in await documented.effects()}
    assert names <= {"tick", "draft"}
    assert await page.uncaught() == []


async def test_the_cells_of_a_notebook_in_a_worker(browser: ChaosBrowser, documented: PythonSite) -> None:
    tab = await browser.new_tab(f"{documented.url}/blank")
    told = await tab.evaluate(
        """() => new Promise((resolve) => {
          const channel = new BroadcastChannel("test:notebook");
          channel.onmessage = ({ data }) => resolve(data);
          window.worker = new Worker("/notebook.mjs", { type: "module" });
          worker.onerror = ({ message }) => resolve({ error: message });
        })""",
        timeout=60.0,
    )
    assert told == {"printed": ["worker unknown"]}


async def leads(tab: ChaosTab) -> str | None:
    found: str | None = await tab.evaluate("() => tab.presence().leaders['offline-queue:mutations']?.tabId ?? null")
    return found


async def flushed(site: PythonSite, name: str, by: str) -> None:
    async def look() -> bool:
        return any(
            effect["payload"]["name"] == name and effect["owner"].startswith(f"{by}:")
            for effect in await site.effects()
        )

    await wait_for(look, 30.0, f"{name!r} to be sent by {by}")
