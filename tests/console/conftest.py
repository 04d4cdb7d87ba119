"""One browser for each test process, a page for each test, and gateways with something to look at.

All tests of this folder share the loop that the browser's driver runs on.
"""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio
from playwright.async_api import Browser, Page, async_playwright, expect

from tests.console.browser import ARGUMENTS, MISSING, REQUIRED, Watch, find_browser
from tests.console.scenery import Console, Filled, fill, running

HERE = Path(__file__).parent
VIEWPORT = {"width": 1280, "height": 800}
WAIT_MS = 30_000
expect.set_options(timeout=WAIT_MS)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """A driver belongs to the loop it was started on."""
    for item in items:
        if item.path.is_relative_to(HERE) and pytest_asyncio.is_async_test(item):
            item.add_marker(pytest.mark.asyncio(loop_scope="session"), append=False)


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def browser() -> AsyncIterator[Browser]:
    async with async_playwright() as playwright:
        executable = find_browser(playwright)
        if executable is None:
            if os.environ.get(REQUIRED):
                pytest.fail(MISSING)
            pytest.skip(MISSING)
        started = await playwright.chromium.launch(executable_path=executable, args=list(ARGUMENTS))
        yield started
        await started.close()


@pytest_asyncio.fixture(loop_scope="session")
async def watched(browser: Browser) -> AsyncIterator[tuple[Page, Watch]]:
    """A page with what is seen of it. The test fails on whatever `Watch` reports and was not allowed."""
    context = await browser.new_context(
        viewport=VIEWPORT,  # type: ignore[arg-type]  # a TypedDict of the library's own
        color_scheme="light",
        reduced_motion="reduce",
        locale="en-GB",
        timezone_id="UTC",
    )
    context.set_default_timeout(WAIT_MS)
    page = await context.new_page()
    watch = Watch(page)
    await watch.begin(page)
    yield page, watch
    await context.close()
    assert watch.unexpected == []


@pytest.fixture
def page(watched: tuple[Page, Watch]) -> Page:
    """A fresh page, in a browser context of its own."""
    return watched[0]


@pytest.fixture
def watch(watched: tuple[Page, Watch]) -> Watch:
    """What is seen of `page`: to allow what a test provokes."""
    return watched[1]


@pytest_asyncio.fixture(loop_scope="session")
async def console() -> AsyncIterator[Console]:
    """A gateway of the test's own with the simulated model, and nothing in it."""
    async with running() as found:
        yield found


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def filled() -> AsyncIterator[Filled]:
    """A gateway full of conversations, which all tests look at: change nothing there."""
    async with running() as found:
        yield await fill(found)
