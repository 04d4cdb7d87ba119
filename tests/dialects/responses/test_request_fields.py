"""The fields of a request in the other protocol: each field of both official types has the fate that the page tells."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st
from openai.types.chat.completion_create_params import CompletionCreateParamsNonStreaming
from openai.types.responses.response_create_params import ResponseCreateParamsNonStreaming

from app.context.count.token_counter import TokenCounter
from app.context.count.tokenizers import load_tokenizer
from app.dialects.body.message_fields import read_schemas
from app.dialects.provider_dialect import SelectedFields
from app.dialects.request_body import decode_body_fields
from app.dialects.request_translation import (
    FATES_TO_CHAT,
    FATES_TO_RESPONSES,
    GATEWAY_FIELDS,
    WITHHELD_FIELDS,
    read_responses_schemas,
    select_fields_for_responses,
    translate_fields_to_chat,
    translate_fields_to_responses,
)
from app.dialects.responses.request import parse_responses_fields
from app.errors import InvalidRequest

PAGE = (Path(__file__).parents[3] / "docs/responses.md").read_text()
JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=8),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(["type", "name", "tools", "format", "function", "mode"]), inner, max_size=3)
    ),
    max_leaves=8,
)
RESPONSES_FIELDS = {**ResponseCreateParamsNonStreaming.__annotations__}.keys()
CHAT_FIELDS = {**CompletionCreateParamsNonStreaming.__annotations__}.keys()
SCHEMA = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
LOOK = {"type": "function", "name": "look", "description": "Look.", "parameters": SCHEMA, "strict": True}
CHAT_LOOK = {
    "type": "function",
    "function": {name: LOOK[name] for name in ("name", "description", "parameters", "strict")},
}
HELLO = [{"role": "user", "content": "Hello"}]
GPT = {"model": "gpt-5", "input": "Hello"}


def encode(members: Mapping[str, Any]) -> dict[str, bytes]:
    return {name: bytes(raw) for name, raw in decode_body_fields(orjson.dumps(members)).items()}


def decode(fields: Mapping[str, bytes]) -> dict[str, Any]:
    return {name: orjson.loads(raw) for name, raw in fields.items()}


def to_chat(**members: Any) -> dict[str, Any]:
    return decode(translate_fields_to_chat(encode({**GPT, **members})).fields)


def to_responses(**members: Any) -> dict[str, Any]:
    return decode(translate_fields_to_responses(encode({"model": "m", "messages": HELLO, **members})).fields)


def warnings_to_chat(**members: Any) -> str:
    return "".join(translate_fields_to_chat(encode({**GPT, **members})).warnings)


def warnings_to_responses(**members: Any) -> str:
    return "".join(translate_fields_to_responses(encode({"model": "m", "messages": HELLO, **members})).warnings)


# What the page tells, and what happens.

RESPONSES_SAMPLES: dict[str, tuple[Any, dict[str, Any]]] = {
    "access_programs": ({"cyber": "standard"}, {}),
    "background": (True, {}),
    "background_options": ({"completion_window": "soonest"}, {}),
    "context_management": ([{"type": "compaction", "compact_threshold": 9000}], {}),
    "conversation": ("conv_1", {}),
    "image": ({"context_compression": "auto"}, {}),
    "include": (["message.output_text.logprobs"], {"logprobs": True}),
    "input": ("Hello", {}),
    "instructions": ("Be brief.", {}),
    "max_output_tokens": (99, {"max_completion_tokens": 99}),
    "max_tool_calls": (3, {}),
    "metadata": ({"topic": "a"}, {}),
    "model": ("gpt-5", {}),
    "moderation": ({"model": "omni-moderation-latest"}, {}),
    "parallel_tool_calls": (False, {}),  # without tools it means nothing
    "previous_response_id": ("resp_1", {}),
    "prompt": ({"id": "pmpt_1"}, {}),
    "prompt_cache_key": ("key", {}),
    "prompt_cache_options": ({"mode": "explicit"}, {"prompt_cache_options": {"mode": "explicit"}}),
    "prompt_cache_retention": ("24h", {}),
    "reasoning": ({"effort": "low"}, {"reasoning_effort": "low"}),
    "safety_identifier": ("somebody", {}),
    "service_tier": ("flex", {}),
    "store": (False, {}),
    "stream": (True, {}),
    "stream_options": ({"include_obfuscation": False}, {}),  # without a stream it means nothing
    "temperature": (0.5, {}),
    "text": ({"verbosity": "low"}, {"verbosity": "low"}),
    "tool_choice": ("auto", {}),  # without tools it means nothing
    "tools": ([LOOK], {"tools": [CHAT_LOOK]}),
    "top_logprobs": (3, {}),  # without `include` it means nothing
    "top_p": (0.5, {}),
    "truncation": ("auto", {}),
    "user": ("somebody", {}),
}
CHAT_SAMPLES: dict[str, tuple[Any, dict[str, Any]]] = {
    "audio": ({"voice": "alloy", "format": "wav"}, {}),
    "frequency_penalty": (0.5, {}),
    "function_call": ("auto", {}),
    "functions": ([{"name": "look"}], {}),
    "logit_bias": ({"11": -100}, {}),
    "logprobs": (True, {"include": ["message.output_text.logprobs"]}),
    "max_completion_tokens": (99, {"max_output_tokens": 99}),
    "max_tokens": (99, {"max_output_tokens": 99}),
    "messages": (HELLO, {}),
    "metadata": ({"topic": "a"}, {}),
    "modalities": (["text", "audio"], {}),
    "model": ("m", {}),
    "moderation": ({"model": "omni-moderation-latest"}, {}),
    "n": (2, {}),
    "parallel_tool_calls": (False, {}),
    "prediction": ({"type": "content", "content": "Hello"}, {}),
    "presence_penalty": (0.5, {}),
    "prompt_cache_key": ("key", {}),
    "prompt_cache_options": ({"mode": "explicit"}, {}),
    "prompt_cache_retention": ("24h", {}),
    "reasoning_effort": ("low", {"reasoning": {"effort": "low"}}),
    "response_format": ({"type": "json_object"}, {"text": {"format": {"type": "json_object"}}}),
    "safety_identifier": ("somebody", {}),
    "seed": (0, {}),
    "service_tier": ("flex", {}),
    "stop": (["END"], {}),
    "store": (True, {}),
    "stream": (True, {}),
    "stream_options": ({"include_usage": True}, {}),
    "temperature": (0.5, {}),
    "tool_choice": ("required", {"tool_choice": "required"}),
    "tools": ([CHAT_LOOK], {"tools": [LOOK]}),
    "top_logprobs": (3, {}),
    "top_p": (0.5, {}),
    "user": ("somebody", {}),
    "verbosity": ("low", {"text": {"verbosity": "low"}}),
    "web_search_options": ({}, {}),
}
"""A value of each field, and what becomes of it where its fate is `translated`."""


def read_table(heading: str) -> dict[str, str]:
    """The rows of the table below a heading of the page: name of a field → fate."""
    found = re.search(rf"^### {heading}\n(.*?)(?=^##|\Z)", PAGE, re.MULTILINE | re.DOTALL)
    assert found is not None
    return {
        name: fate
        for names, fate in re.findall(r"^\| ((?:`\w+`(?:, )?)+) \| (\w+) \|", found[1], re.MULTILINE)
        for name in re.findall(r"\w+", names)
    }


def test_each_field_of_the_official_types_has_a_fate() -> None:
    assert FATES_TO_CHAT.keys() == RESPONSES_SAMPLES.keys() == RESPONSES_FIELDS
    assert FATES_TO_RESPONSES.keys() == CHAT_SAMPLES.keys() == CHAT_FIELDS


def test_the_page_tells_the_fate_of_each_field() -> None:
    assert read_table("A Responses client, a provider of Chat Completions") == FATES_TO_CHAT
    assert read_table("A chat client, a provider of the Responses API") == FATES_TO_RESPONSES


def test_the_page_names_the_fields_that_no_provider_gets() -> None:
    found = re.search(r"These fields of a Responses request reach no provider: (.*?)\.\n", PAGE)
    assert found is not None
    assert set(re.findall(r"`(\w+)`", found[1])) == WITHHELD_FIELDS


def check_fate(
    fate: str, name: str, sample: tuple[Any, dict[str, Any]], send: Callable[[dict[str, Any]], SelectedFields]
) -> None:
    value, expected = sample
    if fate == "refused":
        with pytest.raises(InvalidRequest) as refused:
            send({name: value})
        assert (refused.value.param, refused.value.code) == (name, "unsupported_parameter")
        return
    without, translated = send({}), send({name: value})
    added = {key: raw for key, raw in decode(translated.fields).items() if without.fields.get(key) is None}
    base = decode(without.fields)
    if fate == "passed":
        assert decode(translated.fields) == {**base, name: value}
    else:
        assert decode(translated.fields) == {**base, **added}
        assert added == (expected if fate == "translated" else {})
    warned = [warning for warning in translated.warnings if f"`{name}`" in warning]
    assert bool(warned) is (fate == "warned")
    assert len(translated.warnings) == len(warned)


@pytest.mark.parametrize("name", sorted(RESPONSES_SAMPLES))
def test_a_field_of_a_responses_request_has_its_fate(name: str) -> None:
    def send(members: dict[str, Any]) -> SelectedFields:
        fields = encode({**GPT, **members})
        parse_responses_fields(fields)
        return translate_fields_to_chat(fields)

    check_fate(FATES_TO_CHAT[name], name, RESPONSES_SAMPLES[name], send)


@pytest.mark.parametrize("name", sorted(CHAT_SAMPLES))
def test_a_field_of_a_chat_request_has_its_fate(name: str) -> None:
    def send(members: dict[str, Any]) -> SelectedFields:
        return translate_fields_to_responses(encode({"model": "m", "messages": HELLO, **members}))

    check_fate(FATES_TO_RESPONSES[name], name, CHAT_SAMPLES[name], send)


@pytest.mark.parametrize("name", sorted(RESPONSES_SAMPLES))
def test_a_provider_of_the_same_protocol_gets_a_field_unchanged_or_not_at_all(name: str) -> None:
    value = RESPONSES_SAMPLES[name][0]
    base = {"model": "gpt-4o", "include": ["reasoning.encrypted_content"]}
    selected = decode(select_fields_for_responses(encode({**base, name: value})))
    assert selected == {**base, **({} if name in WITHHELD_FIELDS else {name: value}), "store": False}


# What a single field becomes.


@pytest.mark.parametrize(
    ("models", "limit_field", "asks_for_reasoning"),
    [
        (("o1", "o3-mini", "o4-mini", "gpt-5", "openai/gpt-5.2", "gpt-6", "gpt-12"), "max_completion_tokens", True),
        (("gpt-4o", "openai/gpt-4.1", "gpt-4-turbo", "gpt-3.5-turbo", "gpt-35-turbo", "chatgpt-4o-latest"),
         "max_tokens", False),
        (("gpt-oss-120b", "qwen3", "opus", "my-gpt-4o"), "max_tokens", True),
    ],
)  # fmt: skip
def test_the_name_of_a_model_says_whether_it_reasons(
    models: tuple[str, ...], limit_field: str, asks_for_reasoning: bool
) -> None:
    for model in models:
        assert limit_field in to_chat(model=model, max_output_tokens=9), model
        selected = decode(select_fields_for_responses(encode({"model": model, "input": "Hello"})))
        assert ("include" in selected) == asks_for_reasoning, model


def test_unknown_fields_are_named_and_left_out() -> None:
    assert "top_k" not in to_chat(top_k=4)
    assert "`top_k`" in warnings_to_chat(top_k=4, client_metadata=None)
    assert "client_metadata" not in warnings_to_chat(client_metadata=None)
    assert "`min_p`" in warnings_to_responses(min_p=0)


def test_the_gateways_own_fields_are_left_out_without_a_word() -> None:
    own = dict.fromkeys(GATEWAY_FIELDS, "conv_1")
    assert to_chat(**own) == to_chat()
    assert to_responses(**own) == to_responses()
    assert warnings_to_chat(**own) == warnings_to_responses(**own) == ""


def test_a_warning_names_at_most_sixteen_fields_and_no_long_name_whole() -> None:
    warning = warnings_to_chat(**{f"field_{number}": 1 for number in range(20)})
    assert warning.count("field_") == 16
    assert warning.endswith(" and 4 more.")
    assert len(warnings_to_chat(**{"x" * 100_000: 1})) < 200


@pytest.mark.parametrize(
    ("model", "field"),
    [("gpt-5", "max_completion_tokens"), ("openai/o3", "max_completion_tokens"), ("llama3", "max_tokens")],
)
def test_the_limit_of_the_answer_has_the_name_that_the_model_takes(model: str, field: str) -> None:
    assert to_chat(model=model, max_output_tokens=99) == {"model": model, field: 99}


@pytest.mark.parametrize("limit", [0, -1, None])
def test_no_limit_stays_no_limit(limit: int | None) -> None:
    assert "max_output_tokens" not in to_responses(max_tokens=limit)


@pytest.mark.parametrize("name", ["max_tokens", "max_completion_tokens"])
def test_a_limit_that_is_no_integer_is_refused(name: str) -> None:
    for limit in (True, "9", 9.5):
        with pytest.raises(InvalidRequest) as refused:
            to_responses(**{name: limit})
        assert (refused.value.param, refused.value.code) == (name, "invalid_type")


def test_the_newer_limit_wins() -> None:
    assert to_responses(max_tokens=90, max_completion_tokens=70)["max_output_tokens"] == 70


def test_a_limit_that_responses_providers_refuse_becomes_the_least_that_they_take() -> None:
    assert to_responses(max_tokens=7)["max_output_tokens"] == 16


def test_logprobs_are_asked_for_in_both_protocols() -> None:
    include = ["message.output_text.logprobs", "reasoning.encrypted_content"]
    assert to_chat(include=include, top_logprobs=5) == {"model": "gpt-5", "logprobs": True, "top_logprobs": 5}
    assert "`include` (new.thing)" in warnings_to_chat(include=["new.thing", "file_search_call.results"])
    assert "file_search" not in warnings_to_chat(include=["new.thing", "file_search_call.results"])


def test_members_without_a_counterpart_are_named() -> None:
    warning = warnings_to_chat(
        reasoning={"effort": "low", "summary": "auto", "context": None},
        text={"verbosity": "low", "tone": "kind"},
        prompt_cache_options={"mode": "implicit", "comparison_response_id": "resp_1"},
        stream_options={"include_obfuscation": False, "pace": 3},
    )
    named = re.findall(r"`([^`]+)`", warning)
    assert named == [
        "reasoning.summary",
        "text.tone",
        "prompt_cache_options.comparison_response_id",
        "stream_options.pace",
    ]


def test_a_cache_is_not_warmed_by_an_answer() -> None:
    with pytest.raises(InvalidRequest) as refused:
        to_chat(prompt_cache_options={"prewarm": True})
    assert refused.value.param == "prompt_cache_options.prewarm"


def test_obfuscation_is_asked_for_in_streams_only() -> None:
    options = {"include_obfuscation": False}
    assert to_chat(stream=True, stream_options=options)["stream_options"] == options
    assert to_responses(stream=True, stream_options={**options, "include_usage": True})["stream_options"] == options


@pytest.mark.parametrize(
    "answer_format",
    [
        {"type": "text"},
        {"type": "json_object"},
        {"type": "json_schema", "name": "place", "schema": SCHEMA, "strict": True, "description": "A place."},
        {"type": "json_schema", "name": "place", "schema": SCHEMA, "strict": None},
    ],
)
def test_the_format_of_the_answer_survives_both_ways(answer_format: dict[str, Any]) -> None:
    chat = to_chat(text={"format": answer_format})
    assert chat["response_format"]["type"] == answer_format["type"]
    assert to_responses(response_format=chat["response_format"])["text"] == {"format": answer_format}


@pytest.mark.parametrize("answer_format", [{"type": "json_schema"}, {"type": "xml"}, {}, "json"])
def test_an_unknown_format_is_refused(answer_format: Any) -> None:
    with pytest.raises(InvalidRequest) as refused:
        to_chat(text={"format": answer_format})
    assert refused.value.param == "text.format"
    with pytest.raises(InvalidRequest) as refused:
        to_responses(response_format=answer_format)
    assert refused.value.param == "response_format"


@pytest.mark.parametrize(
    "neutral",
    [
        *({"n": 1}, {"frequency_penalty": 0}, {"presence_penalty": 0.0}, {"logit_bias": {}}, {"stop": []}),
        *({"functions": []}, {"function_call": "none"}, {"modalities": ["text"]}, {"audio": None}, {"tools": []}),
    ],
)
def test_values_that_ask_for_nothing_are_neither_refused_nor_named(neutral: dict[str, Any]) -> None:
    assert to_responses(**neutral) == to_responses()
    assert warnings_to_responses(**neutral) == ""


def test_fields_that_are_null_are_left_out() -> None:
    nulls = dict.fromkeys((RESPONSES_FIELDS | CHAT_FIELDS) - {"model", "messages"})
    assert to_chat(**nulls) == to_chat()
    assert to_responses(**nulls) == to_responses()


def test_the_provider_of_a_chat_client_stores_nothing() -> None:
    assert to_responses(store=True) == {"model": "m", "store": False}


def test_the_conversation_id_in_metadata_stays_here() -> None:
    metadata = {"conversation_id": "conv_1", "topic": "a"}
    assert to_responses(metadata=metadata)["metadata"] == {"topic": "a"}
    assert "metadata" not in to_responses(metadata={"conversation_id": "conv_1"})
    fields = encode({**GPT, "metadata": metadata})
    assert decode(select_fields_for_responses(fields))["metadata"] == {"topic": "a"}


# The same protocol on both sides.


def test_fields_for_the_same_protocol_keep_their_bytes() -> None:
    body = b'{"model":"gpt-4.1","tools": [ {"type":"web_search" } ],"x_new":{"a" :1},"metadata":{ "a":"b"}}'
    fields = {name: bytes(raw) for name, raw in decode_body_fields(body).items()}
    assert select_fields_for_responses(fields) == {**fields, "store": b"false"}


@pytest.mark.parametrize(
    ("members", "expected"),
    [
        ({"model": "gpt-5"}, ["reasoning.encrypted_content"]),
        ({"model": "some-local-model"}, ["reasoning.encrypted_content"]),
        ({"model": "gpt-4o", "reasoning": {"effort": "low"}}, ["reasoning.encrypted_content"]),
        ({"model": "gpt-4o"}, None),
        ({"model": "openai/gpt-4.1-mini", "include": ["x"]}, ["x"]),
        ({"model": "gpt-5", "include": ["x"]}, ["x", "reasoning.encrypted_content"]),
        ({"model": "gpt-5", "include": ["reasoning.encrypted_content"]}, ["reasoning.encrypted_content"]),
    ],
)
def test_reasoning_is_asked_for_in_a_form_that_can_be_sent_again(members: dict[str, Any], expected: object) -> None:
    assert decode(select_fields_for_responses(encode(members))).get("include") == expected


def test_an_id_of_our_own_does_not_reach_the_provider() -> None:
    options = {"mode": "implicit", "comparison_response_id": "resp_1"}
    selected = decode(select_fields_for_responses(encode({**GPT, "prompt_cache_options": options})))
    assert selected["prompt_cache_options"] == {"mode": "implicit"}


# Whatever comes.


@given(st.fixed_dictionaries({}, optional=dict.fromkeys([*RESPONSES_FIELDS, "x"], JSON)))
def test_any_json_is_translated_to_chat_or_refused(members: dict[str, Any]) -> None:
    fields = encode(members)
    translations: list[Callable[[Mapping[str, bytes]], object]] = [
        translate_fields_to_chat,
        select_fields_for_responses,
    ]
    for translate in translations:
        try:
            translate(fields)
        except InvalidRequest as refused:
            assert refused.param
    read_responses_schemas({name: orjson.loads(raw) for name, raw in fields.items()})


@given(st.fixed_dictionaries({}, optional=dict.fromkeys([*CHAT_FIELDS, "x"], JSON)))
def test_any_json_is_translated_to_responses_or_refused(members: dict[str, Any]) -> None:
    try:
        translate_fields_to_responses(encode(members))
    except InvalidRequest as refused:
        assert refused.param


PASSED_BOTH_WAYS = sorted(
    name for name, fate in FATES_TO_CHAT.items() if fate == FATES_TO_RESPONSES.get(name) == "passed" and name != "model"
)
EFFORTS = ["none", "minimal", "low", "medium", "high", "xhigh", "max"]
SAID_IN_BOTH = {
    **dict.fromkeys(PASSED_BOTH_WAYS, st.just("value")),
    "max_completion_tokens": st.integers(1, 9999),
    "reasoning_effort": st.sampled_from(EFFORTS),
    "verbosity": st.sampled_from(["low", "medium", "high"]),
    "response_format": st.sampled_from([{"type": "text"}, {"type": "json_object"}])
    | st.fixed_dictionaries(
        {"name": st.text(min_size=1, max_size=8), "schema": st.dictionaries(st.text(max_size=4), JSON, max_size=3)},
        optional={"description": st.text(max_size=8), "strict": st.booleans()},
    ).map(lambda schema: {"type": "json_schema", "json_schema": schema}),
}


@given(st.fixed_dictionaries({}, optional=SAID_IN_BOTH), st.none() | st.integers(0, 20))
def test_what_both_protocols_can_say_comes_back_equal(said: dict[str, Any], top_logprobs: int | None) -> None:
    chat = {"model": "gpt-5", **said}
    if top_logprobs is not None:
        chat |= {"logprobs": True, "top_logprobs": top_logprobs}
    there = translate_fields_to_responses(encode({**chat, "messages": HELLO}))
    back = translate_fields_to_chat(there.fields)
    # Responses providers refuse a lower limit.
    limits = {name: max(chat[name], 16) for name in ("max_completion_tokens",) if name in chat}
    assert decode(back.fields) == {**chat, **limits}
    assert there.warnings == back.warnings == []


def test_schemas_count_the_same_in_both_protocols() -> None:
    grammar = {"type": "grammar", "syntax": "lark", "definition": 'start: "yes" | "no"'}
    custom = {"type": "custom", "name": "run", "description": "Run it.", "format": grammar}
    answer_format = {"type": "json_schema", "name": "place", "schema": SCHEMA, "description": "A place."}
    namespace = {"type": "namespace", "name": "crm", "description": "The CRM.", "tools": [{**LOOK, "name": "find"}]}
    members = {"tools": [LOOK, custom, namespace], "text": {"format": answer_format}}
    flat, nested = read_responses_schemas(members), read_schemas(to_chat(**members))
    assert flat == nested
    assert len(flat.functions) == 2
    count = TokenCounter(load_tokenizer("o200k_base")).count_schemas
    assert count(flat) == count(nested) > count(read_responses_schemas({"tools": [LOOK, custom]}))


def test_hosted_tools_count_as_their_json() -> None:
    search = {"type": "web_search", "search_context_size": "low"}
    assert read_responses_schemas({"tools": [search]}).other_tools == [search]
