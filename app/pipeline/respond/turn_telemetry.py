"""Records the facts of a turn: in the request's log line and span when the view is known, in metrics after the
answer."""

from __future__ import annotations

from app.dialects.usage import TokenUsage
from app.observability.metrics import TurnFacts
from app.observability.request_record import current_request_record
from app.observability.tracing import STREAMED_ATTRIBUTE, current_span
from app.pipeline.respond.context_status import ContextReport
from app.pipeline.turn.chat_request import ChatRequest
from app.upstream.provider_contract import ModelDeployment
from app.upstream.routing.prices import compute_call_cost_usd, compute_prompt_cost_usd, find_price


def log_and_trace_report(request: ChatRequest, report: ContextReport) -> None:
    """Records numbers and names of the view in the request's log line and span."""
    record = current_request_record()
    if record is None:
        return
    facts = record.facts
    facts.context_status = report.status
    facts.conversation_id = report.conversation_id
    prompt_tokens, log_tokens = report.prompt_tokens, report.log_tokens
    facts.prompt_tokens = prompt_tokens
    facts.saved_tokens = log_tokens - prompt_tokens if log_tokens > prompt_tokens else 0
    facts.compaction_ms = report.compaction_status.get("duration_ms") or None
    span = current_span()
    if span.is_recording():
        span.set_attributes(
            {
                "concertina.context.status": report.status,
                "concertina.context.policy": report.policy,
                "concertina.context.pressure": report.budget.compute_limit_pressure(prompt_tokens),
                "concertina.context.prompt_tokens": prompt_tokens,
                "concertina.context.saved_tokens": facts.saved_tokens,
                "concertina.context.window": report.budget.window,
                "gen_ai.request.model": request.model,
                STREAMED_ATTRIBUTE: request.stream,
            }
        )


def build_turn_facts(
    deployment: ModelDeployment, report: ContextReport, usage: TokenUsage | None, *, is_whole: bool
) -> TurnFacts:
    """Builds the metrics of an answer: tokens sent and saved, and their cost by list price. Pure.

    Args:
        deployment: the deployment that answered.
        report: the facts that the client gets.
        usage: the provider's usage, summed over all rounds of this answer; None if none was reported.
        is_whole: the answer came to its end.
    """
    sent_tokens, log_tokens = report.prompt_tokens, report.log_tokens
    price = find_price(deployment)
    facts = TurnFacts(
        provider=deployment.provider.name,
        model=deployment.upstream_model,
        policy=report.policy,
        status=report.status,
        prompt_tokens=sent_tokens,
        log_tokens=log_tokens,
        pressure=report.budget.compute_limit_pressure(sent_tokens),
        saved_usd=compute_prompt_cost_usd(price, log_tokens - sent_tokens if log_tokens > sent_tokens else 0),
        is_whole=is_whole,
        has_recovered=report.recovered,
    )
    if usage is not None:
        facts.reported_tokens, facts.cached_tokens = usage.prompt_tokens, usage.cached_tokens
        facts.completion_tokens = usage.output_tokens
        facts.cost_usd = compute_call_cost_usd(deployment, usage)
    return facts


def record_turn(facts: TurnFacts) -> None:
    """Records the numbers of an answer for the list of requests and the log line."""
    if (record := current_request_record()) is not None:
        record.turn, logged = facts, record.facts
        logged.provider, logged.cost, logged.cached = facts.provider, facts.cost_usd, facts.cached_tokens
