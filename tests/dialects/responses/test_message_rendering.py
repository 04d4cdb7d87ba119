"""Renderings: what both protocols express goes there and back; the rest is named."""

from __future__ import annotations

from collections.abc import Set
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st
from openai.types.responses import ResponseOutputItem
from pydantic import TypeAdapter

from app.dialects.body.message import ChatMessage
from app.dialects.item_decoding import decode_item
from app.dialects.items.input_items import encode_instructions
from app.dialects.items.message import ResponsesMessage
from app.dialects.message_rendering import build_output_items, render_messages_for_chat, render_messages_for_responses
from app.dialects.missing_tool_results import MISSING_RESULT_TEXT, add_missing_tool_results
from tests.dialects.responses.histories import TALKS, TURNS, Talk
from tests.support.input_items import group_input_items

USER = {"role": "user", "content": "Hi"}
SEALED = {"type": "reasoning", "id": "rs", "summary": [], "encrypted_content": "zz"}
BARE = {"type": "reasoning", "id": "rs", "summary": [{"type": "summary_text", "text": "Hm."}]}
SAID = {"type": "message", "id": "m", "role": "assistant", "content": [{"type": "output_text", "text": "Yes."}]}
CALL = {"type": "function_call", "id": "fc", "call_id": "c", "name": "f", "arguments": "{}"}
SEARCH = {"type": "web_search_call", "id": "ws", "action": {}}
OUTPUT_ITEM = TypeAdapter[Any](ResponseOutputItem)


def dump(messages: list[Any]) -> list[bytes]:
    return [orjson.dumps(one) for one in messages]


def to_chat(*messages: Any) -> tuple[list[Any], list[str]]:
    raws, warnings = render_messages_for_chat(dump(list(messages)))
    return [orjson.loads(raw) for raw in raws], warnings


def to_items(*messages: Any, own_contents: Set[str] | None = None) -> tuple[list[Any], list[str]]:
    rendered = render_messages_for_responses(dump(list(messages)), own_contents=own_contents)
    return [orjson.loads(raw) for raw in rendered.messages], [*rendered.warnings]


def group(items: list[dict[str, Any]]) -> list[bytes]:
    return group_input_items(dump(items), may_begin_with_result=False)


@given(TALKS)
def test_chat_goes_to_items_and_back(talk: Talk) -> None:
    chat, items = talk
    rendered = render_messages_for_responses(dump(chat))
    assert rendered.warnings == []
    assert [orjson.loads(raw) for raw in rendered.messages] == items
    back, warnings = render_messages_for_chat(group_input_items(rendered.messages, may_begin_with_result=False))
    assert ([orjson.loads(raw) for raw in back], warnings) == (chat, [])


@given(TALKS)
def test_items_go_to_chat_and_back(talk: Talk) -> None:
    raws, warnings = render_messages_for_chat(group(talk[1]))
    assert warnings == []
    assert [orjson.loads(raw) for raw in render_messages_for_responses(raws).messages] == talk[1]


@given(TURNS, st.data())
def test_a_conversation_may_change_its_protocol_at_any_message(turns: list[Talk], data: st.DataObject) -> None:
    mixed: list[bytes] = []
    for chat, items in turns:
        mixed += data.draw(st.sampled_from([dump(chat), group(items)]))
    all_items = [item for _, items in turns for item in items]
    assert [orjson.loads(raw) for raw in render_messages_for_responses(mixed).messages] == all_items
    chat_messages = [orjson.loads(raw) for raw in render_messages_for_chat(mixed)[0]]
    assert chat_messages == [message for chat, _ in turns for message in chat]


@given(TURNS, st.data())
def test_messages_of_the_providers_protocol_keep_their_bytes(turns: list[Talk], data: st.DataObject) -> None:
    style = data.draw(st.sampled_from([0, orjson.OPT_INDENT_2]))
    raw_items = [orjson.dumps(item, option=style) for _, items in turns for item in items]
    raws = group_input_items(raw_items, may_begin_with_result=False)
    assert render_messages_for_responses(raws).messages == raw_items
    chat = [orjson.dumps(message, option=style) for messages, _ in turns for message in messages]
    assert render_messages_for_chat(chat) == (chat, [])


