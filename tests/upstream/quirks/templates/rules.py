"""What chat templates and strict providers accept, as they state it, in our own words.

A rule takes messages as a provider gets them and raises `Refused` where the template raises an exception, fails on a
value, or the provider answers 400 or 422.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any

Message = dict[str, Any]
Rule = Callable[[Sequence[Message]], None]


class Refused(Exception):
    """The request would have failed."""


def mistral_template(messages: Sequence[Message]) -> None:
    """Instruct v0.3 and v7: one leading system message, alternation beside calls and results, ids of nine characters.

    https://huggingface.co/mistralai/Mistral-7B-Instruct-v0.3/blob/main/tokenizer_config.json
    https://github.com/ggml-org/llama.cpp/blob/master/models/templates/mistralai-Mistral-Small-3.1-24B-Instruct-2503.jinja
    """
    rest = _after_system(messages)
    _demand(all(isinstance(m["content"], str) for m in messages[: len(messages) - len(rest)]), "system text is added")
    _alternates(m for m in rest if m["role"] != "tool" and m.get("tool_calls") is None)
    for message in rest:
        if message.get("tool_calls") is not None:
            for call in message["tool_calls"]:
                _demand(len(call.get("id") or "") == 9, "Tool call IDs should be alphanumeric strings with length 9!")
        elif message["role"] == "tool":
            _demand(len(message.get("tool_call_id") or "") == 9, "Tool call IDs should be … with length 9!")
        else:
            _demand(message["role"] in {"user", "assistant"}, "Only user and assistant roles are supported")
            _demand(isinstance(message.get("content"), str), "content is added to a string")


_MISTRAL_PROPERTIES = {
    "system": {"role", "content"},
    "user": {"role", "content"},
    "assistant": {"role", "content", "tool_calls", "prefix"},
    "tool": {"role", "content", "tool_call_id", "name"},
}
_MISTRAL_AFTER = {
    "system": {"user", "assistant", "system"},
    "user": {"assistant", "system", "user"},
    "assistant": {"assistant", "user", "tool"},
    "tool": {"assistant", "tool"},
}


def mistral_api(messages: Sequence[Message]) -> None:
    """The hosted API: known properties only, its order of roles, content or calls, and ids that match.

    https://github.com/mistralai/mistral-common/blob/main/src/mistral_common/protocol/instruct/validator.py
    """
    owed = 0
    for place, message in enumerate(messages):
        role = message["role"]
        _demand(role in _MISTRAL_PROPERTIES, f"unknown role {role}")
        _demand(message.keys() <= _MISTRAL_PROPERTIES[role], "Extra inputs are not permitted")
        if place:
            _demand(role in _MISTRAL_AFTER[messages[place - 1]["role"]], f"Unexpected role {role!r}")
        ids = [message.get("tool_call_id")] if role == "tool" else []
        if role == "assistant":
            calls = message.get("tool_calls") or []
            ids = [call["id"] for call in calls]
            _demand(all(call.keys() <= {"id", "type", "function", "index"} for call in calls), "Extra inputs …")
            _demand(bool(message.get("content") or calls), "Assistant message must have either content or tool_calls")
            _demand(owed == 0, "Not the same number of function calls and responses")
            owed = len(calls)
        owed -= role == "tool"
        _demand(all(re.fullmatch(r"[a-zA-Z0-9]{9}", str(name)) for name in ids), "Tool call id … with a length of 9")


def gemma_2_template(messages: Sequence[Message]) -> None:
    """No system role, no tools, strict alternation, text content.

    https://huggingface.co/google/gemma-2-2b-it/blob/main/tokenizer_config.json
    """
    _demand(not messages or messages[0]["role"] != "system", "System role not supported")
    _alternates(messages)
    _demand(all(isinstance(message["content"], str) for message in messages), "content is trimmed as a string")


def gemma_3_template(messages: Sequence[Message]) -> None:
    """With tools: alternation of all that is neither a result nor has a `tool_calls` member, be it null.

    https://github.com/vllm-project/vllm/blob/main/examples/tool_chat_template_gemma3_pythonic.jinja
    """
    rest = _after_system(messages)
    _alternates(m for m in rest if m["role"] != "tool" and "tool_calls" not in m)
    for message in rest:
        _demand(isinstance(message.get("content"), str | list), "Invalid content type")
        _demand("tool_calls" not in message or isinstance(message["tool_calls"], list), "None is not iterable")


def llama_3_1_template(messages: Sequence[Message]) -> None:
    """A `tool_calls` member is a list, of one call; a system message is the first.

    https://github.com/vllm-project/vllm/blob/main/examples/tool_chat_template_llama3.1_json.jinja
    """
    for message in _after_system(messages):
        _demand(isinstance(message.get("content"), str | list), "None is not iterable")
        if "tool_calls" in message:
            _demand(isinstance(message["tool_calls"], list), "None has no length")
            _demand(len(message["tool_calls"]) <= 1, "This model only supports single tool-calls at once!")


def qwen_3_5_template(messages: Sequence[Message]) -> None:
    """https://huggingface.co/Qwen/Qwen3.5-27B/blob/main/chat_template.jinja"""
    for place, message in enumerate(messages):
        _demand(message["role"] in {"system", "user", "assistant", "tool"}, "Unexpected message role.")
        _demand(message["role"] != "system" or place == 0, "System message must be at the beginning.")


def deepseek_api(messages: Sequence[Message]) -> None:
    """Known roles; what it thought in a turn that called tools has to come back in every later request.

    https://api-docs.deepseek.com/guides/thinking_mode
    """
    for turn in _turns(messages):
        _demand(all(m["role"] in {"system", "user", "assistant", "tool"} for m in turn), "unknown variant")
        answers = [message for message in turn if message["role"] == "assistant"]
        if any(message.get("tool_calls") for message in answers):
            missing = [message for message in answers if not message.get("reasoning_content")]
            _demand(not missing, "The reasoning_content in the thinking mode must be passed back to the API")


def groq_api(messages: Sequence[Message]) -> None:
    """https://github.com/janhq/jan/issues/8136: "property 'reasoning_content' is unsupported"."""
    known = {"role", "content", "name", "reasoning", "tool_calls", "tool_call_id"}
    for message in messages:
        _demand(message.keys() <= known, "property is unsupported")


def _turns(messages: Sequence[Message]) -> list[list[Message]]:
    turns: list[list[Message]] = [[]]
    for message in messages:
        if message["role"] == "user":
            turns.append([])
        turns[-1].append(message)
    return turns


def _after_system(messages: Sequence[Message]) -> Sequence[Message]:
    return messages[1:] if messages and messages[0]["role"] == "system" else messages


def _alternates(messages: Any) -> None:
    for place, message in enumerate(messages):
        _demand((message["role"] == "user") == (place % 2 == 0), "Conversation roles must alternate user/assistant/…")


def _demand(holds: bool, refusal: str) -> None:
    if not holds:
        raise Refused(refusal)
