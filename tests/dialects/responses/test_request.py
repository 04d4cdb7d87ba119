"""The fields of a Responses request: what is read, and what is refused with the place that is wrong."""

from __future__ import annotations

from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st
from openai.types.responses.response_create_params import ResponseCreateParamsBase

from app.dialects.item_decoding import decode_item
from app.dialects.request_body import decode_body_fields
from app.dialects.responses.request import ResponsesFields, may_run_provider_tools, parse_responses_fields
from app.errors import InvalidRequest

JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.floats(allow_nan=False) | st.text(max_size=8),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(["type", "name", "tools", "format", "id", "mode"]), inner, max_size=3)
    ),
    max_leaves=8,
)
FIELD_NAMES = [*ResponseCreateParamsBase.__annotations__, "stream", "starting_after", "conversation_id", "x"]
MESSAGE = {"type": "message", "role": "user", "content": "Hello"}
OUTPUT = {"type": "function_call_output", "call_id": "call_1", "output": "42"}


def fields_of(**members: Any) -> dict[str, bytes]:
    return decode_body_fields(orjson.dumps({"model": "m", "input": "Hello", **members}))


def parse(**members: Any) -> ResponsesFields:
    return parse_responses_fields(fields_of(**members))


def test_a_text_is_a_message_of_the_user() -> None:
    parsed = parse()
    assert [(item.role, item.text) for item in map(decode_item, parsed.raw_messages)] == [("user", "Hello")]
    assert (parsed.model, parsed.stream, parsed.store) == ("m", False, True)
    assert (parsed.max_output_tokens, parsed.compact_threshold, parsed.truncation) == (None, None, "disabled")
    assert (parsed.previous_response_id, parsed.conversation) == (None, None)


def test_instructions_are_a_message_of_their_own_in_front() -> None:
    parsed = parse(instructions='Say "yes".', input=[MESSAGE, {**MESSAGE, "content": "Again"}])
    assert bytes(parsed.raw_messages[0]) == b'["Say \\"yes\\"."]'
    assert len(parsed.raw_messages) == 3


def test_empty_instructions_are_no_message() -> None:
    assert len(parse(instructions="").raw_messages) == len(parse(instructions=None).raw_messages) == 1


def test_items_keep_their_bytes() -> None:
    item = b'{"type" : "message", "role":"user","content":"\\u0041", "id": null}'
    parsed = parse_responses_fields(decode_body_fields(b'{"model": "m", "input": [ ' + item + b" ]}"))
    assert list(parsed.raw_messages) == [b"[" + item + b"]"]


def test_all_options_are_read() -> None:
    parsed = parse(
        stream=True,
        store=False,
        max_output_tokens=64,
        truncation="auto",
        conversation={"id": "conv_1"},
        context_management=[{"type": "compaction", "compact_threshold": 9000}, {"type": "compaction"}],
    )
    assert (parsed.stream, parsed.store, parsed.max_output_tokens) == (True, False, 64)
    assert (parsed.truncation, parsed.conversation, parsed.compact_threshold) == ("auto", "conv_1", 9000)


def test_the_lowest_of_several_thresholds_counts() -> None:
    entries = [{"type": "compaction", "compact_threshold": tokens} for tokens in (9000, 7000, 8000)]
    assert parse(context_management=entries).compact_threshold == 7000


@pytest.mark.parametrize("state", [{"previous_response_id": "resp_1"}, {"conversation": "conv_1"}])
@pytest.mark.parametrize("empty", [None, "", []])
def test_input_may_be_missing_where_something_stored_goes_on(state: dict[str, Any], empty: object) -> None:
    parsed = parse(input=empty, instructions="Go on.", **state)
    assert list(parsed.raw_messages) == [b'["Go on."]']


@pytest.mark.parametrize("state", [{"previous_response_id": "resp_1"}, {"conversation": "conv_1"}])
def test_an_output_may_come_first_where_something_stored_goes_on(state: dict[str, Any]) -> None:
    assert len(parse(input=[OUTPUT], **state).raw_messages) == 1


