"""A cache that was lost though the gateway changed nothing is told, with what changed."""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import Any

import httpx
import pytest
from msgspec.structs import replace

from app.pipeline.respond.answer_learning import find_cache_loss
from app.pipeline.turn.last_view_and_calibration import CachedPrompt
from tests.live import TEST_DEPENDENCIES, Reply, ScriptedUpstream, completion
from tests.support.gateway import World, assistant, system, user, world

TOOL = {"type": "function", "function": {"name": "f", "parameters": {"type": "object", "properties": {}}}}
TALK = [system("Be kind."), user("one"), assistant("Fine."), user("two"), assistant("Fine."), user("three")]
MODELS = {name: {"provider": "upstream", "context_window": 32_768} for name in ("m", "n")}


def reporting(*cached: int, prompt_tokens: int = 10_000) -> list[Reply]:
    """Answers with so many tokens from the cache."""
    replies = []
    for tokens in cached:
        body: dict[str, Any] = completion(prompt_tokens=prompt_tokens).body
        body["usage"]["prompt_tokens_details"] = {"cached_tokens": tokens}
        replies.append(Reply(body))
    return replies


async def list_losses(w: World) -> list[dict[str, Any]]:
    """The details of the steps of all requests, oldest first."""
    origin = w.base_url.removesuffix("/v1")
    async with httpx.AsyncClient(base_url=origin, headers={"authorization": f"Bearer {OPERATOR}"}) as http:
        listed = (await http.get("/v1/admin/requests")).json()["data"]
        details = [(await http.get(f"/v1/admin/requests/{one['id']}")).json() for one in reversed(listed)]
    return [step["detail"] for one in details for step in one["timeline"] if step["name"] == "cache_lost"]


OPERATOR = "operator-" * 5


async def talk(
    *requests: tuple[Sequence[dict[str, Any]], dict[str, Any]], cached: Sequence[int], **options: Any
) -> list[dict[str, Any]]:
    """What is told of requests, each of messages and fields."""
    upstream = ScriptedUpstream(*reporting(*cached))
    async with world(upstream, models=MODELS, auth={"operator_token": OPERATOR}, **options) as w:
        for messages, fields in requests:
            await w.say(messages, **fields)
        return await list_losses(w)


@pytest.mark.parametrize(
    ("messages", "fields", "changed"),
    [
        (TALK, {"model": "n"}, {"changed": "model", "seq": None}),
        (TALK, {"tools": [TOOL]}, {"changed": "tools", "seq": None}),
        ([system("It is 12:00."), *TALK[1:]], {}, {"changed": "instructions", "seq": None}),
        ([*TALK[:3], user("2"), *TALK[4:]], {}, {"changed": "history", "seq": 2}),
        ([*TALK[:3], user("something else")], {}, {"changed": "history", "seq": 2}),
        (TALK, {}, {"changed": "unknown", "seq": None}),
    ],
)
async def test_what_changed_is_told(
    messages: list[dict[str, Any]],
    fields: dict[str, Any],
    changed: dict[str, Any],
    caplog: pytest.LogCaptureFixture,
) -> None:
    with caplog.at_level(logging.WARNING):
        told = await talk((TALK[:2], {}), (TALK[:4], {}), (messages, fields), cached=(0, 9_000, 2_000))
    assert told == [{**changed, "tokens": 7_000}]
    (line,) = [record.getMessage() for record in caplog.records if "cache was lost" in record.getMessage()]
    assert f"7000 tokens: {changed['changed']}" in line


@pytest.mark.parametrize("cached", [(0, 9_000, 8_600), (9_000, 9_000, 9_000), (0, 0, 0), (0, 2_000, 9_000)])
async def test_a_small_loss_is_not_told(cached: tuple[int, ...]) -> None:
    requests: list[Any] = [(TALK[:2], {}), (TALK[:4], {}), (TALK, {})]
    assert await talk(*requests, cached=cached) == []


async def test_tokens_count_beside_the_share() -> None:
    upstream = ScriptedUpstream(*reporting(0, 1_900, 0, prompt_tokens=2_000))
    async with world(upstream, models=MODELS, auth={"operator_token": OPERATOR}) as w:
        for end in (2, 4, 6):
            await w.say(TALK[:end])
        assert await list_losses(w) == []


async def test_a_pause_longer_than_the_lifetime_is_told_as_such() -> None:
    now = datetime(2026, 11, 26, tzinfo=UTC)
    times = {"now": now}
    surroundings = dataclasses.replace(TEST_DEPENDENCIES, now=lambda: times["now"])
    upstream = ScriptedUpstream(*reporting(0, 9_000, 0))
    async with world(upstream, models=MODELS, auth={"operator_token": OPERATOR}, dependencies=surroundings) as w:
        for end, minutes in ((2, 0), (4, 5), (6, 16)):
            times["now"] = now + timedelta(minutes=minutes)
            await w.say(TALK[:end])
        assert await list_losses(w) == [{"changed": "idle", "tokens": 9_000, "seq": None}]


@pytest.mark.parametrize(
    ("view", "quotations", "told"), [(1, 1, "unknown"), (1, 2, "unknown"), (2, 1, None), (1, 0, None)]
)
def test_an_edit_of_ours_explains_a_loss(view: int, quotations: int, told: str | None) -> None:
    before = CachedPrompt(
        "c", "p/m", "a.b", view=1, quotation_count=1, prompt_tokens=10_000, cached_tokens=9_000, sent_at=0.0
    )
    prompt = replace(before, view=view, quotation_count=quotations, cached_tokens=1_000)
    resolved = SimpleNamespace(conversation=SimpleNamespace(lineage=()), shown=SimpleNamespace(rewritten_seq=None))
    turn: Any = SimpleNamespace(resolved_request=resolved)
    loss = find_cache_loss(turn, before, prompt, "prefix")
    assert (loss and loss.changed) == told


@pytest.mark.parametrize(("earlier", "later"), [(10_000, 0), (0, 10_000)])
def test_a_prompt_that_is_reported_without_tokens_loses_nothing(earlier: int, later: int) -> None:
    before = CachedPrompt("c", "p/m", "a.b", 0, 0, prompt_tokens=earlier, cached_tokens=9_000, sent_at=0.0)
    turn: Any = None
    assert find_cache_loss(turn, before, replace(before, prompt_tokens=later, cached_tokens=0), "prefix") is None


def test_a_long_new_message_loses_nothing() -> None:
    before = CachedPrompt("c", "p/m", "a.b", 0, 0, prompt_tokens=10_000, cached_tokens=9_000, sent_at=0.0)
    turn: Any = None
    assert find_cache_loss(turn, before, replace(before, prompt_tokens=60_000), "prefix") is None
