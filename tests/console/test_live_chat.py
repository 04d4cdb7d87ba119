"""The chat pane in a browser: streamed answers, compaction told as it happens, stopping, failing, going on."""

from __future__ import annotations

import asyncio
from typing import Any

from playwright.async_api import Locator, Page, expect

from tests.console.browser import Watch, shot
from tests.console.scenery import HOSTILE, Console, Filled
from tests.console.scripted import answering, holding, looked_at, nearly_full, question, scripted
from tests.live import DONE, DROP, Reply, ScriptedUpstream, chunk, stream
from tests.support.gateway import is_summary, until


def newest(page: Page) -> Locator:
    return page.locator(".said.assistant").last


async def open_chat(page: Page, console: Console, conversation: str = "") -> None:
    await page.goto(console.url(f"#/chat/{conversation}" if conversation else "#/chat"))
    await expect(page.get_by_role("combobox", name="Model")).not_to_have_value("")


async def say(page: Page, text: str) -> None:
    field = page.get_by_label("Message", exact=True)
    await field.fill(text)
    await field.press("Enter")


async def answered(page: Page) -> None:
    await expect(page.get_by_role("button", name="Send")).to_be_visible()
    await expect(newest(page).get_by_role("link", name="What the model saw")).to_be_visible()


async def test_an_answer_is_streamed_and_its_context_shown(page: Page) -> None:
    first = chunk({"role": "assistant", "content": "The gate opens at **06:40**"})
    upstream = ScriptedUpstream(Reply(pieces=[first, 1.0, chunk({"content": ", they say."}), chunk({}, "stop"), DONE]))
    async with scripted(page, upstream) as console:
        await open_chat(page, console)
        await say(page, "When does the gate open?")
        await expect(newest(page).locator("strong", has_text="06:40")).to_be_visible()
        await expect(page.get_by_role("button", name="Stop")).to_be_visible()
        status = page.locator(".chat > [role=status]")
        await expect(status).to_be_empty()
        await answered(page)
        await expect(newest(page)).to_contain_text("The gate opens at 06:40, they say.")
        await expect(status).to_contain_text("m answered: The gate opens at **06:40**, they say.")
        (record,) = (await console.get("conversations"))["data"]
        assert page.url.endswith(f"#/chat/{record['id']}")
        told = (await console.get(f"conversations/{record['id']}/turns"))["data"][0]
        await expect(newest(page)).to_contain_text(f"{told['prompt_tokens']} / 4,096 tokens")
        await expect(page.get_by_role("meter")).to_have_attribute(
            "aria-valuetext", f"{told['prompt_tokens']} / 4,096 tokens"
        )
        await expect(newest(page).locator(".badge")).to_have_text("full")
        await looked_at(page, "chat")


async def test_compaction_is_told_before_the_summary_is_there(page: Page) -> None:
    gate = asyncio.Event()

    def slow_to_summarize(body: dict[str, Any]) -> Reply:
        return holding(gate, answering(body)) if is_summary(body) else answering(body)

    upstream = ScriptedUpstream(default=answering)
    async with scripted(page, upstream) as console:
        conversation, turns = await nearly_full(console)
        assert not any(is_summary(body) for body in upstream.requests)
        upstream.default = slow_to_summarize
        await open_chat(page, console, conversation)
        await expect(page.get_by_role("combobox", name="Model")).to_have_value("m")
        await expect(page.locator(".said")).to_have_count(2 * turns)
        await say(page, question(turns))
        notice = page.get_by_role("group", name="Compaction")
        await expect(notice).to_contain_text("Compacting…")
        assert not gate.is_set()
        await until(lambda: is_summary(upstream.requests[-1]))
        await expect(page.locator(".chat > [role=status]")).to_contain_text("older turns are being summarized")
        before = await notice.locator(".number").inner_text()
        await expect(notice.locator(".number")).not_to_have_text(before)
        await shot(page, "chat-compacting")
        gate.set()
        await expect(notice).to_contain_text("Compacted")
        await expect(notice).to_contain_text("1 summary")
        await answered(page)
        await expect(newest(page).locator(".badge").first).to_have_text("summarized")
        await newest(page).get_by_role("link", name="What the model saw").click()
        await expect(page.locator(".seen-row.folded").first).to_be_visible()


async def test_a_failed_compaction_is_told_and_the_answer_comes(page: Page) -> None:
    def cannot_summarize(body: dict[str, Any]) -> Reply:
        return Reply({"error": {"message": "No."}}, 500) if is_summary(body) else answering(body)

    upstream = ScriptedUpstream(default=cannot_summarize)
    async with scripted(page, upstream) as console:
        conversation, turns = await nearly_full(console)
        await open_chat(page, console, conversation)
        await expect(page.locator(".said")).to_have_count(2 * turns)
        await say(page, question(turns))
        await answered(page)
        await expect(page.get_by_role("group", name="Compaction")).to_contain_text("Compaction failed")
        await expect(newest(page)).to_contain_text("You asked:")


