"""A gateway in front of an upstream that plays what a test wrote, as a browser reaches it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, Final

from playwright.async_api import Page, expect

from tests.console.browser import axe_in_both_schemes, shot
from tests.console.scenery import Console, running
from tests.live import Reply, ScriptedUpstream, completion, serving, stream
from tests.support.gateway import is_summary

WINDOW: Final = 4096
NAME: Final = "talk"
"""What the client calls its conversation."""
NARROW_WIDTH: Final = 400
CHARS_PER_TOKEN: Final = 2
"""Of a `question`."""
QUESTION_TOKENS: Final = 220
"""A little less than what `question` has."""


def answering(body: dict[str, Any]) -> Reply:
    """Sums up in one line; tells which question it was asked. Whole answers report about the tokens that were sent."""
    if is_summary(body):
        return completion("- They counted crates, one berth after the other.", prompt_tokens=900)
    last = str(body["messages"][-1]["content"])
    words = ("You ", "asked: ", last[:24])
    if body.get("stream"):
        return stream(*words)
    sent = sum(len(str(message["content"])) for message in body["messages"])
    return completion("".join(words), prompt_tokens=sent // CHARS_PER_TOKEN)


def holding(gate: asyncio.Event, reply: Reply) -> Reply:
    """The same reply, kept back until the gate is opened."""
    reply.gate = gate
    return reply


@asynccontextmanager
async def scripted(
    page: Page, upstream: ScriptedUpstream, *, window: int = WINDOW, **sections: Any
) -> AsyncIterator[Console]:
    """Every model has the same window; summaries are made when they are needed, none ahead.

    The page leaves before the gateway ends, lest it ask for more.
    """
    async with serving(upstream, lifespan="off") as address:
        values: dict[str, Any] = {
            "providers": {"upstream": {"base_url": f"{address}/v1", "api_key": "sk-upstream"}},
            "models": {"m": {"provider": "upstream", "context_window": window}, "*": {"provider": "upstream"}},
            "policies": {"additive": {"prepare_ratio": 1.0, "recall": "off"}},
            "retries": {"base_seconds": 0.01},
        }
        async with running(**{**values, **sections}) as console:
            yield console
            await page.goto("about:blank")


def question(number: int, words: int = 62) -> str:
    """Unlike all others, about five tokens a word. It shares a word with the summary that `answering` gives."""
    return f"Question {number} on crates: " + " ".join(f"item{number}n{word}" for word in range(words))


async def talked(console: Console, turns: int, *, first: int = 0, words: int = 62) -> str:
    """The id of a conversation with so many turns."""
    body: Any = None
    for number in range(first, first + turns):
        body = await console.chat([{"role": "user", "content": question(number, words)}], NAME, model="m")
    return str(body["conversation_id"])


async def nearly_full(console: Console) -> tuple[str, int]:
    """The id of a conversation whose next turn is compacted first, and how many turns it has."""
    turns, room = 0, QUESTION_TOKENS
    conversation = ""
    while room >= QUESTION_TOKENS:
        conversation = await talked(console, 1, first=turns)
        turns += 1
        told = await console.get(f"conversations/{conversation}/context", limit=1)
        room = told["compacts_above"] - told["prompt_tokens"]
    return conversation, turns


async def open_menu(page: Page, name: str) -> None:
    """Opens the menu `More` of a conversation, or `Account` in the bar."""
    await page.get_by_role("button", name=name).click()


async def looked_at(page: Page, name: str) -> None:
    """What every view has to stand: axe in light and dark, a narrow window, pictures to look at."""
    await axe_in_both_schemes(page)
    await shot(page, name)
    size = page.viewport_size
    assert size is not None
    await page.set_viewport_size({"width": NARROW_WIDTH, "height": 800})
    await expect(page.locator("h1")).to_be_visible()
    assert await page.evaluate("document.documentElement.scrollWidth") <= NARROW_WIDTH
    await shot(page, f"{name}-narrow")
    await page.set_viewport_size(size)
