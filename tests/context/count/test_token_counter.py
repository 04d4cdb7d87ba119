"""Tokens of messages, tools and requests: as the API reports them, and exactly the sum of their parts."""

from __future__ import annotations

import base64
import struct
import time
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.context.count.token_counter import (
    ANSWER_AUDIO_TOKENS,
    ASSUMED_FILE_TOKENS,
    MAX_EVENT_LOOP_BYTES,
    MAX_PAGES,
    PAGE_BYTES,
    PAGE_TOKENS,
    PRIMING_TOKENS,
    must_count_off_event_loop,
)
from app.context.count.tokenizers import load_tokenizer
from tests.support.chat_counter import ChatCounter
from tests.support.cpu_time import least_cpu_seconds

CL100K = ChatCounter(load_tokenizer("cl100k_base"))
O200K = ChatCounter(load_tokenizer("o200k_base"))

JARGON = [
    (
        "system",
        None,
        "You are a helpful, pattern-following assistant that translates corporate jargon into plain English.",
    ),
    ("system", "example_user", "New synergies will help drive top-line growth."),
    ("system", "example_assistant", "Things working well together will increase revenue."),
    (
        "system",
        "example_user",
        "Let's circle back when we have more bandwidth to touch base on opportunities for increased leverage.",
    ),
    ("system", "example_assistant", "Let's talk later when we're less busy about how to do better."),
    ("user", None, "This late pivot means we don't have time to boil the ocean for the client deliverable."),
]
JARGON_MESSAGES: list[dict[str, Any]] = [
    {"role": role, **({"name": name} if name else {}), "content": text} for role, name, text in JARGON
]

WEATHER_TOOL: dict[str, Any] = {
    "type": "function",
    "function": {
        "name": "get_current_weather",
        "description": "Get the current weather in a given location",
        "parameters": {
            "type": "object",
            "properties": {
                "location": {"type": "string", "description": "The city and state, e.g. San Francisco, CA"},
                "unit": {
                    "type": "string",
                    "description": "The unit of temperature to return",
                    "enum": ["celsius", "fahrenheit"],
                },
            },
            "required": ["location"],
        },
    },
}
WEATHER_MESSAGES: list[dict[str, Any]] = [
    {"role": "system", "content": "You are a helpful assistant that can answer to questions about the weather."},
    {"role": "user", "content": "What's the weather like in San Francisco?"},
]


def text_message(text: str) -> int:
    """What a user message of this text costs by the published formula."""
    return 3 + 1 + O200K.count(text)


def user(*parts: object) -> dict[str, Any]:
    return {"role": "user", "content": list(parts)}


@pytest.mark.parametrize(("counter", "tokens"), [(CL100K, 129), (O200K, 124)], ids=["gpt-4", "gpt-4o"])
def test_messages_cost_what_the_api_reported(counter: ChatCounter, tokens: int) -> None:
    assert counter.count_request(JARGON_MESSAGES) == tokens


@pytest.mark.parametrize(("counter", "tokens"), [(CL100K, 105), (O200K, 101)], ids=["gpt-4", "gpt-4o"])
def test_tools_cost_what_the_api_reported(counter: ChatCounter, tokens: int) -> None:
    assert counter.count_request(WEATHER_MESSAGES, tools=[WEATHER_TOOL]) == tokens


def test_a_function_without_parameters_costs_within_four_tokens_of_what_the_api_reported() -> None:
    message = {"role": "user", "content": "hello"}
    function = {"name": "foo", "description": "Do a foo", "parameters": {"type": "object", "properties": {}}}
    assert CL100K.count_request([message], functions=[function]) == pytest.approx(36, abs=4)


def test_a_call_and_its_result_cost_within_five_percent_of_what_the_api_reported() -> None:
    place = '{"location": "Vail, CO"}'
    call = {"id": "call_1", "type": "function", "function": {"name": "get_current_weather", "arguments": place}}
    messages: list[dict[str, Any]] = [
        {"role": "user", "content": "I want to ski at Vail this weekend."},
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "call_1", "content": '{"temperature": "35"}'},
    ]
    assert CL100K.count_request(messages) == pytest.approx(50, rel=0.05)


def test_deprecated_functions_and_calls_cost_as_much_as_tools_and_tool_calls() -> None:
    function = WEATHER_TOOL["function"]
    assert O200K.count_tools(None, functions=[function]) == O200K.count_tools([WEATHER_TOOL])
    called = {"name": "get_current_weather", "arguments": '{"location": "Paris"}'}
    old = {"role": "assistant", "content": None, "function_call": called}
    new = {"role": "assistant", "tool_calls": [{"id": "call_1", "type": "function", "function": called}]}
    assert O200K.count_message(old) == O200K.count_message(new)