async def test_an_answer_is_stopped_and_asked_for_again(page: Page, watch: Watch) -> None:
    watch.allow("ERR_ABORTED")
    endless = Reply(pieces=[chunk({"role": "assistant", "content": "Once upon a time"}), 60.0])
    upstream = ScriptedUpstream(stream("Hello."), endless)
    async with scripted(page, upstream) as console:
        await open_chat(page, console)
        await say(page, "Hello!")
        await answered(page)
        await say(page, "Tell me a story.")
        await expect(newest(page)).to_contain_text("Once upon a time")
        await page.get_by_role("button", name="Stop").click()
        await asyncio.wait_for(upstream.left.wait(), 10)
        await expect(newest(page)).to_contain_text("stopped")
        await expect(page.get_by_label("Message", exact=True)).to_be_focused()
        stopped = page.url.rsplit("/", 1)[-1]
        await expect(newest(page).get_by_role("link", name="What the model saw")).to_be_visible()
        log = (await console.get(f"conversations/{stopped}/log"))["data"]
        assert [(one["text"], one["incomplete"]) for one in log[2:]] == [
            ("Tell me a story.", False),
            ("Once upon a time", True),
        ]
        upstream.replies.append(stream("A whole story."))
        await newest(page).get_by_role("button", name="Ask again").click()
        await expect(newest(page)).to_contain_text("A whole story.")
        await answered(page)
        said = [message["content"] for message in upstream.requests[-1]["messages"]]
        assert said == ["Hello!", "Hello.", "Tell me a story."]
        branch = page.url.rsplit("/", 1)[-1]
        assert branch != stopped
        family = (await console.get(f"conversations/{stopped}/branches"))["data"]
        assert {one["id"] for one in family} == {stopped, branch}


async def test_an_error_is_told_and_tried_again(page: Page, watch: Watch) -> None:
    watch.allow("429")
    refusal = Reply({"error": {"message": f"Slow down {HOSTILE['image']}", "code": "rate_limited"}}, 429)
    upstream = ScriptedUpstream(refusal, refusal, refusal, refusal)
    async with scripted(page, upstream) as console:
        await open_chat(page, console)
        await say(page, "Hello?")
        alert = page.get_by_role("alert")
        await expect(alert).to_contain_text("Slow down <img src=x")
        await expect(alert).to_contain_text("rate_limited")
        upstream.replies.clear()
        await alert.get_by_role("button", name="Try again").click()
        await answered(page)
        await expect(page.locator(".said.user")).to_have_count(1)
        conversations = (await console.get("conversations"))["data"]
        texts = [
            [row["text"] for row in (await console.get(f"conversations/{one['id']}/log"))["data"]]
            for one in conversations
        ]
        assert ["Hello?", "Fine."] in texts
        assert await page.evaluate("window.pwned") is None


async def test_a_stream_that_breaks_off_keeps_what_came(page: Page) -> None:
    upstream = ScriptedUpstream(Reply(pieces=[chunk({"role": "assistant", "content": "Half of"}), 0.1, DROP]))
    async with scripted(page, upstream) as console:
        await open_chat(page, console)
        await say(page, "Tell me all of it.")
        await expect(page.get_by_role("alert")).to_contain_text("broke off")
        await expect(newest(page)).to_contain_text("Half of")
        await page.get_by_role("button", name="Try again").click()
        await answered(page)
        await expect(newest(page)).to_contain_text("Fine.")
        await expect(page.get_by_role("alert")).to_have_count(0)


async def test_nothing_that_is_answered_runs(page: Page) -> None:
    words = [f"{text}\n\n" for text in HOSTILE.values()]
    upstream = ScriptedUpstream(stream(*words))
    hostile_model = "m-<img src=x onerror=alert(1)>"
    models = {"m": {"provider": "upstream"}, hostile_model: {"provider": "upstream"}}
    async with scripted(page, upstream, models=models) as console:
        await open_chat(page, console)
        await page.get_by_role("combobox", name="Model").select_option(hostile_model)
        await say(page, HOSTILE["script"])
        await answered(page)
        await expect(newest(page)).to_contain_text("<script>window.pwned = 1</script>")
        await expect(newest(page)).to_contain_text("[click](javascript:window.pwned=5)")
        await expect(newest(page).locator("header")).to_contain_text(hostile_model)
        for made in ("script", "img", "iframe", "style", "svg", "base", "a[href^='javascript']", "a[href^='data']"):
            assert await page.locator(f".said {made}").count() == 0, made
        assert await page.evaluate("window.pwned") is None


