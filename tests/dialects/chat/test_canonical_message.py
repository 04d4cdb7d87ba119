"""What the canonical form keeps of a message and what it looks past."""

from __future__ import annotations

import copy
import json
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from app.dialects.body.canonical_message import canonicalize_message
from app.dialects.body.message import ChatMessage

CALL: dict[str, Any] = {
    "role": "assistant",
    "content": "Let me look.\n",
    "tool_calls": [
        {
            "id": "call_1",
            "type": "function",
            "function": {"name": "weather", "arguments": '{"city": "Paris",  "n": 1.0, "note": "caf\\u00e9"}'},
        }
    ],
}


def call_with(arguments: object, name: str = "weather") -> dict[str, Any]:
    return {"role": "assistant", "tool_calls": [{"id": "x", "function": {"name": name, "arguments": arguments}}]}


def tool(content: object) -> dict[str, Any]:
    return {"role": "tool", "tool_call_id": "call_1", "content": content}


def user(content: object) -> dict[str, Any]:
    return {"role": "user", "content": content}


def answer(content: object, **more: object) -> dict[str, Any]:
    return {"role": "assistant", "content": content, **more}


IMAGE = {"type": "image_url", "image_url": {"url": "https://example.org/a.png", "detail": "high"}}

SAME = {
    "string and text part": (user("Hello"), user([{"type": "text", "text": "Hello"}])),
    "text split into parts": (user("Hello"), user([{"type": "text", "text": "Hel"}, {"type": "text", "text": "lo"}])),
    "Responses part names": (user("Hello"), user([{"type": "input_text", "text": "Hello"}])),
    "outer white space": (user("Hello"), user(" \n Hello\t\r\n")),
    "line ends": (user("a\nb"), user("a\r\nb")),
    "composed characters": (user("caf\u00e9"), user("cafe\u0301")),
    "name and vendor fields": (user("Hello"), {**user("Hello"), "name": "Ann", "cache_control": {"type": "ephemeral"}}),
    "null and missing content": (user(None), {"role": "user"}),
    "empty string and empty list": (user(""), user([])),
    "image detail": (user([IMAGE]), user([{"type": "image_url", "image_url": {"url": "https://example.org/a.png"}}])),
    "image url as a string": (user([IMAGE]), user([{"type": "image_url", "image_url": "https://example.org/a.png"}])),
    "cache marks on an unknown part": (
        user([{"type": "video", "v": 1}]),
        user([{"type": "video", "v": 1, "detail": 2}]),
    ),
    "audio format": (
        user([{"type": "input_audio", "input_audio": {"data": "AAAA", "format": "wav"}}]),
        user([{"type": "input_audio", "input_audio": {"data": "AAAA"}}]),
    ),
    "file name": (
        user([{"type": "file", "file": {"file_id": "f1", "filename": "a.pdf"}}]),
        user([{"type": "file", "file": {"file_id": "f1"}}]),
    ),
    "nulls of an SDK dump": (
        answer("Hi"),
        answer("Hi", refusal=None, annotations=[], audio=None, function_call=None, tool_calls=None),
    ),
    "an empty list of calls": (answer("Hi"), answer("Hi", tool_calls=[])),
    "reasoning sent back": (answer("Hi"), answer("Hi", reasoning_content="hm", reasoning="hm")),
    "reasoning parts": (answer("Hi"), answer([{"type": "thinking", "thinking": "hm"}, {"type": "text", "text": "Hi"}])),
    "leading thoughts": (answer("Hi"), answer("<think>\nhm\n</think>\n\nHi")),
    "two leading thoughts": (answer("Hi"), answer(" <think>a</think> <think>b</think>Hi")),
    "refusal as part, field or text": (answer([{"type": "refusal", "refusal": "No."}]), answer(None, refusal="No.")),
    "refusal become text": (answer("No."), answer("", refusal="No.")),
    "text beside a call": (CALL, {**CALL, "content": None}),
    "call ids": (CALL, {**CALL, "tool_calls": [{**CALL["tool_calls"][0], "id": "other", "index": 0}]}),
    "arguments written by another serializer": (CALL, call_with('{"note":"café","n":1,"city":"Paris"}')),
    "arguments as an object": (CALL, call_with({"note": "café", "n": 1.0, "city": "Paris"})),
    "no arguments": (call_with(""), call_with("{}")),
    "arguments of null": (call_with(None), call_with("{}")),
    "deprecated function call": (
        call_with('{"a": 1}'),
        {"role": "assistant", "function_call": {"name": "weather", "arguments": '{"a":1}'}},
    ),
    "tool result re-serialised": (tool('{"t": 21.0, "s": "sch\\u00f6n"}'), tool('{"s":"schön","t":21}')),
    "tool result as a part": (tool("ok"), tool([{"type": "text", "text": "ok"}])),
    "tool call id and name": (tool("ok"), {"role": "tool", "name": "weather", "content": "ok"}),
    "function role": (tool("ok"), {"role": "function", "name": "weather", "content": "ok"}),
    "decomposed character, escaped or not": (tool('["e\\u0301"]'), tool('["e\u0301"]')),
    "negative zero": (tool("[-0.0, -0]"), tool("[0, 0]")),
    "a large whole float as JavaScript prints it": (tool("[1.2345678901234567e+19]"), tool("[12345678901234567000]")),
    "a float beyond 64 bits as JavaScript prints it": (tool("[1e20]"), tool("[100000000000000000000]")),
    "NaN with other spacing": (tool('{"a": NaN}'), tool('{"a":NaN}')),
    "a lone surrogate with other spacing": (tool('{"a": "\\ud800"}'), tool('{"a":"\\ud800"}')),
}


