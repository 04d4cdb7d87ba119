"""Tools and the choice among them, from one protocol to the other and back."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.dialects.items.message import ResponsesMessage
from app.dialects.provider_dialect import SelectedFields
from app.dialects.request_body import decode_body_fields
from app.dialects.request_translation import translate_fields_to_chat, translate_fields_to_responses
from app.dialects.responses.tools import list_namespaced_names
from app.errors import InvalidRequest

LOOK = {"type": "function", "name": "look", "parameters": {"type": "object"}, "strict": False}
FIND = {"type": "function", "name": "find"}
RUN = {"type": "custom", "name": "run"}
CRM = {"type": "namespace", "name": "crm", "description": "The CRM.", "tools": [FIND, {**LOOK, "description": "Look."}]}
SEARCH = {"type": "web_search", "external_web_access": False}


def encode(members: Mapping[str, Any]) -> dict[str, bytes]:
    return decode_body_fields(orjson.dumps({"model": "gpt-5", **members}))


def translate_to_chat(*tools: Any, **members: Any) -> SelectedFields:
    return translate_fields_to_chat(encode({"tools": tools, **members}))


def to_chat(*tools: Any, **members: Any) -> dict[str, Any]:
    return {name: orjson.loads(raw) for name, raw in translate_to_chat(*tools, **members).fields.items()}


def to_responses(**members: Any) -> dict[str, Any]:
    translated = translate_fields_to_responses(encode({"messages": [], **members}))
    return {name: orjson.loads(raw) for name, raw in translated.fields.items()}


def test_a_function_moves_into_an_object() -> None:
    function = {"name": "look", "parameters": {"type": "object"}, "strict": False}
    assert to_chat(LOOK)["tools"] == [{"type": "function", "function": function}]


def test_a_grammar_moves_into_an_object() -> None:
    grammar = {"syntax": "regex", "definition": "[0-9]+"}
    flat = {**RUN, "description": "Run.", "format": {"type": "grammar", **grammar}}
    nested = {"name": "run", "description": "Run.", "format": {"type": "grammar", "grammar": grammar}}
    assert to_chat(flat)["tools"] == [{"type": "custom", "custom": nested}]
    assert to_responses(tools=[{"type": "custom", "custom": nested}])["tools"] == [flat]


def test_a_function_of_chat_is_not_strict_unless_it_says_so() -> None:
    tools = [{"type": "function", "function": {"name": "find"}}, {"function": {"name": "look", "strict": True}}]
    assert to_responses(tools=tools)["tools"] == [
        {"type": "function", "name": "find", "parameters": None, "strict": False},
        {"type": "function", "name": "look", "parameters": None, "strict": True},
    ]


def test_a_namespace_is_flattened_and_its_names_can_be_restored() -> None:
    translated = translate_to_chat(LOOK, CRM)
    functions = [tool["function"] for tool in orjson.loads(translated.fields["tools"])]
    assert [function["name"] for function in functions] == ["look", "crm__find", "crm__look"]
    assert functions[1]["description"] == "About all functions crm__*: The CRM."
    assert functions[2]["description"] == "Look."
    assert "description" not in functions[0]
    assert list_namespaced_names([LOOK, CRM]) == {"crm__find": ("crm", "find"), "crm__look": ("crm", "look")}
    assert translated.warnings == []


def test_a_call_in_the_log_has_the_name_that_the_function_has() -> None:
    item = {"type": "function_call", "call_id": "call_1", "namespace": "crm", "name": "look", "arguments": "{}"}
    [call] = ResponsesMessage.from_items([item]).calls
    assert call.name in list_namespaced_names([CRM])


def test_names_that_are_too_long_without_their_namespace_are_shortened_and_restored() -> None:
    tools = [{**LOOK, "name": name} for name in ("a" * 60, "a" * 59 + "b", "find")]
    namespace = {**CRM, "tools": tools}
    translated = translate_to_chat(namespace)
    names = [tool["function"]["name"] for tool in orjson.loads(translated.fields["tools"])]
    assert max(map(len, names)) == 64
    assert names[2] == "crm__find"
    assert list_namespaced_names([namespace]) == {
        name: ("crm", tool["name"]) for name, tool in zip(names, tools, strict=True)
    }
    # A call in the history has the name of its tool.
    called = {"type": "function_call", "call_id": "c", "namespace": "crm", "name": "a" * 60, "arguments": "{}"}
    assert ResponsesMessage.from_items([called]).calls[0].name == names[0]


@pytest.mark.parametrize("other", [{**LOOK, "name": "crm__find"}, {**RUN, "name": "crm__find"}, CRM])
def test_two_tools_of_one_name_are_refused_where_a_namespace_made_them_so(other: dict[str, Any]) -> None:
    with pytest.raises(InvalidRequest) as refused:
        translate_to_chat(other, CRM)
    assert (refused.value.param, refused.value.code) == ("tools[1].tools[0].name", "invalid_value")
    with pytest.raises(InvalidRequest) as refused:
        translate_to_chat(CRM, other)
    assert str(refused.value.param).startswith("tools[1]")


def test_hosted_tools_are_left_out_and_named() -> None:
    tools = [LOOK, SEARCH, {**CRM, "tools": [{"type": "mcp", "name": "x"}]}]
    translated = translate_to_chat(*tools)
    assert len(orjson.loads(translated.fields["tools"])) == 1
    [warning] = translated.warnings
    assert warning.startswith("Left out, because the model's provider speaks Chat Completions, ")
    assert warning.endswith(": `tools[1]` (web_search), `tools[2].tools[0]` (mcp).")
    assert list_namespaced_names(tools) == {}


def test_members_of_a_tool_without_a_counterpart_are_named_once() -> None:
    deferred = {"defer_loading": True, "async": False, "output_schema": None}
    warnings = translate_to_chat({**LOOK, **deferred}, {**FIND, **deferred}).warnings
    assert [warning.count("`tools[].defer_loading`") for warning in warnings] == [1]
    assert "async" not in warnings[0]
    chat_tool = {"type": "function", "function": {"name": "look", "examples": []}, "cache_control": {}}
    translated = translate_fields_to_responses(encode({"tools": [chat_tool, {"type": "web_search"}]}))
    assert translated.warnings[0].endswith(
        "`tools[].function.examples`, `tools[].cache_control`, `tools[1]` (web_search)."
    )


def test_without_tools_there_is_no_choice_and_nothing_runs_in_parallel() -> None:
    assert to_chat(SEARCH, tool_choice="auto", parallel_tool_calls=True) == {"model": "gpt-5"}
    assert to_chat(LOOK, tool_choice="none", parallel_tool_calls=False)["parallel_tool_calls"] is False


NAMED = {"type": "function", "function": {"name": "crm__find"}}


@pytest.mark.parametrize(
    ("tools", "choice", "expected"),
    [
        ([LOOK], "auto", "auto"),
        ([LOOK], "none", "none"),
        ([LOOK, SEARCH], "required", "required"),
        ([LOOK], {"type": "function", "name": "look"}, {"type": "function", "function": {"name": "look"}}),
        ([RUN], {"type": "custom", "name": "run"}, {"type": "custom", "custom": {"name": "run"}}),
        ([CRM], {"type": "function", "name": "find"}, NAMED),
        ([CRM], {"type": "function", "namespace": "crm", "name": "find"}, NAMED),
        ([LOOK, CRM], {"type": "function", "name": "look"}, {"type": "function", "function": {"name": "look"}}),
        (
            [LOOK, CRM, SEARCH],
            {"type": "allowed_tools", "mode": "required", "tools": [SEARCH, FIND]},
            {"type": "allowed_tools", "allowed_tools": {"mode": "required", "tools": [NAMED]}},
        ),
        ([LOOK, SEARCH], {"type": "allowed_tools", "mode": "auto", "tools": [SEARCH]}, "none"),
        ([SEARCH], {"type": "allowed_tools", "mode": "auto", "tools": [SEARCH]}, None),
    ],
)
def test_a_choice_is_said_in_the_words_of_chat(tools: list[Any], choice: Any, expected: Any) -> None:
    assert to_chat(*tools, tool_choice=choice).get("tool_choice") == expected


def test_an_allowed_tool_that_is_left_out_is_named() -> None:
    choice = {"type": "allowed_tools", "mode": "auto", "tools": [{"type": "mcp", "server_label": "docs"}, LOOK]}
    assert "`tool_choice.tools` (mcp)" in translate_to_chat(LOOK, tool_choice=choice).warnings[0]


@pytest.mark.parametrize(
    "choice",
    [
        "required",
        {"type": "web_search_preview"},
        {"type": "mcp", "server_label": "docs"},
        {"type": "shell"},
        {"type": "allowed_tools", "mode": "required", "tools": [SEARCH]},
    ],
)
def test_a_forced_hosted_tool_is_refused(choice: Any) -> None:
    with pytest.raises(InvalidRequest) as refused:
        translate_to_chat(SEARCH, tool_choice=choice)
    assert (refused.value.param, refused.value.code) == ("tool_choice", "unsupported_parameter")


@pytest.mark.parametrize(
    ("members", "param"),
    [
        ({"tools": "look"}, "tools"),
        ({"tools": ["look"]}, "tools[0]"),
        ({"tools": [{"type": "function"}]}, "tools[0].function"),
        ({"tools": [{"type": "custom", "custom": []}]}, "tools[0].custom"),
        ({"tool_choice": "any"}, "tool_choice"),
        ({"tool_choice": {"type": "function", "name": "look"}}, "tool_choice"),
        ({"tool_choice": {"type": "web_search"}}, "tool_choice"),
        (
            {"tool_choice": {"type": "allowed_tools", "allowed_tools": {"mode": "auto", "tools": ["auto"]}}},
            "tool_choice",
        ),
    ],
)
def test_tools_of_chat_that_cannot_be_read_are_refused(members: dict[str, Any], param: str) -> None:
    with pytest.raises(InvalidRequest) as refused:
        to_responses(**members)
    assert refused.value.param == param


names = st.text("abc_-", min_size=1, max_size=6)
schemas = st.fixed_dictionaries({"type": st.just("object"), "properties": st.dictionaries(names, st.just({}))})
grammars = st.fixed_dictionaries({"syntax": st.sampled_from(["lark", "regex"]), "definition": st.text(max_size=8)})
formats = st.just({"type": "text"}) | grammars.map(lambda grammar: {"type": "grammar", "grammar": grammar})
functions = st.fixed_dictionaries(
    {"name": names, "strict": st.booleans()}, optional={"description": st.text(max_size=8), "parameters": schemas}
)
customs = st.fixed_dictionaries({"name": names}, optional={"description": st.text(max_size=8), "format": formats})
chat_tools = st.one_of(
    functions.map(lambda function: {"type": "function", "function": function}),
    customs.map(lambda custom: {"type": "custom", "custom": custom}),
)
references = st.sampled_from(["function", "custom"]).flatmap(
    lambda kind: names.map(lambda name: {"type": kind, kind: {"name": name}})
)
chat_choices = st.one_of(
    st.sampled_from(["none", "auto", "required"]),
    references,
    st.builds(
        lambda mode, tools: {"type": "allowed_tools", "allowed_tools": {"mode": mode, "tools": tools}},
        st.sampled_from(["auto", "required"]),
        st.lists(references, min_size=1, max_size=3),
    ),
)


@given(st.lists(chat_tools, min_size=1, max_size=4), chat_choices, st.booleans())
def test_tools_and_choice_come_back_equal(tools: list[Any], choice: Any, parallel: bool) -> None:
    said = {"model": "gpt-5", "tools": tools, "tool_choice": choice, "parallel_tool_calls": parallel}
    there = translate_fields_to_responses(encode({**said, "messages": []}))
    back = translate_fields_to_chat(there.fields)
    assert {name: orjson.loads(raw) for name, raw in back.fields.items()} == said
    assert there.warnings == back.warnings == []