@given(TALKS, st.data())
def test_a_missing_result_is_translated_for_the_provider(talk: Talk, data: st.DataObject) -> None:
    raws = group(talk[1])
    results = [raw for raw in raws if decode_item(raw).role == "tool"]
    lost = data.draw(st.lists(st.sampled_from(results), max_size=2)) if results else []
    view = add_missing_tool_results([*[raw for raw in raws if raw not in lost], orjson.dumps(USER)])
    items = [orjson.loads(raw) for raw in render_messages_for_responses(view).messages]
    calls = {(item["call_id"], f"{item['type']}_output") for item in items if item["type"].endswith("_call")}
    outputs = {(item["call_id"], item["type"]) for item in items if item["type"].endswith("_output")}
    assert calls == outputs
    assert sum(item.get("output") == MISSING_RESULT_TEXT for item in items) == len(set(lost))


def test_instructions_are_a_field_of_a_responses_request_and_a_message_of_chat() -> None:
    raws = [encode_instructions(b'"Brief."'), *dump([[USER]])]
    rendered = render_messages_for_responses(raws)
    assert (rendered.fields["instructions"], rendered.messages) == (b'"Brief."', dump([USER]))
    assert render_messages_for_chat(raws)[0][0] == b'{"role":"system","content":"Brief."}'
    assert render_messages_for_responses(dump([USER])).fields["instructions"] is None


def test_reasoning_that_only_the_provider_holds_is_left_out_with_the_ids_that_ask_for_it() -> None:
    assert to_items([SEALED, SAID, CALL]) == ([SEALED, SAID, CALL], [])
    said, call = [{name: value for name, value in one.items() if name != "id"} for one in (SAID, CALL)]
    assert to_items([BARE, SAID, SEARCH, CALL], [SEALED, CALL]) == ([said, SEARCH, call, SEALED, CALL], [])


def test_encrypted_content_goes_only_where_it_came_from() -> None:
    told = {**SEALED, "content": [{"type": "reasoning_text", "text": "Hm."}]}
    theirs = {"type": "compaction", "encrypted_content": "zz"}
    items, warnings = to_items([SEALED, SAID], [told, SAID], [theirs], own_contents=frozenset())
    said = {name: value for name, value in SAID.items() if name != "id"}
    assert items == [said, {"type": "reasoning", "summary": [], "content": told["content"]}, SAID]
    assert [one.rpartition(": ")[2] for one in warnings] == [
        "encrypted reasoning of another provider.",
        "encrypted compaction items of another provider.",
    ]
    assert to_items([theirs]) == ([theirs], [])


def test_a_compaction_of_the_gateway_is_sent_as_its_text() -> None:
    ours = {"type": "compaction", "encrypted_content": "We met.", "text": "We met."}
    assert to_items([ours, SAID])[0] == [{"type": "message", "role": "user", "content": "We met."}, SAID]
    assert to_chat([ours]) == ([{"role": "assistant", "content": "We met."}], [])


def test_references_are_left_out() -> None:
    items, warnings = to_items([{"type": "item_reference", "id": "x"}, SAID])
    assert items == [SAID]
    assert warnings == ["Not sent, because the Responses API has no place for it: items of type 'item_reference'."]


@pytest.mark.parametrize(
    ("items", "kinds"),
    [
        ([SEALED, SAID], ["encrypted reasoning"]),
        ([{**SEALED, "content": [{"type": "reasoning_text", "text": "Hm."}]}, SAID], ["encrypted reasoning"]),
        ([SEARCH, SAID, SEARCH], ["items and parts of type 'web_search_call'"]),
        ([{"type": "compaction", "encrypted_content": "zz"}, SAID], ["items and parts of type 'compaction'"]),
        ([{"type": "item_reference", "id": "x"}, SAID], ["items and parts of type 'item_reference'"]),
        ([{"type": "something_new"}, SAID], ["items and parts of type 'something_new'"]),
        ([{**SAID, "phase": "commentary"}], ["the field 'phase' of items of type 'message'"]),
        ([{**SAID, "content": [{"type": "output_text", "text": "Yes.", "annotations": [{}], "logprobs": [{}]}]}],
         ["the field 'annotations' of content parts"]),
    ],
)  # fmt: skip
def test_what_chat_cannot_express_is_named(items: list[dict[str, Any]], kinds: list[str]) -> None:
    messages, warnings = to_chat(items, items)
    assert [one["content"] for one in messages] == ["Yes.", "Yes."]
    assert all(one.keys() <= {"role", "content", "reasoning_content"} for one in messages)
    assert warnings == [f"Not sent, because Chat Completions has no place for it: {kind}." for kind in kinds]


