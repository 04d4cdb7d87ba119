"""Compaction by hand, in a browser: tried first, watched while it runs, told how it ended."""

from __future__ import annotations

import asyncio
from typing import Any

from playwright.async_api import Locator, Page, Route, expect

from tests.console.browser import Watch, axe, axe_in_both_schemes, shot
from tests.console.scenery import Console
from tests.console.scripted import answering, holding, scripted, talked
from tests.live import Reply, ScriptedUpstream
from tests.support.gateway import is_summary, summaries_asked

WINDOW = 16_000
TURNS = 12


async def open_dialog(page: Page, console: Console, conversation: str) -> Locator:
    await page.goto(console.url(f"#/conversations/{conversation}"))
    await page.get_by_role("button", name="Compact…").click()
    dialog = page.get_by_role("dialog", name="Compact")
    await expect(dialog.get_by_label("What it would do").locator(".panel, .notice")).to_be_visible()
    return dialog


async def test_it_is_tried_out_then_made_and_watched(page: Page) -> None:
    gate = asyncio.Event()
    upstream = ScriptedUpstream(
        default=lambda body: holding(gate, answering(body)) if is_summary(body) else answering(body)
    )
    async with scripted(page, upstream, window=WINDOW) as console:
        conversation = await talked(console, TURNS)
        wanted = await console.ask("POST", f"conversations/{conversation}/compact", json={"dry_run": True})
        dialog = await open_dialog(page, console, conversation)
        (stretch,) = wanted["to_summarize"]
        await expect(dialog).to_contain_text(f"#{stretch['from_seq']} to #{stretch['to_seq'] - 1}")
        for name, tokens in (("Tokens before", wanted["tokens_before"]), ("Tokens after", wanted["tokens_after"])):
            await expect(dialog.get_by_role("meter", name=name)).to_have_attribute("aria-valuenow", str(tokens))
        assert summaries_asked(upstream) == []
        await dialog.get_by_label("What the summary should focus on").fill("Keep the crates.")
        await axe_in_both_schemes(page)
        await shot(page, "compact", full_page=False)
        await dialog.get_by_role("button", name="Summarize now").click()
        await expect(dialog.get_by_role("status")).to_contain_text("Summarizing…")
        await expect(dialog.get_by_role("progressbar")).to_be_visible()
        await shot(page, "compact-running", full_page=False)
        assert not gate.is_set()
        gate.set()
        await expect(dialog.get_by_role("status")).to_contain_text("Done. 1 summary by m in")
        now = await console.get(f"conversations/{conversation}/context")
        await expect(dialog.get_by_role("meter", name="Tokens after")).to_have_attribute(
            "aria-valuenow", str(now["prompt_tokens"])
        )
        await axe(page)
        await shot(page, "compact-done", full_page=False)
        assert "Keep the crates." in str(summaries_asked(upstream)[-1]["messages"][-1]["content"])
        await dialog.get_by_role("link", name="Read the summary").click()
        await expect(dialog).to_have_count(0)
        await expect(page.get_by_text("They counted crates").first).to_be_visible()


async def test_nothing_is_summarized_by_what_was_worked_out_for_another_message(page: Page) -> None:
    """The button that was enabled for the older estimate would be disabled in the middle of a click."""
    async with scripted(page, ScriptedUpstream(default=answering), window=WINDOW) as console:
        dialog = await open_dialog(page, console, await talked(console, TURNS))
        button = dialog.get_by_role("button", name="Summarize now")
        await expect(button).to_be_enabled()
        gate = asyncio.Event()

        async def hold(route: Route) -> None:
            await gate.wait()
            await route.continue_()

        await page.route("**/compact", hold)
        await dialog.get_by_label("Up to message").fill("#3")
        await expect(dialog).to_contain_text("Working out what would be summarized…")
        await expect(button).to_be_disabled()
        gate.set()
        await expect(dialog).to_contain_text("#0 to #3 with")
        await expect(button).to_be_enabled()


async def test_where_there_is_nothing_to_summarize_it_says_so(page: Page) -> None:
    async with scripted(page, ScriptedUpstream(default=answering), window=WINDOW) as console:
        dialog = await open_dialog(page, console, await talked(console, 1))
        await expect(dialog).to_contain_text("There is nothing to summarize.")
        await expect(dialog.get_by_role("button", name="Summarize now")).to_be_disabled()
        await page.keyboard.press("Escape")
        await expect(dialog).to_have_count(0)
        await expect(page.get_by_role("button", name="Compact…")).to_be_focused()


async def test_a_place_where_the_log_cannot_be_cut_is_told_with_the_nearest_that_can(page: Page, watch: Watch) -> None:
    watch.allow("400")
    async with scripted(page, ScriptedUpstream(default=answering), window=WINDOW) as console:
        conversation = await talked(console, TURNS)
        log = (await console.get(f"conversations/{conversation}/log"))["data"]
        dialog = await open_dialog(page, console, conversation)
        await dialog.get_by_label("Up to message").fill("msg_unheard_of")
        await expect(dialog.get_by_role("alert")).to_contain_text("item_not_found")
        await expect(dialog.get_by_role("button", name="Summarize now")).to_be_disabled()
        await dialog.get_by_label("Up to message").fill(log[7]["id"])
        await expect(dialog).to_contain_text("#0 to #7")


async def test_a_conversation_in_use_is_told_as_busy(page: Page, watch: Watch) -> None:
    watch.allow("409")
    gate = asyncio.Event()
    upstream = ScriptedUpstream(default=answering)
    async with scripted(page, upstream, window=WINDOW, compaction={"wait_seconds": 0.3}) as console:
        conversation = await talked(console, TURNS)
        upstream.default = lambda body: holding(gate, answering(body))
        speaking = asyncio.ensure_future(talked(console, 1, first=TURNS))
        dialog = await open_dialog(page, console, conversation)
        await dialog.get_by_role("button", name="Summarize now").click()
        await expect(dialog.get_by_role("alert")).to_contain_text("conversation_busy")
        await expect(dialog.get_by_role("alert")).to_contain_text("Wait until it is done, then try again.")
        gate.set()
        await speaking
        await dialog.get_by_role("button", name="Try again").click()
        await expect(dialog.get_by_role("status")).to_contain_text("Done.")


async def test_a_summarizer_that_fails_leaves_a_summary_without_a_model(page: Page) -> None:
    def cannot_summarize(body: dict[str, Any]) -> Reply:
        return Reply({"error": {"message": "No."}}, 500) if is_summary(body) else answering(body)

    async with scripted(page, ScriptedUpstream(default=cannot_summarize), window=WINDOW) as console:
        dialog = await open_dialog(page, console, await talked(console, TURNS))
        await dialog.get_by_role("button", name="Summarize now").click()
        await expect(dialog.get_by_role("status")).to_contain_text("Shortened without a model.")
        await expect(dialog).to_contain_text("The summarizing model failed")
        await axe(page)
