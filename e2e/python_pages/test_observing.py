"""A page's own Python asks for figures, history and a diagnosis."""

from __future__ import annotations

from tabhelm.testing import ChaosBrowser

from .kit import PythonPage
from .site import PythonSite


async def test_a_python_page_has_figures_history_and_a_diagnosis(browser: ChaosBrowser, site: PythonSite) -> None:
    page = await PythonPage.joined(browser, site, version="1.0")
    await page("stand", "job")
    leading = await page.leads()
    found = await page("observed")
    me = (await page("who"))["id"]
    assert found["acting"] == {"e2e:job": 1}
    assert 'tabhelm_leaders_acting{resource="e2e:job"} 1' in found["text"].splitlines()
    assert found["history"] == [["e2e:job", leading["epoch"], me, None]]
    assert found["shown"] == []
    diagnosis = found["diagnosis"]
    assert diagnosis["inPage"] is True and diagnosis["elections"]["e2e:job"]["state"] == "leading"
    assert "error" not in diagnosis["database"] and "error" not in diagnosis["locks"]
    await page("leave")
    assert await page.uncaught() == []