@pytest.mark.parametrize(("one", "other"), SAME.values(), ids=SAME.keys())
def test_a_message_that_a_client_reshaped_is_still_the_same(one: dict[str, Any], other: dict[str, Any]) -> None:
    assert canonicalize_message(one) == canonicalize_message(other) is not None


DIFFERENT = {
    "role": (user("Hi"), answer("Hi")),
    "user and tool": (user("Hi"), tool("Hi")),
    "text": (user("Hi"), user("Ho")),
    "inner white space": (user("a b"), user("a  b")),
    "a user's own thoughts": (user("<think>a</think>Hi"), user("Hi")),
    "unclosed thought": (answer("<think>Hi"), answer("Hi")),
    "thought in the middle": (answer("Hi <think>a</think>"), answer("Hi")),
    "image": (user([IMAGE]), user([{"type": "image_url", "image_url": {"url": "https://example.org/b.png"}}])),
    "image or text of its url": (user([IMAGE]), user("https://example.org/a.png")),
    "place of an image": (user(["a", IMAGE, "b"]), user(["ab", IMAGE])),
    "tool name": (call_with("{}"), call_with("{}", "time")),
    "arguments": (call_with('{"n": 1}'), call_with('{"n": 2}')),
    "number and its text": (call_with('{"n": 1}'), call_with('{"n": "1"}')),
    "true and one": (call_with('{"n": true}'), call_with('{"n": 1}')),
    "integers beyond 2^53": (call_with('{"n": 9007199254740993}'), call_with('{"n": 9007199254740992}')),
    "integers beyond 64 bits": (call_with('{"n": 36893488147419103233}'), call_with('{"n": 36893488147419103232}')),
    "integers beyond 64 bits beside a float": (
        tool("[1.5, 36893488147419103233]"),
        tool("[1.5, 36893488147419103232]"),
    ),
    "NaN and null": (tool('{"a": NaN}'), tool('{"a": null}')),
    "infinity and null": (tool('{"a": 1e999}'), tool('{"a": null}')),
    "order of a list": (tool("[1, 2]"), tool("[2, 1]")),
    "a call and its text": (CALL, answer("Let me look.")),
    "custom call input": (
        {"role": "assistant", "tool_calls": [{"type": "custom", "custom": {"name": "sql", "input": "1.0"}}]},
        {"role": "assistant", "tool_calls": [{"type": "custom", "custom": {"name": "sql", "input": "1"}}]},
    ),
    "custom and function call": (
        {"role": "assistant", "tool_calls": [{"type": "custom", "custom": {"name": "sql", "input": "{}"}}]},
        call_with("{}", "sql"),
    ),
    "one call or two": (call_with("{}"), {"role": "assistant", "tool_calls": call_with("{}")["tool_calls"] * 2}),
}


@pytest.mark.parametrize(("one", "other"), DIFFERENT.values(), ids=DIFFERENT.keys())
def test_a_message_that_says_something_else_is_another(one: dict[str, Any], other: dict[str, Any]) -> None:
    assert canonicalize_message(one) != canonicalize_message(other)


