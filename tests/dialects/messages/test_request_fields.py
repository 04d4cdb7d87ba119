"""The fields of requests between Messages and Chat Completions: what becomes of each, as the page tells it."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import orjson
import pytest

from app.dialects.messages.provider_dialect import MessagesProviderDialect
from app.dialects.messages.request_fields import (
    DEFAULT_MAX_TOKENS,
    FATES_FROM_CHAT,
    FATES_TO_CHAT,
    read_messages_schemas,
    translate_chat_fields_to_messages,
    translate_messages_fields_to_chat,
)
from app.dialects.request_translation import FATES_TO_RESPONSES
from app.errors import InvalidRequest

DIALECT = MessagesProviderDialect()
PAGE = (Path(__file__).parents[3] / "docs/messages.md").read_text()
TOOL = {"name": "f", "description": "F.", "input_schema": {"type": "object"}}
CHAT_TOOL = {"type": "function", "function": {"name": "f", "description": "F.", "parameters": {"type": "object"}}}


def encode(fields: dict[str, Any]) -> dict[str, bytes]:
    return {name: orjson.dumps(value) for name, value in {"model": "m", **fields}.items()}


def to_chat(**fields: Any) -> tuple[dict[str, Any], str]:
    translated = translate_messages_fields_to_chat(encode(fields))
    return {name: orjson.loads(raw) for name, raw in translated.fields.items()}, " ".join(translated.warnings)


def to_messages(**fields: Any) -> tuple[dict[str, Any], str]:
    translated = translate_chat_fields_to_messages(encode(fields))
    return {name: orjson.loads(raw) for name, raw in translated.fields.items()}, " ".join(translated.warnings)


def read_table(heading: str) -> dict[str, str]:
    found = re.search(rf"^### {heading}\n(.*?)(?=^##|\Z)", PAGE, re.MULTILINE | re.DOTALL)
    assert found is not None
    rows = re.findall(r"^\| ((?:`\w+`(?:, )?)+) \| (\w+) \|", found[1], re.MULTILINE)
    return {name: fate for names, fate in rows for name in re.findall(r"\w+", names)}


def test_the_page_tells_the_fate_of_each_field() -> None:
    assert read_table("A Messages client, a provider of one of OpenAI's protocols") == FATES_TO_CHAT
    assert read_table("A chat client, a provider of the Messages API") == FATES_FROM_CHAT
    assert FATES_FROM_CHAT.keys() == FATES_TO_RESPONSES.keys() | {"thinking"}


@pytest.mark.parametrize(("fates", "send"), [(FATES_TO_CHAT, to_chat), (FATES_FROM_CHAT, to_messages)])
def test_each_field_has_its_fate(fates: dict[str, str], send: Any) -> None:
    for name, fate in fates.items():
        if fate in ("translated", "ours") or name == "model":
            continue
        value = {"x": 1} if name in ("audio", "logit_bias") else [1] if name in ("functions", "modalities") else 5
        if fate == "refused":
            with pytest.raises(InvalidRequest) as refused:
                send(**{name: value})
            assert refused.value.param == name
            continue
        translated, warnings = send(**{name: value})
        assert (translated.get(name) == value) == (fate == "passed")
        assert (f"`{name}`" in warnings) == (fate == "warned")


def test_the_gateway_does_the_edits_of_the_context_itself() -> None:
    kinds = ("clear_thinking_20251015", "clear_tool_uses_20250919", "compact_20260112")
    assert to_chat(context_management={"edits": [{"type": kind} for kind in kinds]})[1] == ""


def test_a_request_without_thinking_asks_for_no_clearing_of_thinking() -> None:
    clear_thinking, clear_results = {"type": "clear_thinking_20251015"}, {"type": "clear_tool_uses_20250919"}
    for edits, sent in (
        ([clear_thinking, clear_results], {"edits": [clear_results], "x": 1}),
        ([clear_thinking], None),
    ):
        asked = {"thinking": {"type": "enabled", "budget_tokens": 8000}, "context_management": {"edits": edits, "x": 1}}
        fields = encode({"max_tokens": 9000, **asked})
        lowered = DIALECT.lower_output_limit(fields, 500)
        assert orjson.loads(lowered["thinking"]) == {"type": "disabled"}
        assert orjson.loads(lowered["context_management"]) == sent
        assert "context_management" not in DIALECT.lower_output_limit(fields, 2000)


def test_a_field_that_nobody_knows_is_named() -> None:
    assert "`brand_new`" in to_chat(brand_new=1)[1]
    assert "`brand_new`" in to_messages(brand_new=1)[1]


def test_limits() -> None:
    assert to_messages()[0]["max_tokens"] == DEFAULT_MAX_TOKENS
    assert to_messages(max_tokens=5)[0]["max_tokens"] == 5
    assert to_messages(max_completion_tokens=6, max_tokens=5)[0]["max_tokens"] == 6
    assert to_chat(max_tokens=5)[0]["max_tokens"] == 5
    assert DIALECT.lower_output_limit(encode({"max_tokens": 5}), 9) == {}
    assert DIALECT.lower_output_limit(encode({"max_tokens": 50}), 9) == {"max_tokens": b"9"}
    thinking = {"type": "enabled", "budget_tokens": 4000}
    lowered = DIALECT.lower_output_limit(encode({"max_tokens": 5000, "thinking": thinking}), 2000)
    assert orjson.loads(lowered["thinking"]) == {"type": "enabled", "budget_tokens": 1999}
    lowered = DIALECT.lower_output_limit(encode({"max_tokens": 5000, "thinking": thinking}), 500)
    assert orjson.loads(lowered["thinking"]) == {"type": "disabled"}


@pytest.mark.parametrize(
    ("chat", "own"),
    [
        ("auto", {"type": "auto"}),
        ("none", {"type": "none"}),
        ("required", {"type": "any"}),
        ({"type": "function", "function": {"name": "f"}}, {"type": "tool", "name": "f"}),
    ],
)
def test_tools_and_choices_go_there_and_back(chat: Any, own: dict[str, Any]) -> None:
    fields, warnings = to_messages(tools=[CHAT_TOOL], tool_choice=chat)
    assert (fields["tools"], fields["tool_choice"], warnings) == ([TOOL], own, "")
    fields, warnings = to_chat(tools=[TOOL], tool_choice=own)
    assert (fields["tools"], fields["tool_choice"], warnings) == ([CHAT_TOOL], chat, "")


def test_parallel_calls() -> None:
    fields, _ = to_messages(tools=[CHAT_TOOL], parallel_tool_calls=False)
    assert fields["tool_choice"] == {"type": "auto", "disable_parallel_tool_use": True}
    fields, _ = to_chat(tools=[TOOL], tool_choice={"type": "auto", "disable_parallel_tool_use": True})
    assert fields["parallel_tool_calls"] is False


def test_a_forced_tool_that_is_left_out_is_refused() -> None:
    hosted = {"type": "web_search_20250305", "name": "web_search"}
    fields, warnings = to_chat(tools=[hosted])
    assert "tools" not in fields
    assert "web_search_20250305" in warnings
    for choice in ({"type": "tool", "name": "web_search"}, {"type": "any"}):
        with pytest.raises(InvalidRequest):
            to_chat(tools=[hosted], tool_choice=choice)
    with pytest.raises(InvalidRequest):
        to_messages(tools=[{"type": "custom", "custom": {"name": "c"}}], tool_choice="required")


def test_answer_formats_and_efforts() -> None:
    schema = {"type": "object", "properties": {}}
    own = {"effort": "low", "format": {"type": "json_schema", "schema": schema}}
    fields, _ = to_chat(output_config=own)
    assert fields["reasoning_effort"] == "low"
    assert fields["response_format"]["json_schema"]["schema"] == schema
    fields, _ = to_messages(reasoning_effort="minimal", response_format=fields["response_format"])
    assert fields["output_config"] == own
    assert "`response_format`" in to_messages(response_format={"type": "json_object"})[1]


def test_the_same_tools_count_the_same() -> None:
    assert read_messages_schemas({"tools": [TOOL]}).functions == [CHAT_TOOL["function"]]
    assert read_messages_schemas({"tools": [{"type": "bash_20250124", "name": "bash"}]}).other_tools
