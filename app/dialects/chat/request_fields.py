"""Fields of a chat completion request that the gateway sets itself, for requests of its own. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

import orjson

REASONING_MODELS: Final = ("o1", "o3", "o4", "gpt-5")
"""Prefixes of OpenAI models that accept `max_completion_tokens` only."""
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


def choose_output_limit_field(upstream_model: str) -> str:
    """Returns the field that limits the answer of a model of this name."""
    name = upstream_model.rpartition("/")[2]
    return "max_completion_tokens" if name.startswith(REASONING_MODELS) else "max_tokens"


def encode_request_body(model: str, messages: Sequence[bytes], fields: Mapping[str, bytes]) -> bytes:
    """Returns the body of a request with JSON texts of messages and of further fields."""
    fields = {"model": orjson.dumps(model), "messages": b"[" + b",".join(messages) + b"]", **fields}
    return b"{" + b",".join(b"%b:%b" % (orjson.dumps(name), raw) for name, raw in fields.items()) + b"}"
