"""Content-Security-Policy with and without trusted types, paths below the root, other ports."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tabhelm.testing import ChaosBrowser, ChaosTab
from tabhelm_build.demo_app import POLICY

from .pages import try_join, works
from .site import OddSite, serve

TRUSTED = f"{POLICY}; require-trusted-types-for 'script'"


async def page_under(browser: ChaosBrowser, site: OddSite, policy: str, *, engine: str | None = None) -> ChaosTab:
    """An empty page under a policy; the bundle's files, and with them the engine, under the same, or their own."""
    site.does.policies.update(blank=policy, tabhelm=engine or policy)
    return await browser.new_tab(f"{site.url}/blank")


# -- trusted types -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("names", ["", "; trusted-types tabhelm", "; trusted-types other tabhelm"])
@pytest.mark.parametrize("host", ["shared", "window"])
async def test_trusted_types_need_nothing_of_the_app(
    browser: ChaosBrowser, odd: OddSite, names: str, host: str
) -> None:
    tab = await page_under(browser, odd, TRUSTED + names)
    result = await try_join(tab, host=host)
    assert result.get("host") == host, result
    await works(tab)
    assert await tab.evaluate("() => violations") == []


@pytest.mark.parametrize("names", ["'none'", "other"])
async def test_where_no_policy_of_ours_is_allowed_the_page_itself_is_the_host(
    browser: ChaosBrowser, odd: OddSite, names: str
) -> None:
    tab = await page_under(browser, odd, f"{TRUSTED}; trusted-types {names}")
    result = await try_join(tab)
    assert result.get("host") == "window", result
    assert "TrustedScriptURL" in result["reason"]
    await works(tab)
    assert set(await tab.evaluate("() => violations")) == {"trusted-types", "require-trusted-types-for"}


async def test_a_default_policy_of_the_page_is_asked(browser: ChaosBrowser, odd: OddSite) -> None:
    tab = await page_under(browser, odd, f"{TRUSTED}; trusted-types default")
    await tab.evaluate("() => { trustedTypes.createPolicy('default', { createScriptURL: (url) => url }); }")
    assert (await try_join(tab)).get("host") == "shared"
    await works(tab)


async def test_a_shared_host_that_trusted_types_forbid_says_so(browser: ChaosBrowser, odd: OddSite) -> None:
    tab = await page_under(browser, odd, f"{TRUSTED}; trusted-types 'none'")
    result = await try_join(tab, host="shared")
    assert result.get("code") == "no-engine", result
    assert "TrustedScriptURL" in result["message"] and "trusted-types tabhelm" in result["message"]


# -- what must be allowed ----------------------------------------------------------------------------------------------


async def test_without_webassembly_the_policy_is_named(browser: ChaosBrowser, odd: OddSite) -> None:
    without = POLICY.replace(" 'wasm-unsafe-eval'", "")
    for page, engine, host in ((POLICY, without, "shared"), (without, POLICY, "window")):
        tab = await page_under(browser, odd, page, engine=engine)
        result = await try_join(tab, host=host)
        assert result.get("code") == "no-engine", result
        assert "'wasm-unsafe-eval'" in result["message"]
        assert result["ms"] < 10_000


async def test_a_page_that_may_start_no_worker_is_its_own_host(browser: ChaosBrowser, odd: OddSite) -> None:
    tab = await page_under(browser, odd, POLICY.replace("worker-src 'self'", "worker-src 'none'"), engine=POLICY)
    result = await try_join(tab)
    assert result.get("host") == "window", result
    await works(tab)


async def test_the_page_that_uses_shared_engines_needs_no_webassembly_itself(
    browser: ChaosBrowser, odd: OddSite
) -> None:
    """It runs in the worker, which obeys the policy that its own script came with."""
    tab = await page_under(browser, odd, POLICY.replace(" 'wasm-unsafe-eval'", ""), engine=POLICY)
    assert (await try_join(tab)).get("host") == "shared"
    await works(tab)


# -- integrity ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("right", [True, False])
async def test_an_import_map_pins_the_client(browser: ChaosBrowser, odd: OddSite, bundle: Path, right: bool) -> None:
    import json

    integrity = json.loads((bundle / "manifest.json").read_text())["files"]["tabhelm.mjs"]["integrity"]
    pinned = integrity if right else f"sha384-{'A' * 64}"
    body = (
        f'<script type="importmap">{{"integrity": {{"/tabhelm/tabhelm.mjs": "{pinned}"}}}}</script>'
        f'<link rel="modulepreload" href="/tabhelm/tabhelm.mjs" integrity="{pinned}">'
    )
    odd.does.page("/pinned/page", body)
    odd.does.policies["pinned"] = POLICY.replace("script-src", "script-src 'unsafe-inline'")
    tab = await browser.new_tab(f"{odd.url}/pinned/page")
    result = await try_join(tab)
    if right:
        assert result.get("host") == "shared", result
        assert odd.does.asked.count("/tabhelm/tabhelm.mjs") == 1, "the preloaded one is used"
    else:
        assert result.get("name") == "TypeError" and "tabhelm.mjs" in result["message"], result


# -- where it is served ------------------------------------------------------------------------------------------------


async def test_a_folder_below_the_root(browser: ChaosBrowser, odd: OddSite, bundle: Path, tmp_path: Path) -> None:
    shutil.copytree(bundle, tmp_path / "b" / "tabhelm")
    odd.does.folders["a"] = tmp_path
    tab = await browser.new_tab(f"{odd.url}/blank")
    for host in ("shared", "window"):
        assert (await try_join(tab, "/a/b/tabhelm", app=f"below-{host}", host=host)).get("host") == host
        await tab.evaluate("() => { delete window.election; }")
        await works(tab)
    asked = {path for path in odd.does.asked if "." in path}
    assert all(path.startswith("/a/b/tabhelm/") for path in asked if path != "/favicon.ico"), asked


async def test_another_port_is_another_world_unless_it_is_the_page_itself(
    browser: ChaosBrowser, odd: OddSite, bundle: Path
) -> None:
    """The client may come from another origin, with its permission; a SharedWorker must be of the page's own."""
    with serve(bundle) as other:
        other.does.headers["access-control-allow-origin"] = "*"
        policy = POLICY.replace("'self'", f"'self' {other.url}")
        tab = await page_under(browser, odd, policy)
        # The usual way: client from there, engine from here.
        result = await try_join(tab, f"{other.url}/tabhelm", engineUrl="/tabhelm/engine.mjs")
        assert result.get("host") == "shared", result
        await works(tab)
        # All from there: no shared engine can be had, and the page runs one itself.
        result = await try_join(tab, f"{other.url}/tabhelm", app="elsewhere")
        assert result.get("host") == "window", result
        assert "SharedWorker" in result["reason"]
