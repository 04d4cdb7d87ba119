"""Logs of messages of every shape that clients and models write, in their places."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from hypothesis import strategies as st

from app.conversation.conversation_types import LogMessage
from app.conversation.identity import compute_links_after_messages, compute_start_position
from app.conversation.item import Item
from app.dialects.body.message import ChatMessage
from tests.context.conversation_strategies import conversations

Body = dict[str, Any]

TEXTS = st.text(alphabet=st.characters(codec="utf-8"), max_size=12)
JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.floats(allow_nan=False, allow_infinity=False) | TEXTS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXTS, inner, max_size=3),
    max_leaves=8,
)
PARTS = st.sampled_from(
    [
        {"type": "text", "text": "words", "prompt_cache_breakpoint": {"mode": "explicit"}},
        {"type": "refusal", "refusal": "no"},
        {"type": "image_url", "image_url": {"url": "https://example.org/a.png", "detail": "low"}},
        {"type": "image_url", "image_url": "https://example.org/a.png"},
        {"type": "input_audio", "input_audio": {"data": "UklGRg==", "format": "wav"}},
        {"type": "file", "file": {"filename": "a.pdf", "file_data": "data:application/pdf;base64,JVBERi0="}},
        {"type": "thinking", "thinking": [{"type": "text", "text": "first this"}]},
        {"type": "video_url", "video_url": {"url": "https://example.org/a.mp4"}},
    ]
)
CALLS = st.sampled_from(
    [
        {"id": "call_1", "type": "function", "function": {"name": "look", "arguments": '{"at": 1}'}},
        {"id": "call_2", "type": "custom", "custom": {"name": "run", "input": "print(1)"}},
        {"type": "function", "function": {"name": "look", "arguments": {"at": 1}}},
        {"id": "call_3", "type": "computer"},
    ]
)
ODD_MESSAGES = st.fixed_dictionaries(
    {"role": st.sampled_from(["system", "developer", "user", "assistant", "tool", "function", "critic"])},
    optional={
        "content": TEXTS | JSON_VALUES | st.lists(PARTS | JSON_VALUES, max_size=4),
        "name": TEXTS,
        "refusal": st.none() | TEXTS,
        "tool_calls": st.lists(CALLS | JSON_VALUES, max_size=3) | JSON_VALUES,
        "function_call": st.fixed_dictionaries({"name": TEXTS, "arguments": TEXTS}) | JSON_VALUES,
        "tool_call_id": st.sampled_from(["call_1", "call_2"]) | JSON_VALUES,
        "reasoning_content": TEXTS | JSON_VALUES,
        "reasoning_details": JSON_VALUES
        | st.just([{"type": "reasoning.encrypted", "data": "x"}, {"type": "reasoning.summary", "summary": "y"}]),
        "thinking_blocks": st.just([{"type": "thinking", "thinking": "so", "signature": "s"}]) | JSON_VALUES,
        "audio": st.just({"id": "audio_1", "transcript": "said"}) | JSON_VALUES,
        "annotations": JSON_VALUES
        | st.just(
            [{"type": "url_citation", "url_citation": {"url": "u", "title": "t", "start_index": 0, "end_index": 1}}]
        ),
    },
)
LOGS = st.one_of(conversations(), st.lists(ODD_MESSAGES, max_size=12), st.just([]))


def placed(bodies: Sequence[Body], *, tenant: str = "tenant", incomplete: bool = False) -> list[LogMessage]:
    """Chat messages as a log keeps them; the last one broke off if it is `incomplete`."""
    return place_messages([ChatMessage.from_body(body) for body in bodies], tenant=tenant, incomplete=incomplete)


def place_messages(messages: Sequence[Item], *, tenant: str = "tenant", incomplete: bool = False) -> list[LogMessage]:
    """Messages as a log keeps them; the last one broke off if it is `incomplete`."""
    return [
        LogMessage(
            seq=seq,
            message=message,
            link=position.link,
            skeleton=position.skeleton_link,
            in_skeleton=position.is_in_skeleton,
            tokens=1,
            tokens_total=seq + 1,
            answered=False,
            incomplete=incomplete and seq == len(messages) - 1,
        )
        for seq, (message, position) in enumerate(
            zip(messages, compute_links_after_messages(messages, compute_start_position(tenant)), strict=True)
        )
    ]