async def test_everything_can_be_done_by_keyboard(page: Page) -> None:
    upstream = ScriptedUpstream(default=answering)
    async with scripted(page, upstream) as console:
        await open_chat(page, console)
        await expect(page.get_by_label("Message", exact=True)).to_be_focused()
        await page.keyboard.type("First line")
        await page.keyboard.press("Shift+Enter")
        await page.keyboard.type("second line")
        assert upstream.requests == []
        await page.keyboard.press("Enter")
        await answered(page)
        assert upstream.requests[0]["messages"][-1]["content"] == "First line\nsecond line"
        await page.keyboard.press("Shift+Tab")
        reached = []
        for _ in range(30):
            reached.append(await page.evaluate("(document.activeElement.textContent || '').trim().slice(0, 40)"))
            if reached[-1] == "New chat":
                break
            await page.keyboard.press("Shift+Tab")
        assert "Ask again" in reached
        assert "What the model saw" in reached
        assert "Options" in reached
        await page.keyboard.press("Enter")
        await expect(page.locator(".said")).to_have_count(0)
        assert page.url.endswith("#/chat")


async def test_options_reach_the_model(page: Page) -> None:
    upstream = ScriptedUpstream(default=answering)
    async with scripted(page, upstream) as console:
        await open_chat(page, console)
        await page.get_by_label("Policy").select_option("window")
        await page.get_by_text("Options", exact=True).click()
        await page.get_by_label("Instructions").fill("Be brief.")
        await page.get_by_label("Temperature").fill("0.3")
        await page.get_by_label("Most tokens of an answer").fill("99")
        await shot(page, "chat-options")
        await say(page, "Hello")
        await answered(page)
        asked = upstream.requests[-1]
        assert asked["messages"] == [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hello"}]
        assert (asked["temperature"], asked["max_tokens"], asked["model"]) == (0.3, 99, "m")
        (record,) = (await console.get("conversations"))["data"]
        assert (await console.get(f"conversations/{record['id']}/turns"))["data"][0]["policy"] == "window"


async def test_a_stored_conversation_goes_on(filled: Filled, page: Page) -> None:
    await open_chat(page, filled, filled.long)
    await expect(page.get_by_role("combobox", name="Model")).to_have_value("sim-8k")
    await expect(page.locator(".said")).to_have_count(100)
    await expect(page.locator(".said").last).to_be_in_viewport()
    await page.get_by_role("button", name="Earlier messages").click()
    await expect(page.locator(".said")).to_have_count(120)
    now = await filled.get(f"conversations/{filled.long}/context")
    await expect(page.get_by_role("meter")).to_have_attribute("aria-valuenow", str(now["prompt_tokens"]))
    await page.get_by_role("link", name="Open the conversation").click()
    await expect(page).to_have_url(filled.url(f"#/conversations/{filled.long}"))
    await open_chat(page, filled, filled.tools)
    await expect(page.locator(".said", has_text="manifest.pdf")).to_be_visible()


async def test_scrolling_up_is_left_alone(page: Page) -> None:
    pieces: list[bytes | float] = [chunk({"role": "assistant", "content": "word\n\n" * 60})]
    pieces += [piece for number in range(40) for piece in (0.05, chunk({"content": f"line {number}\n\n"}))]
    upstream = ScriptedUpstream(Reply(pieces=[*pieces, chunk({}, "stop"), DONE]))
    async with scripted(page, upstream) as console:
        await open_chat(page, console)
        await say(page, "Count.")
        scroller = page.get_by_role("region", name="Messages")
        await expect(scroller).to_contain_text("line 3")
        await scroller.evaluate("one => { one.scrollTop = 100; }")
        await expect(scroller).to_contain_text("line 30")
        assert await scroller.evaluate("one => one.scrollTop") == 100
        await page.get_by_role("button", name="↓ Newest").click()
        await answered(page)
        assert await scroller.evaluate("one => one.scrollHeight - one.scrollTop - one.clientHeight") < 3


async def test_a_key_that_may_not_chat_says_so(page: Page, filled: Filled) -> None:
    session = await filled.client.get("/console/session")
    body = {**session.json(), "scopes": ["read"]}
    await page.route("**/console/session", lambda route: route.fulfill(json=body))
    await page.goto(filled.url("#/chat"))
    await expect(page.get_by_text("it lacks the scope")).to_be_visible()
    await expect(page.get_by_label("Message", exact=True)).to_have_count(0)
