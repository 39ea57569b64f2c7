"""What a driven tab does in whichever engine: what waiting for an expression says when it throws; how it hangs."""

from __future__ import annotations

import time

import pytest
from e2e.kit import Site

from tabhelm.testing import ScriptError
from tabhelm.testing.driver import DrivenBrowser

_SAYS = r"(?s)the text in tab 1 .*\('#none'\)\.textContent.*TypeError.*null.*`\?\.`"


async def test_until_names_the_expression_that_threw_and_the_pages_error(driven: DrivenBrowser, site: Site) -> None:
    tab = await site.open(driven)
    with pytest.raises(ScriptError, match=_SAYS):
        await tab.until("() => document.querySelector('#none').textContent", 10, "the text")


async def test_a_tab_that_is_to_hang_has_begun_to_and_not_ended_yet(driven: DrivenBrowser, site: Site) -> None:
    tab, other = await site.open(driven), await site.open(driven)
    await tab.pid()
    began = time.monotonic()
    await tab.hang(12)
    assert time.monotonic() - began < 9
    assert await other.evaluate("() => 'fine'") == "fine"
    assert await tab.evaluate("() => 'again'", timeout=40) == "again"
    assert time.monotonic() - began >= 12
