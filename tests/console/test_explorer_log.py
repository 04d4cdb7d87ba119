"""The log of a conversation in a browser: however long it is, few rows exist, and the right ones are seen."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from itertools import pairwise
from typing import Any, Final

from playwright.async_api import Page, ViewportSize, expect

from tests.console.browser import Watch, axe, axe_in_both_schemes, shot
from tests.console.scenery import BIG_MESSAGES, WIDE_CHARS, Console, Filled, assistant, line, user

MOST_ROWS = 100
MOST_BLANK_FRAME_MS = 1_500
NARROW: Final[ViewportSize] = {"width": 400, "height": 800}
SEEN = """async () => {
    await new Promise((go) => requestAnimationFrame(() => requestAnimationFrame(go)));
    const list = document.querySelector(".virtual");
    const box = list.getBoundingClientRect();
    const rows = [...list.querySelectorAll(".virtual-row")].map((row) => {
        const { top, bottom } = row.getBoundingClientRect();
        return { seq: Number(row.dataset.index), top: top - box.top, bottom: bottom - box.top,
                 isWaiting: row.querySelector(".waiting") !== null };
    }).sort((a, b) => a.seq - b.seq);
    const seen = rows.filter((row) => row.bottom > 1 && row.top < box.height - 1);
    return { rows: rows.length, seen, height: box.height, scrolled: list.scrollTop, whole: list.scrollHeight };
}"""
FRAMES = """() => {
    window.frames_ = [];
    let last = performance.now();
    const note = (now) => { window.frames_.push(now - last); last = now; requestAnimationFrame(note); };
    requestAnimationFrame(note);
}"""


async def open_log(page: Page, console: Console, conversation: str, query: str = "") -> None:
    await page.add_init_script("window.faults_ = []; addEventListener('error', (event) => faults_.push(event.message))")
    await page.goto(console.url(f"#/conversations/{conversation}/log{query}"))
    await expect(page.locator(".message:not(.waiting)").first).to_be_visible()


async def settled(page: Page) -> dict[str, Any]:
    """What is seen once nothing moves and nothing is waited for."""
    before: Any = None
    for _ in range(100):
        await asyncio.sleep(0.05)
        now: dict[str, Any] = await page.evaluate(SEEN)
        if now == before and not any(row["isWaiting"] for row in now["seen"]):
            return now
        before = now
    raise AssertionError(f"the list does not come to rest: {before}")


def assert_filled(seen: dict[str, Any]) -> None:
    """The window is covered by rows without gaps."""
    rows = seen["seen"]
    assert rows[0]["top"] <= 2
    assert rows[-1]["bottom"] >= seen["height"] - 2
    for above, below in pairwise(rows):
        assert below["seq"] == above["seq"] + 1
        assert abs(below["top"] - above["bottom"]) < 1
    assert seen["rows"] < MOST_ROWS


def top_of(seen: dict[str, Any], seq: int) -> float:
    return float(next(row["top"] for row in seen["seen"] if row["seq"] == seq))


async def jump(page: Page, seq: int) -> None:
    await page.get_by_label("Number of a message").fill(str(seq))
    await page.keyboard.press("Enter")


async def test_ten_thousand_messages_are_a_few_rows(filled: Filled, page: Page) -> None:
    await open_log(page, filled, filled.big)
    seen = await settled(page)
    assert_filled(seen)
    assert seen["seen"][0]["seq"] == 0
    for seq in (5_000, 9_000, 4_321):
        await jump(page, seq)
        seen = await settled(page)
        assert_filled(seen)
        assert abs(top_of(seen, seq)) <= 2
        words = f"Question {seq} about" if seq % 2 == 0 else f"Answer {seq}:"
        await expect(page.locator(f'[data-index="{seq}"]')).to_contain_text(words)
        assert f"seq={seq}" in page.url
    await page.get_by_role("button", name="Last").click()
    seen = await settled(page)
    assert_filled(seen)
    assert seen["seen"][-1]["seq"] == BIG_MESSAGES - 1
    assert abs(seen["seen"][-1]["bottom"] - seen["height"]) < 8
    await page.get_by_role("button", name="First").click()
    assert (await settled(page))["scrolled"] == 0
    assert await page.evaluate("faults_") == []


async def test_scrolling_through_never_leaves_the_window_blank(
    filled: Filled, page: Page, record_property: Callable[[str, object], None]
) -> None:
    await open_log(page, filled, filled.big)
    await settled(page)
    await page.evaluate(FRAMES)
    await page.locator(".virtual").hover()
    for _ in range(60):
        await page.mouse.wheel(0, 1_200)
        seen = await page.evaluate(SEEN)
        assert seen["rows"] < MOST_ROWS
        assert seen["seen"], "no row is in the window"
    assert_filled(await settled(page))
    await page.evaluate(
        """async () => {
            const list = document.querySelector(".virtual");
            for (let step = 0; step <= 100; step += 1) {
                list.scrollTop = (list.scrollHeight * step) / 100;
                await new Promise(requestAnimationFrame);
            }
        }"""
    )
    seen = await settled(page)
    assert_filled(seen)
    assert seen["seen"][-1]["seq"] == BIG_MESSAGES - 1
    frames = sorted(await page.evaluate("frames_"))
    told = {
        "frames": len(frames),
        "p50": frames[len(frames) // 2],
        "p95": frames[int(len(frames) * 0.95)],
        "max": frames[-1],
    }
    record_property("frame_ms", told)
    print("frame times in ms:", told)
    assert frames[-1] < MOST_BLANK_FRAME_MS
    assert await page.evaluate("faults_") == []


async def test_whoever_scrolls_past_does_not_ask_for_every_page(filled: Filled, page: Page) -> None:
    await open_log(page, filled, filled.big)
    await settled(page)
    asked: list[str] = []
    page.on("request", lambda request: asked.append(request.url) if "/log?" in request.url else None)
    await page.evaluate(
        """async () => {
            const list = document.querySelector(".virtual");
            for (let step = 0; step <= 60; step += 1) {
                list.scrollTop = (list.scrollHeight * step) / 60;
                await new Promise((go) => setTimeout(go, 16));
            }
        }"""
    )
    await settled(page)
    assert len(asked) < 40, len(asked)


async def test_what_is_read_stays_where_it_is_when_rows_above_change(filled: Filled, page: Page) -> None:
    """Pages come late, so that placeholders above the window are measured before what stands in their place."""
    await open_log(page, filled, filled.long)
    await settled(page)

    async def late(route: Any) -> None:
        await asyncio.sleep(0.4)
        await route.continue_()

    await page.route("**/log?*", late)
    await page.reload()
    await jump(page, 70)
    await expect(page.locator('[data-index="70"]')).to_contain_text("Aurora 35")
    seen = await settled(page)
    assert abs(top_of(seen, 70)) <= 2
    await page.locator(".virtual").hover()
    await page.mouse.wheel(0, -40)
    place = top_of(await settled(page), 70)
    await page.evaluate(
        """() => { document.querySelector('[data-index="66"]').firstElementChild.style.paddingBottom = "300px"; }"""
    )
    assert abs(top_of(await settled(page), 70) - place) < 2
    assert await page.evaluate("faults_") == []


async def test_scrolling_back_does_not_jump(filled: Filled, page: Page) -> None:
    """Rows that are met from below for the first time are measured above the window."""
    await open_log(page, filled, filled.long, "?seq=100")
    await settled(page)
    await page.locator(".virtual").hover()
    before = await settled(page)
    for _ in range(12):
        await page.mouse.wheel(0, -150)
        now = await settled(page)
        assert_filled(now)
        both = {row["seq"] for row in before["seen"]} & {row["seq"] for row in now["seen"]}
        moved = [top_of(now, seq) - top_of(before, seq) for seq in both]
        assert moved
        assert all(140 <= by <= 160 for by in moved), moved
        before = now


async def test_the_focus_is_not_lost_when_its_row_is_scrolled_away(filled: Filled, page: Page) -> None:
    await open_log(page, filled, filled.big)
    await page.get_by_role("link", name="#3", exact=True).focus()
    await page.locator(".virtual").hover()
    await page.mouse.wheel(0, 60_000)
    await settled(page)
    await expect(page.get_by_role("link", name="#3", exact=True)).to_be_focused()
    await page.keyboard.press("Tab")
    assert await page.evaluate("document.activeElement.closest('.virtual') !== null")


async def test_keys_scroll_on_from_where_one_jumped(filled: Filled, page: Page) -> None:
    await open_log(page, filled, filled.big)
    await jump(page, 2_000)
    await settled(page)
    await expect(page.locator(".virtual")).to_be_focused()
    await page.keyboard.press("PageDown")
    assert (await settled(page))["seen"][0]["seq"] > 2_000
    await page.keyboard.press("End")  # the end moves away while the rows in front of it are measured
    assert (await settled(page))["seen"][-1]["seq"] == BIG_MESSAGES - 1
    await page.keyboard.press("Home")
    assert (await settled(page))["seen"][0]["seq"] == 0


async def test_summaries_stand_where_they_stand_in(filled: Filled, page: Page) -> None:
    await open_log(page, filled, filled.long)
    band = page.get_by_role("complementary", name="Summary of messages 0 to")
    await expect(band).to_contain_text("The Aurora came, as a person tells it again.")
    for sign in ("edited", "tokens", "revision 3"):
        await expect(band).to_contain_text(sign)
    await band.locator("summary").click()
    await expect(band).not_to_contain_text("as a person tells it again")
    await page.get_by_role("button", name="Last").click()
    await settled(page)
    await page.get_by_role("button", name="First").click()
    await settled(page)
    await expect(band).not_to_contain_text("as a person tells it again")
    await shot(page, "log")
    await axe_in_both_schemes(page)


async def test_a_summarized_message_leads_to_its_summary(filled: Filled, page: Page) -> None:
    await open_log(page, filled, filled.long, "?seq=20")
    await page.locator('[data-index="20"]').get_by_role("button", name="summarized").click()
    await expect(page.get_by_role("complementary", name="Summary of messages 0 to")).to_be_in_viewport()


async def test_messages_of_every_kind_can_be_read(filled: Filled, page: Page) -> None:
    await open_log(page, filled, filled.tools)
    row = page.locator(".virtual-row")
    await expect(row.nth(1)).to_contain_text('"berth": 4')
    await row.nth(1).get_by_text("Reasoning").click()
    await expect(row.nth(1)).to_contain_text("The list of berths will say.")
    await expect(row.nth(2)).to_contain_text("look_up")
    await expect(row.nth(3).get_by_role("cell", name="Aurora 3")).to_be_visible()
    await shot(page, "log-tools")
    await axe(page)
    await jump(page, 4)
    for kind in ("image", "audio", "manifest.pdf"):
        await expect(page.locator('[data-index="4"]')).to_contain_text(kind)
    long = page.locator('[data-index="6"]')
    await long.get_by_role("button", name="Load all of it").click()
    await expect(long.locator("pre.whole")).to_have_text("x" * WIDE_CHARS)
    await jump(page, 9)
    await expect(page.locator('[data-index="7"]')).to_contain_text("I cannot help with that.")
    await expect(page.locator('[data-index="9"] ol')).to_contain_text("nested")
    await page.get_by_label("Plain text").check()
    await expect(page.locator('[data-index="8"]')).to_contain_text("**Thanks** for _everything_")


async def test_what_was_deleted_and_erased_is_marked(filled: Filled, page: Page) -> None:
    await open_log(page, filled, filled.redacted)
    await expect(page.locator('[data-index="0"]')).to_contain_text("deleted")
    await expect(page.locator('[data-index="2"]')).to_contain_text("erased")
    text = await page.inner_text("body")
    assert "swordfish" not in text
    assert "barracuda" not in text
    await axe(page)


async def test_finding_goes_from_hit_to_hit_and_round(filled: Filled, page: Page) -> None:
    await open_log(page, filled, filled.long)
    find = page.get_by_label("Find in this conversation")
    await find.fill("berth 4")
    status = page.locator(".find [role=status]")
    await expect(status).to_contain_text("found")
    await page.keyboard.press("Enter")
    await expect(status).to_contain_text("1 of")
    await expect(page.locator(".message.found")).to_contain_text("berth")
    await page.keyboard.press("Enter")
    await expect(status).to_contain_text("2 of")
    await page.keyboard.press("Shift+Enter")
    await page.keyboard.press("Shift+Enter")
    total = (await status.inner_text()).split("of ")[1].split()[0]
    await expect(status).to_contain_text(f"{total} of {total}")
    await expect(find).to_be_focused()
    assert "q=berth+4" in page.url
    await find.fill("xylophone")
    await expect(status).to_have_text("Nothing found")


async def test_pins_are_set_and_taken_back(console: Console, page: Page) -> None:
    await console.say("Remember 4711.", "mine")
    await open_log(page, console, "mine")
    row = page.locator('[data-index="0"]')
    await row.get_by_role("button", name="Pin message 0").click()
    await expect(row.locator(".badge", has_text="pinned")).to_be_visible()
    assert (await console.get("conversations/mine/log"))["data"][0]["pinned"]
    await row.get_by_role("button", name="Unpin").click()
    await expect(row.locator(".badge", has_text="pinned")).to_have_count(0)
    assert not (await console.get("conversations/mine/log"))["data"][0]["pinned"]


async def test_pins_that_are_too_much_are_refused_with_the_reason(console: Console, page: Page, watch: Watch) -> None:
    watch.allow("400")
    found = await console.take_in([user(line(1) * 40), assistant("Long.")])
    await console.say("Hello", found)
    await open_log(page, console, found)
    await page.locator('[data-index="0"]').get_by_role("button", name="Pin message 0").click()
    await expect(page.get_by_role("alert")).to_contain_text("pins_too_large")


async def test_a_message_is_taken_out_or_erased_after_a_question(console: Console, page: Page) -> None:
    await console.say("The word is swordfish.", "mine")
    await open_log(page, console, "mine")
    row = page.locator('[data-index="0"]')
    await row.get_by_role("button", name="Delete").click()
    dialog = page.get_by_role("dialog")
    await expect(dialog).to_contain_text("The word is swordfish.")
    await axe(page)
    await dialog.get_by_role("button", name="Delete", exact=True).click()
    await expect(row).to_contain_text("deleted")
    await expect(row).not_to_contain_text("swordfish")
    await row.get_by_role("button", name="Erase").click()
    await dialog.get_by_role("button", name="Erase for good").click()
    await expect(row).to_contain_text("erased")


async def test_what_is_said_meanwhile_comes_by_itself(console: Console, page: Page) -> None:
    await console.say("One", "mine")
    await page.clock.install()
    await open_log(page, console, "mine")
    await console.say("Two and a half", "mine")
    await page.clock.run_for(11_000)
    await expect(page.locator('[data-index="2"]')).to_contain_text("Two and a half")


async def test_the_log_fits_a_telephone(filled: Filled, page: Page) -> None:
    await page.set_viewport_size(NARROW)
    await open_log(page, filled, filled.long)
    await settled(page)
    assert await page.evaluate("document.documentElement.scrollWidth") <= NARROW["width"]
    await shot(page, "log-narrow")
    await axe(page)


async def test_an_answer_leads_to_what_the_model_saw(filled: Filled, page: Page) -> None:
    await open_log(page, filled, filled.long, "?seq=119")
    answer = page.locator('[data-index="119"]')
    item = (await filled.get(f"conversations/{filled.long}/log", from_seq=119))["data"][0]["id"]
    await expect(answer.get_by_role("link", name="What the model saw")).to_have_attribute(
        "href", f"#/conversations/{filled.long}/context?item={item}"
    )


async def test_a_page_that_fails_is_asked_for_again(filled: Filled, page: Page, watch: Watch) -> None:
    watch.allow("503")
    await open_log(page, filled, filled.big)
    await settled(page)
    error = {"error": {"message": "Away.", "type": "server_error", "param": None, "code": "store_unavailable"}}

    async def away(route: Any) -> None:
        await route.fulfill(status=503, json=error)

    await page.route("**/log?*", away)
    await jump(page, 6_000)
    await expect(page.get_by_role("alert")).to_contain_text("store_unavailable")
    await page.unroute("**/log?*")
    await page.get_by_role("button", name="Try again").click()
    await expect(page.locator('[data-index="6000"]')).to_contain_text("Question 6000")
