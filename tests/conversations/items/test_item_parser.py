"""Items that a client adds: they are kept as they came, or nothing is."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.conversation.conversation_types import LogMessage
from app.conversations.items.item_building import build_items
from app.conversations.items.item_parser import MAX_ITEMS, parse_items
from app.dialects.items.input_items import USUAL_TYPES
from app.dialects.items.message import ResponsesMessage
from app.errors import InvalidRequest
from tests.conversations.items.example_logs import JSON_VALUES, place_messages

Body = dict[str, Any]


def user(text: Any = "Hi") -> Body:
    return {"role": "user", "content": text}


def said(text: str = "Hello", **fields: Any) -> Body:
    content = [{"type": "output_text", "text": text, "annotations": []}]
    return {"type": "message", "role": "assistant", "content": content, "status": "completed", **fields}


def call(call_id: str = "c1", **fields: Any) -> Body:
    return {"type": "function_call", "call_id": call_id, "name": "f", "arguments": "{}", **fields}


def custom(call_id: str = "c1") -> Body:
    return {"type": "custom_tool_call", "call_id": call_id, "name": "g", "input": "x"}


def output(call_id: str = "c1", value: Any = "42") -> Body:
    return {"type": "function_call_output", "call_id": call_id, "output": value}


def thought(text: str = "First this.") -> Body:
    return {"type": "reasoning", "id": "rs_1", "summary": [{"type": "summary_text", "text": text}]}


def bodies(*items: Body, open_calls: Any = ()) -> list[Body]:
    return [one.body for one in parse_items(items, open_calls=open_calls)]


def list_items(messages: list[ResponsesMessage]) -> list[Body]:
    entries: list[LogMessage] = place_messages(messages)
    return [item for entry in entries for item in build_items(entry)]


def tool_calls(*ids: str) -> list[Body]:
    return [{"id": one, "type": "function", "function": {"name": "f", "arguments": "{}"}} for one in ids]


@pytest.mark.parametrize(
    ("content", "kept"),
    [
        ("Hi", "Hi"),
        ([], ""),
        ([{"type": "input_text", "text": "Hi"}], "Hi"),
        ([{"type": "text", "text": "Hi"}], "Hi"),
        (
            [{"type": "input_text", "text": "a"}, {"type": "input_text", "text": "b"}],
            [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}],
        ),
        (
            [{"type": "input_text", "text": "a", "prompt_cache_breakpoint": {"mode": "explicit"}}],
            [{"type": "text", "text": "a", "prompt_cache_breakpoint": {"mode": "explicit"}}],
        ),
        (
            [{"type": "input_image", "image_url": "u", "detail": "low"}],
            [{"type": "image_url", "image_url": {"url": "u", "detail": "low"}}],
        ),
        (
            [{"type": "input_image", "image_url": "u", "detail": "original"}],
            [{"type": "image_url", "image_url": {"url": "u", "detail": "high"}}],
        ),
        (
            [{"type": "input_file", "file_id": "file-1", "filename": "a.pdf"}],
            [{"type": "file", "file": {"file_id": "file-1", "filename": "a.pdf"}}],
        ),
        (
            [{"type": "input_audio", "input_audio": {"data": "QQ==", "format": "wav"}}],
            [{"type": "input_audio", "input_audio": {"data": "QQ==", "format": "wav"}}],
        ),
        ([{"type": "refusal", "refusal": "No."}], [{"type": "refusal", "refusal": "No."}]),
    ],
)
def test_content_is_kept_as_chat_messages_have_it(content: Any, kept: Any) -> None:
    assert bodies(user(content)) == [{"role": "user", "content": kept}]


@pytest.mark.parametrize(
    ("items", "kept"),
    [
        ([said(), call("c1"), call("c2")], [{"content": "Hello", "tool_calls": tool_calls("c1", "c2")}]),
        ([call("c1"), said()], [{"content": "Hello", "tool_calls": tool_calls("c1")}]),
        ([call("c1")], [{"content": None, "tool_calls": tool_calls("c1")}]),
        ([said("a"), said("b")], [{"content": "a\n\nb"}]),
        ([thought(), said()], [{"content": "Hello", "reasoning_content": "First this."}]),
        (
            [thought("a"), thought("b"), call("c1")],
            [{"content": None, "reasoning_content": "a\n\nb", "tool_calls": tool_calls("c1")}],
        ),
        (
            [said("a"), thought("b"), call("c1")],
            [{"content": "a", "reasoning_content": "b", "tool_calls": tool_calls("c1")}],
        ),
    ],
)
def test_a_models_reasoning_text_and_calls_are_one_message(items: list[Body], kept: list[Body]) -> None:
    assert bodies(*items) == [{"role": "assistant", **one} for one in kept]


def test_reasoning_that_is_sealed_is_kept_sealed() -> None:
    sealed = {"type": "reasoning", "summary": [], "encrypted_content": "abc"}
    (body,) = bodies(sealed, said())
    assert body["reasoning_details"] == [{"type": "reasoning.encrypted", "data": "abc"}]


def test_calls_and_their_results_follow_each_other_round_by_round() -> None:
    told = bodies(call("c1"), call("c2"), output("c2"), output("c1"), custom("c3"), output("c3"), said())
    assert [one["role"] for one in told] == ["assistant", "tool", "tool", "assistant", "tool", "assistant"]
    assert [one.get("tool_call_id") for one in told] == [None, "c2", "c1", None, "c3", None]


def test_results_may_answer_the_calls_at_the_end_of_the_log() -> None:
    assert bodies(output("c9"), open_calls=["c9"]) == [{"role": "tool", "tool_call_id": "c9", "content": "42"}]
    assert len(bodies(output("c9"), open_calls=None)) == 1
    with pytest.raises(InvalidRequest, match=r"items\[0\]\.call_id"):
        bodies(output("c8"), open_calls=["c9"])


@pytest.mark.parametrize(
    ("items", "place"),
    [
        ([user(), {"type": "web_search_call", "id": "ws_1"}], "items[1].type"),
        ([{"type": "compaction", "encrypted_content": "x"}], "items[0].type"),
        ([{"type": "item_reference", "id": "msg_1"}], "items[0].type"),
        ([{"type": 7}], "items[0].type"),
        ([7], "items[0]"),
        ([user(), {"role": "critic", "content": "x"}], "items[1].role"),
        ([user(7)], "items[0].content"),
        ([user([{"text": "x"}])], "items[0].content[0].type"),
        ([output()], "items[0].call_id"),
        ([call(), output("c2")], "items[1].call_id"),
        ([call(), output(), output()], "items[2].call_id"),
        ([user()] * (MAX_ITEMS + 1), "items"),
    ],
)
def test_what_cannot_be_added_is_refused_by_its_place(items: list[Any], place: str) -> None:
    with pytest.raises(InvalidRequest) as refused:
        parse_items(items, open_calls=())
    assert refused.value.param == place


def test_a_refusal_names_the_type_and_what_can_be_kept() -> None:
    with pytest.raises(InvalidRequest, match=r"'web_search_call'.*message, function_call"):
        parse_items([{"type": "web_search_call"}], open_calls=())


def test_an_item_comes_back_with_all_that_the_client_has_sent() -> None:
    cited = {"type": "file_citation", "file_id": "f", "filename": "a", "index": 0}
    sent = [
        {"role": "user", "content": [{"type": "text", "text": "Hi"}], "type": "message", "phase": "commentary"},
        {
            "type": "reasoning",
            "id": "rs_abc",
            "summary": [{"type": "summary_text", "text": "Greet."}],
            "encrypted_content": "sealed",
        },
        {
            "type": "message",
            "id": "msg_abc",
            "role": "assistant",
            "status": "incomplete",
            "phase": "final_answer",
            "content": [{"type": "output_text", "text": "Hello", "annotations": [cited]}],
        },
        call("c1", namespace="weather", id="fc_abc"),
        output("c1", [{"type": "input_image", "image_url": "u", "detail": "auto"}]),
        user([{"type": "input_file", "file_url": "https://example.org"}]),
    ]
    back = list_items(parse_items(sent, open_calls=()))
    for one, item in zip(sent, back, strict=True):
        expected = {**one, "client_id": one["id"]} if "id" in one else one
        assert expected | {"id": item["id"]} == {name: item[name] for name in (*expected, "id")}


def test_items_of_one_conversation_can_be_added_to_another() -> None:
    listed = list_items(parse_items([user(), thought(), said(id="msg_abc"), call()], open_calls=()))
    added = parse_items([{**item, "created_at": 7} for item in listed], open_calls=())
    assert [{**item, "id": ""} for item in list_items(added)] == [{**item, "id": ""} for item in listed]
    names = {name for message in added for item in message.items if isinstance(item, dict) for name in item}
    assert names.isdisjoint({"created_at", "client_id"})
    ids = [item.get("id") for message in added for item in message.items if isinstance(item, dict)]
    assert ids == [None, "rs_1", "msg_abc", None]


@given(
    st.lists(
        st.fixed_dictionaries(
            {"type": st.sampled_from([*USUAL_TYPES, "compaction"]) | JSON_VALUES},
            optional={
                "role": st.sampled_from(["user", "assistant", "system"]) | JSON_VALUES,
                "content": st.sampled_from(["x", [{"type": "input_text", "text": "x"}]]) | JSON_VALUES,
                "call_id": st.sampled_from(["c1", "c2"]) | JSON_VALUES,
                "name": st.just("f") | JSON_VALUES,
                "arguments": st.just("{}") | JSON_VALUES,
                "input": st.just("x") | JSON_VALUES,
                "output": st.just("x") | JSON_VALUES,
                "summary": st.just([]) | JSON_VALUES,
                "status": JSON_VALUES,
            },
        ),
        max_size=6,
    )
)
def test_whatever_comes_is_read_or_refused_as_a_bad_request(items: list[Any]) -> None:
    try:
        incoming = parse_items(items, open_calls=())
    except InvalidRequest as refused:
        assert refused.param is not None
        assert refused.param.startswith("items")
    else:
        assert len(list_items(incoming)) == len(items)


def test_an_item_that_is_nested_too_deeply_is_refused_by_name() -> None:
    deep: list[object] = []
    for _ in range(1_000):
        deep = [deep]
    with pytest.raises(InvalidRequest, match=r"items\[1\] is nested too deeply") as refused:
        parse_items([user(), {"type": "reasoning", "summary": deep}], open_calls=())
    assert refused.value.param == "items[1]"