def test_arguments_and_results_are_counted() -> None:
    long = "word " * 1000
    for body in (
        {"role": "tool", "tool_call_id": "x", "content": long},
        {"role": "function", "name": "f", "content": long},
        {"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": long}}]},
        {"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": {"text": long}}}]},
        {"role": "assistant", "tool_calls": [{"type": "custom", "custom": {"name": "f", "input": long}}]},
        {"role": "assistant", "function_call": {"name": "f", "arguments": long}},
        {"role": "assistant", "content": None, "refusal": long},
        {"role": "assistant", "content": [{"type": "refusal", "refusal": long}]},
        {"role": "user", "content": [{"type": "text", "text": long}]},
    ):
        assert 1000 <= O200K.count_message(body) <= 1025


def test_custom_tools_and_response_formats_are_counted() -> None:
    grammar = 'start: "a" ' * 200
    custom = {
        "name": "sql",
        "description": "Run a query",
        "format": {"type": "grammar", "grammar": {"definition": grammar}},
    }
    assert O200K.count_tools([{"type": "custom", "custom": custom}]) > O200K.count(grammar)
    schema = {"name": "person", "schema": {"type": "object", "properties": {"name": {"type": "string"}}}}
    assert O200K.count_response_format({"type": "json_schema", "json_schema": schema}) > 20
    assert O200K.count_response_format({"type": "json_object"}) == O200K.count_response_format({"type": "text"}) == 0


def test_all_of_a_nested_schema_is_counted() -> None:
    def tools(description: str) -> list[dict[str, Any]]:
        leaf = {"type": "string", "description": description}
        inner = {"anyOf": [{"type": "object", "properties": {"leaf": leaf}}, {"type": ["null", "integer"]}]}
        shared = {"type": "object", "properties": {"leaf": leaf}}
        parameters = {
            "type": "object",
            "properties": {"list": {"type": "array", "items": inner}, "shared": {"$ref": "#/$defs/Shared"}},
            "$defs": {"Shared": shared},
        }
        return [{"type": "function", "function": {"name": "f", "parameters": parameters}}]

    assert O200K.count_tools(tools("word " * 100)) - O200K.count_tools(tools("word")) >= 2 * 99


def test_a_schema_that_multiplies_itself_is_counted_at_once() -> None:
    types = ["object", "string", "array", "object", "number", "boolean"] * 5
    schema: dict[str, Any] = {"type": "string"}
    for _ in range(60):
        schema = {"type": types, "properties": {"a": schema}, "items": {"$ref": "#"}}
    parameters = {"type": "object", "properties": {"a": schema}}
    multiplied = [{"type": "function", "function": {"name": "f", "parameters": parameters}}]
    assert least_cpu_seconds(lambda: O200K.count_tools(multiplied)) < 0.5


def test_text_that_looks_like_a_special_token_is_text() -> None:
    assert O200K.count_message({"role": "user", "content": "<|endoftext|>"}) == 4 + 7


def test_images_cost_their_pixels_beside_the_text() -> None:
    picture = b"\x89PNG\r\n\x1a\n" + struct.pack(">I4sII", 13, b"IHDR", 2048, 4096) + bytes(2_000_000)
    url = f"data:image/png;base64,{base64.b64encode(picture).decode()}"
    message = user({"type": "text", "text": "Look"}, {"type": "image_url", "image_url": {"url": url, "detail": "high"}})
    assert O200K.count_message(message) == text_message("Look") + 1105
    assert O200K.count_message(user({"type": "image_url", "image_url": {"url": url, "detail": "low"}})) == 4 + 85
    assert O200K.count_message(user({"type": "image_url", "image_url": url})) == 4 + 1105


def test_audio_costs_its_duration() -> None:
    wave = b"RIFF\0\0\0\0WAVEfmt " + struct.pack("<IHHIIHH", 16, 1, 1, 24_000, 48_000, 2, 16) + bytes(480_000)
    wav = {"type": "input_audio", "input_audio": {"data": base64.b64encode(wave).decode(), "format": "wav"}}
    assert O200K.count_message(user(wav)) == pytest.approx(4 + 100, abs=2)
    mp3 = {"type": "input_audio", "input_audio": {"data": base64.b64encode(bytes(80_000)).decode(), "format": "mp3"}}
    assert O200K.count_message(user(mp3)) == pytest.approx(4 + 100, abs=2)
    spoken = {"role": "assistant", "content": None, "audio": {"id": "audio_1"}}
    assert O200K.count_message(spoken) == 4 + ANSWER_AUDIO_TOKENS


