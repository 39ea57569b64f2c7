"""Origins that browsers give less to: insecure, opaque, embedded in another site, with site data blocked."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from e2e.kit import PATIENCE_MS
from e2e.serving.pages import FLUSHED, JOIN, WORK, try_join, works
from e2e.serving.site import OddSite, serve

from tabhelm.testing import ChaosBrowser, wait_for
from tabhelm.testing.pytest_plugin import LaunchBrowser
from tabhelm_build.demo_app import POLICY

INSECURE = "insecure.example"


@pytest.fixture
def site(bundle: Path) -> Iterator[OddSite]:
    with serve(bundle) as served:
        served.does.policies["frames"] = f"{POLICY}; frame-src *"
        yield served


async def test_an_insecure_origin_is_named(launch_browser: LaunchBrowser, site: OddSite) -> None:
    browser = await launch_browser(extra_args=[f"--host-resolver-rules=MAP {INSECURE} 127.0.0.1"])
    tab = await browser.new_tab(f"http://{INSECURE}:{site.port}/blank")
    missing = "() => [isSecureContext, typeof navigator.locks, typeof crypto.randomUUID, typeof crypto.subtle]"
    assert await tab.evaluate(missing) == [False, "undefined", "undefined", "undefined"]
    result = await try_join(tab)
    assert (result.get("name"), result.get("code")) == ("TabhelmError", "no-locks"), result
    assert f"http://{INSECURE}:{site.port} is no secure context" in result["message"]
    assert "navigator.locks" in result["message"] and "https, or from localhost" in result["message"]
    booted = await tab.evaluate(
        "() => import('/tabhelm/boot.mjs').then(({ boot }) => boot({})).catch(({ code, message }) => [code, message])"
    )
    assert booted[0] == "no-runtime" and "crypto.subtle is missing" in booted[1]


async def test_an_opaque_origin_is_named(browser: ChaosBrowser, site: OddSite) -> None:
    site.does.headers["access-control-allow-origin"] = "*"  # or its scripts could not even be loaded
    site.does.page("/frames/sandbox", '<iframe sandbox="allow-scripts" src="/blank"></iframe>')
    tab = await browser.new_tab(f"{site.url}/frames/sandbox")
    frame = tab.page.frames[1]
    assert await frame.evaluate("() => origin") == "null"
    result: dict[str, Any] = await frame.evaluate(JOIN, ["/tabhelm", {}])
    assert result.get("code") == "no-locks", result
    assert "opaque origin" in result["message"] and "allow-same-origin" in result["message"]


@pytest.mark.parametrize("third_party_cookies", [True, False])
async def test_a_frame_in_another_site_is_a_world_of_its_own(
    launch_browser: LaunchBrowser, site: OddSite, tmp_path: Path, third_party_cookies: bool
) -> None:
    """Storage, locks, channels and shared workers are partitioned alike: it joins, leads and flushes among itself."""
    if not third_party_cookies:
        write_preferences(tmp_path, {"profile": {"cookie_controls_mode": 1, "block_third_party_cookies": True}})
    browser = await launch_browser(profile=tmp_path)
    site.does.page("/frames/other", f'<iframe src="{site.url}/blank"></iframe>')
    outer = await browser.new_tab(f"http://localhost:{site.port}/frames/other")
    frame = outer.page.frames[1]
    assert (await frame.evaluate(JOIN, ["/tabhelm", {"enginePatienceMs": PATIENCE_MS}]))["host"] == "shared"
    await frame.evaluate(WORK)
    own = await browser.new_tab(f"{site.url}/blank")
    await try_join(own)
    await works(own)
    await wait_for(lambda: frame.evaluate("() => election.status.state === 'leading'"), 30, "the frame to lead")
    for page in (frame, own.page):
        assert await page.evaluate("() => tab.presence().tabs.length") == 1, "neither sees the other"
    await wait_for(lambda: frame.evaluate(FLUSHED), 30, "the frame's operation to be sent")
    domains = [each["domain"] for each in await own.evaluate("async () => (await fetch('/api/effects')).json()")]
    assert len(set(domains)) == len(domains) == 2, "and a receiver takes them for two"


async def test_blocked_site_data_is_named(launch_browser: LaunchBrowser, site: OddSite, tmp_path: Path) -> None:
    write_preferences(tmp_path, {"profile": {"default_content_setting_values": {"cookies": 2}}})
    browser = await launch_browser(profile=tmp_path)
    tab = await browser.new_tab(f"{site.url}/blank")
    for host in ("auto", "shared", "window"):
        result = await try_join(tab, host=host)
        assert result.get("code") == "no-locks", result
        assert "locks are denied, allow site data: " in result["message"]
        assert result["ms"] < 30_000


def write_preferences(profile: Path, preferences: dict[str, Any]) -> None:
    (profile / "Default").mkdir()
    (profile / "Default" / "Preferences").write_text(json.dumps(preferences), encoding="utf-8")
