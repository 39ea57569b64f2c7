"""What waiting for an expression says when it throws, in whichever engine."""

from __future__ import annotations

import pytest
from e2e.kit import Site

from tabhelm.testing import ScriptError
from tabhelm.testing.driver import DrivenBrowser

_SAYS = r"(?s)the text in tab 1 .*\('#none'\)\.textContent.*TypeError.*null.*`\?\.`"


async def test_until_names_the_expression_that_threw_and_the_pages_error(driven: DrivenBrowser, site: Site) -> None:
    tab = await site.open(driven)
    with pytest.raises(ScriptError, match=_SAYS):
        await tab.until("() => document.querySelector('#none').textContent", 10, "the text")