def test_a_run_of_which_nothing_is_left_is_no_message() -> None:
    assert to_chat([SEARCH], [USER])[0] == [USER]
    assert to_chat([{"role": "user", "content": [{"type": "odd"}]}], [USER])[0] == [USER]


@pytest.mark.parametrize(
    ("message", "kind"),
    [
        ({**USER, "name": "Ann"}, "the field 'name' of messages"),
        ({"role": "user", "content": ["Hi", {"type": "video", "v": 1}]}, "parts of type 'video'"),
        ({"role": "user", "content": [{"type": "text", "text": "Hi", "cache_control": {"type": "ephemeral"}}]},
         "the field 'cache_control' of content parts"),
        ({"role": "assistant", "content": "Hi", "audio": {"id": "a"}}, "the field 'audio' of messages"),
        ({"role": "assistant", "content": "Hi", "thinking_blocks": [{"thinking": "Hm.", "signature": "s"}]},
         "signatures of reasoning"),
    ],
)  # fmt: skip
def test_what_items_cannot_express_is_named(message: dict[str, Any], kind: str) -> None:
    items, warnings = to_items(message, message)
    assert "Hi" in str(items)
    assert warnings == [f"Not sent, because the Responses API has no place for it: {kind}."]


def test_names_that_a_client_chooses_cannot_make_endless_warnings() -> None:
    _, warnings = to_items({**USER, **{f"{number}{'x' * 1000}": 1 for number in range(99)}})
    assert len(warnings) <= 20
    assert max(map(len, warnings)) < 200


def test_images_of_results_stand_behind_the_results_of_the_round() -> None:
    image = {"type": "input_image", "image_url": "data:x", "detail": "auto"}
    calls = [CALL, {**CALL, "call_id": "d"}]
    outputs = [
        {"type": "function_call_output", "call_id": "c", "output": [{"type": "input_text", "text": "Look."}, image]},
        {"type": "function_call_output", "call_id": "d", "output": "7"},
    ]
    messages, warnings = to_chat(calls, [outputs[0]], [outputs[1]], [SAID])
    assert [one["role"] for one in messages] == ["assistant", "tool", "tool", "user", "assistant"]
    assert [messages[1]["content"], messages[2]["content"]] == ["Look.", "7"]
    assert messages[3]["content"][1] == {"type": "image_url", "image_url": {"url": "data:x", "detail": "auto"}}
    assert warnings == []


def test_calls_without_ids_are_paired() -> None:
    calling = {"role": "assistant", "content": None, "function_call": {"name": "f", "arguments": "{}"}}
    result = {"role": "function", "name": "f", "content": "7"}
    items, warnings = to_items(calling, result, calling, result)
    ids = [one["call_id"] for one in items]
    assert ids[0] == ids[1] != ids[2] == ids[3]
    assert [one["type"] for one in items] == ["function_call", "function_call_output"] * 2
    assert warnings == []


@given(TALKS, st.booleans())
def test_a_stored_answer_is_shown_as_output_items_of_openais_types(talk: Talk, is_chat: bool) -> None:
    chat, items = talk
    messages = [ChatMessage.from_body(body) for body in chat] if is_chat else map(ResponsesMessage, group(items))
    for message in messages:
        if message.role != "assistant":
            continue
        output = build_output_items(message, "resp_" + "0" * 48)
        assert output == build_output_items(message, "resp_" + "0" * 48)
        assert len({item["id"] for item in output}) == len(output)
        assert ResponsesMessage.from_items(output).canonical_form == message.canonical_form
        if is_chat:
            for item in output:
                OUTPUT_ITEM.validate_python(item, strict=False)
                assert item["status"] == "completed"


def test_a_provider_s_own_items_are_shown_as_they_are() -> None:
    message = ResponsesMessage.from_items([SEALED, SEARCH, SAID])
    assert build_output_items(message, "resp_1") == [SEALED, SEARCH, SAID]
