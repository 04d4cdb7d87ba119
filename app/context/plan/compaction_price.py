"""Prices a further compaction of a view that may still grow: what is paid anew against what each request pays for the
longer view. Pure.

A compaction at a fixed line is dearer than it saves where a window is small beside what a request brings. If the price
is guessed wrong, little is lost: around the best length, the cost of a view changes slowly.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from operator import attrgetter
from typing import Final

import msgspec
from msgspec.structs import replace

from app.context.plan.budget import SUMMARY_INSTRUCTION_TOKENS, Budget
from app.context.plan.outline import Outline
from app.context.plan.policy import ContextPolicy

MAX_DELAY_SHARE: Final = 0.1
"""A further compaction waits at most until the view has grown by this share of the window above the threshold. What is
left below the limit is for quotations."""
PATIENCE: Final = 1.25
"""A view grows by this many times the cheapest growth, which costs 2.5 % more: each compaction also takes a model's
time, and detail from the view."""
RECENT_SUMMARIES: Final = 8
"""So many of the newest summaries tell how long the next one will be."""


class TokenRates(msgspec.Struct, frozen=True):
    """What tokens cost, as multiples of a new token of the prompt. The defaults are common list prices."""

    cached: float = 0.1
    written: float = 1.0
    """To the provider's cache."""
    output: float = 5.0


COMMON_RATES: Final = TokenRates()


def compute_compaction_price(
    *, kept_tokens: float, summary_tokens: float, prompt_tokens: float, rates: TokenRates
) -> float:
    """Returns what one compaction costs, in new tokens: the call reads the prompt from the cache, its instruction
    anew, and writes the summary; then the summary and what stays verbatim are sent as new."""
    call = prompt_tokens * rates.cached + SUMMARY_INSTRUCTION_TOKENS + summary_tokens * rates.output
    return call + (kept_tokens + summary_tokens) * max(0.0, rates.written - rates.cached)


def compute_cheapest_growth(price: float, *, request_tokens: float, rates: TokenRates) -> float:
    """Returns by how many tokens a view should grow between two compactions.

    Over n requests, each of which adds g tokens, the added tokens are read from the cache for cached · g · n² ÷ 2. The
    cost of a request, price ÷ n + cached · g · n ÷ 2, is least where both parts are equal.
    """
    return math.sqrt(2 * price * request_tokens / rates.cached)


def price_further_compaction(outline: Outline, budget: Budget, policy: ContextPolicy, rates: TokenRates) -> Budget:
    """Returns the budget with the threshold and the price of the next compaction of a view with summaries.

    What a request and a turn bring is taken from the log before the view's boundary, so that the threshold stays until
    the boundary moves. The threshold is never below the policy's, and a threshold in tokens is kept as it is.
    """
    count = bisect_right(outline.summaries, outline.last_view.boundary.to_seq, key=attrgetter("to_seq"))
    has_threshold = policy.compaction.threshold_tokens is not None
    if not count or policy.kind != "additive" or policy.has_replacing_summaries or has_threshold:
        return budget
    last, recent = outline.summaries[count - 1], outline.summaries[max(0, count - RECENT_SUMMARIES) : count]
    folds = outline.folds[-1:]
    first = bisect_right(outline.summaries, folds[0].to_seq, key=attrgetter("to_seq")) if folds else 0
    sections = (*folds, *outline.summaries[first:count])
    most_kept = budget.compute_raw_tokens(int(budget.window * policy.verbatim.buffer_max_ratio))
    kept_tokens = min(most_kept, policy.verbatim.buffer_turns * last.tokens_total / max(1, last.through_turn))
    price = compute_compaction_price(
        kept_tokens=kept_tokens,
        summary_tokens=sum(one.tokens for one in recent) / len(recent),
        prompt_tokens=budget.compute_raw_tokens(budget.compaction_threshold),
        rates=rates,
    )
    # A request brings a message and gets an answer.
    growth = compute_cheapest_growth(price, request_tokens=2 * last.tokens_total / last.to_seq, rates=rates)
    size_after_compaction = outline.instructions_tokens + sum(one.tokens for one in sections) + kept_tokens
    threshold = budget.calibrate_tokens(round(size_after_compaction + PATIENCE * growth))
    latest = budget.compaction_threshold + int(MAX_DELAY_SHARE * budget.window)
    return replace(
        budget,
        further_threshold=max(budget.compaction_threshold, min(threshold, latest)),
        compaction_price=budget.calibrate_tokens(round(price)),
    )
