"""What the model saw, in a browser: it is what the provider received, and both sides point at each other."""

from __future__ import annotations

import re
from typing import Any

from playwright.async_api import Locator, Page, expect

from tests.console.browser import shot
from tests.console.scenery import HOSTILE, Console, Filled
from tests.console.scripted import answering, looked_at, question, scripted, talked
from tests.live import ScriptedUpstream
from tests.support.gateway import is_summary

TURNS = 24
SLOW_MS = 30_000
"""For a plan over 10,000 messages, on a machine that others use too."""


async def open_seen(page: Page, console: Console, conversation: str, item: str = "") -> None:
    await page.goto(console.url(f"#/conversations/{conversation}/context{f'?item={item}' if item else ''}"))
    await expect(side(page, "The whole log").locator(".seen-row").first).to_be_visible()


def side(page: Page, name: str) -> Locator:
    return page.get_by_role("region", name=name, exact=True)


async def every_row(page: Page, name: str) -> list[dict[str, str]]:
    """All rows of a virtual list, by scrolling through it: its place, its text."""
    found: list[dict[str, str]] = await side(page, name).evaluate(
        """async (side) => {
            const list = side.querySelector(".virtual"), rows = new Map();
            list.dispatchEvent(new WheelEvent("wheel"));
            list.scrollTop = 0;
            for (let round = 0; round < 400; round++) {
                await new Promise((wake) => requestAnimationFrame(() => requestAnimationFrame(wake)));
                for (const row of list.querySelectorAll("[data-index]")) {
                    rows.set(Number(row.dataset.index), {
                        place: row.querySelector("button")?.textContent.trim() ?? "",
                        head: row.querySelector(".row")?.innerText ?? "",
                        text: (row.querySelector(".text, .seen-text") ?? row).textContent,
                    });
                }
                if (list.scrollTop + list.clientHeight >= list.scrollHeight - 2) break;
                list.scrollTop += list.clientHeight / 2;
            }
            return [...rows].sort(([one], [other]) => one - other).map(([, row]) => row);
        }"""
    )
    return found


async def to_the_top(within: Locator) -> None:
    await within.locator(".virtual").evaluate(
        "list => { list.dispatchEvent(new WheelEvent('wheel')); list.scrollTop = 0; }"
    )


async def test_what_the_model_saw_is_what_the_provider_received(page: Page) -> None:
    upstream = ScriptedUpstream(default=answering)
    async with scripted(page, upstream) as console:
        conversation = await talked(console, TURNS)
        turns = (await console.get(f"conversations/{conversation}/turns", limit=1000))["data"]
        received = [body["messages"] for body in upstream.requests if not is_summary(body)]
        assert turns[-1]["summaries"] >= 2
        for at in (3, TURNS - 2, TURNS - 1):
            await open_seen(page, console, conversation, turns[at]["id"])
            await expect(page.get_by_text(f"Turn {at + 1} of {TURNS}")).to_be_visible()
            await expect(page.locator(".stale")).to_have_count(0)
            shown = await every_row(page, "What was sent")
            assert_told(shown, received[at])
        log = await every_row(page, "The whole log")
        assert [row["place"] for row in log] == [f"#{seq}" for seq in range(2 * TURNS - 1)]
        await looked_at(page, "seen")


def assert_told(shown: list[dict[str, str]], received: list[dict[str, Any]]) -> None:
    """Every message that was received stands there, word for word; sections of the summary message one by one."""
    messages = [row["text"] for row in shown if "summar" not in row["head"]]
    sections = [row["text"] for row in shown if "summar" in row["head"]]
    plain = [one["content"] for one in received]
    if sections:
        summary, *plain = plain
        assert all(section in summary for section in sections)
        assert len(sections) - 1 == summary.count("<earlier_conversation through_turn")
    assert messages == plain


async def test_both_sides_point_at_each_other(filled: Filled, page: Page) -> None:
    view = await filled.get(f"conversations/{filled.long}/context")
    first, last = view["summaries"][0], view["summaries"][-1]
    await open_seen(page, filled, filled.long)
    log, sent = side(page, "The whole log"), side(page, "What was sent")
    name = f"#{last['from_seq']} to #{last['to_seq'] - 1}: show in the log"
    await sent.get_by_role("button", name=name).click()
    row = log.locator(".seen-row.picked").first
    await expect(row).to_be_in_viewport()
    await expect(row).to_contain_text(f"#{last['from_seq']}")
    await to_the_top(log)
    await log.get_by_role("button", name="Message 3: show what was sent for it").click()
    picked = sent.locator(".seen-row.picked")
    await expect(picked).to_contain_text(f"#{first['from_seq']} to #{first['to_seq'] - 1}")
    await expect(picked).to_be_in_viewport()
    await shot(page, "seen-linked", full_page=False)


