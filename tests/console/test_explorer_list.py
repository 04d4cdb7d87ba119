"""The list of conversations in a browser: searched, filtered, paged, deleted from, filled from a file."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote

from playwright.async_api import Page, ViewportSize, expect

from tests.console.browser import Watch, axe, axe_in_both_schemes, shot
from tests.console.scenery import Console, Filled, user
from tests.console.scripted import looked_at

ROWS = "table.conversations tbody tr"
NARROW: Final[ViewportSize] = {"width": 400, "height": 800}


async def open_list(page: Page, console: Console, query: str = "") -> None:
    await page.goto(console.url(f"#/conversations{query}"))
    await expect(page.get_by_role("heading", name="Conversations")).to_be_visible()


async def test_conversations_are_listed_with_what_is_known_of_them(filled: Filled, page: Page) -> None:
    await open_list(page, filled)
    row = page.locator(ROWS, has_text="harbour")
    await expect(row.get_by_role("link")).to_contain_text("Entry 0: the ship Aurora 0")
    await expect(row).to_contain_text("120")
    await expect(page.locator(ROWS, has_text="Question 0")).to_contain_text("10,000")
    await shot(page, "list")
    await axe_in_both_schemes(page)


async def test_the_list_fits_a_telephone(filled: Filled, page: Page) -> None:
    await page.set_viewport_size(NARROW)
    await open_list(page, filled)
    await expect(page.locator(ROWS).first).to_be_visible()
    assert await page.evaluate("document.documentElement.scrollWidth") <= NARROW["width"]
    await shot(page, "list-narrow")
    await axe(page)


async def test_a_search_leads_to_the_message_in_its_conversation(filled: Filled, page: Page) -> None:
    await open_list(page, filled)
    await page.get_by_label("Search in all conversations").fill("Aurora 59")
    hit = page.locator(".hit", has_text="Aurora 59 lies at berth").first
    await expect(hit).to_be_visible()
    assert "q=Aurora+59" in page.url
    await shot(page, "search")
    await axe(page)
    await hit.get_by_role("link").click()
    await expect(page.locator(".message.found")).to_contain_text("Aurora 59 lies at berth")
    await page.wait_for_function("CSS.highlights.get('found')?.size > 0")


async def test_a_search_without_hits_says_so(filled: Filled, page: Page) -> None:
    await open_list(page, filled, "?q=xylophone")
    await expect(page.get_by_text("No message has these words")).to_be_visible()


async def test_filters_live_in_the_address(filled: Filled, page: Page) -> None:
    await open_list(page, filled)
    await page.get_by_role("button", name="Filters").click()
    await page.get_by_label("Metadata name").fill("imported_from")
    await page.get_by_label("Metadata value").fill("concertina")
    await expect(page.locator(ROWS)).to_have_count(3)
    assert "name=imported_from&value=concertina" in page.url
    await page.get_by_label("Created until").fill("2001-02-03")
    await expect(page.get_by_text("No conversation is like that")).to_be_visible()
    await page.reload()
    await expect(page.get_by_label("Created until")).to_have_value("2001-02-03")
    await shot(page, "list-filtered")
    await axe(page)
    await page.get_by_role("button", name="Clear the filters").click()
    await expect(page.locator(ROWS, has_text="harbour")).to_be_visible()


async def test_a_day_belongs_to_the_range_it_ends(console: Console, page: Page) -> None:
    await console.say("Hello", "mine")
    today = await page.evaluate("new Date().toISOString().slice(0, 10)")
    await open_list(page, console, f"?created_after={today}&created_before={today}")
    await expect(page.locator(ROWS)).to_have_count(1)


async def test_the_order_can_be_turned_round(filled: Filled, page: Page) -> None:
    await open_list(page, filled)
    assert await page.get_by_label("Order").input_value() == ""
    await page.get_by_label("Order").select_option("desc")
    newest = f"#/conversations/{(await filled.get('conversations', limit=1))['data'][0]['id']}"
    await expect(page.locator(f"{ROWS} a.title").first).to_have_attribute("href", newest)
    assert "order=desc" in page.url
    await page.get_by_label("Order").select_option("asc")
    await expect(page.locator(f"{ROWS} a.title").last).to_have_attribute("href", newest)
    assert "order=asc" in page.url


async def test_what_was_active_last_is_first(console: Console, page: Page) -> None:
    for name in ("early", "late"):
        await console.say(f"This is {name}", name)
    await console.say("And again", "early")
    await open_list(page, console)
    await expect(page.locator(f"{ROWS} a.title")).to_have_text(["This is early", "This is late"])


async def test_many_conversations_of_one_exchange_are_one_row(console: Console, page: Page) -> None:
    for number in range(7):
        await console.chat([user(f"Hi {number}")])
    await open_list(page, console)
    await expect(page.locator(f"{ROWS} a.title")).to_have_count(7)  # there is nothing else
    for text in ("Let us talk", "Go on"):
        await console.say(text, "talk")
    await page.reload()
    run = page.get_by_role("button", name="7 conversations of one exchange")
    await expect(run).to_have_attribute("aria-expanded", "false")
    await expect(page.locator(f"{ROWS} a.title")).to_have_text(["Let us talk"])
    await expect(page.locator(".run-titles")).to_contain_text("Hi 6 · Hi 5")
    await looked_at(page, "list-short-runs")
    await run.click()
    await expect(page.locator(f"{ROWS} a.title")).to_have_count(8)
    await expect(run).to_have_attribute("aria-expanded", "true")


async def test_a_list_is_filtered_by_what_its_requests_were_like(console: Console, page: Page) -> None:
    for text in ("Let us talk", "Go on"):
        await console.say(text, "talk")
    await console.say("Hello", "other", model="sim-echo")
    await open_list(page, console)
    await page.get_by_role("button", name="Filters").click()
    titles = page.locator(f"{ROWS} a.title")
    await page.get_by_label("Messages").select_option("more than one exchange")
    await expect(titles).to_have_text(["Let us talk"])
    assert "min_messages=4" in page.url
    await page.get_by_label("Messages").select_option("any number")
    await expect(titles).to_have_count(2)
    await page.get_by_label("Model").fill("sim-echo")
    await page.get_by_label("Model").press("Enter")
    await page.wait_for_timeout(2500)  # requests are written every two seconds
    await page.reload()
    await expect(titles).to_have_text(["Hello"])
    await page.get_by_label("Context").select_option("trimmed")
    await expect(page.get_by_text("No conversation is like that")).to_be_visible()
    await expect(page.get_by_role("button", name="Filters (2)")).to_be_visible()
    await looked_at(page, "list-filtered-by-requests")


async def test_ids_are_shown_by_their_ends(console: Console, page: Page) -> None:
    found = await console.chat([user("Hello")])
    await open_list(page, console)
    await expect(page.locator(ROWS)).to_contain_text(f"…{found['conversation_id'][-8:]}")


async def test_a_conversation_is_found_by_the_id_of_the_client(filled: Filled, page: Page) -> None:
    await open_list(page, filled)
    await page.get_by_label("Search in all conversations").fill("harbour")
    await page.get_by_role("link", name=f"Conversation …{filled.long[-8:]}").click()
    await expect(page.get_by_text(filled.long)).to_be_visible()


async def test_pages_follow_on_each_other_by_the_keyboard(console: Console, page: Page) -> None:
    for number in range(60):
        await console.ask("POST", "conversations", json={"metadata": {"title": f"Number {number}"}})
    await open_list(page, console)
    await expect(page.locator(ROWS)).to_have_count(50)
    await page.get_by_role("button", name="Load more").focus()
    await page.keyboard.press("Enter")
    await expect(page.locator(ROWS)).to_have_count(60)
    titles = await page.locator(f"{ROWS} a.title").all_inner_texts()
    assert titles == [f"Number {59 - number}" for number in range(60)]
    await expect(page.get_by_role("link", name="Number 9", exact=True)).to_be_focused()


async def test_deleting_asks_first(console: Console, page: Page) -> None:
    await console.say("Keep me", "kept")
    await console.say("Drop me", "dropped")
    await open_list(page, console)
    await page.get_by_role("button", name="Delete Drop me").click()
    dialog = page.get_by_role("dialog")
    await expect(dialog).to_contain_text("Drop me")
    await axe(page)
    await page.keyboard.press("Escape")
    await expect(page.locator(ROWS)).to_have_count(2)
    await page.get_by_role("button", name="Delete Drop me").click()
    await dialog.get_by_role("button", name="Delete for good").click()
    await expect(page.locator(ROWS)).to_have_count(1)
    assert [one["external_id"] for one in (await console.get("conversations"))["data"]] == ["kept"]


async def test_a_file_is_taken_in(console: Console, page: Page, tmp_path: Path) -> None:
    file = tmp_path / "chat.jsonl"
    file.write_text(json.dumps({"messages": [user("From elsewhere"), {"role": "assistant", "content": "Welcome."}]}))
    await open_list(page, console)
    await page.get_by_role("button", name="Import").click()
    await axe(page)
    await page.get_by_label("File").set_input_files(file)
    await page.get_by_role("dialog").get_by_role("button", name="Import").click()
    await expect(page.get_by_text("1 conversation was taken in")).to_be_visible()
    await page.get_by_role("button", name="Done").click()
    await expect(page.get_by_role("link", name="From elsewhere")).to_be_visible()


async def test_a_file_of_something_else_is_refused_with_the_reason(
    console: Console, page: Page, watch: Watch, tmp_path: Path
) -> None:
    watch.allow("400")
    file = tmp_path / "chat.json"
    file.write_text("not a chat")
    await open_list(page, console)
    await page.get_by_role("button", name="Import").click()
    await page.get_by_label("File").set_input_files(file)
    await page.get_by_role("dialog").get_by_role("button", name="Import").click()
    await expect(page.get_by_role("alert")).to_be_visible()


async def test_where_nothing_was_said_the_way_to_begin_is_shown(console: Console, page: Page) -> None:
    await open_list(page, console)
    await expect(page.get_by_text("Nothing was said here yet")).to_be_visible()
    await expect(page.locator(".first-steps > p.row > code")).to_have_text(f"{console.address}/v1")
    await shot(page, "first-steps")
    await axe_in_both_schemes(page)


async def test_a_database_that_is_away_is_told_kindly_and_asked_again(filled: Filled, page: Page, watch: Watch) -> None:
    watch.allow("503")
    error: dict[str, Any] = {
        "error": {
            "message": "The database is away.",
            "type": "server_error",
            "param": None,
            "code": "store_unavailable",
        }
    }

    async def away(route: Any) -> None:
        await route.fulfill(status=503, json=error)

    await page.route("**/v1/conversations?*", away)
    await page.goto(filled.url("#/conversations"))
    await expect(page.get_by_role("alert")).to_contain_text("The database is away. store_unavailable")
    await shot(page, "away")
    await axe(page)
    await page.unroute("**/v1/conversations?*")
    await page.get_by_role("button", name="Try again").click()
    await expect(page.locator(ROWS, has_text="harbour")).to_be_visible()


async def test_what_is_typed_is_searched_for_as_it_is(filled: Filled, page: Page) -> None:
    words = "<b>100% & more?</b> #1"
    await open_list(page, filled, f"?q={quote(words)}")
    await expect(page.get_by_label("Search in all conversations")).to_have_value(words)
