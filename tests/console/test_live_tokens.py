"""The sawtooth in a browser: its numbers are the API's, and each answer leads to what the model saw."""

from __future__ import annotations

import json
import time
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest
from playwright.async_api import Page, Route, expect

from tests.console.scenery import Console, Filled
from tests.console.scripted import looked_at, open_menu

MANY = 10_000
QUICK_SECONDS = 15.0
"""Ten pages of a thousand answers, parsed and drawn, on a machine that others use too."""
KEY_SECONDS = 2.0


async def open_tokens(page: Page, console: Console, conversation: str) -> None:
    await page.goto(console.url(f"#/conversations/{conversation}/tokens"))
    await expect(page.locator(".chart canvas")).to_be_visible()


async def cells(page: Page) -> list[list[str]]:
    found: list[list[str]] = await page.locator(".chart-table tbody tr").evaluate_all(
        "rows => rows.map(row => [...row.children].map(cell => cell.textContent))"
    )
    return found


async def test_the_table_has_the_numbers_of_the_api(filled: Filled, page: Page) -> None:
    turns = (await filled.get(f"conversations/{filled.long}/turns", limit=1000))["data"]
    await open_tokens(page, filled, filled.long)
    await page.get_by_role("button", name="Show as table").click()
    heads = await page.locator(".chart-table thead th").all_inner_texts()
    rows = [dict(zip(heads, row, strict=True)) for row in await cells(page)]
    assert len(rows) == len(turns)
    for row, turn in zip(rows, turns, strict=True):
        for head, name in {
            "Sent": "prompt_tokens",
            "Whole log": "log_tokens",
            "Compaction threshold": "threshold_tokens",
            "Window": "window",
            "Turn": "turn",
        }.items():
            assert row[head] == f"{turn[name]:,}", (head, turn)
        compaction = turn["compaction"]
        assert (row["Compaction"] == "–") == (not (compaction.get("ran") or compaction.get("prepared")))
        names = {
            "Instructions": "instructions",
            "Summaries": "summaries",
            "Kept user text": "user_text",
            "Quotations": "quotations",
            "Verbatim": "verbatim",
        }
        told = {name: int(row[head].replace(",", "")) for head, name in names.items() if head in row}
        assert told == {name: tokens for name, tokens in turn["parts"].items() if name in told}
        assert sum(told.values()) == turn["prompt_tokens"]
    assert {"Summaries", "Kept user text", "Verbatim"} < set(heads)
    most = max(turn["limit"] for turn in turns)
    await expect(page.get_by_text("The compaction threshold rises with kept user text")).to_contain_text(f"{most:,}")
    numbers = page.get_by_label("Tokens of this conversation")
    sums = [sum(turn[name] for turn in turns) for name in ("prompt_tokens", "saved_tokens", "log_tokens")]
    titles = [await one.get_attribute("title") for one in await numbers.locator(".value[title]").all()]
    assert titles == [f"{sums[0]:,}", f"{sums[1]:,}"]
    await expect(numbers).to_contain_text(f"{round(100 * sums[1] / sums[2])} %")
    await looked_at(page, "tokens")


async def test_an_answer_leads_to_what_the_model_saw_by_keyboard(filled: Filled, page: Page) -> None:
    turns = (await filled.get(f"conversations/{filled.long}/turns", limit=1000))["data"]
    await open_tokens(page, filled, filled.long)
    await page.get_by_role("group", name="Tokens sent per turn").focus()
    await page.keyboard.press("Home")
    for _ in range(11):
        await page.keyboard.press("ArrowRight")
    await expect(page.locator(".chart-readout")).to_contain_text("turn 12")
    await expect(page.locator(".chart-key").first).to_contain_text(f"Sent: {turns[11]['prompt_tokens']:,}")
    await page.keyboard.press("Enter")
    await expect(page.get_by_text("Turn 12 of 60")).to_be_visible()
    assert page.url.endswith(f"/context?item={turns[11]['id']}")


async def test_an_answer_leads_to_what_the_model_saw_by_pointer(filled: Filled, page: Page) -> None:
    await open_tokens(page, filled, filled.long)
    drawn = page.locator(".chart .u-over")
    box = await drawn.bounding_box()
    assert box is not None
    await drawn.hover(position={"x": box["width"] / 2, "y": 80})
    told = await page.locator(".chart-readout").inner_text()
    await drawn.click(position={"x": box["width"] / 2, "y": 80})
    await expect(page.get_by_role("status").filter(has_text="what the model saw for this answer")).to_be_visible()
    number = told.split("turn ")[1].split(" ")[0]
    await expect(page.get_by_text(f"Turn {number} of 60")).to_be_visible()


