"""Grouping: every item is in exactly one message, outputs stand behind their calls, and errors name the field."""

from __future__ import annotations

from collections import Counter
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.conversation.item import EditOperation
from app.dialects.body.message_edits import apply_operations
from app.dialects.items.input_items import find_item_groups
from app.dialects.items.item_edits import OPERATIONS
from app.dialects.items.message import ResponsesMessage
from app.dialects.message_rendering import build_output_items, render_messages_for_chat, render_messages_for_responses
from app.errors import InvalidRequest
from tests.dialects.responses.histories import ODD_ITEMS, TALKS, Talk
from tests.support.input_items import group_input_items

USER: dict[str, Any] = {"role": "user", "content": "Go on."}
ANSWER: dict[str, Any] = {"type": "message", "role": "assistant", "content": "Yes."}
THOUGHT: dict[str, Any] = {"type": "reasoning", "summary": [], "encrypted_content": "zz"}
SEARCH: dict[str, Any] = {"type": "web_search_call", "id": "ws"}


EACH_OPERATION: list[EditOperation] = [
    ("shorten", 0.5),
    ("contents", 10),
    ("arguments", 40),
    ("say", "x"),
    ("inputs",),
    ("thoughtless",),
]


def call(call_id: str) -> dict[str, Any]:
    return {"type": "function_call", "call_id": call_id, "name": "f", "arguments": "{}"}


def output(call_id: str, text: str = "7") -> dict[str, Any]:
    return {"type": "function_call_output", "call_id": call_id, "output": text}


def group(*items: Any, may_begin_with_result: bool = False) -> list[list[Any]]:
    raws = group_input_items([orjson.dumps(one) for one in items], may_begin_with_result=may_begin_with_result)
    return [orjson.loads(raw) for raw in raws]


def nest(levels: int) -> list[Any]:
    return [nest(levels - 1)] if levels > 1 else []


REFERENCE = {"type": "item_reference", "id": "x"}
CLOUD = {"type": "shell_call", "call_id": "s", "action": {}, "environment": {"type": "container_reference"}}
LOCAL = {"type": "shell_call", "call_id": "s", "action": {}}
SHELL_OUTPUT = {"type": "shell_call_output", "call_id": "s", "output": []}
TOOLS_FOUND = {"type": "tool_search_output", "execution": "server", "tools": []}
TOOLS = {"type": "additional_tools", "role": "developer", "tools": []}


@pytest.mark.parametrize(
    ("items", "messages"),
    [
        ([USER, USER], [[USER], [USER]]),
        ([USER, THOUGHT, call("a"), output("a"), ANSWER], [[USER], [THOUGHT, call("a")], [output("a")], [ANSWER]]),
        ([USER, THOUGHT, SEARCH, ANSWER, USER], [[USER], [THOUGHT, SEARCH, ANSWER], [USER]]),
        ([call("a"), call("b"), output("b"), output("a")], [[call("a"), call("b")], [output("b")], [output("a")]]),
        ([call("a"), USER, output("a"), ANSWER], [[call("a")], [output("a")], [USER], [ANSWER]]),
        ([call("a"), call("b"), output("a"), ANSWER, output("b")],
         [[call("a"), call("b")], [output("a")], [output("b")], [ANSWER]]),
        ([call(""), output("", "1"), call(""), output("", "2")],
         [[call("")], [output("", "1")], [call("")], [output("", "2")]]),
        ([USER, REFERENCE, ANSWER], [[USER], [REFERENCE, ANSWER]]),
        ([USER, {"type": "something_new", "x": 1}], [[USER], [{"type": "something_new", "x": 1}]]),
        ([TOOLS, USER], [[TOOLS], [USER]]),
        ([CLOUD, SHELL_OUTPUT, ANSWER], [[CLOUD, SHELL_OUTPUT, ANSWER]]),
        ([LOCAL, SHELL_OUTPUT, ANSWER], [[LOCAL], [SHELL_OUTPUT], [ANSWER]]),
        ([USER, {**THOUGHT, "role": "user"}, ANSWER], [[USER], [{**THOUGHT, "role": "user"}, ANSWER]]),
        ([TOOLS_FOUND, call("a")], [[TOOLS_FOUND, call("a")]]),
    ],
)  # fmt: skip
def test_items_are_grouped_into_messages(items: list[Any], messages: list[list[Any]]) -> None:
    assert group(*items) == messages


def test_outputs_of_calls_in_the_log_stay_in_their_place() -> None:
    items = [USER, output("a"), USER, ANSWER, output("b"), ANSWER]
    assert group(*items, may_begin_with_result=True) == [[item] for item in items]


@given(TALKS)
def test_each_item_is_in_one_message_with_its_bytes(talk: Talk) -> None:
    raw_items = [orjson.dumps(item, option=orjson.OPT_INDENT_2) for item in talk[1]]
    raws = group_input_items(raw_items, may_begin_with_result=False)
    assert Counter(raw for message in raws for raw in ResponsesMessage(message).raw_items) == Counter(raw_items)


