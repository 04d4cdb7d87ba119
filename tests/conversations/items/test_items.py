"""Chat messages as items: whatever stands in a log, OpenAI's SDK can read it, and each item can be found again."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace
from openai.types.conversations import Message as SdkMessage
from openai.types.responses import (
    ResponseCustomToolCall,
    ResponseCustomToolCallOutput,
    ResponseFunctionToolCallItem,
    ResponseFunctionToolCallOutputItem,
    ResponseReasoningItem,
)

from app.conversation.conversation_types import Conversation, LogMessage
from app.conversations.items.item_building import (
    DELETED,
    build_instruction_items,
    build_item_id,
    build_items,
    find_instruction_index,
    find_message_item_id,
    parse_item_id,
)
from app.dialects.items.message import ResponsesMessage
from app.pipeline.turn.resolved_request import STORED_INSTRUCTIONS
from tests.conversations.items.example_logs import LOGS, placed

Body = dict[str, Any]
SDK: dict[str, Any] = {
    "message": SdkMessage,
    "function_call": ResponseFunctionToolCallItem,
    "function_call_output": ResponseFunctionToolCallOutputItem,
    "custom_tool_call": ResponseCustomToolCall,
    "custom_tool_call_output": ResponseCustomToolCallOutput,
    "reasoning": ResponseReasoningItem,
}


def check_as_the_sdk(item: Body) -> None:
    SDK[item["type"]].model_validate(item)


def only(body: Body) -> LogMessage:
    (entry,) = placed([body])
    return entry


def made_of(body: Body) -> list[Body]:
    """The items of a message, without their ids."""
    items = build_items(only(body))
    for item in items:
        check_as_the_sdk(item)
    return [{name: value for name, value in item.items() if name != "id"} for item in items]


@given(LOGS, st.booleans())
def test_every_message_of_any_log_makes_items_that_the_sdk_reads(bodies: list[Body], incomplete: bool) -> None:
    log = placed(bodies, incomplete=incomplete)
    call = None
    ids = []
    for entry in log:
        call = call if entry.message.role in ("tool", "function") else entry
        items = build_items(entry, call=call)
        assert items
        for part, item in enumerate(items):
            check_as_the_sdk(item)
            place = parse_item_id(item["id"])
            assert place is not None
            assert (place.seq, place.part) == (entry.seq, part)
            assert place.matches_message(entry)
            ids.append(item["id"])
        saying = [item["id"] for item in items if item["type"] == "message"]
        assert find_message_item_id(entry) == (saying or [items[0]["id"]])[0]
        assert [item["id"] for item in items] == [item["id"] for item in build_items(entry)]
    assert len(set(ids)) == len(ids)


def test_an_id_names_the_message_and_everything_before_it() -> None:
    first, second = placed([{"role": "user", "content": "a"}, {"role": "user", "content": "b"}])
    other = placed([{"role": "user", "content": "x"}, {"role": "user", "content": "b"}])[1]
    place = parse_item_id(build_item_id("msg", second, 0))
    assert place is not None
    assert [place.matches_message(entry) for entry in (first, second, other)] == [False, True, False]


@pytest.mark.parametrize("text", ["", "msg_1", "conv_" + "0" * 48, "sum_" + "0" * 32, "msg_" + "g" * 34])
def test_ids_of_other_things_name_no_place(text: str) -> None:
    assert parse_item_id(text) is None


TEXT = {"type": "output_text", "text": "Hello", "annotations": []}


@pytest.mark.parametrize(
    ("body", "items"),
    [
        pytest.param(
            {"role": "user", "content": "Hi", "name": "Ann"},
            [
                {
                    "type": "message",
                    "role": "user",
                    "content": [{"type": "input_text", "text": "Hi"}],
                    "name": "Ann",
                    "status": "completed",
                }
            ],
            id="a user's text",
        ),
        pytest.param(
            {
                "role": "assistant",
                "content": "Hello",
                "reasoning_content": "Greet.",
                "tool_calls": [
                    {"id": "c1", "type": "function", "function": {"name": "f", "arguments": "{}"}},
                    {"id": "c2", "type": "custom", "custom": {"name": "g", "input": "x"}},
                ],
            },
            [
                {
                    "type": "reasoning",
                    "summary": [],
                    "content": [{"type": "reasoning_text", "text": "Greet."}],
                    "status": "completed",
                },
                {"type": "message", "role": "assistant", "content": [TEXT], "status": "completed"},
                {"type": "function_call", "call_id": "c1", "name": "f", "arguments": "{}", "status": "completed"},
                {"type": "custom_tool_call", "call_id": "c2", "name": "g", "input": "x", "status": "completed"},
            ],
            id="reasoning, text and calls",
        ),
        pytest.param(
            {"role": "assistant", "content": None, "function_call": {"name": "f", "arguments": "{}"}},
            [
                {
                    "type": "function_call",
                    "call_id": "call_0000000000",
                    "name": "f",
                    "arguments": "{}",
                    "status": "completed",
                }
            ],
            id="a call as it was before tools",
        ),
        pytest.param(
            {"role": "assistant", "content": None, "refusal": "No."},
            [
                {
                    "type": "message",
                    "role": "assistant",
                    "content": [{"type": "refusal", "refusal": "No."}],
                    "status": "completed",
                }
            ],
            id="a refusal",
        ),
        pytest.param(
            {"role": "tool", "tool_call_id": "c1", "content": "42"},
            [{"type": "function_call_output", "call_id": "c1", "output": "42", "status": "completed"}],
            id="a result",
        ),
        pytest.param(
            {"role": "tool", "tool_call_id": "c1", "content": [{"type": "text", "text": "42"}]},
            [
                {
                    "type": "function_call_output",
                    "call_id": "c1",
                    "output": [{"type": "input_text", "text": "42"}],
                    "status": "completed",
                }
            ],
            id="a result of parts",
        ),
        pytest.param(
            {"role": "assistant", "content": ""},
            [{"type": "message", "role": "assistant", "content": [], "status": "completed"}],
            id="an answer that says nothing",
        ),
        pytest.param(
            {
                "role": "user",
                "content": [
                    {"type": "image_url", "image_url": {"url": "u", "detail": "high"}},
                    {"type": "input_audio", "input_audio": {"data": "QQ==", "format": "mp3"}},
                    {"type": "file", "file": {"file_id": "file-1"}},
                ],
            },
            [
                {
                    "type": "message",
                    "role": "user",
                    "content": [
                        {"type": "input_image", "image_url": "u", "detail": "high"},
                        {"type": "input_file", "filename": "audio.mp3", "file_data": "data:audio/mpeg;base64,QQ=="},
                        {"type": "input_file", "file_id": "file-1"},
                    ],
                    "status": "completed",
                }
            ],
            id="an image, a sound and a file",
        ),
        pytest.param(
            {"role": "assistant", "content": None, "audio": {"id": "a", "transcript": "Hello"}},
            [
                {
                    "type": "message",
                    "role": "assistant",
                    "content": [TEXT],
                    "audio": {"id": "a", "transcript": "Hello"},
                    "status": "completed",
                }
            ],
            id="a spoken answer",
        ),
    ],
)
def test_a_message_makes_the_items_that_openai_would_have_for_it(body: Body, items: list[Body]) -> None:
    assert made_of(body) == items


def test_citations_stand_at_the_text() -> None:
    cited = {"url": "u", "title": "t", "start_index": 0, "end_index": 5}
    (item,) = made_of(
        {
            "role": "assistant",
            "content": "Hello",
            "annotations": [{"type": "url_citation", "url_citation": cited}, {"type": "odd"}],
        }
    )
    assert item["content"][0]["annotations"] == [{"type": "url_citation", **cited}]


def test_an_answer_that_broke_off_is_incomplete() -> None:
    (entry,) = placed([{"role": "assistant", "content": "Hel"}], incomplete=True)
    assert build_items(entry)[0]["status"] == "incomplete"


def test_the_result_of_a_custom_tool_is_told_from_that_of_a_function() -> None:
    call, result = placed(
        [
            {"role": "assistant", "tool_calls": [{"id": "c", "type": "custom", "custom": {"name": "g", "input": ""}}]},
            {"role": "tool", "tool_call_id": "c", "content": "42"},
        ]
    )
    assert build_items(result, call=call)[0]["type"] == "custom_tool_call_output"


def test_deleted_parts_are_left_out_and_the_others_keep_their_ids() -> None:
    entry = only(
        {
            "role": "assistant",
            "content": "[deleted]",
            "tool_calls": [{"id": "c1", "type": "function", "function": {"name": "f", "arguments": "{}"}}],
        }
    )
    before = build_items(entry)
    after = build_items(replace(entry, meta={DELETED: {"parts": [0], "erased": False}}))
    assert after == before[1:]


def test_instructions_are_items_that_can_be_found_again() -> None:
    raws = ['{"role":"system","content":"Be kind."}', '{"role":"developer","content":"Be brief."}', '["Be true."]']
    conversation = Conversation(
        id="c",
        root="r",
        tenant="t",
        head_seq=-1,
        head_link=b"",
        head_skeleton=b"",
        head_tokens_total=0,
        answered=False,
        encoding="o200k_base",
        state={STORED_INSTRUCTIONS: raws},
    )
    items = build_instruction_items(conversation)
    for item in items:
        check_as_the_sdk(item)
    assert [item["role"] for item in items] == ["system", "developer", "system"]
    assert [item["content"][0]["text"] for item in items] == ["Be kind.", "Be brief.", "Be true."]
    assert [find_instruction_index(conversation, item["id"]) for item in items] == [0, 1, 2]
    assert find_instruction_index(conversation, "msg_i0000" + "0" * 24) is None


OWN_ITEMS: list[Body] = [
    {"type": "reasoning", "id": "rs_1", "summary": [], "encrypted_content": "zz"},
    {"type": "web_search_call", "id": "ws_1", "status": "completed", "action": {"type": "search", "query": "Paris"}},
    {"type": "message", "id": "msg_1", "role": "assistant", "phase": "final_answer", "content": "Yes."},
    {"type": "function_call", "call_id": "c", "name": "f", "namespace": "n", "arguments": "{}", "status": "incomplete"},
]


def test_a_message_of_items_is_shown_as_its_own_items_with_our_ids() -> None:
    (entry,) = placed([{"role": "user", "content": "Hi"}])
    entry = replace(entry, message=ResponsesMessage.from_items(OWN_ITEMS))
    items = build_items(entry)
    for part, (item, own) in enumerate(zip(items, OWN_ITEMS, strict=True)):
        parsed = parse_item_id(item["id"])
        assert parsed is not None
        assert (parsed.seq, parsed.part, parsed.matches_message(entry)) == (entry.seq, part, True)
        assert item.get("client_id") == own.get("id")
        assert {name: item[name] for name in own if name not in ("id", "content")} == {
            name: value for name, value in own.items() if name not in ("id", "content")
        }
        if item["type"] in SDK:
            check_as_the_sdk(item)
    assert items[2]["content"] == [{"type": "output_text", "text": "Yes.", "annotations": []}]
    assert find_message_item_id(entry) == items[2]["id"]
    swapped = replace(entry, message=ResponsesMessage.from_items([OWN_ITEMS[3], OWN_ITEMS[2]]))
    assert find_message_item_id(swapped) == build_items(swapped)[1]["id"]
