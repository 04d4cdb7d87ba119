"""What models cost: list prices of well-known ones, from a table that `tools/refresh_model_prices.py` generates.

What is not known is None and never zero: an unknown cost must not look like a free one.
"""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Final

import orjson

from app.upstream.provider import UNKNOWN_PRICE, ModelDeployment, TokenPrice
from app.upstream.routing.known_model_windows import list_lookup_names

PRICE_TABLE_PATH: Final = Path(__file__).with_name("model_prices.json")
MILLION: Final = 1_000_000


def find_price(deployment: ModelDeployment) -> TokenPrice:
    """What a deployment costs: as configured, else by list."""
    return find_list_price(deployment.upstream_model) if deployment.price == UNKNOWN_PRICE else deployment.price


@functools.lru_cache(maxsize=512)
def find_list_price(model: str) -> TokenPrice:
    """What a model costs at its maker, found by its name as windows are (`registry.find`)."""
    prices = _load_price_table()
    return next((prices[name] for name in list_lookup_names(model) if name in prices), UNKNOWN_PRICE)


def compute_cost_usd(
    price: TokenPrice, *, prompt_tokens: int, cached_tokens: int, completion_tokens: int
) -> float | None:
    """What a call has cost; None where its price is not known.

    Args:
        prompt_tokens: cached ones included.
    """
    if price.input is None or price.output is None:
        return None
    cached = price.input if price.cached_input is None else price.cached_input
    fresh_tokens = prompt_tokens - cached_tokens
    return (fresh_tokens * price.input + cached_tokens * cached + completion_tokens * price.output) / MILLION


def compute_prompt_cost_usd(price: TokenPrice, tokens: int) -> float | None:
    """What so many tokens of a prompt would cost, none of them cached."""
    return None if price.input is None else tokens * price.input / MILLION


@functools.cache
def _load_price_table() -> dict[str, TokenPrice]:
    return {name: TokenPrice(*amounts) for name, amounts in orjson.loads(PRICE_TABLE_PATH.read_bytes()).items()}
