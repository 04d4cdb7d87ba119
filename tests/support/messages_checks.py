"""Refuses requests as strictly as Anthropic's API does and signs thinking. Pure.

Thinking is signed together with everything that stands before it but other thinking, so thinking behind an edited
prefix is noticed.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

import orjson

from app.errors import InvalidRequest

Block = Mapping[str, Any]

MAX_CACHE_MARKS: Final = 4
THINKING_TYPES: Final = ("thinking", "redacted_thinking")


def check_messages_request(body: Mapping[str, Any]) -> None:
    """Checks a decoded request.

    Raises:
        InvalidRequest: what Anthropic refuses, in its words as far as they are known.
    """
    if not isinstance(body.get("max_tokens"), int):
        raise InvalidRequest("max_tokens: Field required")
    marks = sum("cache_control" in block for block in iterate_cacheable(body))
    if marks > MAX_CACHE_MARKS:
        raise InvalidRequest(f"A maximum of 4 blocks with cache_control may be provided. Found {marks}.")
    messages = [one for one in body["messages"] if one["role"] != "system"]
    if not messages or messages[0]["role"] != "user":
        raise InvalidRequest('messages: first message must use the "user" role')
    open_calls: list[str] = []
    for index, message in enumerate(messages):
        blocks = list_blocks(message["content"])
        _check_texts(blocks, index)
        results = [block["tool_use_id"] for block in blocks if block["type"] == "tool_result"]
        if sorted(results) != sorted(open_calls):
            raise InvalidRequest(
                f"messages.{index}: `tool_use` ids were found without `tool_result` blocks immediately after: "
                f"{', '.join(open_calls)}. Found: {', '.join(results)}."
            )
        open_calls = [block["id"] for block in blocks if block["type"] == "tool_use"]
        if len(set(open_calls)) < len(open_calls):
            raise InvalidRequest(f"messages.{index}: `tool_use` ids must be unique")
    if messages[-1]["role"] == "assistant":
        text = list_blocks(messages[-1]["content"])[-1].get("text", "")
        if text != text.rstrip():
            raise InvalidRequest("messages: final assistant content cannot end with trailing whitespace")
    _check_thinking(body, messages)


def list_blocks(content: str | Sequence[Block]) -> Sequence[Block]:
    """Returns the blocks of a content."""
    return [{"type": "text", "text": content}] if isinstance(content, str) else content


def sign_thinking(messages: Sequence[Mapping[str, Any]], block: Block) -> str:
    """Returns the signature of a block of thinking that follows these messages."""
    before: list[list[Any]] = []
    for message in messages:
        blocks = [_strip_mark(one) for one in list_blocks(message["content"]) if one["type"] not in THINKING_TYPES]
        if before and before[-1][0] == message["role"]:
            before[-1][1] += blocks
        else:
            before.append([message["role"], blocks])
    signed = orjson.dumps([before, block.get("thinking"), block.get("data")], option=orjson.OPT_SORT_KEYS)
    return base64.b64encode(hashlib.sha256(signed).digest()).decode()


def iterate_cacheable(body: Mapping[str, Any]) -> Iterator[Block]:
    """Yields tools, system and blocks in the order of the prompt."""
    yield from body.get("tools") or ()
    yield from list_blocks(body.get("system") or ())
    for message in body["messages"]:
        yield from list_blocks(message["content"])


def _check_texts(blocks: Sequence[Block], index: int) -> None:
    if not blocks:
        raise InvalidRequest(f"messages.{index}: all messages must have non-empty content")
    for block in blocks:
        if block["type"] == "text" and not block["text"].strip():
            raise InvalidRequest(f"messages.{index}: text content blocks must contain non-whitespace text")


def _check_thinking(body: Mapping[str, Any], messages: Sequence[Mapping[str, Any]]) -> None:
    thinking = body.get("thinking") or {}
    drops = (thinking.get("block_binding") or {}).get("prefix_mismatch_behavior") == "drop_block"
    for index, message in enumerate(messages):
        for place, block in enumerate(list_blocks(message["content"])):
            if block["type"] == "thinking" and block.get("signature") != sign_thinking(messages[:index], block):
                if drops:
                    continue
                raise InvalidRequest(
                    f"messages.{index}.content.{place}: Invalid `signature` in `thinking` block: the messages before "
                    "it are others than those that it was created after"
                )
    answers = [list_blocks(one["content"]) for one in messages if one["role"] == "assistant"]
    ends_with_result = any(block["type"] == "tool_result" for block in list_blocks(messages[-1]["content"]))
    if thinking.get("type") == "enabled" and ends_with_result and answers[-1][0]["type"] not in THINKING_TYPES:
        raise InvalidRequest(
            f"messages.{len(messages) - 2}.content.0.type: Expected `thinking` or `redacted_thinking`, but found "
            f"`{answers[-1][0]['type']}`. When `thinking` is enabled, a final `assistant` message must start with a "
            "thinking block"
        )


def _strip_mark(block: Block) -> dict[str, Any]:
    return {name: value for name, value in block.items() if name != "cache_control"}
