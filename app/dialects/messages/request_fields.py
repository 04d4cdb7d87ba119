"""Translates the fields of a request between the Messages API and Chat Completions, except for the messages. Pure.

Each field of Anthropic's types has a fate, as in `request_translation`; `docs/messages.md` shows them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import orjson

from app.conversation.item import CountedSchemas
from app.conversation.json_text import list_objects
from app.dialects.body.message_fields import read_schemas
from app.dialects.messages.message_rendering import count_cache_marks
from app.dialects.provider_dialect import SelectedFields
from app.dialects.request_body import (
    END_USER_FIELDS,
    UNSUPPORTED,
    build_type_error,
    build_value_error,
    decode_field,
    remove_own_metadata,
)
from app.dialects.request_translation import GATEWAY_FIELDS, name_fates, pass_fields, render_field_warnings
from app.dialects.responses.tools import list_unknown_members, shorten_name
from app.dialects.summarizer_fields import choose_output_limit_field
from app.errors import InvalidRequest

FATES_TO_CHAT: Final = name_fates(
    {
        "passed": ("model", "stream", "temperature", "top_p"),
        "translated": (
            *(
                "compaction",
                "context_management",
                "max_tokens",
                "messages",
                "output_config",
                "stop_sequences",
                "system",
            ),
            *("thinking", "tool_choice", "tools"),
        ),
        "ours": ("metadata",),
        "warned": (
            *("cache_control", "container", "diagnostics", "mcp_servers", "service_tier", "speed", "top_k"),
            *("user_profile_id", "workspace_id"),
        ),
        "refused": ("inference_geo",),
    }
)
"""What becomes of each field of a Messages request if the provider speaks one of OpenAI's protocols."""
FATES_FROM_CHAT: Final = name_fates(
    {
        "passed": ("model", "stream", "thinking", "top_p"),
        "translated": (
            *("max_completion_tokens", "max_tokens", "messages", "parallel_tool_calls", "reasoning_effort"),
            *("response_format", "safety_identifier", "stop", "temperature", "tool_choice", "tools", "user"),
        ),
        "ours": ("prompt_cache_key", "store", "stream_options"),
        "warned": (
            *("frequency_penalty", "logprobs", "metadata", "moderation", "prediction", "presence_penalty"),
            *("prompt_cache_options", "prompt_cache_retention", "seed", "service_tier", "top_logprobs"),
            *("verbosity",),
        ),
        "refused": (
            *("audio", "function_call", "functions", "logit_bias", "modalities", "n"),
            *("web_search_options",),
        ),
    }
)
"""What becomes of each field of a chat completion request if the provider speaks the Messages API. `thinking` is
Anthropic's: applications send it as an extra field."""
DEFAULT_MAX_TOKENS: Final = 8192
"""The answer's limit, which the API requires, if the client sets none. The oldest models that are still served (Claude
3.5) write no longer answers: docs.anthropic.com, "Models overview"."""
HIGHEST_TEMPERATURE: Final = 1
EFFORTS: Final[Mapping[object, str | None]] = {"none": None, "minimal": "low"}
"""OpenAI's words for how much a model shall think that Anthropic does not have; the others are the same."""
CHAT_TOOL_MEMBERS: Final = ("name", "description", "input_schema", "strict", "type", "cache_control")
TOOL_MEMBERS: Final = ("name", "description", "parameters", "strict")
MESSAGES_SCHEMA_FIELDS: Final = frozenset({"tools", "output_config"})
"""Fields of a Messages request with schemas."""


def translate_messages_fields_to_chat(fields: Mapping[str, bytes]) -> SelectedFields:
    """Translates the fields of a Messages request for a provider of one of OpenAI's protocols, in the form of Chat
    Completions.

    Args:
        fields: JSON text by name. `model` is the provider's name of the model, which decides the field of the limit.

    Raises:
        InvalidRequest: a field is invalid, or without it the answer would be another one; `param` names it.
    """
    dropped: list[str] = []
    translated = pass_fields(fields, FATES_TO_CHAT, dropped)
    config = decode_field(fields, "output_config") or {}
    dropped += list_unknown_members(config, ("effort", "format"), "output_config")
    if config.get("effort") is not None:
        translated["reasoning_effort"] = orjson.dumps(config["effort"])
    match config.get("format"):
        case {"type": "json_schema", "schema": dict(schema)}:
            named = {"name": "answer", "schema": schema, "strict": True}
            translated["response_format"] = orjson.dumps({"type": "json_schema", "json_schema": named})
    match decode_field(fields, "thinking"):
        case {"type": "enabled" | "adaptive"} if config.get("effort") is None:
            dropped.append("`thinking`")
    if stop := decode_field(fields, "stop_sequences"):
        translated["stop"] = orjson.dumps(stop)
    if (limit := decode_field(fields, "max_tokens")) is not None:
        translated[choose_output_limit_field(str(decode_field(fields, "model")))] = b"%d" % limit
    translated |= _translate_tools_to_chat(fields, dropped)
    return SelectedFields(translated, warnings=render_field_warnings(dropped, "one of OpenAI's protocols"))


