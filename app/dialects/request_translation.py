"""Translates the fields of a request between the Responses API and Chat Completions, except for the messages. Pure.

Each field of OpenAI's types has a fate, which `docs/responses.md` shows: it is *passed* unchanged, *translated*, *ours*
(the gateway does what it asks for, so the provider does not get it), *warned* (left out and named in a warning), or
*refused*, since the answer would be another one without it. Any other field is left out and named.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, Final, Literal

import orjson

from app.conversation.item import CountedSchemas
from app.dialects.body.message_fields import read_schemas
from app.dialects.provider_dialect import SelectedFields
from app.dialects.request_body import (
    UNSUPPORTED,
    build_value_error,
    decode_field,
    decode_typed_field,
    remove_own_metadata,
)
from app.dialects.responses.tools import (
    check_tool_choice,
    check_tools,
    list_tools,
    list_unknown_members,
    shorten_name,
    translate_tool_choice_to_chat,
    translate_tool_choice_to_responses,
    translate_tool_to_chat,
    translate_tools_to_chat,
    translate_tools_to_responses,
)
from app.dialects.summarizer_fields import choose_output_limit_field

Fate = Literal["passed", "translated", "ours", "warned", "refused"]


def name_fates(names_by_fate: Mapping[Fate, Sequence[str]]) -> dict[str, Fate]:
    """Returns the fate of each field."""
    return {name: fate for fate, names in names_by_fate.items() for name in names}


FATES_TO_CHAT: Final = name_fates(
    {
        "passed": (
            *("model", "moderation", "prompt_cache_key", "prompt_cache_retention", "safety_identifier"),
            *("service_tier", "stream", "temperature", "top_p", "user"),
        ),
        "translated": (
            *("include", "input", "instructions", "max_output_tokens", "parallel_tool_calls"),
            *("prompt_cache_options", "reasoning", "stream_options", "text", "tool_choice", "tools"),
            *("top_logprobs",),
        ),
        "ours": ("context_management", "conversation", "metadata", "previous_response_id", "store", "truncation"),
        "warned": ("access_programs", "background_options", "image", "max_tool_calls"),
        "refused": ("background", "prompt"),
    }
)
"""What becomes of each field of a Responses request if the provider speaks Chat Completions."""
FATES_TO_RESPONSES: Final = name_fates(
    {
        "passed": (
            *("metadata", "model", "moderation", "parallel_tool_calls", "prompt_cache_key", "prompt_cache_options"),
            *("prompt_cache_retention", "safety_identifier", "service_tier", "stream", "temperature"),
            *("top_logprobs", "top_p", "user"),
        ),
        "translated": (
            *("logprobs", "max_completion_tokens", "max_tokens", "messages", "reasoning_effort", "response_format"),
            *("stream_options", "tool_choice", "tools", "verbosity"),
        ),
        "ours": ("store",),
        "warned": ("frequency_penalty", "prediction", "presence_penalty", "seed"),
        "refused": (
            *("audio", "function_call", "functions", "logit_bias", "modalities", "n", "stop"),
            *("web_search_options",),
        ),
    }
)
"""What becomes of each field of a chat completion request if the provider speaks the Responses API."""
MIN_OUTPUT_TOKENS: Final = 16
"""OpenAI refuses a lower `max_output_tokens`."""
GATEWAY_FIELDS: Final = frozenset({"context", "conversation", "conversation_id"})
"""The gateway's own fields, in requests of both protocols."""
WITHHELD_FIELDS: Final = GATEWAY_FIELDS | {
    *("background", "context_management", "input", "instructions", "previous_response_id"),
    *("prompt", "store", "truncation"),
}
"""Fields of a Responses request that no provider gets: the gateway does what they ask for, or sends others instead."""
RESPONSES_SCHEMA_FIELDS: Final = frozenset({"tools", "text"})
"""Fields of a Responses request with schemas."""
NEUTRAL_VALUES: Final[Mapping[str, Sequence[object]]] = {
    "background": (False,),
    "frequency_penalty": (0,),
    "function_call": ("none",),
    "functions": ([],),
    "logprobs": (False,),
    "metadata": ({},),
    "logit_bias": ({},),
    "modalities": ([], ["text"]),
    "n": (1,),
    "presence_penalty": (0,),
    "service_tier": ("auto",),
    "speed": ("standard",),
    "stop": ([], ""),
}
"""Values that ask for nothing: without the field, the answer is the same."""
INCLUDED_LOGPROBS: Final = "message.output_text.logprobs"
INCLUDED_REASONING: Final = "reasoning.encrypted_content"
INCLUDABLE: Final = (
    *(INCLUDED_LOGPROBS, INCLUDED_REASONING, "file_search_call.results", "web_search_call.results"),
    *("web_search_call.action.sources", "message.input_image.image_url", "computer_call_output.output.image_url"),
    "code_interpreter_call.outputs",
)
"""OpenAI's values of `include`. All but the first are about items that Chat Completions does not have, or that the
gateway itself keeps."""
OUTPUT_LIMIT_FIELDS: Final = ("max_completion_tokens", "max_tokens")
_NON_REASONING_MODELS: Final = re.compile(r"chatgpt-4o|gpt-[34]")
"""How the names of OpenAI's other models begin. They refuse requests for encrypted reasoning: "Encrypted content is not
supported with this model". Models with other names are not OpenAI's."""
MAX_WARNED_FIELDS: Final = 16


