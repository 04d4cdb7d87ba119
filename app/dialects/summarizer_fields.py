"""Fields of a client's request that the summarizer's requests take over, and those that no parameter of a summarizer
sets, in the form of Chat Completions. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final

import orjson

CACHED_PREFIX_FIELDS: Final = ("tools", "functions", "parallel_tool_calls", "prompt_cache_key")
"""Fields that belong to the provider's cached prefix, or name its cache."""
RESERVED_FIELDS: Final = frozenset(
    {"model", "messages", "stream", "stream_options", "n", "max_tokens", "max_completion_tokens", "tool_choice"}
    | {"function_call", *CACHED_PREFIX_FIELDS}
)
"""Fields of the summarizer's request that configured parameters cannot set."""


_REASONING_MODELS: Final = re.compile(r"o\d|gpt-(?:[5-9]|[12]\d)")
"""How the names of OpenAI's models begin that reason. They accept `max_completion_tokens` only."""


def choose_output_limit_field(upstream_model: str) -> str:
    """Returns the field that limits the answer of a model of this name."""
    name = upstream_model.rpartition("/")[2]
    return "max_completion_tokens" if _REASONING_MODELS.match(name) else "max_tokens"


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