def translate_chat_fields_to_messages(fields: Mapping[str, bytes]) -> SelectedFields:
    """Translates the fields of a chat completion request for a provider of the Messages API.

    Raises:
        InvalidRequest: a field is invalid, or without it the answer would be another one; `param` names it.
    """
    dropped: list[str] = []
    translated = pass_fields(fields, FATES_FROM_CHAT, dropped)
    limits = [decode_field(fields, name) or 0 for name in ("max_completion_tokens", "max_tokens")]
    limit = next((limit for limit in limits if isinstance(limit, int) and limit > 0), DEFAULT_MAX_TOKENS)
    translated["max_tokens"] = b"%d" % limit
    if (temperature := decode_field(fields, "temperature")) is not None:
        if temperature > HIGHEST_TEMPERATURE:
            dropped.append(f"`temperature` above {HIGHEST_TEMPERATURE}")
        translated["temperature"] = orjson.dumps(min(temperature, HIGHEST_TEMPERATURE))
    if stop := decode_field(fields, "stop"):
        translated["stop_sequences"] = orjson.dumps([stop] if isinstance(stop, str) else stop)
    end_user = next(filter(None, (decode_field(fields, name) for name in END_USER_FIELDS)), None)
    if isinstance(end_user, str):
        translated["metadata"] = orjson.dumps({"user_id": end_user})
    if config := _translate_output_config(fields, dropped):
        translated["output_config"] = orjson.dumps(config)
    translated |= _translate_tools_from_chat(fields, dropped)
    return SelectedFields(translated, warnings=render_field_warnings(dropped, "the Messages API"))


def select_own_fields(fields: Mapping[str, bytes]) -> dict[str, bytes]:
    """Selects the fields of a Messages request for a provider of the same protocol; they keep their bytes."""
    selected = {name: raw for name, raw in fields.items() if name not in GATEWAY_FIELDS}
    return remove_own_metadata(selected)


def count_marks_beside_messages(fields: Mapping[str, bytes]) -> int:
    """Returns how many cache marks the tools of a request have, and the request itself."""
    return count_cache_marks(bytes(fields.get("tools", b""))) + ("cache_control" in fields)


def read_messages_schemas(fields: Mapping[str, Any]) -> CountedSchemas:
    """Reads the schemas in decoded fields of a Messages request (`MESSAGES_SCHEMA_FIELDS`). The same tools count the
    same in every protocol."""
    tools = list_objects(fields.get("tools"))
    chat = [tool if is_provider_tool(tool) else _translate_tool_to_chat(tool) for tool in tools]
    match fields.get("output_config"):
        case {"format": {"type": "json_schema", "schema": schema}}:
            answer_format = {"type": "json_schema", "json_schema": {"name": "answer", "schema": schema}}
            return read_schemas({"tools": chat, "response_format": answer_format})
    return read_schemas({"tools": chat})


def may_run_anthropic_tools(fields: Mapping[str, bytes]) -> bool:
    """Returns whether the provider may run tools itself, and count their results as prompt tokens."""
    tools = decode_field(fields, "tools") if "tools" in fields else None
    return "mcp_servers" in fields or any(is_provider_tool(tool) for tool in tools or () if isinstance(tool, dict))


def is_provider_tool(tool: Mapping[str, Any]) -> bool:
    """Says whether only Anthropic's models know a tool: it has a type in place of a schema."""
    return tool.get("type") not in (None, "custom")