@given(TALKS, st.randoms(use_true_random=False))
def test_late_outputs_stand_behind_their_call_as_if_they_had_come_in_time(talk: Talk, rng: Any) -> None:
    items = talk[1]
    late = [one for one in items if one["type"].endswith("_output") and rng.random() < 0.5]
    messages = group(*[one for one in items if one not in late], *late)
    assert Counter(map(str, messages)) == Counter(map(str, group(*items)))
    for index, message in enumerate(messages):
        if message[0]["type"].endswith("_output"):
            run = next(one for one in reversed(messages[:index]) if not one[0]["type"].endswith("_output"))
            assert message[0]["call_id"] in [item.get("call_id") for item in run]


@pytest.mark.parametrize(
    ("items", "param", "code"),
    [
        ([USER, 7], "input[1]", "invalid_type"),
        ([USER, ["x"]], "input[1]", "invalid_type"),
        ([{"type": 7}], "input[0].type", "invalid_type"),
        ([{"type": "message", "content": "x"}], "input[0].role", "missing_required_parameter"),
        ([{"content": "x"}], "input[0].role", "missing_required_parameter"),
        ([{"role": "critic", "content": "x"}], "input[0].role", "invalid_value"),
        ([{"type": "message", "role": "critic", "content": "x"}], "input[0].role", "invalid_value"),
        ([{"role": "user"}], "input[0].content", "missing_required_parameter"),
        ([{"role": "user", "content": 7}], "input[0].content", "invalid_type"),
        ([USER, {"role": "user", "content": [{"type": "input_text"}, "x"]}], "input[1].content[1]", "invalid_type"),
        ([{"role": "user", "content": [{"text": "x"}]}], "input[0].content[0].type", "missing_required_parameter"),
        ([{"type": "function_call", "name": "f", "arguments": ""}], "input[0].call_id", "missing_required_parameter"),
        ([{**call("a"), "arguments": {}}], "input[0].arguments", "invalid_type"),
        ([{"type": "custom_tool_call", "call_id": "a", "name": "f"}], "input[0].input", "missing_required_parameter"),
        ([call("a"), {**output("a"), "output": None}], "input[1].output", "invalid_type"),
        ([call("a"), {"type": "function_call_output", "output": ""}], "input[1].call_id", "missing_required_parameter"),
        ([USER, USER, USER, output("a")], "input[3].call_id", "invalid_value"),
        ([output("a"), call("a")], "input[0].call_id", "invalid_value"),
        ([call("a"), output("a"), output("a")], "input[2].call_id", "invalid_value"),
        ([{"role": "user", "content": "x", "y": nest(210)}], "input[0]", "invalid_value"),
    ],
)  # fmt: skip
def test_an_error_names_the_item_and_its_field(items: list[Any], param: str, code: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        group(*items)
    assert (caught.value.param, caught.value.code) == (param, code)
    assert param in caught.value.message


def test_a_second_output_of_a_call_in_the_log_is_refused() -> None:
    with pytest.raises(InvalidRequest, match="already has an output"):
        group(output("a"), output("a"), may_begin_with_result=True)


def test_outputs_of_stored_calls_keep_their_place() -> None:
    items: list[dict[str, Any]] = [
        {"role": "developer", "content": "Be brief."},
        {"role": "user", "content": "Well?"},
        {"role": "system", "content": "Hurry."},
        {"type": "function_call_output", "call_id": "stored", "output": "7"},
    ]
    groups = find_item_groups([orjson.dumps(one) for one in items], may_begin_with_result=True)
    assert groups == [[0], [1], [2], [3]]


@pytest.mark.parametrize("raw", [b"", b"{", b'{"type": "message", "role": "user", "content": "\xff"}', b"nul", b'"x"'])
def test_what_is_no_json_is_refused(raw: bytes) -> None:
    with pytest.raises(InvalidRequest):
        render_messages_for_chat(group_input_items([raw], may_begin_with_result=False))


@given(st.lists(ODD_ITEMS, max_size=5), st.booleans())
def test_any_json_is_refused_or_understood(items: list[Any], may_begin: bool) -> None:
    try:
        raws = group_input_items([orjson.dumps(one) for one in items], may_begin_with_result=may_begin)
    except InvalidRequest:
        return
    assert sum(len(ResponsesMessage(raw).raw_items) for raw in raws) == len(items)
    for raw in raws:
        message = ResponsesMessage(raw)
        read_everything(message)
        assert {message.edit([operation]).role for operation in EACH_OPERATION} == {message.role}
    render_messages_for_chat(raws)
    render_messages_for_responses(raws, own_contents=frozenset())


@given(st.lists(ODD_ITEMS, max_size=4))
def test_any_stored_json_is_read_without_an_error(items: list[Any]) -> None:
    """What another version stored was checked by other rules."""
    message = ResponsesMessage.from_items(items)
    read_everything(message)
    render_messages_for_chat([message.raw])
    render_messages_for_responses([message.raw])
    build_output_items(message, "resp_1")


def read_everything(message: ResponsesMessage) -> None:
    assert message.canonical_form is None or message.canonical_form
    for name in ("role", "name", "text", "refusal_text", "transcript_text", "calls", "result_for", "has_reasoning"):
        getattr(message, name)
    for name in ("counted_content", "attachments", "canonical_note", "is_in_skeleton", "canonical_answer"):
        getattr(message, name)
    for operation in EACH_OPERATION:
        edited = message.edit([operation])
        assert apply_operations(OPERATIONS, message.items, [operation]) == edited.items
