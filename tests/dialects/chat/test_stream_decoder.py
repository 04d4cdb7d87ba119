"""Deltas → message and usage, over the ways in which providers cut them."""

from __future__ import annotations

import json
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.dialects.chat.stream_decoder import ChatStreamDecoder
from app.errors import UpstreamUnavailable


def chunk(delta: dict[str, Any] | None = None, finish: str | None = None, index: int = 0, **more: Any) -> bytes:
    choice = {"index": index, "delta": delta or {}, "logprobs": None, "finish_reason": finish}
    return json.dumps(
        {"id": "c1", "object": "chat.completion.chunk", "model": "m", "choices": [choice], **more}
    ).encode()


def collect(*deltas: dict[str, Any]) -> ChatStreamDecoder:
    collector = ChatStreamDecoder()
    for delta in deltas:
        collector.add_chunk(chunk(delta))
    return collector


def call(
    index: Any = 0, call_id: str | None = None, name: str | None = None, arguments: Any = None, **more: Any
) -> Any:
    fragment: dict[str, Any] = {"function": {}, **more}
    if index is not None:
        fragment["index"] = index
    if call_id is not None:
        fragment["id"] = call_id
    if name is not None:
        fragment["function"]["name"] = name
    if arguments is not None:
        fragment["function"]["arguments"] = arguments
    return fragment


def test_pieces_of_text_become_one_message() -> None:
    collector = collect({"role": "assistant", "content": ""}, {"content": "Hel"}, {"content": "lo"})
    collector.add_chunk(chunk(finish="stop"))
    collector.add_chunk(
        b'{"id":"c1","object":"chat.completion.chunk","choices":[],"usage":{"prompt_tokens":3,"completion_tokens":2}}'
    )

    assert collector.build_message() == {"role": "assistant", "content": "Hello"}
    assert collector.usage == {"prompt_tokens": 3, "completion_tokens": 2}
    assert (collector.id, collector.model, collector.finish, collector.is_complete) == ("c1", "m", "stop", True)
    assert collector.has_content
    assert collector.error_data is None


def test_without_a_finish_reason_it_is_not_complete() -> None:
    collector = collect({"content": "Hel"})
    collector.add_chunk(chunk({"content": "lo"}, finish=""))

    assert not collector.is_complete
    assert collector.finish is None


def test_an_empty_answer_has_no_content() -> None:
    collector = collect({"role": "assistant", "content": ""})
    collector.add_chunk(chunk(finish="length"))

    assert not collector.has_content
    assert collector.build_message() == {"role": "assistant", "content": ""}


def test_each_choice_is_a_message_and_all_must_finish() -> None:
    collector = ChatStreamDecoder()
    collector.add_chunk(chunk({"content": "b"}, index=1))
    collector.add_chunk(chunk({"content": "a"}))
    collector.add_chunk(chunk(finish="stop"))
    assert not collector.is_complete
    collector.add_chunk(chunk(finish="length", index=1))

    assert [message["content"] for message in [collector.build_message(), *collector.build_alternatives()]] == [
        "a",
        "b",
    ]
    assert (collector.is_complete, collector.finish) == (True, "stop")