async def test_the_log_is_filtered_by_what_became_of_it(filled: Filled, page: Page) -> None:
    rows = (await filled.get(f"conversations/{filled.long}/context", limit=1000))["messages"]["data"]
    counts: dict[str, int] = {}
    for row in rows:
        counts[row["disposition"]] = counts.get(row["disposition"], 0) + 1
    assert set(counts) >= {"verbatim", "summarized", "pinned"}
    await open_seen(page, filled, filled.long)
    legend = page.get_by_role("group", name="Show only")
    for word, number in counts.items():
        await expect(legend.get_by_role("button", name=f"{word} {number}")).to_be_visible()
    await legend.get_by_role("button", name="pinned").click()
    assert [row["place"] for row in await every_row(page, "The whole log")] == [
        f"#{row['seq']}" for row in reversed(rows) if row["disposition"] == "pinned"
    ]
    await legend.get_by_role("button", name="pinned").click()
    await expect(side(page, "The whole log").locator(".virtual-row").first).to_have_attribute(
        "aria-setsize", str(len(rows))
    )


async def test_any_turn_can_be_chosen(filled: Filled, page: Page) -> None:
    turns = (await filled.get(f"conversations/{filled.long}/turns", limit=1000))["data"]
    await open_seen(page, filled, filled.long)
    await expect(page.get_by_text("Now: what the next request would bring to the model")).to_be_visible()
    await page.get_by_role("button", name="← Earlier").click()
    await expect(page.get_by_text("Turn 60 of 60")).to_be_visible()
    assert page.url.endswith(turns[59]["id"])
    await page.get_by_label("Number of the turn").fill("7")
    await page.keyboard.press("Enter")
    await expect(page.get_by_text("Turn 7 of 60")).to_be_visible()
    said = (await filled.get(f"conversations/{filled.long}/log", from_seq=turns[6]["seq"], limit=1))["data"][0]["text"]
    await expect(page.locator(".seen-top")).to_contain_text(f"Its answer: {said[:200]}")
    await expect(page.locator(".seen-budget")).to_contain_text(f"{turns[6]['prompt_tokens']:,} / 8,192 tokens")
    slider = page.get_by_role("slider", name="Turn")
    await slider.focus()
    await page.keyboard.press("ArrowRight")
    await expect(page.get_by_text("Turn 8 of 60")).to_be_visible()
    await page.keyboard.press("End")
    await expect(page.get_by_text("Now: what the next request would bring to the model")).to_be_visible()
    assert page.url.endswith("/context")


async def test_a_drawing_tells_what_stands_for_which_messages(filled: Filled, page: Page) -> None:
    turns = (await filled.get(f"conversations/{filled.long}/turns", limit=1000))["data"]
    last = max(turns, key=lambda turn: (turn["summaries"], turn["seq"]))
    view = await filled.get(f"conversations/{filled.long}/items/{last['id']}/context")
    await open_seen(page, filled, filled.long, last["id"])
    drawn = page.get_by_role("figure", name="What was sent for which messages")
    covered = sum(one["to_seq"] - one["from_seq"] for one in view["summaries"])
    await expect(drawn).to_contain_text(
        f"{len(view['summaries'])} summaries stand for {covered} of {last['seq']} messages"
    )
    assert "sum_" not in await drawn.inner_text()
    for summary in view["summaries"]:
        block = drawn.get_by_label(f"Summary {summary['id']}")
        await block.focus()
        await expect(drawn.locator("figcaption")).to_contain_text(
            f"Summary {summary['id']} ({summary['tokens']:,} tokens) stands for messages #{summary['from_seq']}"
        )
    await drawn.locator(".drawn-block.verbatim").last.hover()
    await expect(drawn.locator("figcaption")).to_contain_text(f"to #{last['seq'] - 1}")
    await drawn.get_by_text("As a table").click()
    rows = await drawn.get_by_role("row").all_inner_texts()
    assert sum("Summary sum_" in row for row in rows) == len(view["summaries"])
    await looked_at(page, "seen-drawing")
    await drawn.get_by_label(f"Summary {view['summaries'][0]['id']}").click()
    await expect(page).to_have_url(re.compile(rf"/summaries\?summary={view['summaries'][0]['id']}$"))


