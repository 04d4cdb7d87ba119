"""What the console tells newcomers to type shows up where they look."""

from __future__ import annotations

import asyncio

from playwright.async_api import Page, expect

from tests.console.scenery import Console


async def test_the_line_for_a_shell_makes_the_first_conversation(console: Console, page: Page) -> None:
    await page.goto(console.url())
    line = await page.locator(".first-steps pre").first.inner_text()
    running = await asyncio.create_subprocess_shell(f"{line} -sf -o /dev/null")
    assert await running.wait() == 0
    await page.reload()
    await expect(page.get_by_role("link", name="Hello")).to_be_visible()
    await expect(page.get_by_text("my-first")).to_be_visible()
