"""The API reference at `/docs` in a browser: search, navigation, a request that really runs, and its policy."""

from __future__ import annotations

from playwright.async_api import Page, expect

from tests.console.browser import Watch, shot
from tests.console.scenery import Console
from tests.console.scripted import NARROW_WIDTH

CHAT = "Create a chat completion"


async def open_reference(page: Page, watch: Watch, console: Console) -> None:
    # The library warns of `anyOf` with `null`, which OpenAPI 3.1 allows, and prints the schemas.
    watch.allow(r"^console warning: (document validation errors|\[Object)")
    await page.goto(f"{console.address}/docs")
    await expect(page.get_by_role("heading", name="Concertina", exact=True)).to_be_visible()


async def test_a_search_finds_an_endpoint_whose_request_runs(page: Page, watch: Watch, console: Console) -> None:
    await open_reference(page, watch, console)
    await shot(page, "reference", full_page=False)
    await page.keyboard.press("Control+k")
    await page.get_by_placeholder("Search").last.fill("chat completion")
    await page.get_by_role("option", name=CHAT).first.click()
    await expect(page.get_by_role("heading", name=CHAT)).to_be_in_viewport()
    await page.get_by_role("button", name="Test Request (post /v1/chat/completions)").click()
    await page.get_by_role("button", name="Send").first.click()
    await expect(page.get_by_text("200 OK").or_(page.get_by_text("chatcmpl-")).first).to_be_visible()
    await shot(page, "reference-request", full_page=False)


async def test_the_navigation_leads_to_an_endpoint(page: Page, watch: Watch, console: Console) -> None:
    await open_reference(page, watch, console)
    await page.get_by_role("button", name="Models Open Group").click()
    await expect(page.get_by_role("heading", name="Models", exact=True)).to_be_in_viewport()


async def test_the_reference_fits_a_phone(page: Page, watch: Watch, console: Console) -> None:
    await page.set_viewport_size({"width": NARROW_WIDTH, "height": 800})
    await open_reference(page, watch, console)
    assert await page.evaluate("document.documentElement.scrollWidth") <= NARROW_WIDTH
    await page.get_by_role("button", name="Open Menu").click()
    await expect(page.get_by_role("button", name="Models").first).to_be_visible()
    await shot(page, "reference-narrow", full_page=False)