@pytest.mark.parametrize(
    ("deltas", "expected"),
    [
        pytest.param(
            [
                [call(0, "a", "f", "")],
                [call(0, arguments='{"x"')],
                [call(0, arguments=":1}")],
                [call(1, "b", "g", "{}")],
            ],
            [("a", "f", '{"x":1}'), ("b", "g", "{}")],
            id="as OpenAI sends them",
        ),
        pytest.param(
            [[call(0, "a", "f", '{"x"')], [call(0, "a", "f", ":1")], [call(0, "a", "f", "}")]],
            [("a", "f", '{"x":1}')],
            id="id and name repeated",
        ),
        pytest.param(
            [[call(0, "", "f", '{"x"')], [call(0, "", "f", ":1}")]],
            [("", "f", '{"x":1}')],
            id="name repeated, id empty",
        ),
        pytest.param(
            [[call(0, "r1", "f", "{")], [call(0, "r2", arguments="}")]], [("r1", "f", "{}")], id="a new id per fragment"
        ),
        pytest.param(
            [[call(None, "a", "f", "{")], [call(None, None, None, "}")], [call(None, "b", "g", "{}")]],
            [("a", "f", "{}"), ("b", "g", "{}")],
            id="no index",
        ),
        pytest.param(
            [
                [call(None, "a", "f", "{"), call(None, "b", "g", "[")],
                [call(None, "a", None, "}")],
                [call(None, "b", None, "]")],
            ],
            [("a", "f", "{}"), ("b", "g", "[]")],
            id="no index, told apart by id",
        ),
        pytest.param(
            [[call(0, "a", "f", "{}")], [call(0, "b", "f", "{}")]],
            [("a", "f", "{}"), ("b", "f", "{}")],
            id="several calls under index 0 with different ids",
        ),
        pytest.param(
            [[call(0, "", "f", '{"x":1}')], [call(0, "", "f", '{"x":2}')], [call(0, "", "g", "{}")]],
            [("", "f", '{"x":1}'), ("", "f", '{"x":2}'), ("", "g", "{}")],
            id="whole calls under index 0 without ids",
        ),
        pytest.param(
            [[call(None, None, "f", '{"x":1}'), call(None, None, "f", '{"x":2}')]],
            [("", "f", '{"x":1}'), ("", "f", '{"x":2}')],
            id="whole calls in one chunk, neither index nor id",
        ),
        pytest.param(
            [[call(None, "a", "f", '{"x":1}'), call(None, "a", "f", '{"x":2}'), call(None, "a", "g", "{}")]],
            [("a", "f", '{"x":1}'), ("a", "f", '{"x":2}'), ("a", "g", "{}")],
            id="whole calls in one chunk, all with one id",
        ),
        pytest.param(
            [[call(0, "a", "get_")], [call(0, None, "time", "{}")]], [("a", "get_time", "{}")], id="name in pieces"
        ),
        pytest.param([[call(0, "a", "f", {"x": 1})]], [("a", "f", '{"x":1}')], id="arguments as an object"),
        pytest.param(
            [[call(1, "b", "g", "{}")], [call(0, "a", "f", "{}")]],
            [("a", "f", "{}"), ("b", "g", "{}")],
            id="out of order",
        ),
        pytest.param(
            [[call("0", "a", "f", "{")], [call(0.0, None, None, "}")]], [("a", "f", "{}")], id="index as text or float"
        ),
    ],
)
def test_tool_calls_are_put_together(deltas: list[list[dict[str, Any]]], expected: list[tuple[str, str, str]]) -> None:
    collector = collect(*({"tool_calls": fragments} for fragments in deltas))
    message = collector.build_message()

    assert [(c["id"], c["function"]["name"], c["function"]["arguments"]) for c in message["tool_calls"]] == expected
    assert {c["type"] for c in message["tool_calls"]} == {"function"}
    assert message["content"] is None
    assert collector.has_content


def test_a_thought_signature_stays_with_its_call() -> None:
    signature = {"google": {"thought_signature": "c2ln"}}
    collector = collect({"tool_calls": [call(0, "a", "f", "{}", extra_content=signature, type="function")]})

    assert collector.build_message()["tool_calls"] == [
        {"id": "a", "type": "function", "function": {"name": "f", "arguments": "{}"}, "extra_content": signature}
    ]


def test_parallel_calls_of_a_whole_answer_stay_apart_whatever_their_kind() -> None:
    calls = [
        {"id": "a", "type": "custom", "custom": {"name": "sql", "input": "select 1"}},
        {"id": "b", "type": "custom", "custom": {"name": "sql", "input": "select 2"}},
        {"id": "c", "type": "function", "function": {"name": "now", "arguments": "{}"}},
        {"id": "d", "type": "custom", "custom": {"name": "sql", "input": "select 3"}},
    ]
    collector = ChatStreamDecoder()
    collector.add_whole(json.dumps({"choices": [{"message": {"tool_calls": calls}}]}).encode())

    assert collector.build_message()["tool_calls"] == calls


def test_a_custom_call_keeps_its_own_shape() -> None:
    collector = collect(
        {"tool_calls": [{"index": 0, "id": "a", "type": "custom", "custom": {"name": "sql", "input": "select"}}]},
        {"tool_calls": [{"index": 0, "custom": {"input": " 1"}}]},
    )

    assert collector.build_message()["tool_calls"] == [
        {"id": "a", "type": "custom", "custom": {"name": "sql", "input": "select 1"}}
    ]


def test_text_beside_a_call_is_kept() -> None:
    collector = collect({"content": "Let me see."}, {"tool_calls": [call(0, "a", "f", "{}")]})

    assert collector.build_message()["content"] == "Let me see."


