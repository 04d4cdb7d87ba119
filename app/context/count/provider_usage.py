"""How many tokens of a prompt a provider says it read, and how many of them from its cache. Pure.

OpenAI and most others count cached tokens in `prompt_tokens` and name them in `prompt_tokens_details.cached_tokens`
(DeepSeek: `prompt_cache_hit_tokens`). Anthropic's `input_tokens` leave out what `cache_read_input_tokens` and
`cache_creation_input_tokens` count. Here cached tokens are counted in once, whichever way they are told.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

_SEPARATE_CACHE_FIELDS = frozenset({"cache_read_input_tokens", "cache_creation_input_tokens"})
_DETAIL_FIELDS = "prompt_tokens_details", "input_tokens_details"


class PromptUsage(msgspec.Struct, frozen=True):
    """Tokens of one prompt, as a provider counted them."""

    tokens: int
    """Cached ones included."""
    cached_tokens: int = 0


def read_prompt_usage(usage: Mapping[str, Any] | None) -> PromptUsage | None:
    """What a usage object says of the prompt; None where it says nothing that can be used."""
    if not usage:
        return None
    read = written = 0
    if not _SEPARATE_CACHE_FIELDS.isdisjoint(usage):
        read, written = (
            _read_positive_integer(usage, "cache_read_input_tokens"),
            _read_positive_integer(usage, "cache_creation_input_tokens"),
        )
    total = _read_positive_integer(usage, "prompt_tokens")
    if not total:
        total = _read_positive_integer(usage, "input_tokens") + read + written
    elif total < read + written:
        total += read + written
    if total <= 0:
        return None
    cached = _read_cached_tokens(usage) or read
    return PromptUsage(total, min(total, cached) if cached else 0)


def read_output_tokens(usage: Mapping[str, Any] | None) -> int:
    """How many tokens a provider says it wrote; 0 where it says nothing."""
    return (
        (_read_positive_integer(usage, "completion_tokens") or _read_positive_integer(usage, "output_tokens"))
        if usage
        else 0
    )


def _read_cached_tokens(usage: Mapping[str, Any]) -> int:
    """Cached tokens that are counted in the total already."""
    for name in _DETAIL_FIELDS:
        if name in usage:
            details = usage[name]
            if isinstance(details, dict) and (found := _read_positive_integer(details, "cached_tokens")):
                return found
    return _read_positive_integer(usage, "prompt_cache_hit_tokens") if "prompt_cache_hit_tokens" in usage else 0


def _read_positive_integer(facts: Mapping[str, Any], name: str) -> int:
    value = facts.get(name)
    return value if type(value) is int and value > 0 else 0  # a bool is none
