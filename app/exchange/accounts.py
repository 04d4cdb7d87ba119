"""What a turn came to, in numbers: tokens that were sent and saved, and what that cost by list price. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from app.context.usage import input_of, output_of
from app.exchange.report import Report
from app.exchange.views import View
from app.observability.metrics import TurnFacts
from app.upstream.base import Deployment
from app.upstream.prices import cost_usd, input_usd, price_of


def facts_of_turn(
    deployment: Deployment, view: View, report: Report, usage: Mapping[str, Any] | None, *, is_whole: bool
) -> TurnFacts:
    """An answer in numbers.

    Args:
        deployment: the one that answered.
        report: what the client was told.
        usage: as reported for all that was asked for this answer.
    """
    budget, outline = view.budget, view.outline
    sent_tokens = report.prompt_tokens
    log_tokens = budget.calibrated(outline.instructions_tokens + outline.log_tokens)
    price, prompt = price_of(deployment), input_of(usage)
    cost = None
    if prompt is not None:
        cost = cost_usd(
            price,
            prompt_tokens=prompt.tokens,
            cached_tokens=prompt.cached_tokens,
            completion_tokens=output_of(usage),
        )
    return TurnFacts(
        provider=deployment.provider.name,
        model=deployment.upstream_model,
        policy=report.policy,
        status=report.status,
        prompt_tokens=sent_tokens,
        log_tokens=log_tokens,
        pressure=sent_tokens / max(1, budget.pruning),
        reported_tokens=None if prompt is None else prompt.tokens,
        cached_tokens=None if prompt is None else prompt.cached_tokens,
        completion_tokens=output_of(usage) if prompt is not None else None,
        cost_usd=cost,
        saved_usd=input_usd(price, max(0, log_tokens - sent_tokens)),
        is_whole=is_whole,
        recovered=report.recovered,
    )