def test_an_output_may_follow_the_reference_of_its_call() -> None:
    assert parse(input=[{"type": "item_reference", "id": "fc_1"}, OUTPUT]).raw_messages
    with pytest.raises(InvalidRequest):
        parse(input=[{**MESSAGE, "content": "item_reference"}, OUTPUT])


def test_every_official_field_may_be_null() -> None:
    nulls = dict.fromkeys(ResponseCreateParamsBase.__annotations__.keys() - {"model", "input"})
    assert parse(**nulls, stream=None) == parse()


@pytest.mark.parametrize(
    ("members", "param", "code"),
    [
        ({"model": None}, "model", "missing_required_parameter"),
        ({"model": ""}, "model", "missing_required_parameter"),
        ({"model": 4}, "model", "invalid_type"),
        ({"input": None}, "input", "missing_required_parameter"),
        ({"input": []}, "input", "missing_required_parameter"),
        ({"input": ""}, "input", "missing_required_parameter"),
        ({"input": None, "instructions": "Say hello."}, "input", "missing_required_parameter"),
        ({"input": {}}, "input", "invalid_type"),
        ({"input": 7}, "input", "invalid_type"),
        ({"input": ["compaction_trigger"]}, "input[0]", "invalid_type"),
        ({"input": [OUTPUT]}, "input[0].call_id", "invalid_value"),
        ({"input": [MESSAGE, {"type": "compaction_trigger"}, MESSAGE]}, "input[1]", "invalid_value"),
        ({"instructions": ["Be brief."]}, "instructions", "invalid_type"),
        ({"stream": "yes"}, "stream", "invalid_type"),
        ({"store": 1}, "store", "invalid_type"),
        ({"max_output_tokens": 0}, "max_output_tokens", "invalid_value"),
        ({"max_output_tokens": True}, "max_output_tokens", "invalid_type"),
        ({"max_output_tokens": "9"}, "max_output_tokens", "invalid_type"),
        ({"previous_response_id": 7}, "previous_response_id", "invalid_type"),
        ({"conversation": "two words"}, "conversation", "invalid_value"),
        ({"conversation": {}}, "conversation.id", "invalid_value"),
        ({"previous_response_id": "resp_1", "conversation": "conv_1"}, "previous_response_id", "invalid_value"),
        ({"truncation": "last"}, "truncation", "invalid_value"),
        ({"context_management": {}}, "context_management", "invalid_type"),
        ({"context_management": ["compaction"]}, "context_management[0]", "invalid_type"),
        ({"context_management": [{"type": "clear"}]}, "context_management[0].type", "invalid_value"),
        (
            {"context_management": [{"type": "compaction", "compact_threshold": 0}]},
            "context_management[0].compact_threshold",
            "invalid_value",
        ),
        ({"include": "reasoning.encrypted_content"}, "include", "invalid_type"),
        ({"include": [7]}, "include", "invalid_type"),
        ({"metadata": []}, "metadata", "invalid_type"),
        ({"metadata": {str(number): "" for number in range(17)}}, "metadata", "invalid_value"),
        ({"metadata": {"n" * 65: ""}}, "metadata", "invalid_value"),
        ({"metadata": {"topic": 7}}, "metadata.topic", "invalid_type"),
        ({"metadata": {"topic": "x" * 513}}, "metadata.topic", "invalid_value"),
        ({"metadata": {"topic": "\0"}}, "metadata.topic", "invalid_value"),
        ({"text": "json"}, "text", "invalid_type"),
        ({"reasoning": "high"}, "reasoning", "invalid_type"),
        ({"tools": {}}, "tools", "invalid_type"),
        ({"tools": ["web_search"]}, "tools[0]", "invalid_type"),
        ({"tools": [{"name": "look"}]}, "tools[0].type", "missing_required_parameter"),
        (
            {"tools": [{"type": "function", "function": {"name": "look"}}]},
            "tools[0].name",
            "missing_required_parameter",
        ),
        ({"tools": [{"type": "namespace", "tools": []}]}, "tools[0].name", "missing_required_parameter"),
        ({"tools": [{"type": "namespace", "name": "crm"}]}, "tools[0].tools", "missing_required_parameter"),
        (
            {"tools": [{"type": "namespace", "name": "crm", "tools": [{"type": "custom"}]}]},
            "tools[0].tools[0].name",
            "missing_required_parameter",
        ),
        ({"tool_choice": "any"}, "tool_choice", "invalid_value"),
        ({"tool_choice": ["auto"]}, "tool_choice", "invalid_type"),
        ({"tool_choice": {}}, "tool_choice.type", "missing_required_parameter"),
        ({"tool_choice": {"type": "function"}}, "tool_choice.name", "missing_required_parameter"),
        ({"tool_choice": {"type": "allowed_tools", "tools": []}}, "tool_choice.mode", "missing_required_parameter"),
        (
            {"tool_choice": {"type": "allowed_tools", "mode": "auto", "tools": [{}]}},
            "tool_choice.tools[0].type",
            "missing_required_parameter",
        ),
        ({"background": True}, "background", "unsupported_parameter"),
        ({"prompt": {"id": "pmpt_1"}}, "prompt", "unsupported_parameter"),
        ({"starting_after": 3}, "starting_after", "unsupported_parameter"),
    ],
)
def test_what_is_wrong_is_refused_with_its_place(members: dict[str, Any], param: str, code: str) -> None:
    with pytest.raises(InvalidRequest) as refused:
        parse(**members)
    assert (refused.value.param, refused.value.code) == (param, code)


