"""Prices of models: list prices of well-known models, from a table that `tools/refresh_model_prices.py` generates.

An unknown price is None and never zero: an unknown cost must not look like no cost.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import orjson
from msgspec.structs import replace

from app.dialects.usage import TokenUsage
from app.upstream.provider_contract import (
    UNKNOWN_PRICE,
    CacheRule,
    LongPromptPrice,
    ModelDeployment,
    ProviderProtocol,
    TokenPrice,
)
from app.upstream.routing.known_model_windows import list_model_name_variants

PRICE_TABLE_PATH: Final = Path(__file__).with_name("model_prices.json")
MILLION: Final = 1_000_000
SUMMARY_COST: Final = "cost_usd"
"""The member that the usage of a summary has beside the provider's numbers: what its calls cost."""
LEAST_BYTES_PER_TOKEN: Final = 3
"""For estimates of what a prompt costs that is not counted: a token has more bytes in nearly every text."""


@functools.lru_cache(maxsize=512)
def find_list_price(model: str) -> TokenPrice:
    """Returns the maker's price of a model, found by its name as windows are
    (`known_model_windows.find_known_window`).
    """
    prices = _load_price_table()
    return next((prices[name] for name in list_model_name_variants(model) if name in prices), UNKNOWN_PRICE)


def find_cache_rule(protocol: ProviderProtocol, model: str, *, is_openai: bool) -> CacheRule:
    """Returns the rule of a model's prompt cache, as far as it is certain: models that are read only at marks have a
    price for what is written.

    Args:
        is_openai: whether the provider is OpenAI itself. Other servers may refuse its fields.
    """
    has_marks = (protocol == "anthropic" or is_openai) and find_list_price(model).cache_write is not None
    if protocol == "anthropic":
        return "anthropic" if has_marks else "none"
    return "none" if not is_openai else "breakpoints" if has_marks else "prefix"


def compute_call_cost_usd(deployment: ModelDeployment, usage: TokenUsage) -> float | None:
    """Returns the cost of a call of a deployment; None if its price is not known."""
    price = deployment.price
    if price.long_prompts is not None and usage.prompt_tokens > price.long_prompts.above_tokens:
        price = price.long_prompts.price
    if price.input is None or price.output is None:
        return None
    cached = price.input if price.cached_input is None else price.cached_input
    written = price.input if price.cache_write is None else price.cache_write
    long_written = written if price.long_cache_write is None else price.long_cache_write
    short_written_tokens = usage.written_tokens - usage.long_written_tokens
    return (
        (usage.prompt_tokens - usage.cached_tokens - usage.written_tokens) * price.input
        + usage.cached_tokens * cached
        + short_written_tokens * written
        + usage.long_written_tokens * long_written
        + usage.output_tokens * price.output
    ) / MILLION


def compute_prompt_cost_usd(price: TokenPrice, tokens: int) -> float | None:
    """Returns the cost of prompt tokens of which none are cached."""
    return None if price.input is None else tokens * price.input / MILLION


@functools.cache
def _load_price_table() -> dict[str, TokenPrice]:
    return {name: _read_row(row) for name, row in orjson.loads(PRICE_TABLE_PATH.read_bytes()).items()}


def _read_row(row: Sequence[Any]) -> TokenPrice:
    """Reads the amounts of `TokenPrice` in their order, and those of long prompts after the limit of these."""
    price = TokenPrice(*row[:5])
    return price if len(row) < 6 else replace(price, long_prompts=LongPromptPrice(row[5], TokenPrice(*row[6:])))
