"""The console in a real browser: it loads under its policy, and the browser's fixtures see what they are for."""

from __future__ import annotations

from urllib.parse import urlsplit

import pytest
from playwright.async_api import Error, Page

from tests.console.browser import Watch, axe, shot
from tests.console.scenery import Console, Filled


async def test_the_console_loads(console: Console, page: Page) -> None:
    await page.goto(f"{console.address}/console")
    await page.wait_for_selector("#app :not(.boot)")
    assert page.url.startswith(console.url())
    await axe(page)
    await shot(page, "start")


async def test_a_load_asks_for_three_files_of_code(filled: Filled, page: Page) -> None:
    asked: list[str] = []
    page.on("request", lambda request: asked.append(urlsplit(request.url).path))
    await page.goto(filled.url(f"#/conversations/{filled.long}/tokens"))
    await page.locator(".chart canvas").wait_for()
    code = [path for path in asked if path.endswith((".js", ".css"))]
    assert sorted(code) == ["/console/bundle/console.css", "/console/bundle/console.js", "/console/vendor/uplot.js"]
    await page.goto(filled.url(f"sources.html#/conversations/{filled.long}/tokens"))
    await page.locator(".chart canvas").wait_for()
    assert "/console/js/frame/frame.js" in asked


async def bare(page: Page, console: Console) -> None:
    """The page under its policy, without the application."""
    await page.route("**/*.js*", lambda route: route.fulfill(body="", content_type="text/javascript"))
    await page.goto(console.url())


async def test_nothing_runs_that_is_not_a_file_of_ours(console: Console, page: Page, watch: Watch) -> None:
    await bare(page, console)
    with pytest.raises(Error, match="TrustedHTML"):
        await page.evaluate("document.body.innerHTML = '<img src=x onerror=\"window.pwned = 1\">'")
    await page.evaluate(
        """() => { const made = document.createElement("style"); made.textContent = "body { color: red }";
        document.head.append(made); }"""
    )
    assert len(watch.unexpected) >= 2, watch.problems
    watch.allow("TrustedHTML|Trusted Type|trusted-types|inline style|style-src|require-trusted")


async def test_errors_of_a_page_are_seen(console: Console, page: Page, watch: Watch) -> None:
    await bare(page, console)
    await page.evaluate("() => { console.error('oh no'); setTimeout(() => { throw new Error('thrown'); }, 0); }")
    await page.evaluate("() => fetch('http://127.0.0.2:9/elsewhere').catch(() => null)")
    await page.wait_for_timeout(50)
    told = "\n".join(watch.unexpected)
    for sign in ("oh no", "thrown", "policy violated: connect-src"):
        assert sign in told, told
    watch.allow("")


async def test_there_is_something_to_look_at(filled: Filled) -> None:
    turns = (await filled.get(f"conversations/{filled.long}/turns"))["data"]
    assert len(turns) == 60
    assert max(one["summaries"] for one in turns) >= 4
    family = (await filled.get(f"conversations/{filled.long}/branches"))["data"]
    assert {one["id"] for one in family} == {filled.long, *filled.branches}
    assert (await filled.get(f"conversations/{filled.big}/log", limit=1))["total"] == 10_000