def translate_fields_to_chat(fields: Mapping[str, bytes]) -> SelectedFields:
    """Translates the fields of a Responses request for a provider of Chat Completions.

    Args:
        fields: JSON text by name. `model` is the provider's name of the model, which decides the field of the limit.

    Raises:
        InvalidRequest: a field is invalid, or without it the answer would be another one; `param` names it.
    """
    dropped: list[str] = []
    translated = pass_fields(fields, FATES_TO_CHAT, dropped)
    translated |= _translate_tools(fields, dropped)
    translated |= _translate_include(fields, dropped)
    translated |= _translate_reasoning(fields, dropped)
    translated |= _translate_text(fields, dropped)
    translated |= _translate_cache_options(fields, dropped)
    translated |= _translate_stream_options(fields, dropped)
    limit = decode_typed_field(fields, "max_output_tokens", int)
    if limit is not None:
        translated[choose_output_limit_field(str(decode_field(fields, "model")))] = b"%d" % limit
    return SelectedFields(translated, warnings=render_field_warnings(dropped, "Chat Completions"))


def translate_fields_to_responses(fields: Mapping[str, bytes]) -> SelectedFields:
    """Translates the fields of a chat completion request for a provider of the Responses API.

    Raises:
        InvalidRequest: a field is invalid, or without it the answer would be another one; `param` names it.
    """
    dropped: list[str] = []
    translated = remove_own_metadata(pass_fields(fields, FATES_TO_RESPONSES, dropped)) | {"store": b"false"}
    if tools := decode_field(fields, "tools"):
        translated["tools"] = orjson.dumps(translate_tools_to_responses(tools, dropped))
    if (choice := translate_tool_choice_to_responses(decode_field(fields, "tool_choice"))) is not None:
        translated["tool_choice"] = orjson.dumps(choice)
    if decode_typed_field(fields, "logprobs", bool):
        translated["include"] = orjson.dumps([INCLUDED_LOGPROBS])
    effort = decode_typed_field(fields, "reasoning_effort", str)
    if effort is not None:
        translated["reasoning"] = orjson.dumps({"effort": effort})
    text = {
        "format": _translate_format_to_responses(decode_typed_field(fields, "response_format", dict)),
        "verbosity": decode_typed_field(fields, "verbosity", str),
    }
    if any(text.values()):
        translated["text"] = orjson.dumps({name: value for name, value in text.items() if value is not None})
    # OpenAI's newer field comes first and wins. Some local servers read 0 or a negative limit as "no limit".
    limits = [decode_typed_field(fields, name, int) or 0 for name in OUTPUT_LIMIT_FIELDS]
    if limit := next((limit for limit in limits if limit > 0), None):
        translated["max_output_tokens"] = b"%d" % max(limit, MIN_OUTPUT_TOKENS)
    translated |= _translate_stream_options(fields, dropped)
    return SelectedFields(translated, warnings=render_field_warnings(dropped, "the Responses API"))


