"""Fields of a chat completion request that the gateway sets itself, in clients' requests and in its own. Pure."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import orjson

OUTPUT_LIMIT_FIELDS: Final = ("max_completion_tokens", "max_tokens")
_REASONING_MODELS: Final = re.compile(r"o\d|gpt-(?:[5-9]|[12]\d)")
"""How the names of OpenAI's models begin that reason. They accept `max_completion_tokens` only."""
_NON_REASONING_MODELS: Final = re.compile(r"chatgpt-4o|gpt-[34]")
"""How the names of OpenAI's other models begin. They refuse requests for encrypted reasoning: "Encrypted content is not
supported with this model". Models with other names are not OpenAI's."""
CACHED_PREFIX_FIELDS: Final = ("tools", "functions", "parallel_tool_calls", "prompt_cache_key")
"""Fields that belong to the provider's cached prefix, or name its cache."""
RESERVED_FIELDS: Final = frozenset(
    {"model", "messages", "stream", "stream_options", "n", "max_tokens", "max_completion_tokens", "tool_choice"}
    | {"function_call", *CACHED_PREFIX_FIELDS}
)
"""Fields of the summarizer's request that configured parameters cannot set."""


def build_cached_prefix_fields(fields: Mapping[str, bytes]) -> dict[str, bytes]:
    """Builds the fields that keep the provider's cache valid: the same tools, with calls forbidden."""
    kept_fields = {name: bytes(fields[name]) for name in CACHED_PREFIX_FIELDS if name in fields}
    for name, choice in (("tools", "tool_choice"), ("functions", "function_call")):
        if orjson.loads(kept_fields.get(name, b"null")):
            kept_fields[choice] = b'"none"'
    return kept_fields


def read_parameter_names(fields: Mapping[str, bytes]) -> frozenset[str]:
    """Returns the names of all parameters that a request's tools take, nested ones included."""
    names: set[str] = set()
    pending: list[Any] = [orjson.loads(bytes(fields.get(name, b"null"))) for name in ("tools", "functions")]
    while pending:
        node = pending.pop()
        if isinstance(node, dict):
            properties = node.get("properties")
            names.update(properties if isinstance(properties, dict) else ())
            pending.extend(node.values())
        elif isinstance(node, list):
            pending.extend(node)
    return frozenset(names)


def choose_output_limit_field(upstream_model: str) -> str:
    """Returns the field that limits the answer of a model of this name."""
    name = upstream_model.rpartition("/")[2]
    return "max_completion_tokens" if _REASONING_MODELS.match(name) else "max_tokens"


def is_non_reasoning_model(upstream_model: str) -> bool:
    """Returns whether the name is that of an OpenAI model that does not reason."""
    return _NON_REASONING_MODELS.match(upstream_model.rpartition("/")[2]) is not None


def encode_request_body(model: str, messages: Sequence[bytes], fields: Mapping[str, bytes]) -> bytes:
    """Returns the body of a request with JSON texts of messages and of further fields."""
    fields = {"model": orjson.dumps(model), "messages": b"[" + b",".join(messages) + b"]", **fields}
    return b"{" + b",".join(b"%b:%b" % (orjson.dumps(name), raw) for name, raw in fields.items()) + b"}"


def ask_for_usage(decode_field: Callable[[str], Any]) -> dict[str, bytes]:
    """Builds the field by which a stream ends with a chunk of the usage.

    Args:
        decode_field: returns a decoded field of the request by its name.
    """
    return {"stream_options": orjson.dumps({**(decode_field("stream_options") or {}), "include_usage": True})}


def lower_output_limit(decode_field: Callable[[str], Any], limit: int) -> dict[str, bytes]:
    """Builds the fields of the answer's limit: those above `limit`, lowered; `max_tokens` if the client set none."""
    values = {name: value for name in OUTPUT_LIMIT_FIELDS if (value := decode_field(name)) is not None}
    # Some servers read 0 or a negative limit as "no limit".
    too_high = [name for name, value in values.items() if value > limit or value <= 0]
    return dict.fromkeys(too_high if values else ["max_tokens"], b"%d" % limit)
