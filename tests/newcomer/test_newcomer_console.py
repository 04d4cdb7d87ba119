"""What the README says after its calls: the newcomer opens the console's link, and works there at two widths, in light
and dark. The gateway is the one that `make run` started."""

from __future__ import annotations

import re
from typing import Any, Final

import httpx
import pytest
from playwright.async_api import Locator, Page, expect

from tests.console.browser import axe_in_both_schemes, shot
from tests.console.scripted import NARROW_WIDTH, question
from tests.newcomer.following import STEPS_SECONDS, Newcomer

WIDTHS: Final = (NARROW_WIDTH, 1440)
INSTRUCTIONS: Final = "Answer as the keeper of the archive."
TURNS: Final = 10
LAST_SUMMARIZED: Final = 9
"""Another one than the dialog names by itself: what it shows then is the answer to what was written."""
KEY_OF_THE_README: Final = "your provider's key"

pytestmark = [pytest.mark.asyncio(loop_scope="session"), pytest.mark.timeout(STEPS_SECONDS)]
at_each_width = pytest.mark.parametrize("width", WIDTHS)


async def enter(page: Page, newcomer: Newcomer, width: int) -> None:
    """Opens the link of the start line in a window of this width."""
    await page.set_viewport_size({"width": width, "height": 900})
    await page.goto("about:blank")
    await page.goto(newcomer.console_link)
    await expect(page.get_by_role("heading", name="Conversations")).to_be_visible()
    assert "token" not in page.url


async def go_to(page: Page, width: int, name: str) -> None:
    """Follows the link to a page: in the bar, or where there is no room in the menu."""
    if width == NARROW_WIDTH:
        await page.get_by_role("button", name="Menu").click()
    await page.get_by_role("navigation", name="Pages").get_by_role("link", name=name).click()
    await expect(page.get_by_role("heading", name=name, level=1)).to_be_visible()


async def open_conversation(page: Page, conversation: str) -> None:
    await page.locator(f'tr[data-id="{conversation}"]').get_by_role("link").first.click()
    await expect(page.get_by_role("navigation", name="Views of the conversation")).to_be_visible()


async def look(page: Page, name: str, **options: Any) -> None:
    """Fails on what axe finds in light or dark, and on a page that is wider than its window; makes pictures."""
    size = page.viewport_size
    assert size is not None
    await axe_in_both_schemes(page)
    assert await page.evaluate("document.documentElement.scrollWidth") <= size["width"]
    await shot(page, f"newcomer-{name}-{size['width']}", **options)


def first_sent(page: Page) -> Locator:
    """The first message of what was sent to the model."""
    return page.get_by_role("region", name="What was sent").locator(".seen-row").first


def chat(newcomer: Newcomer, key: str, text: str, **headers: str) -> httpx.Response:
    body = {"model": "sim-8k", "messages": [{"role": "user", "content": text}]}
    return httpx.post(
        f"{newcomer.address}/v1/chat/completions",
        json=body,
        headers={"Authorization": f"Bearer {key}", **headers},
        timeout=60,
    )


def find_conversation(printed: str) -> str:
    """The id that the README's Python call prints last."""
    found = re.search(r"conv_\w+", printed)
    assert found is not None, printed
    return found[0]


@at_each_width
async def test_the_call_of_the_readme_is_found_with_what_its_model_saw(
    newcomer: Newcomer, page: Page, width: int
) -> None:
    await enter(page, newcomer, width)
    await look(page, "conversations")
    await open_conversation(page, find_conversation(newcomer.answers[-1]))
    await expect(page.get_by_role("article").first).to_contain_text("The archive has locker code 7741.")
    await look(page, "log")
    await page.get_by_role("link", name="What the model saw for message 1").click()
    await expect(first_sent(page)).to_contain_text("user")
    await expect(first_sent(page)).to_contain_text("The archive has locker code 7741.")
    await look(page, "context")


@at_each_width
async def test_what_the_model_saw_begins_with_the_instructions_of_the_call(
    newcomer: Newcomer, page: Page, width: int
) -> None:
    (code,) = newcomer.screen.python
    system = f'{{"role": "system", "content": "{INSTRUCTIONS}"}}'
    printed = newcomer.run_python_call(code.replace("messages=[", f"messages=[{system}, "))
    await enter(page, newcomer, width)
    await open_conversation(page, find_conversation(printed))
    await page.get_by_role("link", name="What the model saw for message 1").click()
    await expect(first_sent(page)).to_contain_text("instructions")
    await expect(first_sent(page)).to_contain_text(INSTRUCTIONS)
    await look(page, "instructions")


