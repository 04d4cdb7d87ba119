"""What goes wrong around a page: addresses and keys that are none, answers that are not the gateway's, a focus that
is gone, a browser that lacks something."""

from __future__ import annotations

import json
from typing import Any

import pytest
from playwright.async_api import Page, expect

from tests.console.browser import Watch
from tests.console.scenery import Console, Filled
from tests.console.scripted import open_menu

MEANT_TO_POLLUTE = '{"index": "__proto__", "id": "x", "function": {"name": "x", "arguments": "y"}}'
WHOLE = {"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]}


async def test_an_address_that_is_no_encoding_leads_to_a_page_that_says_so(
    console: Console, page: Page, watch: Watch
) -> None:
    watch.allow("404")
    await page.goto(console.url("#/conversations/%zz"))
    await expect(page.get_by_role("heading", name="There is no such conversation")).to_be_visible()


async def test_an_id_of_dots_asks_for_nothing_else(console: Console, page: Page) -> None:
    asked: list[str] = []
    page.on("request", lambda request: asked.append(request.url))
    await page.goto(console.url("#/conversations/%2e%2e"))
    await expect(page.get_by_role("heading", name="There is no such conversation")).to_be_visible()
    assert [url for url in asked if "/v1/" in url] == []


async def test_a_key_with_a_character_that_no_header_holds_is_told_of(console: Console, page: Page) -> None:
    await page.goto(console.url())
    await open_menu(page, "Account")
    await page.get_by_role("button", name="Change key").click()
    field = page.get_by_label("API key or operator’s token")
    await expect(field).to_be_focused()
    await field.fill("sk–copied")
    await expect(page.get_by_role("alert")).to_contain_text("a character in it that no key has")
    await expect(page.get_by_role("button", name="Look with this key")).to_be_disabled()


async def test_a_key_that_the_session_fails_with_can_be_changed(console: Console, page: Page, watch: Watch) -> None:
    watch.allow("400")
    await page.add_init_script("sessionStorage.setItem('concertina.key', 'sk-old')")
    error = {"error": {"message": "Not with this one.", "code": "invalid_value"}}
    await page.route("**/console/session", lambda route, _: route.fulfill(status=400, json=error))
    await page.goto(console.url())
    await expect(page.get_by_role("alert")).to_contain_text("Not with this one.")
    await expect(page.get_by_label("API key or operator’s token")).to_have_value("sk-old")


async def test_signing_out_leaves_nothing_in_the_tab(console: Console, page: Page) -> None:
    await page.goto(console.url("#/chat"))
    await open_menu(page, "Account")
    await page.get_by_role("button", name="Change key").click()
    await page.get_by_label("API key or operator’s token").fill("sk-one")
    await page.get_by_role("button", name="Look with this key").click()
    await expect(page.get_by_label("Model", exact=True)).not_to_have_value("")
    await page.goto(console.url("#/conversations"))
    await open_menu(page, "Account")
    await page.get_by_role("button", name="Sign out").click()
    await expect(page.get_by_text("no key", exact=True)).to_be_visible()
    assert await page.evaluate("Object.keys(sessionStorage)") == []


async def test_the_page_of_a_proxy_is_not_taken_for_an_answer(console: Console, page: Page) -> None:
    await page.route("**/v1/conversations?*", lambda route, _: route.fulfill(content_type="text/html", body="<p>Login"))
    await page.goto(console.url("#/conversations"))
    await expect(page.get_by_role("alert")).to_contain_text("Is there a proxy in between")


@pytest.mark.parametrize(
    "chunk",
    [
        {"choices": [{"delta": {"tool_calls": [json.loads(MEANT_TO_POLLUTE)]}}]},
        {"choices": [{"delta": {"tool_calls": [{"index": 4_294_967_294, "function": {"name": "x"}}]}}]},
        {"context": {"warnings": "one", "window": None}, "context_event": {"type": "constructor"}},
    ],
    ids=["prototype", "endless", "shapes"],
)
async def test_a_stream_of_nonsense_breaks_neither_page_nor_browser(
    console: Console, page: Page, chunk: dict[str, Any]
) -> None:
    body = "".join(f"data: {json.dumps(one)}\n\n" for one in (chunk, WHOLE)) + "data: [DONE]\n\n"
    await page.route(
        "**/v1/chat/completions", lambda route, _: route.fulfill(content_type="text/event-stream", body=body)
    )
    await page.goto(console.url("#/chat"))
    await expect(page.get_by_label("Model", exact=True)).not_to_have_value("")
    await page.get_by_label("Message", exact=True).fill("Hello")
    await page.keyboard.press("Enter")
    await expect(page.get_by_role("button", name="Ask again")).to_be_visible()
    assert (
        await page.evaluate("Object.hasOwn(Array.prototype, 'name') || Object.hasOwn(Array.prototype, 'id')") is False
    )


async def test_a_list_keeps_the_focus_near_what_was_deleted(console: Console, page: Page) -> None:
    for name in ("one", "two"):
        await console.say(f"Say {name}", name)
    await page.goto(console.url())
    await page.get_by_role("button", name="Delete Say one…").click()
    await expect(page.get_by_role("button", name="Cancel")).to_be_focused()
    await page.get_by_role("button", name="Delete for good").click()
    await expect(page.get_by_role("link", name="Say one")).to_have_count(0)
    await page.wait_for_function("document.activeElement !== document.body")


async def test_without_a_clipboard_a_selection_is_copied(filled: Filled, page: Page) -> None:
    await page.add_init_script("Object.defineProperty(navigator, 'clipboard', { value: undefined })")
    await page.goto(filled.url(f"#/conversations/{filled.tools}/log"))
    button = page.get_by_role("button", name="Copy id")
    await button.click()
    await expect(button.or_(page.get_by_role("button", name="Copied"))).to_have_text("Copied")


async def test_views_leave_the_page_and_the_focus_where_they_are(filled: Filled, page: Page) -> None:
    await page.goto(filled.url(f"#/conversations/{filled.long}/log"))
    await page.get_by_role("link", name="Context", exact=True).focus()
    await page.keyboard.press("Enter")
    await expect(page.locator('.seen-sides [data-index="119"]')).to_be_visible()
    await expect(page.get_by_role("link", name="Context", exact=True)).to_be_focused()
    assert await page.evaluate("scrollY") == 0


async def test_high_contrast_keeps_the_context_bar(filled: Filled, page: Page) -> None:
    await page.emulate_media(forced_colors="active")
    await page.goto(filled.url(f"#/conversations/{filled.long}/log"))
    bar = page.locator(".context-bar")
    colours = [
        await bar.locator(part).evaluate("(element) => getComputedStyle(element).backgroundColor")
        for part in (".track", ".fill", ".mark")
    ]
    assert len(set(colours)) == 3