@pytest.mark.parametrize(
    ("deltas", "fields"),
    [
        (
            [{"reasoning_content": "a"}, {"reasoning_content": "b"}, {"content": "c"}],
            {"content": "c", "reasoning_content": "ab"},
        ),
        ([{"reasoning": "a"}, {"reasoning": "b", "content": "c"}], {"content": "c", "reasoning": "ab"}),
        ([{"refusal": "I "}, {"refusal": "won't"}], {"content": None, "refusal": "I won't"}),
        ([{"vendor_text": "a"}, {"vendor_text": "b", "content": "c"}], {"content": "c", "vendor_text": "ab"}),
        ([{"vendor": {"x": 1}}, {"vendor": {"y": 2}, "content": "c"}], {"content": "c", "vendor": {"x": 1, "y": 2}}),
        (
            [{"annotations": [{"n": 1}]}, {"annotations": [{"n": 2}]}, {"content": "c"}],
            {"content": "c", "annotations": [{"n": 1}, {"n": 2}]},
        ),
        (
            [{"audio": {"id": "au1", "data": "AAAA"}}, {"audio": {"transcript": "hi"}}],
            {"content": None, "audio": {"id": "au1"}},
        ),
        (
            [{"function_call": {"name": "f", "arguments": "{"}}, {"function_call": {"arguments": "}"}}],
            {"content": None, "function_call": {"name": "f", "arguments": "{}"}},
        ),
        (
            [
                {"reasoning_details": [{"type": "reasoning.text", "text": "a", "index": 0, "signature": None}]},
                {"reasoning_details": [{"type": "reasoning.text", "text": "b", "index": 0, "signature": "s"}]},
                {"reasoning_details": [{"type": "reasoning.encrypted", "data": "x", "index": 1}], "content": "c"},
            ],
            {
                "content": "c",
                "reasoning_details": [
                    {"type": "reasoning.text", "text": "ab", "index": 0, "signature": "s"},
                    {"type": "reasoning.encrypted", "data": "x", "index": 1},
                ],
            },
        ),
        (
            [
                {"content": [{"type": "thinking", "thinking": [{"type": "text", "text": "a"}]}]},
                {"content": [{"type": "thinking", "thinking": [{"type": "text", "text": "b"}]}]},
                {"content": "c"},
                {"content": "d"},
            ],
            {
                "content": [
                    {"type": "thinking", "thinking": [{"type": "text", "text": "ab"}]},
                    {"type": "text", "text": "cd"},
                ]
            },
        ),
        ([{"content": "a"}, {"content": [{"type": "text", "text": "b"}]}], {"content": "ab"}),
    ],
)
def test_every_field_of_a_message_is_gathered(deltas: list[dict[str, Any]], fields: dict[str, Any]) -> None:
    assert collect(*deltas).build_message() == {"role": "assistant", **fields}


@pytest.mark.parametrize(
    "data",
    [
        b'{"error":{"message":"overloaded","type":"server_error"}}',
        b'{"error":"text only"}',
        b'[{"error":{"message":"as a list"}}]',
        b'{"object":"error","message":"old form","code":400}',
        b'{"id":"c","choices":[{"index":0,"delta":{"content":""},"finish_reason":"error"}],"error":{"code":502}}',
    ],
)
def test_an_error_chunk_is_reported_with_its_bytes(data: bytes) -> None:
    collector = collect({"content": "so far"})
    collector.add_chunk(data)

    assert collector.error_data
    assert collector.error_data == data
    assert collector.build_message()["content"] == "so far"


def test_the_finish_reason_error_alone_brings_no_error() -> None:
    collector = ChatStreamDecoder()
    collector.add_chunk(chunk(finish="error"))

    assert collector.finish == "error"
    assert collector.error_data is None


@pytest.mark.parametrize("data", [b"<html>", b"{", b"null", b"[]", b'"text"', b"\xff\xfe"])
def test_garbage_is_an_upstream_error(data: bytes) -> None:
    with pytest.raises(UpstreamUnavailable):
        ChatStreamDecoder().add_chunk(data)


@pytest.mark.parametrize(
    "data",
    [
        b"{}",
        b'{"choices":null}',
        b'{"choices":[null]}',
        b'{"choices":[{}]}',
        b'{"choices":[{"delta":null,"index":null}]}',
    ],
)
def test_a_chunk_that_says_nothing_changes_nothing(data: bytes) -> None:
    collector = collect({"content": "a"})
    collector.add_chunk(data)

    assert collector.build_message()["content"] == "a"
    assert not collector.is_complete


def test_the_halves_of_an_emoji_find_each_other() -> None:
    collector = ChatStreamDecoder()
    collector.add_chunk(b'{"choices":[{"index":0,"delta":{"content":"\\ud83d"}}]}')
    collector.add_chunk(b'{"choices":[{"index":0,"delta":{"content":"\\ude00!"}}]}')
    assert collector.build_message()["content"] == "😀!"

    collector.add_chunk(b'{"choices":[{"index":0,"delta":{"content":"\\ud83d"}}]}')
    assert collector.build_message()["content"] == "😀!\ufffd"


