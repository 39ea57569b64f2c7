"""What a page of these tests does: keep itself, and tell what came of it."""

from __future__ import annotations

from typing import Any

from tabhelm.testing.driver import DrivenTab

FORGETS = {"webkit"}
"""Driven, this engine keeps caches in memory, and forgets what is in them when no page of the origin is left: tests
leave one open there, which has not joined and has no engine."""

_KEEP = """async (options) => {
  window.told ??= [];
  window.violations ??= [];
  addEventListener("securitypolicyviolation", ({ violatedDirective, blockedURI }) =>
    violations.push(`${violatedDirective} ${blockedURI}`));
  const { keepOffline } = await import("/tabhelm/offline.mjs");
  window.offline = keepOffline({ ...options, tab: window.tab });
  for (const type of ["state", "update"])
    offline.addEventListener(type, ({ detail }) => told.push({ type, ...detail }));
}"""
_SETTLED = """() => !["starting", "installing"].includes(offline.state)
  && { state: offline.state, code: offline.code, reason: offline.reason }"""
_CACHES = """async () => {
  const names = (await caches.keys()).filter((name) => !name.endsWith(" tabs"));
  const sizes = names.map(async (name) => [name, (await (await caches.open(name)).keys()).length]);
  return Object.fromEntries(await Promise.all(sizes));
}"""


async def keep(tab: DrivenTab, **options: Any) -> dict[str, Any]:
    """Register a service worker; returns ``{state, code, reason}`` once it is ready or failed."""
    await tab.evaluate(_KEEP, options)
    settled: dict[str, Any] = await tab.until(_SETTLED, timeout=60, what="the service worker to be ready or failed")
    return settled


async def controlled(tab: DrivenTab) -> None:
    """Wait until a service worker serves this page."""
    await tab.until("() => navigator.serviceWorker.controller !== null", what="a service worker to serve this page")


async def kept_caches(tab: DrivenTab) -> dict[str, int]:
    """Name of each cache of a release → how many files are in it, its mark included."""
    found: dict[str, int] = await tab.evaluate(_CACHES)
    return found