@at_each_width
async def test_a_conversation_is_compacted_up_to_a_message_of_the_log(
    newcomer: Newcomer, page: Page, width: int
) -> None:
    conversation = ""
    for number in range(TURNS):
        answer = chat(newcomer, KEY_OF_THE_README, question(width + number), **{"X-Conversation-Id": f"long-{width}"})
        assert answer.status_code == 200, answer.text
        conversation = answer.json()["conversation_id"]
    await enter(page, newcomer, width)
    await open_conversation(page, conversation)
    if width == NARROW_WIDTH:
        await page.get_by_role("button", name="More").click()
    await page.get_by_role("button", name="Compact…").click()
    dialog = page.get_by_role("dialog", name="Compact")
    await dialog.get_by_label("Up to message").fill(f"#{LAST_SUMMARIZED}")
    await expect(dialog).to_contain_text(f"#0 to #{LAST_SUMMARIZED} with")
    await look(page, "compact", full_page=False)
    await dialog.get_by_role("button", name="Summarize now").click()
    await expect(dialog.get_by_role("status")).to_contain_text("Done. 1 summary by")
    await look(page, "compacted", full_page=False)
    await dialog.get_by_role("link", name="Read the summary").click()
    await expect(dialog).to_have_count(0)
    await expect(page.get_by_role("button", name=f"summary of messages 0 to {LAST_SUMMARIZED}").first).to_be_visible()
    await look(page, "summaries")


@at_each_width
async def test_the_request_of_the_readme_is_listed_and_told_to_its_end(
    newcomer: Newcomer, page: Page, width: int
) -> None:
    await enter(page, newcomer, width)
    await go_to(page, width, "Requests")
    rows = page.locator("table.requests tbody tr")
    await expect(rows.first).to_be_visible()
    await look(page, "requests")
    filter_field = page.get_by_label("Conversation", exact=True)
    await filter_field.fill(find_conversation(newcomer.answers[-1]))
    await filter_field.press("Enter")
    await expect(rows).to_have_count(1)
    await rows.first.get_by_role("link").first.click()
    await expect(page.locator(".story")).to_contain_text("answered after")
    steps = page.get_by_role("region", name="Steps").get_by_role("row")
    await expect(steps.filter(has_text="Call of the provider")).to_have_count(1)
    await expect(steps.last).to_contain_text("End")
    await look(page, "request")


async def test_a_key_of_the_console_is_accepted_until_it_is_revoked_there(newcomer: Newcomer, page: Page) -> None:
    """The keys are made while keys are not checked, as after `make run`. Then the gateway is started again, as the page
    of keys says. It stays so: this test is the last one."""
    secrets: dict[int, str] = {}
    for width in WIDTHS:
        await enter(page, newcomer, width)
        await go_to(page, width, "Keys")
        await expect(page.get_by_text("Keys are not checked yet.")).to_be_visible()
        await look(page, "keys")
        await page.get_by_role("button", name="Make a key…").click()
        await page.get_by_label("Name").fill(f"shop {width}")
        await look(page, "make-key", full_page=False)
        await page.get_by_role("button", name="Make the key").click()
        secrets[width] = (
            await page.get_by_role("dialog", name="The key was made").locator(".made-key code").inner_text()
        )
        await look(page, "made-key", full_page=False)
        await page.get_by_role("button", name="Done").click()
        await expect(page.get_by_role("row", name=f"shop {width}")).to_contain_text("valid")
    await page.goto("about:blank")
    newcomer.run(CONCERTINA_AUTH__MODE="keys")
    assert chat(newcomer, KEY_OF_THE_README, "Hello").status_code == 401
    for width, secret in secrets.items():
        accepted = chat(newcomer, secret, "Hello")
        assert accepted.status_code == 200, accepted.text
        await enter(page, newcomer, width)
        await go_to(page, width, "Keys")
        await page.get_by_role("button", name=f"Revoke shop {width}…").click()
        await look(page, "revoke-key", full_page=False)
        await page.get_by_role("button", name="Revoke for good").click()
        await expect(page.get_by_role("row", name=f"shop {width}")).to_contain_text("revoked")
        await look(page, "revoked-key")
        refused = chat(newcomer, secret, "Hello")
        assert refused.status_code == 401, refused.text
        assert "revoked" in refused.text