def test_half_an_emoji_anywhere_in_an_answer_can_be_stored() -> None:
    collector = ChatStreamDecoder()
    call = b'{"index":0,"id":"c\\ud83d","function":{"name":"f","arguments":"{\\"\\ude00"}}'
    delta = b'{"role":"a\\ud83d","new\\ud83d":{"deep":["\\ude00"]},"tool_calls":[' + call + b"]}"
    collector.add_chunk(
        b'{"id":"i\\ud83d","model":"\\ude00","usage":{"n\\ud83d":1},"choices":[{"delta":' + delta + b"}]}"
    )
    collector.add_chunk(
        b'{"error":{"message":"\\ud83d"},"choices":[{"finish_reason":"\\ud83d"},{"index":1,"delta":' + delta + b"}]}"
    )

    kept = [
        collector.build_message(),
        collector.build_alternatives(),
        collector.id,
        collector.model,
        collector.usage,
    ]
    assert "\\ufffd" in json.dumps([*kept, collector.finish])
    assert orjson.loads(orjson.dumps([*kept, collector.finish])) == [*kept, collector.finish]


def test_usage_is_found_where_groq_puts_it() -> None:
    collector = ChatStreamDecoder()
    collector.add_chunk(chunk(finish="stop", x_groq={"id": "r", "usage": {"prompt_tokens": 5}}))

    assert collector.usage == {"prompt_tokens": 5}


def test_the_last_usage_counts_and_an_empty_one_does_not() -> None:
    collector = ChatStreamDecoder()
    for usage in ({"prompt_tokens": 1}, {"prompt_tokens": 2}, {}, None):
        collector.add_chunk(chunk({"content": "a"}, usage=usage))

    assert collector.usage == {"prompt_tokens": 2}


def test_a_whole_answer_is_taken_like_its_chunks() -> None:
    collector = ChatStreamDecoder()
    message = {
        "role": "assistant",
        "content": None,
        "refusal": None,
        "tool_calls": [
            {"id": "a", "type": "function", "function": {"name": "f", "arguments": "{}"}},
            {"id": "b", "type": "function", "function": {"name": "f", "arguments": "{}"}},
        ],
    }
    body = {
        "id": "c1",
        "model": "m",
        "choices": [{"index": 0, "message": message, "finish_reason": "tool_calls"}],
        "usage": {"prompt_tokens": 9},
    }
    collector.add_whole(json.dumps(body).encode())

    assert collector.build_message() == {"role": "assistant", "content": None, "tool_calls": message["tool_calls"]}
    assert (collector.is_complete, collector.finish, collector.usage) == (
        True,
        "tool_calls",
        {"prompt_tokens": 9},
    )


@given(st.text(), st.lists(st.tuples(st.text(min_size=1), st.text()), max_size=4), st.data())
def test_any_cutting_of_a_message_gives_it_back(text: str, calls: list[tuple[str, str]], data: st.DataObject) -> None:
    def cut(whole: str) -> list[str]:
        cuts = sorted(data.draw(st.lists(st.integers(0, len(whole)), max_size=4)))
        return [whole[a:b] for a, b in zip([0, *cuts], [*cuts, len(whole)], strict=True)]

    collector = collect(*({"content": piece} for piece in cut(text)))
    for index, (name, arguments) in enumerate(calls):
        collector.add_chunk(chunk({"tool_calls": [call(index, f"call_{index}", name, "")]}))
        for piece in cut(arguments):
            collector.add_chunk(chunk({"tool_calls": [call(index, arguments=piece)]}))

    message = collector.build_message()
    assert (message["content"] or "") == text
    made = [(c["function"]["name"], c["function"]["arguments"]) for c in message.get("tool_calls", [])]
    assert made == calls


@pytest.mark.parametrize("depth", [300, 980, 1500, 50_000])
@pytest.mark.parametrize(
    "place", ['{"usage":{"a":%s}}', '{"x":%s}', '{"choices":[{"delta":{"x":%s}}]}', '{"error":%s}']
)
def test_nesting_without_end_is_an_error_of_ours_at_most(place: str, depth: int) -> None:
    data = (place % ("[" * depth + "]" * depth)).encode()
    for add in (ChatStreamDecoder.add_chunk, ChatStreamDecoder.add_whole):
        try:
            add(ChatStreamDecoder(), data)
        except UpstreamUnavailable as error:
            assert "not JSON" in error.message or "nested too deeply" in error.message
