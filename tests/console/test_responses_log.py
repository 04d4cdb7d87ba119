"""A conversation of the Responses API in a browser: each kind of item can be read in the log and in the view."""

from __future__ import annotations

from playwright.async_api import Page, expect

from tests.api.conversations.test_responses_conversation import HISTORY, secret
from tests.console.browser import Watch, axe_in_both_schemes, shot
from tests.console.scenery import MODEL, running

CALLS = ("look_up", "patch", "computer_call", "web_search_call", "mcp_call", "image_generation_call", "hologram_call")
TOLD = (
    *("question", "function_call", "function_call_output", "custom_tool_call", "custom_tool_call_output"),
    *("web_search_call", "mcp_call", "computer_call", "hologram", "answer"),
)


async def test_each_kind_of_item_can_be_read(watched: tuple[Page, Watch]) -> None:
    page, _ = watched
    async with running() as console:
        response = await console.ask("POST", "responses", json={"model": MODEL, "input": HISTORY})
        place = console.url(f"#/conversations/{response['conversation_id']}")
        await page.set_viewport_size({"width": 1280, "height": 3000})
        await page.goto(f"{place}/log")
        await expect(page.locator(".message:not(.waiting)")).to_have_count(10)
        log = page.locator(".virtual")
        for kind in TOLD:
            await expect(log).to_contain_text(secret(kind))
        for call in CALLS:
            await expect(log.locator("summary", has_text=f"calls {call}")).to_have_count(1)
        await log.locator("summary", has_text="Reasoning").click()
        await expect(log).to_contain_text(f"I think {secret('reasoning')}")
        for kind in ("image", "compaction"):
            await expect(log).not_to_contain_text(secret(kind))
        await axe_in_both_schemes(page)
        await shot(page, "responses-log")
        await page.goto(f"{place}/context")
        await expect(page.locator("main")).to_contain_text("calls web_search_call calls mcp_call")
        await shot(page, "responses-view")