@pytest.mark.parametrize(
    "body",
    [
        {"role": "system", "content": "Be brief."},
        {"role": "developer", "content": "Be brief."},
        answer(None),
        answer(""),
        answer(" \n"),
        answer([]),
        answer("<think>only thoughts</think>"),
        answer(None, tool_calls=[]),
    ],
)
def test_instructions_and_empty_answers_are_looked_through(body: dict[str, Any]) -> None:
    assert canonicalize_message(body) is None


def test_the_skeleton_holds_user_texts_and_final_answers_only() -> None:
    assert ChatMessage.from_body(user("Hi")).is_in_skeleton
    assert ChatMessage.from_body(answer("Hi")).is_in_skeleton
    assert not ChatMessage.from_body(CALL).is_in_skeleton
    assert not ChatMessage.from_body(tool("ok")).is_in_skeleton


def test_json_nested_beyond_any_parser_is_compared_as_text() -> None:
    deep = "[" * 100_000 + "]" * 100_000
    assert canonicalize_message(tool(deep)) == canonicalize_message(tool(f" {deep}\n"))
    assert canonicalize_message(tool("[" * 300 + "1.0" + "]" * 300)) != canonicalize_message(
        tool("[" * 300 + "2.0" + "]" * 300)
    )


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=12,
)
odd_messages = st.fixed_dictionaries(
    {},
    optional={
        "role": st.sampled_from(["user", "assistant", "tool", "function", "critic"]) | json_values,
        "content": json_values
        | st.lists(
            st.fixed_dictionaries({"type": st.sampled_from(["text", "image_url", "refusal", "file"])}) | json_values
        ),
        "refusal": json_values,
        "function_call": json_values,
        "tool_calls": json_values
        | st.lists(
            st.fixed_dictionaries({"function": st.fixed_dictionaries({"name": json_values, "arguments": json_values})})
        ),
    },
)


@given(odd_messages)
@example({"role": ["user"], "content": {"a": [1.5, 10**30]}})
@example({"role": "user", "content": "\ud800"})
@example({"role": "tool", "content": "9" * 5000})
def test_any_decodable_object_has_a_canonical_form_and_keeps_it(body: dict[str, Any]) -> None:
    assert canonicalize_message(body) == canonicalize_message(copy.deepcopy(body))


finite_json = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=20,
)


def shuffled(value: object) -> object:
    if isinstance(value, dict):
        return {key: shuffled(value[key]) for key in reversed(list(value))}
    if isinstance(value, list):
        return [shuffled(item) for item in value]
    return value


def whole_floats_as_integers(value: object) -> object:
    if isinstance(value, float) and value.is_integer() and abs(value) < 2**53:
        return int(value)
    if isinstance(value, dict):
        return {key: whole_floats_as_integers(item) for key, item in value.items()}
    if isinstance(value, list):
        return [whole_floats_as_integers(item) for item in value]
    return value


@given(finite_json)
def test_json_is_the_same_however_it_was_written(value: object) -> None:
    plain = json.dumps(value)
    others = [
        json.dumps(value, indent=2),
        json.dumps(shuffled(value), ensure_ascii=False),
        json.dumps(whole_floats_as_integers(value), separators=(",", ":")),
    ]
    for other in others:
        assert canonicalize_message(tool(plain)) == canonicalize_message(tool(other))
        assert canonicalize_message(call_with(plain)) == canonicalize_message(call_with(other))


def same_json(one: object, other: object) -> bool:
    """Equality as JSON sees it: numbers by value, but true is not 1."""
    if isinstance(one, bool) or isinstance(other, bool):
        return one is other
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(same_json, one, other))
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(same_json(one[key], other[key]) for key in one)
    return one == other


small_json = st.recursive(
    st.sampled_from([None, True, False, 0, 1, 1.0, -0.0, 1.5, "", "1", "a", 2**53, 2**53 + 1, 2**64, 2**64 + 1]),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.sampled_from("ab"), inner, max_size=2),
    max_leaves=4,
)


@given(small_json, small_json)
def test_results_are_equal_exactly_when_their_values_are(one: object, other: object) -> None:
    equal = canonicalize_message(tool(json.dumps(one))) == canonicalize_message(tool(json.dumps(other)))
    assert equal == same_json(one, other)


@given(st.text(), st.text())
def test_text_parts_never_collide_across_messages(one: str, other: str) -> None:
    plain = {canonicalize_message(user(text)) for text in (one, other)}
    split = {canonicalize_message(user([IMAGE, text])) for text in (one, other)}
    assert not plain & split