def select_fields_for_responses(fields: Mapping[str, bytes]) -> dict[str, bytes]:
    """Selects the fields of a Responses request for a provider of the same protocol; they keep their bytes.

    The state is the gateway's, so the provider stores nothing, and gives reasoning in a form that can be sent again.

    Args:
        fields: JSON text by name. `model` is the provider's name of the model.

    Raises:
        InvalidRequest: a field that has to be changed cannot be decoded.
    """
    selected = {name: bytes(raw) for name, raw in fields.items() if name not in WITHHELD_FIELDS}
    selected = remove_own_metadata(selected) | {"store": b"false"}
    if b"comparison_response_id" in selected.get("prompt_cache_options", b""):
        # It is the id of a response of ours, which means nothing to the provider.
        options = decode_typed_field(fields, "prompt_cache_options", dict) or {}
        selected["prompt_cache_options"] = orjson.dumps(
            {name: value for name, value in options.items() if name != "comparison_response_id"}
        )
    included = decode_typed_field(fields, "include", list) or []
    if INCLUDED_REASONING not in included and _may_reason(fields):
        selected["include"] = orjson.dumps([*included, INCLUDED_REASONING])
    return selected


def read_responses_schemas(fields: Mapping[str, Any]) -> CountedSchemas:
    """Reads the schemas in decoded fields of a Responses request (`SCHEMA_FIELDS`). The same tools count the same in
    both protocols."""
    tools = [translate_tool_to_chat(listed) or listed.tool for listed in list_tools(fields.get("tools"))]
    match fields.get("text"):
        case {"format": {"type": "json_schema", **schema}}:
            answer_format = {"type": "json_schema", "json_schema": schema}
            return read_schemas({"tools": tools, "response_format": answer_format})
    return read_schemas({"tools": tools})


def pass_fields(fields: Mapping[str, bytes], fates: Mapping[str, Fate], dropped: list[str]) -> dict[str, bytes]:
    """Returns the fields that are passed unchanged, and adds the names of those that are left out to `dropped`.

    Raises:
        InvalidRequest: a field is refused.
    """
    passed: dict[str, bytes] = {}
    for name, raw in fields.items():
        fate = fates.get(name, "warned")
        if name in GATEWAY_FIELDS or fate in ("translated", "ours"):
            continue
        if fate == "passed":
            if bytes(raw) != b"null":
                passed[name] = bytes(raw)
            continue
        value = decode_field(fields, name)
        if value is None or value in NEUTRAL_VALUES.get(name, ()):
            continue
        if fate == "refused":
            complaint = "has no such parameter, and without it the answer would be another one"
            raise build_value_error(name, f"is not supported: the model's provider {complaint}", UNSUPPORTED)
        dropped.append(f"`{shorten_name(name)}`")
    return passed


def _translate_tools(fields: Mapping[str, bytes], dropped: list[str]) -> dict[str, bytes]:
    """Builds the chat fields for the tools of a Responses request, the choice among them, and their parallel calls."""
    tools, choice = decode_field(fields, "tools"), decode_field(fields, "tool_choice")
    check_tools(tools)
    check_tool_choice(choice)
    translated_tools = translate_tools_to_chat(tools, dropped)
    translated_choice = translate_tool_choice_to_chat(choice, tools, dropped)
    translated = {} if translated_choice is None else {"tool_choice": orjson.dumps(translated_choice)}
    # Chat Completions refuses `parallel_tool_calls` without tools.
    if translated_tools:
        translated["tools"] = orjson.dumps(translated_tools)
        if decode_field(fields, "parallel_tool_calls") is not None:
            translated["parallel_tool_calls"] = bytes(fields["parallel_tool_calls"])
    return translated


def _translate_include(fields: Mapping[str, bytes], dropped: list[str]) -> dict[str, bytes]:
    """Builds the chat fields for logarithmic probabilities."""
    included = decode_typed_field(fields, "include", list) or []
    dropped += [f"`include` ({shorten_name(str(one))})" for one in included if one not in INCLUDABLE]
    if INCLUDED_LOGPROBS not in included:
        return {}  # Chat Completions refuses `top_logprobs` without `logprobs`; the Responses API ignores it.
    count = decode_typed_field(fields, "top_logprobs", int)
    return {"logprobs": b"true"} | ({} if count is None else {"top_logprobs": b"%d" % count})