def _translate_tools_to_chat(fields: Mapping[str, bytes], dropped: list[str]) -> dict[str, bytes]:
    tools: Sequence[Mapping[str, Any]] = decode_field(fields, "tools") or ()
    choice: Mapping[str, Any] = decode_field(fields, "tool_choice") or {}
    dropped += [
        f"`tools[{index}]` ({shorten_name(tool.get('type'))})"
        for index, tool in enumerate(tools)
        if is_provider_tool(tool)
    ]
    own = [tool for tool in tools if not is_provider_tool(tool)]
    for tool in own:
        dropped += list_unknown_members(tool, CHAT_TOOL_MEMBERS, "tools[]")
    names = [tool.get("name") for tool in own]
    kind, name = choice.get("type"), choice.get("name")
    if (kind == "tool" and name not in names) or (kind == "any" and not own):
        raise InvalidRequest(
            f"tool_choice: forces {shorten_name(name) if kind == 'tool' else 'a tool'}, which this model's provider "
            "does not have",
            code=UNSUPPORTED,
            param="tool_choice",
        )
    if not own:
        return {}
    translated = {"tools": orjson.dumps([_translate_tool_to_chat(tool) for tool in own])}
    if kind == "tool":
        translated["tool_choice"] = orjson.dumps({"type": "function", "function": {"name": name}})
    elif kind is not None:
        translated["tool_choice"] = b'"required"' if kind == "any" else orjson.dumps(kind)
    if choice.get("disable_parallel_tool_use"):
        translated["parallel_tool_calls"] = b"false"
    return translated


def _translate_tool_to_chat(tool: Mapping[str, Any]) -> dict[str, Any]:
    function = {name: tool[name] for name in ("name", "description", "strict") if tool.get(name) is not None}
    if tool.get("input_schema") is not None:
        function["parameters"] = tool["input_schema"]
    return {"type": "function", "function": function}


def _translate_tools_from_chat(fields: Mapping[str, bytes], dropped: list[str]) -> dict[str, bytes]:
    tools = decode_field(fields, "tools") or []
    if not isinstance(tools, list):
        raise build_type_error("tools", list)
    own: list[dict[str, Any]] = []
    for index, tool in enumerate(tools):
        match tool:
            case {"function": dict(function)}:
                dropped += list_unknown_members(function, TOOL_MEMBERS, "tools[].function")
                own.append(_translate_tool_from_chat(function))
            case _:
                kind = tool.get("type") if isinstance(tool, dict) else None
                dropped.append(f"`tools[{index}]` ({shorten_name(kind)})")
    choice = _translate_choice_from_chat(decode_field(fields, "tool_choice"), own, dropped)
    if not own:
        return {}
    if decode_field(fields, "parallel_tool_calls") is False and choice != {"type": "none"}:
        choice = {**(choice or {"type": "auto"}), "disable_parallel_tool_use": True}
    translated = {"tools": orjson.dumps(own)}
    return translated if choice is None else {**translated, "tool_choice": orjson.dumps(choice)}


def _translate_tool_from_chat(function: Mapping[str, Any]) -> dict[str, Any]:
    tool = {name: function[name] for name in ("name", "description", "strict") if function.get(name) is not None}
    return {**tool, "input_schema": {"type": "object", **(function.get("parameters") or {})}}


def _translate_choice_from_chat(
    choice: object, own: Sequence[Mapping[str, Any]], dropped: list[str]
) -> dict[str, Any] | None:
    match choice:
        case None:
            return None
        case "none" | "auto":
            return {"type": choice}
        case "required" if own:
            return {"type": "any"}
        case {"function": {"name": str(name)}} if any(tool["name"] == name for tool in own):
            return {"type": "tool", "name": name}
        case {"allowed_tools": {"mode": "auto" | "required" as mode}} if own or mode == "auto":
            dropped.append("`tool_choice.allowed_tools.tools`")
            return {"type": "any" if mode == "required" else "auto"}
    complaint = "forces a tool that this model's provider does not have, or has no form that it knows"
    raise build_value_error("tool_choice", complaint, UNSUPPORTED)


def _translate_output_config(fields: Mapping[str, bytes], dropped: list[str]) -> dict[str, Any]:
    config: dict[str, Any] = {}
    effort = decode_field(fields, "reasoning_effort")
    if effort is not None and (word := EFFORTS.get(effort, effort)) is not None:
        config["effort"] = word
    match decode_field(fields, "response_format"):
        case None | {"type": "text"}:
            pass
        case {"type": "json_schema", "json_schema": {"schema": dict(schema)}}:
            config["format"] = {"type": "json_schema", "schema": schema}
        case _:
            dropped.append("`response_format`")
    return config
