"""Nothing that is stored runs in a page: it is shown as the text that it is."""

from __future__ import annotations

from typing import Any

import pytest
from playwright.async_api import Page, expect

from tests.console.browser import axe
from tests.console.scenery import HOSTILE, Console, Filled, assistant, user

IMAGE = '<img src=x onerror="window.pwned = 100">'
SCRIPT = "<script>window.pwned = 101</script>"
LINK = "[go](javascript:window.pwned=102)"
MARKS = """() => {
    const all = (selector) => [...document.querySelectorAll(selector)];
    return {
        ran: window.pwned ?? null,
        scripts: all("#app :is(script, iframe, style, link, base, object, embed)").length,
        images: all("#app img").filter((image) => image.getAttribute("src") !== "icon.svg").length,
        handlers: all("#app *").filter((one) => [...one.attributes].some((a) => a.name.startsWith("on"))).length,
        links: all("#app a[href]").map((link) => link.protocol)
            .filter((protocol) => !["http:", "https:", "mailto:"].includes(protocol)),
    };
}"""
HARMLESS: dict[str, Any] = {"ran": None, "scripts": 0, "images": 0, "handlers": 0, "links": []}


@pytest.fixture
def dialogs(page: Page) -> list[str]:
    """What `alert` and the like said."""
    said: list[str] = []

    async def note(dialog: Any) -> None:
        said.append(dialog.message)
        await dialog.dismiss()

    page.on("dialog", note)
    return said


@pytest.mark.parametrize("view", ["log", "log?seq=9", "log?seq=20&q=onerror", "summaries", "branches"])
async def test_nothing_that_was_said_runs(view: str, filled: Filled, page: Page, dialogs: list[str]) -> None:
    await page.goto(filled.url(f"#/conversations/{filled.hostile}/{view}"))
    await expect(page.get_by_role("heading", level=1)).to_have_text(HOSTILE["image"])
    await expect(page.locator(".message:not(.waiting), .summary, .branch").first).to_be_visible()
    await page.wait_for_load_state("networkidle")
    assert await page.evaluate(MARKS) == HARMLESS
    assert dialogs == []
    await axe(page)


async def test_every_text_is_shown_as_it_was_said(filled: Filled, page: Page) -> None:
    await page.goto(filled.url(f"#/conversations/{filled.hostile}/log"))
    await page.get_by_label("Plain text").check()
    for place, name in enumerate(HOSTILE):
        seq = 2 * place
        await page.get_by_label("Number of a message").fill(str(seq))
        await page.keyboard.press("Enter")
        shown = page.locator(f'[data-index="{seq}"] .message .text').first
        await expect(shown).to_be_in_viewport()
        assert HOSTILE[name] in (await shown.text_content() or "")
    assert await page.evaluate(MARKS) == HARMLESS


async def test_a_summary_that_a_person_wrote_is_text_too(filled: Filled, page: Page) -> None:
    await page.goto(filled.url(f"#/conversations/{filled.hostile}/summaries"))
    card = page.locator(".summary").first
    await expect(card).to_contain_text(HOSTILE["script"])
    await expect(card).to_contain_text("javascript:window.pwned=5")
    await card.get_by_role("button", name="Revisions").click()
    await expect(card.locator(".revision").first).to_contain_text("<script>")
    await card.get_by_role("button", name="Edit").click()
    assert HOSTILE["script"] in await page.get_by_label("Text").input_value()
    assert await page.evaluate(MARKS) == HARMLESS


async def test_names_and_metadata_and_search_hits_are_text(console: Console, page: Page, dialogs: list[str]) -> None:
    call = {"id": IMAGE, "type": "function", "function": {"name": "f", "arguments": f'{{"a": "{SCRIPT}"}}'}}
    found = await console.take_in(
        [
            user(f"findme {IMAGE} {SCRIPT} {LINK}"),
            assistant(f"findme {LINK}", tool_calls=[call], reasoning_content=SCRIPT),
            {"role": "tool", "tool_call_id": IMAGE, "content": f'{{"html": "{SCRIPT}"}}', "name": "x"},
        ]
    )
    metadata = {"title": SCRIPT, LINK: IMAGE}
    await console.ask("POST", f"conversations/{found}", json={"metadata": metadata})
    await page.route("**/log?*", named_badly)
    for place in ("", "?q=findme", f"/{found}/log?q=findme", f"/{found}/summaries", f"/{found}/branches"):
        await page.goto(console.url(f"#/conversations{place}"))
        await expect(page.get_by_text(SCRIPT).first).to_be_visible()
        await page.wait_for_load_state("networkidle")
        assert await page.evaluate(MARKS) == HARMLESS, place
    assert dialogs == []


async def named_badly(route: Any) -> None:
    """The log, as if a provider had named its models and tools like that."""
    answer = await route.fetch()
    told = await answer.json()
    for message in told["data"]:
        message.update(model=IMAGE, finish_reason=SCRIPT, name=SCRIPT, attachments=[{"type": SCRIPT, "detail": IMAGE}])
        message["tool_calls"] = [{**call, "name": IMAGE} for call in message["tool_calls"]]
    await route.fulfill(response=answer, json=told)


async def test_an_address_cannot_make_a_page_run_anything(filled: Filled, page: Page, dialogs: list[str]) -> None:
    watched = "#/conversations?q=%3Cimg%20src%3Dx%20onerror%3D%22window.pwned%3D1%22%3E&name=%3Cscript%3E&order=%22%3E"
    for place in (watched, "#/conversations?created_after=%3Cscript%3E&name=__proto__&value=x"):
        await page.goto(filled.url(place))
        await expect(page.get_by_role("heading", name="Conversations")).to_be_visible()
        await page.wait_for_load_state("networkidle")
        assert await page.evaluate(MARKS) == HARMLESS
    assert dialogs == []
