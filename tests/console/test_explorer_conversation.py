"""One conversation in a browser: its head, its summaries and their revisions, its pins, its branches."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, Final

import pytest_asyncio
from playwright.async_api import Page, ViewportSize, expect

from tests.console.browser import Watch, axe, axe_in_both_schemes, shot
from tests.console.scenery import MODEL, Console, Filled, assistant, line, long_conversation, user
from tests.console.scripted import open_menu

NARROW: Final[ViewportSize] = {"width": 400, "height": 800}


async def open_view(page: Page, console: Console, conversation: str, view: str = "log", query: str = "") -> None:
    await page.goto(console.url(f"#/conversations/{conversation}/{view}{query}"))
    await expect(page.get_by_role("navigation", name="Views of the conversation")).to_be_visible()


async def test_the_head_says_how_full_the_context_is(filled: Filled, page: Page) -> None:
    await open_view(page, filled, filled.long)
    await expect(page.get_by_role("heading", level=1)).to_contain_text("Entry 0: the ship Aurora 0")
    head = page.locator(".conversation-head")
    signs = (
        "harbour",
        "120 messages",
        "policy additive",
        f"model {MODEL}",
        "summarized",
        "client sends new messages only",
    )
    for sign in (filled.long, *signs):
        await expect(head).to_contain_text(sign)
    view = await filled.get(f"conversations/{filled.long}/context", limit=1)
    meter = head.get_by_role("meter")
    await expect(meter).to_have_attribute("aria-valuenow", str(view["prompt_tokens"]))
    await expect(meter).to_have_attribute("aria-valuemax", str(view["window"]))
    await expect(head.get_by_role("link", name="Continue in chat")).to_have_attribute("href", f"#/chat/{filled.long}")
    await expect(page).to_have_title(re.compile("^Entry 0: the ship Aurora 0 lies.*… · Concertina$"))


async def test_where_no_model_answered_the_head_says_so(filled: Filled, page: Page) -> None:
    for conversation in (filled.tools, filled.empty):
        await open_view(page, filled, conversation)
        await expect(page.get_by_text("No model answered here yet")).to_be_visible()
    await expect(page.get_by_text("Nothing was said yet")).to_be_visible()
    await axe(page)


async def test_the_tabs_are_links_that_are_marked(filled: Filled, page: Page) -> None:
    await open_view(page, filled, filled.long)
    tabs = page.get_by_role("navigation", name="Views of the conversation")
    for name in ("Summaries", "Branches", "Log"):
        await tabs.get_by_role("link", name=name).click()
        await expect(tabs.get_by_role("link", name=name)).to_have_attribute("aria-current", "page")
        assert page.url.endswith(f"/{name.lower()}")


async def test_a_conversation_is_renamed_by_the_keyboard(console: Console, page: Page) -> None:
    await console.say("Hello", "mine")
    await console.ask("POST", "conversations/mine", json={"metadata": {"topic": "lockers"}})
    await open_view(page, console, "mine")
    await page.get_by_role("button", name="More").focus()
    await page.keyboard.press("Enter")
    await page.get_by_role("button", name="Rename").focus()
    await page.keyboard.press("Enter")
    await expect(page.get_by_label("Title")).to_be_focused()
    await page.keyboard.type("Not this")
    await page.keyboard.press("Escape")
    await open_menu(page, "More")
    await page.get_by_role("button", name="Rename").click()
    await expect(page.get_by_label("Title")).to_be_focused()
    await page.keyboard.type("Locker 12")
    await page.keyboard.press("Enter")
    await expect(page.get_by_role("heading", name="Locker 12")).to_be_visible()
    kept = await console.get("conversations/mine")
    assert kept["metadata"] == {"topic": "lockers", "title": "Locker 12"}


async def test_an_export_is_saved_as_a_file(filled: Filled, page: Page, tmp_path: Path) -> None:
    await open_view(page, filled, filled.tools)
    await open_menu(page, "More")
    async with page.expect_download() as saving:
        await page.get_by_role("button", name="Export").click()
    saved = await saving.value
    assert saved.suggested_filename == f"{filled.tools}.jsonl"
    saved_to = tmp_path / "saved.jsonl"
    await saved.save_as(saved_to)
    assert len(saved_to.read_bytes().splitlines()) == 10


async def test_deleting_takes_its_branches_where_it_is_told_to(console: Console, page: Page) -> None:
    await console.say("One", "mine")
    await console.chat([user("One"), assistant("Another answer."), user("Two")])
    found = (await console.get("conversations/mine"))["id"]
    await open_view(page, console, found)
    # The head has loaded. What still loads of a conversation that is deleted is answered with 404.
    await expect(page.get_by_role("meter")).to_be_visible()
    await open_menu(page, "More")
    await page.get_by_role("button", name="Delete…").click()
    dialog = page.get_by_role("dialog", name="Delete this conversation?")
    await dialog.get_by_label("Delete what branched from it").check()
    await dialog.get_by_role("button", name="Delete for good").click()
    await expect(page.get_by_role("heading", name="Conversations")).to_be_visible()
    assert found not in {one["id"] for one in (await console.get("conversations"))["data"]}


async def test_a_conversation_that_is_not_there_is_told_kindly(filled: Filled, page: Page, watch: Watch) -> None:
    watch.allow("404")
    await page.goto(filled.url("#/conversations/conv_none"))
    await expect(page.get_by_role("heading", name="There is no such conversation")).to_be_visible()
    await shot(page, "conversation-missing")
    await axe(page)


async def test_a_fault_of_the_gateway_is_told_and_asked_again(filled: Filled, page: Page, watch: Watch) -> None:
    watch.allow("500")
    error = {"error": {"message": "It broke.", "type": "server_error", "param": None, "code": "internal_error"}}

    async def broken(route: Any) -> None:
        await route.fulfill(status=500, json=error)

    await page.route(f"**/v1/conversations/{filled.long}?*", broken)
    await page.goto(filled.url(f"#/conversations/{filled.long}"))
    await expect(page.get_by_role("alert")).to_contain_text("internal_error")
    await page.unroute(f"**/v1/conversations/{filled.long}?*")
    await page.get_by_role("button", name="Try again").click()
    await expect(page.get_by_role("heading", level=1)).to_contain_text("Aurora")


async def test_summaries_are_shown_with_their_revisions(filled: Filled, page: Page) -> None:
    await open_view(page, filled, filled.long, "summaries", f"?summary={filled.revised}")
    chosen = page.locator(".summary.found")
    await expect(chosen).to_contain_text("The Aurora came, as a person tells it again.")
    await chosen.get_by_role("button", name="Revisions (3)").click()
    await expect(chosen.locator(".revision")).to_have_count(3)
    await expect(chosen.locator(".revision").first.locator("del").first).to_contain_text("came to berth 1,")
    await shot(page, "summaries")
    await axe_in_both_schemes(page)
    await chosen.get_by_label("Show what changed").uncheck()
    await expect(chosen.locator(".revision").nth(1)).to_contain_text(
        "The Aurora came to berth 1, as a person tells it."
    )


async def test_pins_are_listed_and_lead_to_their_messages(filled: Filled, page: Page) -> None:
    await open_view(page, filled, filled.long, "summaries")
    pins = page.get_by_role("region", name="Pinned messages")
    for seq in filled.pinned:
        await expect(pins.get_by_role("link", name=f"#{seq}", exact=True)).to_be_visible()
    await pins.get_by_role("link", name="#5", exact=True).click()
    await expect(page.locator(".message.found")).to_contain_text("pinned")


async def test_user_text_is_listed_pinned_and_dropped(console: Console, page: Page) -> None:
    for rule in ("Call every ship by its full name.", "Never mention the customs."):
        await console.say(rule, "said")
    found = await long_conversation(console, turns=20, name="said")
    await open_view(page, console, found, "summaries")
    said = page.get_by_role("region", name="What the user said").get_by_role("listitem")
    first, second, *_ = (await console.get(f"conversations/{found}/user_text"))["data"]
    await expect(said.first).to_contain_text(first["text"])
    await said.first.get_by_role("button", name="Drop").click()
    await expect(said.first).to_contain_text(second["text"])
    await said.first.get_by_role("button", name="Pin").click()
    pins = page.get_by_role("region", name="Pinned messages")
    await expect(pins.get_by_role("listitem").first).to_contain_text(second["text"][:40])


@pytest_asyncio.fixture(loop_scope="session")
async def compacted(console: Console) -> tuple[Console, str, str]:
    """A conversation with summaries, and the oldest of these."""
    found = await long_conversation(console, turns=20, name="mine")
    (oldest, *_) = (await console.get(f"conversations/{found}/summaries"))["data"]
    return console, found, str(oldest["id"])


async def test_a_summary_is_edited_written_anew_rolled_back_and_deleted(
    compacted: tuple[Console, str, str], page: Page
) -> None:
    console, found, oldest = compacted
    place = f"conversations/{found}/summaries/{oldest}"
    await open_view(page, console, found, "summaries")
    card = page.locator(".summary").first
    dialog = page.get_by_role("dialog")

    await card.get_by_role("button", name="Edit").click()
    await axe(page)
    save = dialog.get_by_role("button", name="Save as a new revision")
    await expect(save).to_be_disabled()
    await dialog.get_by_label("Text").fill("Crates were counted.")
    await save.click()
    await expect(card).to_contain_text("Crates were counted.")
    assert (await console.get(place))["revision"] == 2

    await card.get_by_role("button", name="Regenerate").click()
    await axe(page)
    await dialog.get_by_label("What to pay attention to").fill("Name the berths.")
    await dialog.get_by_role("button", name="Regenerate").click()
    await expect(card).to_contain_text("revision 3")
    await expect(card).not_to_contain_text("Crates were counted.")

    await card.get_by_role("button", name="Revisions (3)").click()
    await card.locator(".revision").nth(1).get_by_role("button", name="Roll back to this").click()
    await dialog.get_by_role("button", name="Roll back").click()
    await expect(card).to_contain_text("revision 4")
    await expect(card.locator("> .markdown")).to_have_text("Crates were counted.")

    await card.get_by_role("button", name="Delete").click()
    await dialog.get_by_role("button", name="Delete with all its texts").click()
    await expect(page.get_by_text("Crates were counted.")).to_have_count(0)
    left = (await console.get(f"conversations/{found}/summaries", all="true"))["data"]
    assert oldest not in {one["id"] for one in left}


async def test_a_summary_that_somebody_else_changed_is_not_overwritten(
    compacted: tuple[Console, str, str], page: Page, watch: Watch
) -> None:
    watch.allow("409")
    console, found, oldest = compacted
    await open_view(page, console, found, "summaries")
    await page.locator(".summary").first.get_by_role("button", name="Edit").click()
    await console.ask("PATCH", f"conversations/{found}/summaries/{oldest}", json={"text": "Somebody was faster."})
    dialog = page.get_by_role("dialog")
    await dialog.get_by_label("Text").fill("Too late.")
    await dialog.get_by_role("button", name="Save as a new revision").click()
    await expect(dialog.get_by_role("alert")).to_contain_text("revision_conflict")
    await expect(dialog.get_by_label("Text")).to_have_value("Too late.")


async def test_a_text_that_is_too_long_is_refused_with_the_reason(
    compacted: tuple[Console, str, str], page: Page, watch: Watch
) -> None:
    watch.allow("400")
    console, found, _ = compacted
    await open_view(page, console, found, "summaries")
    await page.locator(".summary").first.get_by_role("button", name="Edit").click()
    dialog = page.get_by_role("dialog")
    await dialog.get_by_label("Text").fill(" ".join(map(line, range(30))))
    await dialog.get_by_role("button", name="Save as a new revision").click()
    await expect(dialog.get_by_role("alert")).to_contain_text("summary_too_long")


async def test_branches_are_a_tree_with_the_places_where_they_leave(filled: Filled, page: Page) -> None:
    await open_view(page, filled, filled.branches[0], "branches")
    tree = page.get_by_role("navigation", name="Branches")
    await expect(tree.get_by_role("listitem")).to_have_count(3)
    await expect(tree.locator(".branch.current")).to_contain_text("What would be, had the Aurora never come?")
    await shot(page, "branches")
    await axe_in_both_schemes(page)
    await tree.locator(".branch.current").get_by_role("link", name="here").click()
    await expect(page.locator(".message.found")).to_contain_text("What would be, had the Aurora never come?")
    await expect(page.get_by_role("link", name="a branch")).to_be_visible()


async def test_every_view_fits_a_telephone(filled: Filled, page: Page) -> None:
    await page.set_viewport_size(NARROW)
    for view in ("summaries", "branches"):
        await open_view(page, filled, filled.long, view)
        await expect(page.locator(".summary, .branch").first).to_be_visible()
        assert await page.evaluate("document.documentElement.scrollWidth") <= NARROW["width"]
        await shot(page, f"{view}-narrow")
        await axe(page)


async def test_a_conversation_is_found_read_and_left_by_the_keyboard_alone(filled: Filled, page: Page) -> None:
    await page.goto(filled.url("#/conversations"))
    await expect(page.get_by_role("link", name="Question 0 about crate 0")).to_be_visible()
    await tab_to(page, "a.skip-link")
    await page.keyboard.press("Enter")
    await tab_to(page, 'input[aria-label="Search in all conversations"]')
    await page.keyboard.type("Aurora 59")
    await page.keyboard.press("Enter")
    await expect(page.locator(".hit").first).to_be_visible()
    await tab_to(page, ".hit a")
    await page.keyboard.press("Enter")
    await expect(page.locator(".message.found")).to_be_visible()
    await expect(page.get_by_role("heading", level=1)).to_be_focused()
    await tab_to(page, 'nav.tabs a[href$="/summaries"]')
    await page.keyboard.press("Enter")
    await expect(page.locator(".summary").first).to_be_visible()
    await tab_to(page, ".summary .actions button")
    await page.keyboard.press("Enter")
    await expect(page.locator(".revision").first).to_be_visible()
    await page.go_back()
    await expect(page.locator(".virtual")).to_be_visible()


async def tab_to(page: Page, selector: str) -> None:
    """Press Tab until what is wanted has the focus, and see that the focus can be seen on the way."""
    for _ in range(80):
        await page.keyboard.press("Tab")
        if await page.evaluate("(selector) => document.activeElement.matches(selector)", selector):
            return
    raise AssertionError(f"the keyboard does not reach {selector}")