def _translate_reasoning(fields: Mapping[str, bytes], dropped: list[str]) -> dict[str, bytes]:
    reasoning = decode_typed_field(fields, "reasoning", dict) or {}
    dropped += list_unknown_members(reasoning, ("effort",), "reasoning")
    effort = reasoning.get("effort")
    return {} if effort is None else {"reasoning_effort": orjson.dumps(effort)}


def _translate_text(fields: Mapping[str, bytes], dropped: list[str]) -> dict[str, bytes]:
    text = decode_typed_field(fields, "text", dict) or {}
    dropped += list_unknown_members(text, ("format", "verbosity"), "text")
    translated = {} if text.get("verbosity") is None else {"verbosity": orjson.dumps(text["verbosity"])}
    match text.get("format"):
        case None:
            return translated
        case {"type": "json_schema", "name": str(), **schema}:
            body = {"name": text["format"]["name"], **schema}
            return translated | {"response_format": orjson.dumps({"type": "json_schema", "json_schema": body})}
        case {"type": "text" | "json_object"} as answer_format:
            return translated | {"response_format": orjson.dumps(answer_format)}
    complaint = "must be an object with type `text`, `json_object`, or `json_schema` and then a `name`"
    raise build_value_error("text.format", complaint)


def _translate_format_to_responses(answer_format: dict[str, Any] | None) -> dict[str, Any] | None:
    match answer_format:
        case None | {"type": "text" | "json_object"}:
            return answer_format
        case {"type": "json_schema", "json_schema": {"name": str()} as schema}:
            return {**schema, "type": "json_schema"}
    complaint = "must have type `text`, `json_object`, or `json_schema` and then a named `json_schema`"
    raise build_value_error("response_format", complaint)


def _translate_cache_options(fields: Mapping[str, bytes], dropped: list[str]) -> dict[str, bytes]:
    options = decode_typed_field(fields, "prompt_cache_options", dict) or {}
    if options.get("prewarm"):
        complaint = "is not supported: the model's provider would answer the request"
        raise build_value_error("prompt_cache_options.prewarm", complaint, UNSUPPORTED)
    known = ("mode", "ttl")
    dropped += list_unknown_members(options, known, "prompt_cache_options")
    kept = {name: options[name] for name in known if name in options}
    return {"prompt_cache_options": orjson.dumps(kept)} if kept else {}


def _translate_stream_options(fields: Mapping[str, bytes], dropped: list[str]) -> dict[str, bytes]:
    """Builds the options of the stream between the provider and the gateway. `include_usage` is ours: a Responses
    stream always ends with the usage."""
    options = decode_typed_field(fields, "stream_options", dict) or {}
    dropped += list_unknown_members(options, ("include_obfuscation", "include_usage"), "stream_options")
    # Without a stream, both protocols refuse the field.
    if options.get("include_obfuscation") is None or not decode_field(fields, "stream"):
        return {}
    return {"stream_options": orjson.dumps({"include_obfuscation": options["include_obfuscation"]})}


def _may_reason(fields: Mapping[str, bytes]) -> bool:
    """Says whether a model may think before it answers, so that it takes requests for encrypted reasoning."""
    model = str(decode_field(fields, "model")).rpartition("/")[2]
    return bool(decode_field(fields, "reasoning")) or _NON_REASONING_MODELS.match(model) is None


def render_field_warnings(dropped: Sequence[str], protocol: str) -> list[str]:
    """Returns the warning about what was left out, or no warning."""
    names = list(dict.fromkeys(dropped))
    if not names:
        return []
    more = f" and {len(names) - MAX_WARNED_FIELDS} more" if len(names) > MAX_WARNED_FIELDS else ""
    listed = ", ".join(names[:MAX_WARNED_FIELDS])
    return [f"Left out, because the model's provider speaks {protocol}, which has no such field: {listed}{more}."]
