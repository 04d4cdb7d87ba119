"""When a further compaction pays: as cheap as can be, between the policy's threshold and the room for quotations."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from app.context.plan.budget import Budget, compute_budget
from app.context.plan.compaction_price import (
    COMMON_RATES,
    MAX_DELAY_SHARE,
    TokenRates,
    compute_cheapest_growth,
    compute_compaction_price,
    price_further_compaction,
)
from app.context.plan.outline import Boundary, LastView, Outline
from app.context.plan.planner import plan_view
from app.context.plan.policy import ContextPolicy, make_policy
from tests.context.planned_conversation import COUNT, chunk_of

WINDOW = 8_192
rates = st.builds(TokenRates, st.floats(0.01, 1), st.floats(1, 2), st.floats(1, 10))
tokens = st.integers(0, 100_000)


def outline_of(request_tokens: int, *, summary_tokens: int = 400, summaries: int = 2, shown: int = 2) -> Outline:
    """A log of which each message has half of the tokens of a request; summaries of twenty messages each."""
    chain = tuple(
        chunk_of(
            20 * (at + 1),
            from_seq=20 * at,
            through_turn=10 * (at + 1),
            tokens=summary_tokens,
            tokens_total=10 * (at + 1) * request_tokens,
        )
        for at in range(summaries)
    )
    last = LastView(boundary=Boundary(20 * shown, 10 * shown * request_tokens))
    return Outline(100, 10 * summaries * request_tokens, 20 * summaries, summaries=chain, last_view=last)


def price(outline: Outline, policy: ContextPolicy, given_rates: TokenRates = COMMON_RATES) -> Budget:
    return price_further_compaction(outline, compute_budget(policy, window=WINDOW), policy, given_rates)


@given(cost=st.floats(1, 1e6), request_tokens=st.floats(1, 1e5), given_rates=rates, factor=st.floats(0.1, 10))
def test_no_other_growth_is_cheaper(cost: float, request_tokens: float, given_rates: TokenRates, factor: float) -> None:
    def cost_of_request(growth: float) -> float:
        requests = growth / request_tokens
        return cost / requests + given_rates.cached * growth / 2

    cheapest = compute_cheapest_growth(cost, request_tokens=request_tokens, rates=given_rates)
    assert cost_of_request(cheapest) <= cost_of_request(cheapest * factor) * (1 + 1e-9)


@given(kept=tokens, summary=tokens, prompt=tokens, more=tokens, given_rates=rates)
def test_more_to_read_and_to_write_never_costs_less(
    kept: int, summary: int, prompt: int, more: int, given_rates: TokenRates
) -> None:
    def compute(kept: int, summary: int, prompt: int) -> float:
        return compute_compaction_price(
            kept_tokens=kept, summary_tokens=summary, prompt_tokens=prompt, rates=given_rates
        )

    least = compute(kept, summary, prompt)
    assert min(compute(kept + more, summary, prompt), compute(kept, summary + more, prompt)) >= least
    assert compute(kept, summary, prompt + more) >= least > 0


@given(
    request_tokens=st.integers(1, 4_000),
    summary_tokens=st.integers(1, 512),
    summaries=st.integers(1, 12),
    given_rates=rates,
    recall=st.sampled_from(["off", "quote", "tool"]),
    ratio=st.floats(0.7, 1.6),
)
def test_the_threshold_stays_between_the_policys_own_and_the_room_for_quotations(
    request_tokens: int, summary_tokens: int, summaries: int, given_rates: TokenRates, recall: Any, ratio: float
) -> None:
    policy = make_policy(recall=recall)
    before = compute_budget(policy, window=WINDOW, calibration_ratio=ratio)
    outline = outline_of(request_tokens, summary_tokens=summary_tokens, summaries=summaries, shown=summaries)
    after = price_further_compaction(outline, before, policy, given_rates)
    threshold = after.compute_threshold(has_summaries=True)
    assert before.compute_threshold(has_summaries=True) <= threshold <= after.limit - after.quotation_reserve
    assert threshold <= before.compaction_threshold + MAX_DELAY_SHARE * WINDOW
    assert after.compute_threshold(has_summaries=False) == before.compaction_threshold


def test_a_further_compaction_waits_where_requests_are_large_beside_the_window() -> None:
    policy = ContextPolicy()
    thresholds = [price(outline_of(size), policy).compute_threshold(has_summaries=True) for size in (10, 50, 100, 400)]
    assert thresholds[0] == int(0.7 * WINDOW)
    assert thresholds == sorted(thresholds)
    assert thresholds[-1] == int(0.7 * WINDOW) + int(MAX_DELAY_SHARE * WINDOW)


def test_where_cached_tokens_cost_as_much_as_new_ones_nothing_waits() -> None:
    thresholds = [
        price(outline_of(200), ContextPolicy(), TokenRates(cached=cached)).further_threshold for cached in (0.1, 1.0)
    ]
    assert thresholds[0] > thresholds[1] == int(0.7 * WINDOW)


def test_the_threshold_stays_until_the_boundary_moves() -> None:
    outline, policy = outline_of(150), ContextPolicy()
    before = price(outline, policy)
    grown = replace(outline, log_tokens=outline.log_tokens + 2_000, next_seq=outline.next_seq + 20)
    prepared = replace(outline_of(150, summaries=3), last_view=outline.last_view)
    assert price(grown, policy) == price(prepared, policy) == before
    assert before.further_threshold > before.compaction_threshold


@pytest.mark.parametrize(
    ("outline", "policy"),
    [
        (outline_of(400, shown=0), ContextPolicy()),
        (outline_of(400), make_policy(threshold_tokens=5_000)),
        (outline_of(400), make_policy(strategy="recursive")),
        (outline_of(400), make_policy(kind="checkpoint")),
    ],
    ids=["no summary is shown", "a threshold in tokens", "one rolling summary", "checkpoints"],
)
def test_nothing_else_waits(outline: Outline, policy: ContextPolicy) -> None:
    assert price(outline, policy) == compute_budget(policy, window=WINDOW)


def test_a_plan_tells_the_price_of_the_compaction_that_it_puts_off() -> None:
    policy = ContextPolicy()
    outline = outline_of(400)
    budget = price(outline, policy)
    found = {}
    for log_tokens in (12_500, 13_500, 14_500):
        grown = replace(outline, log_tokens=log_tokens, next_seq=60)
        plan = plan_view(grown, budget, policy, counter=COUNT, summarizer_input_tokens=WINDOW)
        found[log_tokens] = [(note.code, note.facts.get("price")) for note in plan.notes]
    assert found[12_500] == [("view_fits", None)]
    assert found[13_500] == [("view_fits", None), ("put_off", budget.compaction_price)]
    assert [code for code, _ in found[14_500]] == ["over_soft"]
