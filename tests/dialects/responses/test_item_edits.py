"""Edits: they do to items what they do to the chat form, and leave pairs and other items alone."""

from __future__ import annotations

from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.conversation.item import EditOperation
from app.dialects.body.message import ChatMessage
from app.dialects.body.message_edits import OPERATIONS as CHAT_OPERATIONS
from app.dialects.body.message_edits import apply_operations
from app.dialects.items.item_edits import EMPTY_IMAGE, OPERATIONS
from app.dialects.items.message import ResponsesMessage
from tests.dialects.responses.histories import TALKS, Talk
from tests.support.input_items import group_input_items

LONG: Any = "first line\n" + "x" * 500 + "\nlast line"
ARGUMENTS = orjson.dumps({"a": LONG}).decode()
SHELL_OUTPUT: dict[str, Any] = {
    "type": "shell_call_output",
    "call_id": "s",
    "output": [{"stdout": LONG, "stderr": "", "outcome": {"type": "exit", "exit_code": 1}}],
}
SCREENSHOT: dict[str, Any] = {
    "type": "computer_call_output",
    "call_id": "c",
    "output": {"type": "computer_screenshot", "image_url": "data:image/png;base64," + "A" * 500},
}
EDITS = st.lists(
    st.sampled_from(
        [
            ("shorten", 0.3),
            ("contents", 6),
            ("contents", 8, 0.5),
            ("arguments", 120),
            ("say", "[left out]"),
            ("inputs",),
            ("thoughtless",),
        ]
    ),
    min_size=1,
    max_size=3,
)


def edit(items: list[Any], *operations: EditOperation) -> list[Any]:
    return apply_operations(OPERATIONS, items, operations)


def group(items: list[dict[str, Any]]) -> list[ResponsesMessage]:
    raws = group_input_items([orjson.dumps(item) for item in items], may_begin_with_result=False)
    return [ResponsesMessage(raw) for raw in raws]


def list_paired_types(message: ResponsesMessage) -> list[str]:
    return [item["type"] for item in message.items if isinstance(item, dict) and "call_id" in item]


def test_both_protocols_have_the_same_operations() -> None:
    assert OPERATIONS.keys() == CHAT_OPERATIONS.keys()


@given(TALKS, EDITS)
def test_an_edit_of_items_is_the_edit_of_their_chat_form(talk: Talk, operations: list[EditOperation]) -> None:
    for message in group(talk[1]):
        assert message.edit(operations).body == ChatMessage(b"", message.body).edit(operations).body


@given(TALKS, EDITS)
def test_an_edit_gives_the_same_bytes_again_and_keeps_calls_and_outputs(
    talk: Talk, operations: list[EditOperation]
) -> None:
    for message in group(talk[1]):
        edited = message.edit(operations)
        assert edited.raw == message.edit(operations).raw
        assert (edited.role, edited.result_for) == (message.role, message.result_for)
        assert [(one.id, one.name, one.kind) for one in edited.calls] == [
            (one.id, one.name, one.kind) for one in message.calls
        ]
        assert list_paired_types(edited) == list_paired_types(message)


def test_items_that_an_edit_does_not_concern_keep_their_json() -> None:
    items: list[dict[str, Any]] = [
        {"type": "reasoning", "id": "rs", "encrypted_content": "z" * 500, "summary": []},
        {"type": "web_search_call", "id": "ws", "action": {"query": "q" * 500}},
        {"type": "shell_call", "id": "sh", "call_id": "s", "action": {"commands": ["c" * 500]}},
        {"type": "message", "id": "m", "role": "assistant", "content": [{"type": "output_text", "text": LONG, "x": 1}]},
        {"type": "function_call", "id": "f", "call_id": "c", "name": "f", "arguments": ARGUMENTS},
    ]
    edited = edit(items, ("shorten", 0.3))
    assert edited[:3] == items[:3]
    assert {**edited[3], "content": 0} == {**items[3], "content": 0}
    assert edited[3]["content"][0]["x"] == 1
    assert len(edited[3]["content"][0]["text"]) < 250 > len(edited[4]["arguments"])
    assert [one["id"] for one in edit(items, ("inputs",))] == ["rs", "ws", "sh", "m", "f"]


def test_what_loses_its_reasoning_loses_its_ids() -> None:
    items: list[dict[str, Any]] = [
        {"type": "reasoning", "id": "rs", "encrypted_content": "z", "summary": []},
        {"type": "web_search_call", "id": "ws"},
        {"type": "function_call", "id": "f", "call_id": "c", "name": "f", "arguments": "{}"},
    ]
    edited = [items[1], {name: value for name, value in items[2].items() if name != "id"}]
    assert edit(items, ("thoughtless",)) == edited
    assert edit(items[1:], ("thoughtless",)) == items[1:]


@pytest.mark.parametrize(
    ("item", "operation", "expected"),
    [
        (LONG, ("say", "x"), "x"),
        ({"role": "user", "content": LONG}, ("say", "x"), {"type": "message", "role": "user", "content": "x"}),
        (
            SHELL_OUTPUT,
            ("say", "x"),
            {**SHELL_OUTPUT, "output": [{"stdout": "x", "stderr": "", "outcome": {"type": "exit", "exit_code": 0}}]},
        ),
        (
            SCREENSHOT,
            ("say", "x"),
            {**SCREENSHOT, "output": {"type": "computer_screenshot", "image_url": EMPTY_IMAGE}},
        ),
        (SCREENSHOT, ("contents", 10), SCREENSHOT),
        (
            {"type": "apply_patch_call_output", "call_id": "a", "status": "failed", "output": LONG},
            ("say", "x"),
            {"type": "apply_patch_call_output", "call_id": "a", "status": "failed", "output": "x"},
        ),
        (
            {"type": "mcp_approval_response", "approval_request_id": "a", "approve": True, "reason": LONG},
            ("say", "x"),
            {"type": "mcp_approval_response", "approval_request_id": "a", "approve": True, "reason": "x"},
        ),
    ],
)
def test_what_stands_for_a_text_has_the_shape_that_the_item_needs(item: Any, operation: Any, expected: Any) -> None:
    assert edit([item], operation) == [expected]


def test_the_output_of_a_shell_is_cut_where_its_text_is() -> None:
    (cut,) = edit([SHELL_OUTPUT], ("contents", 100))
    assert "characters left out" in cut["output"][0]["stdout"]
    assert cut["output"][0]["outcome"] == {"type": "exit", "exit_code": 1}
