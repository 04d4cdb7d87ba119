"""Reads and adds up usage objects: the tokens that a provider counted, and how many came from its cache. Pure.

OpenAI and most others include cached tokens in `prompt_tokens` and report them in `prompt_tokens_details.cached_tokens`
(DeepSeek: `prompt_cache_hit_tokens`), and likewise those that were written to it as `cache_write_tokens`. Anthropic's
`input_tokens` exclude those of `cache_read_input_tokens` and `cache_creation_input_tokens`. Here the total includes
both once, in either form.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import msgspec

MAX_CALL_TOKENS: Final = 1_000_000_000
"""What counts of a larger number, which no model can have read or written. Sums of such numbers fit every database."""
CLEARED_TOKENS: Final = "cleared_tokens"
"""The gateway's own member of a usage object in the form of the log: as of `TokenUsage.cleared_tokens`."""
_ANSWER_LIMIT_FIELDS = "max_completion_tokens", "max_tokens", "max_output_tokens", "max_tokens_to_sample"
_ANSWER_COUNT_FIELDS = "n", "best_of"
_DETAIL_FIELDS = "input_tokens_details", "prompt_tokens_details"
"""Of two details of one name, that of the last field counts."""


NO_USAGE: Final[Mapping[str, int]] = {"prompt_tokens": 0, "completion_tokens": 0, "total_tokens": 0}
"""The usage of an answer for which no model was called."""


class TokenUsage(msgspec.Struct, frozen=True):
    """Tokens of one call, as a provider counted them."""

    prompt_tokens: int
    """Cached and written tokens included."""
    cached_tokens: int = 0
    output_tokens: int = 0
    """0 if the provider reports none."""
    written_tokens: int = 0
    """Tokens that were written to the provider's cache."""
    long_written_tokens: int = 0
    """Those of the written tokens that the cache keeps for the longer of a model's two lifetimes."""
    cleared_tokens: int = 0
    """Tokens of the prompt as it was sent that the provider cleared, and did not count in `prompt_tokens`."""

    @property
    def sent_tokens(self) -> int:
        """The tokens of the prompt as it was sent."""
        return self.prompt_tokens + self.cleared_tokens


def read_usage(usage: Mapping[str, Any] | None) -> TokenUsage | None:
    """Returns the tokens of a usage object; None if it has no usable number for the prompt."""
    if not usage:
        return None
    counts = _read_positive_integers(usage)
    details: dict[str, int] = {}
    for field in _DETAIL_FIELDS:
        if isinstance(found := usage.get(field), dict):
            details |= _read_positive_integers(found)
    read, written = counts.get("cache_read_input_tokens", 0), counts.get("cache_creation_input_tokens", 0)
    total = counts.get("prompt_tokens", 0)
    if not total:
        total = counts.get("input_tokens", 0) + read + written
    # A gateway that put Anthropic's `input_tokens` into `prompt_tokens`: a total cannot be less than its cached part.
    elif total < read + written:
        total += read + written
    if total <= 0:
        return None
    cached = min(total, details.get("cached_tokens") or counts.get("prompt_cache_hit_tokens") or read)
    written = min(total - cached, details.get("cache_write_tokens") or written)
    long_written = 0
    if isinstance(by_lifetime := usage.get("cache_creation"), dict):
        long_written = _read_positive_integers(by_lifetime).get("ephemeral_1h_input_tokens", 0)
    output = counts.get("completion_tokens") or counts.get("output_tokens", 0)
    return TokenUsage(total, cached, output, written, min(written, long_written), counts.get(CLEARED_TOKENS, 0))


def read_answer_limit(fields: Mapping[str, Any]) -> tuple[int | None, int]:
    """Returns the limit in tokens that the fields of any model call set for an answer, None if they set none; and how
    many answers are generated."""
    counts = _read_positive_integers(fields)
    limit = max(counts.get(name, 0) for name in _ANSWER_LIMIT_FIELDS)
    return limit or None, max(1, *(counts.get(name, 0) for name in _ANSWER_COUNT_FIELDS))


def sum_usages(usages: Sequence[Mapping[str, Any]]) -> dict[str, Any] | None:
    """Adds up usage objects, with their details; None if there are none."""
    if not usages:
        return None
    total: dict[str, Any] = {}
    for usage in usages:
        for name, value in usage.items():
            # A provider may report a number in one round and details in another: the first form counts.
            known = total.get(name)
            if isinstance(value, Mapping) and (known is None or isinstance(known, Mapping)):
                total[name] = sum_usages([known or {}, value])
            elif type(value) in (int, float) and (known is None or type(known) in (int, float)):
                total[name] = (known or 0) + value
    return total


def _read_positive_integers(facts: Mapping[str, Any]) -> dict[str, int]:
    """Returns the members that are positive numbers. A float is how the decoder reads an integer that is too large."""
    return {
        name: int(min(value, MAX_CALL_TOKENS))
        for name, value in facts.items()
        if type(value) in (int, float) and value >= 1
    }
