"""Views of long talks keep the rules of the Messages API, whatever the policy leaves out of them."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.context.plan.policy import STAGES_OF_KIND, make_policy
from app.context.stages.requested_edits import clear_as_requested
from app.conversation.context_edits import ContextEdits, ReasoningClearing, ToolResultClearing
from app.conversation.conversation_types import LogMessage
from app.dialects.messages.message import MessagesMessage
from app.dialects.messages.provider_dialect import MessagesProviderDialect
from app.dialects.missing_tool_results import add_missing_tool_results
from tests.context.planned_conversation import COUNT, INSTRUCTIONS, World, words
from tests.dialects.messages.talks import split
from tests.support.messages_checks import check_messages_request, sign_thinking

MARK = {"cache_control": {"type": "ephemeral"}}
LENGTHS = st.sampled_from([4, 40, 400, 1500])
Messages = list[dict[str, Any]]


@st.composite
def talks(draw: st.DrawFn) -> Messages:
    """A talk of turns with tool loops, thinking, cache marks and blanks. It ends with a question or with results."""
    messages: Messages = []
    for turn in range(draw(st.integers(1, 6))):
        messages.append({"role": "user", "content": [draw_text(draw)]})
        for number in range(draw(st.integers(0, 4))):
            calls = draw(st.integers(1, 2))
            names = [f"toolu_{turn}_{number}_{call}" for call in range(calls)]
            given_input = {"x": words(draw(LENGTHS))}
            uses = [{"type": "tool_use", "id": name, "name": "f", "input": given_input} for name in names]
            add_answer(draw, messages, uses)
            results = [
                {"type": "tool_result", "tool_use_id": name, "content": words(draw(LENGTHS)), **draw_mark(draw)}
                for name in names
            ]
            beside = [draw_text(draw)] if draw(st.booleans()) else []
            messages.append({"role": "user", "content": [*results, *beside]})
        add_answer(draw, messages, [])
    if draw(st.booleans()) and messages[-2]["content"][0]["type"] == "tool_result":
        return messages[:-1]
    return [*messages, {"role": "user", "content": [draw_text(draw)]}]


def draw_mark(draw: st.DrawFn) -> dict[str, Any]:
    return MARK if draw(st.booleans()) else {}


def draw_text(draw: st.DrawFn) -> dict[str, Any]:
    return {"type": "text", "text": words(draw(LENGTHS)) + draw(st.sampled_from(["", " \n"])), **draw_mark(draw)}


def add_answer(draw: st.DrawFn, messages: Messages, uses: Sequence[dict[str, Any]]) -> None:
    blocks: Messages = []
    if draw(st.booleans()):
        thought = {"type": "thinking", "thinking": words(draw(LENGTHS)), "signature": ""}
        blocks.append({**thought, "signature": sign_thinking(messages, thought)})
    if not uses or draw(st.booleans()):
        blocks.append(draw_text(draw))
    messages.append({"role": "assistant", "content": [*blocks, *uses]})


def log_messages(messages: Messages) -> list[LogMessage]:
    log: list[LogMessage] = []
    for seq, raw in enumerate(split(messages)):
        message = MessagesMessage(raw)
        tokens, link = COUNT.count_message(message), seq.to_bytes(16, "big")
        total = tokens + (log[-1].tokens_total if log else 0)
        log.append(LogMessage(seq, message, link, link, True, tokens, total, False))
    return log


def list_signatures(messages: Messages) -> list[str]:
    return [block["signature"] for one in messages for block in one["content"] if block["type"] == "thinking"]


@pytest.mark.parametrize("kind", STAGES_OF_KIND)
@given(talk=talks(), window=st.sampled_from([1500, 3000, 8000]), clears=st.booleans(), thinks=st.booleans())
def test_a_view_of_any_policy_keeps_the_rules(
    kind: Any, talk: Messages, window: int, clears: bool, thinks: bool
) -> None:
    world = World(window=window, policy=make_policy(kind=kind, token_floor=512))
    world.log = log_messages(talk)
    outline = world.outline()
    if clears:
        edits = ContextEdits(ToolResultClearing(500, keep=1, inputs=True), ReasoningClearing(1, True))
        world.last, _ = clear_as_requested(outline, edits, budget=world.budget, policy=world.policy, counter=COUNT)
    plan = world.plan("never")
    raws = add_missing_tool_results(world.render(plan))
    fields = {"thinking": b'{"type":"enabled","budget_tokens":1024}'} if thinks else {}
    rendered = MessagesProviderDialect().render_messages(raws, None, fields, is_edited=plan.status != "full")
    sent: dict[str, Any] = {name: orjson.loads(raw) for name, raw in rendered.put_into(fields).items()}
    sent["messages"] = [orjson.loads(raw) for raw in rendered.messages]
    check_messages_request({"max_tokens": 9, **sent})
    roles = [one["role"] for one in sent["messages"]]
    assert all(first != second for first, second in itertools.pairwise(roles))
    assert sent["system"] == orjson.loads(INSTRUCTIONS)["content"]
    for message in sent["messages"]:
        kinds = [block["type"] == "tool_result" for block in message["content"]]
        assert kinds == sorted(kinds, reverse=True)
    # Of an open tool loop, the thinking of every answer that is shown is sent; none if thinking is switched off, since
    # an answer of the loop has none.
    is_open = talk[-1]["content"][0]["type"] == "tool_result"
    if thinks and "thinking" not in sent:
        assert list_signatures(sent["messages"]) == []
    elif is_open and (thinks or plan.status == "full"):
        calls = {block["id"] for block in talk[-2]["content"] if block["type"] == "tool_use"}
        shown = [one for one in sent["messages"] if calls & {block.get("id") for block in one["content"]}]
        assert list_signatures(shown) == (list_signatures(talk[-2:-1]) if shown else [])