@pytest.mark.parametrize("members", [{"background": True}, {"prompt": {"id": "p"}}])
def test_what_comes_later_is_said_to_be_not_supported_yet(members: dict[str, Any]) -> None:
    with pytest.raises(InvalidRequest, match="not supported yet"):
        parse(**members)


def test_a_trigger_at_the_end_is_cut_off() -> None:
    parsed = parse(input=[MESSAGE, {"type": "compaction_trigger"}])
    assert parsed.input_before_trigger == orjson.dumps([MESSAGE])
    assert parsed.raw_messages == parse(input=[MESSAGE]).raw_messages
    assert parse(input=[MESSAGE]).input_before_trigger is None


def test_the_word_compaction_trigger_in_a_text_is_no_trigger() -> None:
    assert parse(input=[{**MESSAGE, "content": 'He said "compaction_trigger".'}]).raw_messages
    assert parse(input=[{**MESSAGE, "content": "x", "note": "compaction_trigger"}]).raw_messages


def test_background_false_asks_for_nothing() -> None:
    assert parse(background=False) == parse()


@pytest.mark.parametrize(
    ("tools", "expected"),
    [
        (None, False),
        ([], False),
        ([{"type": "function", "name": "look"}, {"type": "custom", "name": "run"}], False),
        ([{"type": "namespace", "name": "crm", "tools": [{"type": "function", "name": "look"}]}], False),
        ([{"type": "function", "name": "look"}, {"type": "web_search"}], True),
        ([{"type": "mcp", "server_label": "docs"}], True),
    ],
)
def test_hosted_tools_may_run_at_the_provider(tools: object, expected: bool) -> None:
    assert may_run_provider_tools(fields_of(tools=tools)) is expected


@given(st.fixed_dictionaries({}, optional=dict.fromkeys(FIELD_NAMES, JSON)))
def test_any_json_is_parsed_or_refused(members: dict[str, Any]) -> None:
    fields = decode_body_fields(orjson.dumps(members))
    may_run_provider_tools(fields)
    try:
        parsed = parse_responses_fields(fields)
    except InvalidRequest as refused:
        assert refused.param
    else:
        assert len(parsed.item_groups) == len(parsed.raw_messages)


@given(st.binary(max_size=60))
def test_a_body_that_is_no_json_is_refused(body: bytes) -> None:
    try:
        parse_responses_fields(decode_body_fields(b'{"model":"m","input":' + body + b"}"))
    except InvalidRequest:
        return
