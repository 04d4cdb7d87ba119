"""What the tests of the wire have in common: raw bytes out, raw frames in, and conversations long enough to compact."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from typing import Any

import httpx

from tests.live import STEP_SECONDS, Reply, ScriptedUpstream, completion, stream
from tests.support.gateway import World, assistant, is_summary, user

OURS = ("context_status", "conversation_id", "context")
SUMMARY = "They talked about gardens at length; nothing was decided."
WAIT_SECONDS = 60.0
"""For what must come and is not timed: a busy machine takes ten times as long as an idle one."""


def long_talk(turns: int = 30, words: int = 100) -> list[dict[str, Any]]:
    """A history over the trigger of an 8k window, ending with a question."""
    said: list[dict[str, Any]] = []
    for turn in range(turns):
        said += [user(f"Question {turn}: " + "and so on " * words), assistant(f"Answer {turn}. " + "well yes " * words)]
    return [*said, user("And now?")]


def summarizing(
    answer: Callable[[dict[str, Any]], Reply] | None = None, *, summary: Reply | None = None
) -> ScriptedUpstream:
    """An upstream that tells a call for a summary from a call for an answer."""
    ordinary = answer or (lambda body: stream("Fine", ".") if body.get("stream") else completion())
    written = summary or completion(SUMMARY)
    return ScriptedUpstream(default=lambda body: written if is_summary(body) else ordinary(body))


async def raw(world: World, body: bytes | dict[str, Any], headers: dict[str, str] | None = None) -> httpx.Response:
    """The answer to a body sent as it is."""
    content = body if isinstance(body, bytes) else json.dumps(body).encode()
    return await world.client.post(
        f"{world.base_url}/chat/completions",
        content=content,
        headers={"content-type": "application/json", "authorization": "Bearer sk-one", **(headers or {})},
    )


def frames(answer: httpx.Response) -> list[str]:
    """Everything between blank lines; proves that line ends are LF and that the stream ends with a blank line."""
    text = answer.content.decode()
    assert "\r" not in text
    assert text.endswith("\n\n")
    return text[:-2].split("\n\n")


def chunks(answer: httpx.Response) -> list[dict[str, Any]]:
    """The decoded chunks of a stream that is nothing but `data:` lines and `[DONE]`."""
    found = frames(answer)
    assert all(frame.startswith("data: ") and "\n" not in frame for frame in found)
    assert found[-1] == "data: [DONE]"
    assert "data: [DONE]" not in found[:-1]
    return [json.loads(frame.removeprefix("data: ")) for frame in found[:-1]]


def text_of(events: list[dict[str, Any]], index: int = 0) -> str:
    """What the deltas of one choice amount to."""
    return "".join(
        choice["delta"].get("content") or ""
        for event in events
        for choice in event.get("choices", ())
        if choice["index"] == index
    )


def without_ours(body: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in body.items() if name not in OURS}


async def until(claim: Callable[[], bool]) -> None:
    """Give the other side its turns until something holds."""
    async with asyncio.timeout(WAIT_SECONDS):
        while not claim():  # noqa: ASYNC110 - what is waited for has no event of its own
            await asyncio.sleep(STEP_SECONDS)