async def test_lines_are_shown_and_hidden(filled: Filled, page: Page) -> None:
    await open_tokens(page, filled, filled.long)
    key = page.locator(".chart-key").first
    await page.get_by_label("Without compaction").set_checked(False)
    await expect(key).not_to_contain_text("Whole log")
    await page.get_by_label("Reported and cached").check()
    await expect(key).to_contain_text("Reported")
    await page.get_by_label("Turns shown").select_option("50")
    await page.get_by_role("button", name="Show as table").click()
    assert len(await cells(page)) == 50


async def test_the_chart_follows_the_theme(filled: Filled, page: Page) -> None:
    await open_tokens(page, filled, filled.long)
    drawn = "document.querySelector('.chart canvas').toDataURL()"
    light = await page.evaluate(drawn)
    await open_menu(page, "Account")
    await page.get_by_label("Colours").select_option("dark")
    await page.wait_for_function(f"before => {drawn} !== before", arg=light)
    dark = await page.evaluate(drawn)
    await page.get_by_label("Colours").select_option("system")
    await page.wait_for_function(f"before => {drawn} !== before", arg=dark)
    await page.emulate_media(color_scheme="dark")
    await page.wait_for_function(f"expected => {drawn} === expected", arg=dark)


async def test_a_conversation_without_answers_of_the_gateway_says_so(filled: Filled, page: Page) -> None:
    for conversation in (filled.empty, filled.tools):
        await page.goto(filled.url(f"#/conversations/{conversation}/tokens"))
        await expect(page.get_by_text("No answer of this conversation came through the gateway yet.")).to_be_visible()


def turn(number: int) -> dict[str, Any]:
    sent = 900 + (number * 137) % 4000
    return {
        "id": f"msg_{number}",
        "object": "conversation.turn",
        "turn": number,
        "seq": 2 * number - 1,
        "created_at": 1_795_000_000 + number,
        "model": "m",
        "policy": "additive",
        "status": "summarized",
        "window": 8192,
        "limit": 7782,
        "threshold_tokens": 5734,
        "prompt_tokens": sent,
        "reported_tokens": sent,
        "cached_tokens": 0,
        "completion_tokens": 9,
        "parts": {"instructions": None, "summaries": 300, "user_text": 90, "quotations": 0, "verbatim": sent - 390},
        "log_tokens": 300 * number,
        "saved_tokens": max(0, 300 * number - sent),
        "compaction": {"ran": number % 30 == 0, "duration_ms": 4, "outcome": "completed"},
        "summaries": 3,
        "boundary_seq": 4,
        "recovered": False,
        "incomplete": False,
        "finish_reason": "stop",
    }


@pytest.mark.timeout(60)
async def test_ten_thousand_turns_stay_quick(filled: Filled, page: Page) -> None:
    turns = [turn(number) for number in range(1, MANY + 1)]

    async def answer(route: Route) -> None:
        query = parse_qs(urlsplit(route.request.url).query)
        first = int(query["after"][0].removeprefix("msg_")) if "after" in query else 0
        told = turns[first : first + int(query["limit"][0])]
        body = {"object": "list", "data": told, "last_id": told[-1]["id"], "has_more": first + len(told) < MANY}
        await route.fulfill(body=json.dumps(body), content_type="application/json")

    await page.route("**/turns?*", answer)
    began = time.monotonic()
    await open_tokens(page, filled, filled.long)
    assert time.monotonic() - began < QUICK_SECONDS
    await page.get_by_role("group", name="Tokens sent per turn").focus()
    began = time.monotonic()
    await page.keyboard.press("End")
    await expect(page.locator(".chart-readout")).to_contain_text("turn 10,000")
    assert time.monotonic() - began < KEY_SECONDS
    await page.get_by_role("button", name="Show as table").click()
    assert len(await cells(page)) == 200
    await page.get_by_role("button", name="Later rows").click()
    await expect(page.get_by_text("Rows 201 to 400 of 10,000")).to_be_visible()