async def test_what_was_left_out_is_drawn_without_summaries(filled: Filled, page: Page) -> None:
    await open_seen(page, filled, filled.long)
    await page.get_by_label("With policy").select_option("window")
    drawn = page.get_by_role("figure", name="What was sent for which messages")
    await expect(drawn.locator(".drawn-lane strong", has_text="Left out")).to_be_visible()
    await expect(drawn.locator(".drawn-block.folded")).to_have_count(0)


async def test_another_policy_can_be_tried_out(filled: Filled, page: Page) -> None:
    await open_seen(page, filled, filled.long)
    told = await filled.get(f"conversations/{filled.long}/context", policy="window")
    await page.get_by_label("With policy").select_option("window")
    await expect(page.locator(".seen-budget")).to_contain_text("policy window")
    await expect(page.locator(".seen-budget")).to_contain_text(f"{told['dropped_messages']} dropped")
    legend = page.get_by_role("group", name="Show only")
    await expect(legend.get_by_role("button", name="dropped")).to_be_visible()
    await page.get_by_text("How this was decided").click()
    await expect(page.locator(".seen-budget details code").first).to_have_text(told["notes"][0]["code"])


async def test_what_is_no_answer_says_so(filled: Filled, page: Page, watch: Any) -> None:
    watch.allow("404")
    question_id = (await filled.get(f"conversations/{filled.long}/log", limit=1))["data"][0]["id"]
    await page.goto(filled.url(f"#/conversations/{filled.long}/context?item={question_id}"))
    await expect(page.get_by_role("alert")).to_contain_text("view_not_found")


async def test_an_imported_conversation_can_be_seen_for_any_model(filled: Filled, page: Page, watch: Any) -> None:
    watch.allow("409")
    await page.goto(filled.url(f"#/conversations/{filled.big}/context"))
    await expect(page.get_by_role("alert")).to_contain_text("model_required")
    await page.get_by_label("For model").fill("sim-8k")
    await page.keyboard.press("Enter")
    log = side(page, "The whole log")
    await expect(log).to_contain_text("10,000 messages", timeout=SLOW_MS)
    await expect(log.locator("header .loading")).to_have_count(0, timeout=SLOW_MS)
    legend = page.get_by_role("group", name="Show only")
    told = await filled.get(f"conversations/{filled.big}/context", model="sim-8k", limit=1)
    await expect(page.locator(".seen-budget")).to_contain_text(f"{told['prompt_tokens']:,} / 8,192 tokens")
    shown = [int((await one.inner_text()).replace(",", "")) for one in await legend.locator("strong").all()]
    assert sum(shown) == 10_000


async def test_a_long_log_comes_by_pages(page: Page) -> None:
    upstream = ScriptedUpstream(default=answering)
    async with scripted(page, upstream) as console:
        messages = [{"role": ("user", "assistant")[seq % 2], "content": f"Crate {seq}"} for seq in range(2_400)]
        taken = await console.take_in(messages)
        await console.chat([{"role": "user", "content": question(1)}], taken, model="m")
        await open_seen(page, console, taken)
        log = side(page, "The whole log")
        await expect(log).to_contain_text("2,402 messages")
        await expect(log.locator("header .loading")).to_have_count(0)
        await expect(log.locator(".virtual-row").last).to_contain_text("You asked: Question 1")
        assert await log.locator(".virtual-row").count() < 60
        await to_the_top(log)
        await expect(log.locator(".virtual-row").first).to_contain_text("Crate 0")


async def test_nothing_that_was_said_runs(filled: Filled, page: Page) -> None:
    await open_seen(page, filled, filled.hostile)
    await every_row(page, "The whole log")
    sent = " ".join(row["text"] for row in await every_row(page, "What was sent"))
    assert HOSTILE["script"] in sent
    assert await page.evaluate("window.pwned") is None
    assert await page.locator(".seen a[href^='javascript'], .seen img, .seen iframe, .seen style").count() == 0
