"""JSON that is nested deeper than any client means it, where it is counted and shortened."""

from __future__ import annotations

from typing import Any

import orjson
import pytest

from app.context.count.tokenizers import load_tokenizer
from app.dialects.text_truncation import truncate_arguments
from tests.conversation.test_json_depth import DEPTHS, PLACES, nested
from tests.support.chat_counter import ChatCounter

TOOLS = (
    '[{"function":{"name":"f","parameters":%s}}]',
    '[{"function":{"name":%s}}]',
    '[{"function":{"name":"f","parameters":{"type":"object","properties":{"a":%s}}}}]',
    '[{"function":{"name":"f","parameters":{"type":"object","properties":{"a":{"anyOf":[%s]}}}}}]',
    '[{"function":{"name":"f","parameters":{"type":"object","properties":{"a":{"enum":[%s]}}}}}]',
    '[{"function":{"name":"f","parameters":{"$defs":{"a":%s}}}}]',
    '[{"custom":{"name":%s,"format":"text"}}]',
    '[{"type":"other","of":%s}]',
    "[%s]",
)


@pytest.fixture(scope="module")
def counter() -> ChatCounter:
    return ChatCounter(load_tokenizer("o200k_base"))


@pytest.mark.parametrize("lists", [True, False])
@pytest.mark.parametrize("depth", DEPTHS)
def test_whatever_can_be_read_is_counted(counter: ChatCounter, depth: int, lists: bool) -> None:
    value = nested(depth, lists=lists)
    for place in (*PLACES, '{"role":%s}'):
        assert counter.count_message(orjson.loads(place % value)) > 0
    for place in TOOLS:
        tools = orjson.loads(place % value)
        schema = {"type": "json_schema", "json_schema": {"name": tools, "schema": tools}}
        assert counter.count_request([], tools=tools, functions=tools, response_format=schema) > 0


@pytest.mark.parametrize("depth", DEPTHS)
def test_deep_arguments_are_shortened_to_a_json_object(depth: int) -> None:
    arguments = '{"a":' * depth + orjson.dumps("word " * 1_000).decode() + "}" * depth
    shorter: dict[str, Any] = orjson.loads(truncate_arguments(arguments, 2_000))
    assert isinstance(shorter, dict)
