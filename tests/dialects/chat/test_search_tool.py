"""What a call of the search tool asks for, and how the tool stands in a request."""

from __future__ import annotations

import json
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.dialects.search_tool import TOOL_NAME, InvalidArguments, SearchToolQuery, parse_search_arguments
from app.dialects.search_tool_fields import (
    TOOL_DEFINITION,
    add_search_tool,
    build_next_round_fields,
    shorten_call_arguments,
)

OWN_ONLY = b' [ {"type":"function", "function":{"name":"f"}} ] '


def encode_fields(**fields: Any) -> dict[str, bytes]:
    return {name: value if isinstance(value, bytes) else orjson.dumps(value) for name, value in fields.items()}


def build_round_fields(
    fields: dict[str, bytes], client_tools: bytes | None, *, is_last_round: bool
) -> dict[str, bytes]:
    with_tool = add_search_tool(fields)

    def decode(name: str) -> Any:
        return orjson.loads(with_tool[name]) if name in with_tool else None

    return build_next_round_fields(with_tool, decode, client_tools, is_last_round=is_last_round)


@pytest.mark.parametrize("tools", [None, b"null", b"[]", OWN_ONLY], ids=str)
def test_the_tool_comes_last_and_the_others_keep_their_bytes(tools: bytes | None) -> None:
    raw = add_search_tool({} if tools is None else {"tools": tools})["tools"]
    listed = json.loads(raw)
    assert listed[-1] == TOOL_DEFINITION
    assert len(listed) == (2 if tools is OWN_ONLY else 1)
    assert tools is not OWN_ONLY or tools.strip()[1:-1].strip() in raw


def test_a_forced_search_is_not_forced_again() -> None:
    fields = encode_fields(tool_choice={"type": "function", "function": {"name": TOOL_NAME}})
    assert "tool_choice" not in build_round_fields(fields, None, is_last_round=False)


def test_a_required_call_stays_required_while_the_client_has_tools() -> None:
    fields = encode_fields(tool_choice="required", tools=OWN_ONLY)
    last = build_round_fields(fields, OWN_ONLY, is_last_round=True)
    assert (last["tool_choice"], last["tools"]) == (b'"required"', OWN_ONLY)


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ('{"query": " a b "}', SearchToolQuery("a b")),
        ('{"query": "a", "before": 7, "after": "3"}', SearchToolQuery("a", after=3, before=7)),
        ('{"query": "a", "before": null, "after": ""}', SearchToolQuery("a")),
        ({"query": "a", "before": 7.0}, SearchToolQuery("a", before=7)),
    ],
)
def test_what_a_call_asks_for(arguments: Any, expected: SearchToolQuery) -> None:
    assert parse_search_arguments(arguments) == expected


@given(st.one_of(st.text(), st.dictionaries(st.sampled_from(["query", "before"]), st.text()).map(json.dumps)))
def test_whatever_the_arguments_are_they_are_shown_again_as_an_object(arguments: str) -> None:
    call = {"id": "c", "type": "function", "function": {"name": TOOL_NAME, "arguments": arguments}}
    shown_again = shorten_call_arguments(call)["function"]["arguments"]
    assert isinstance(json.loads(shown_again), dict)
    if isinstance(parse_search_arguments(arguments), SearchToolQuery):
        assert shown_again == arguments


def test_true_is_no_number_of_a_message() -> None:
    assert isinstance(parse_search_arguments({"query": "a", "before": True}), InvalidArguments)