def test_files_cost_their_text_or_their_pages() -> None:
    def file(data: str) -> dict[str, Any]:
        return user({"type": "file", "file": {"filename": "a", "file_data": data}})

    text = "word " * 500
    assert O200K.count_message(
        file(f"data:text/plain;base64,{base64.b64encode(text.encode()).decode()}")
    ) == text_message(text)
    pdf = base64.b64encode(bytes(3 * PAGE_BYTES - 10)).decode()
    assert O200K.count_message(file(f"data:application/pdf;base64,{pdf}")) == 4 + 3 * PAGE_TOKENS
    huge = "A" * (PAGE_BYTES * MAX_PAGES * 2)
    assert O200K.count_message(file(huge)) == 4 + MAX_PAGES * PAGE_TOKENS
    assert O200K.count_message(user({"type": "file", "file": {"file_id": "file-1"}})) == 4 + ASSUMED_FILE_TOKENS


def test_base64_in_a_part_of_another_protocol_counts_as_an_image() -> None:
    source = {"type": "base64", "media_type": "image/png", "data": "A" * 500_000}
    assert 765 < O200K.count_message(user({"type": "image", "source": source})) < 800
    assert O200K.count_message(user({"type": "note", "text_of_it": "word " * 1000})) > 1000


json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.floats() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=6), inner, max_size=3),
    max_leaves=8,
)
parts = st.one_of(
    json_values,
    st.fixed_dictionaries({"type": st.just("text"), "text": json_values}),
    st.fixed_dictionaries(
        {"image_url": json_values | st.fixed_dictionaries({"url": json_values, "detail": json_values})}
    ),
    st.fixed_dictionaries({"input_audio": json_values | st.fixed_dictionaries({"data": json_values})}),
    st.fixed_dictionaries({"file": json_values | st.fixed_dictionaries({"file_data": json_values})}),
)
calls = st.one_of(
    json_values,
    st.fixed_dictionaries({"function": st.fixed_dictionaries({"name": json_values, "arguments": json_values})}),
    st.fixed_dictionaries({"custom": st.fixed_dictionaries({"name": json_values, "input": json_values})}),
)
messages = st.lists(
    st.fixed_dictionaries(
        {"role": st.sampled_from(["system", "user", "assistant", "tool"]) | json_values},
        optional={
            "content": json_values | st.lists(parts, max_size=3),
            "name": json_values,
            "refusal": json_values,
            "tool_calls": json_values | st.lists(calls, max_size=3),
            "function_call": json_values,
            "audio": json_values,
        },
    ),
    max_size=4,
)
schemas = st.fixed_dictionaries(
    {
        "name": json_values,
        "parameters": st.fixed_dictionaries({"type": json_values, "properties": json_values}) | json_values,
    }
)
tools = json_values | st.lists(
    json_values | st.fixed_dictionaries({"function": schemas}) | st.fixed_dictionaries({"custom": json_values}),
    max_size=3,
)
formats = json_values | st.fixed_dictionaries({"type": st.just("json_schema"), "json_schema": json_values})


@given(messages, tools, tools, formats)
def test_a_request_is_exactly_the_sum_of_its_parts_whatever_they_are(
    bodies: list[dict[str, Any]], tool_list: Any, functions: Any, response_format: Any
) -> None:
    whole = O200K.count_request(bodies, tools=tool_list, functions=functions, response_format=response_format)
    schema_tokens = O200K.count_tools(tool_list, functions=functions) + O200K.count_response_format(response_format)
    assert whole == PRIMING_TOKENS + schema_tokens + sum(O200K.count_message(body) for body in bodies)
    assert all(O200K.count_message(body) >= 3 for body in bodies)


def test_only_short_texts_are_counted_on_the_event_loop() -> None:
    assert not must_count_off_event_loop(MAX_EVENT_LOOP_BYTES)
    assert must_count_off_event_loop(MAX_EVENT_LOOP_BYTES + 1)


def test_ten_thousand_tokens_are_counted_within_five_milliseconds_where_the_fast_tokenizer_is() -> None:
    pytest.importorskip("toktok")
    message = {"role": "user", "content": "The quick brown fox jumps over the lazy dog. " * 1000}
    assert O200K.count_message(message) == pytest.approx(10_000, rel=0.01)
    best = min(_cpu_seconds(message) for _ in range(5))
    assert best < 0.005


def _cpu_seconds(message: dict[str, Any]) -> float:
    started = time.process_time()
    O200K.count_message(message)
    return time.process_time() - started
