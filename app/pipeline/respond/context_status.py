"""Builds the gateway's fields of an answer: `context_status`, `conversation_id`, `context`, and the headers. Records
the same facts in the request's log line and span."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal
from urllib.parse import quote

import msgspec
import orjson
from msgspec.structs import replace

from app.context.calibration import HIGHEST_SLOPE
from app.context.plan.budget import Budget, compute_compaction_threshold
from app.context.plan.outline import Plan
from app.context.plan.policy import ContextPolicy
from app.conversation.conversation_types import Summary
from app.dialects.usage import TokenUsage, read_usage
from app.observability.request_record import current_request_record
from app.observability.tracing import STREAMED_ATTRIBUTE, current_span
from app.pipeline.turn.chat_request import ChatRequest, ContextDetail, select_context_fields
from app.pipeline.turn.last_view_and_calibration import list_unbilled_summaries
from app.pipeline.turn.turn import Turn, View
from app.upstream.provider_contract import ModelDeployment
from app.upstream.routing.prices import SUMMARY_COST, compute_call_cost_usd

ContextStatus = Literal["full", "summarized", "trimmed", "degraded", "bypassed"]


class ContextReport(msgspec.Struct, frozen=True):
    """The facts about the context of one answer, for its client.

    `status` sums the facts up in one word. `conversation_id` is None if the turn is not stored.
    """

    status: ContextStatus
    conversation_id: str | None
    policy: str
    plan: Plan
    budget: Budget
    prompt_tokens: int
    """Tokens of the plan's prompt, calibrated."""
    next_seq: int
    compaction_status: Mapping[str, Any]
    summary_usages: Sequence[Mapping[str, Any]] = ()
    """Of the calls for summaries and folds that no answer has told the cost of."""
    log_tokens: int = 0
    """Tokens of the whole history, calibrated: the prompt that a client without the gateway would have sent."""
    pinned_messages: int = 0
    """How many messages of the conversation are pinned, before or after the view's boundary."""
    compacts_above: int = 0
    """A prompt longer than this is compacted or shortened. Calibrated tokens, as `prompt_tokens`."""
    max_output_tokens: int | None = None
    """The answer's limit as sent upstream, if the gateway lowered the limit; otherwise None."""
    slope: float = 1.0
    """The provider's count divided by our count, without the offset."""
    offset_tokens: int = 0
    """The part of `prompt_tokens` that the provider counts in addition to slope × our count."""
    recovered: bool = False
    fallback: str | None = None
    """The key of the deployment that answered, if it is not the first for its model."""
    warnings: tuple[str, ...] = ()
    detail: ContextDetail = "full"
    searches: Sequence[Mapping[str, Any]] = ()
    """The searches of the model, `{query, found}` each. The sequence grows while the answer is made."""
    protocol_fields: Mapping[str, Any] = {}
    """Fields of the client's protocol that tell what was cleared because the client asked for it."""

    def render_status_fields(self) -> bytes:
        """Renders `context_status` and `conversation_id` as JSON members without braces, for `splice_fields`."""
        name = orjson.dumps(self.conversation_id)
        return b'"context_status":"%b","conversation_id":%b' % (self.status.encode(), name)

    def render_all_fields(self, context: Mapping[str, Any] | None = None) -> bytes:
        """Renders the status fields and `context`, as much of it as the client gets, as JSON members without braces.

        Args:
            context: the result of `build_context_object`; None: it is built without the provider's usage.
        """
        context = self.build_context_object() if context is None else context
        shown = select_context_fields(context, self.detail)
        fields = b'%b,"context":%b' % (self.render_status_fields(), orjson.dumps(shown))
        return fields + b"," + orjson.dumps(self.protocol_fields)[1:-1] if self.protocol_fields else fields

    def build_context_object(
        self, reported: TokenUsage | None = None, cost: Mapping[str, Any] | None = None
    ) -> dict[str, Any]:
        """Builds the `context` object. Token numbers are calibrated, except those of summaries, which are raw.

        Args:
            reported: the provider's usage for this view; None if it is not known (yet).
            cost: what the answer cost (`build_cost_object`); None likewise.
        """
        plan, budget, prompt_tokens = self.plan, self.budget, self.prompt_tokens
        quotations, edited = plan.quotations, len(plan.edits)
        return {
            "policy": self.policy,
            "window": budget.window,
            "prompt_tokens": prompt_tokens,
            "limit": budget.limit,
            "pressure": round(budget.compute_limit_pressure(prompt_tokens), 4),
            "compacts_above": self.compacts_above,
            "max_output_tokens": self.max_output_tokens,
            "summaries": [build_summary_fields(summary) for summary in plan.summaries] if plan.summaries else [],
            "verbatim_messages": self.next_seq - plan.boundary.to_seq - edited + _count_verbatim_before_boundary(plan),
            "trimmed_messages": edited,
            "dropped_messages": plan.dropped_message_count,
            "quoted": [
                {"seq": passage.seq, "before_seq": quotation.before_seq}
                for quotation in quotations
                for passage in quotation.passages
            ]
            if quotations
            else [],
            "quoted_tokens": budget.calibrate_tokens(sum(one.tokens for one in quotations)) if quotations else 0,
            "user_text": build_user_text_fields(plan, budget),
            "pinned": self.pinned_messages,
            "recovered": self.recovered,
            "compaction": dict(self.compaction_status),
            "calibration": {
                "slope": round(self.slope, 4),
                "offset": self.offset_tokens,
                "estimated_tokens": prompt_tokens,
                "reported_tokens": None if reported is None else reported.prompt_tokens,
                "cached_tokens": None if reported is None else reported.cached_tokens,
            },
            "cost": cost,
            "recalls": list(self.searches),
            "warnings": list(self.warnings),
        }

    def build_cost_object(self, deployment: ModelDeployment, usage: TokenUsage | None) -> dict[str, Any] | None:
        """Builds `context.cost`: the tokens that the answer cost, and the dollars where all prices are known.

        Args:
            deployment: has answered.
            usage: of all calls for the answer itself; None: the provider has reported none (yet), and the cost is None.
        """
        if usage is None:
            return None
        summary_tokens, usd = 0, compute_call_cost_usd(deployment, usage)
        for one in self.summary_usages:
            if (summary := read_usage(one)) is not None:
                summary_tokens += summary.prompt_tokens + summary.output_tokens
            summary_usd = one.get(SUMMARY_COST)
            usd = None if usd is None or summary_usd is None else usd + summary_usd
        return {
            "input": usage.prompt_tokens - usage.cached_tokens - usage.written_tokens,
            "cached": usage.cached_tokens,
            "written": usage.written_tokens,
            "output": usage.output_tokens,
            "summaries": summary_tokens,
            "usd": usd,
        }

    def build_headers(self, request_id: str, *, is_summarizing: bool = False) -> dict[str, str]:
        """Builds the headers of an answer.

        Args:
            is_summarizing: the headers are sent while the compaction still runs, so the final status is not known.
        """
        headers = {
            "x-context-status": "summarizing" if is_summarizing else self.status,
            "x-context-tokens": self.budget.render_tokens(self.prompt_tokens),
            "x-request-id": request_id,
        }
        if self.conversation_id is not None:
            headers["x-conversation-id"] = self.conversation_id
        if self.fallback is not None:
            # Clients choose the name of a model that only the wildcard serves: it may have any character.
            headers["x-model-fallback"] = quote(self.fallback, safe="/:@")
        return headers

    def add_warning(self, warning: str, status: ContextStatus | None = None) -> ContextReport:
        return replace(self, warnings=(*self.warnings, warning), status=status or self.status)


def build_user_text_fields(plan: Plan, budget: Budget) -> dict[str, int]:
    """Builds the fields for the user messages that a view hides; tokens are calibrated, without the frame of the text.
    Pins and the repeated message are shown anyway, and not counted."""
    shown = len({one.seq for one in plan.user_text})
    verbatim = sum(one.is_whole for one in plan.user_text)
    messages = max(shown, plan.boundary.through_turn - _count_verbatim_before_boundary(plan))
    return {
        "messages": messages,
        "verbatim": verbatim,
        "shortened": shown - verbatim,
        "left_out": messages - shown,
        "tokens": budget.calibrate_tokens(sum(one.tokens for one in plan.user_text)),
    }


def build_summary_fields(summary: Summary) -> dict[str, Any]:
    """Builds the fields that each answer has for a summary of its view."""
    return {
        "id": summary.id,
        "from_seq": summary.from_seq,
        "to_seq": summary.to_seq,
        "through_turn": summary.through_turn,
        "tokens": summary.tokens,
    }


def _count_verbatim_before_boundary(plan: Plan) -> int:
    """Counts the messages before the boundary that are shown verbatim: pinned messages and the anchor."""
    pinned = sum(pin.to_seq - pin.from_seq for pin in plan.pins) if plan.pins else 0
    # `plan.repeated_message_seq` is None for a pinned anchor, which is counted as a pin. The boundary is asked first
    # because it
    # is cheap, and most views have no anchor.
    return pinned + (plan.boundary.anchor_seq is not None and plan.repeated_message_seq is not None)


def build_context_report(turn: Turn, view: View) -> ContextReport:
    """Builds the facts about the context of an answer to this turn."""
    resolved_request, plan, outline, budget = turn.resolved_request, view.plan, view.outline, view.budget
    is_stored = resolved_request.storage.is_stored
    status: ContextStatus = plan.status
    if resolved_request.storage.is_degraded:
        status = "degraded"
    # A stateless request is `bypassed` only if its view is complete: a client must learn of trimming in any case.
    elif not is_stored and turn.request.storing.store and plan.status == "full":
        status = "bypassed"
    pins, output_limit = outline.pins, view.compute_lowered_output_limit()
    # After an overflow the ratio comes from the provider's count of the whole prompt, offset included. It may be higher
    # than a slope can be; the part above HIGHEST_SLOPE is reported as offset below.
    slope = min(budget.calibration_ratio, HIGHEST_SLOPE)
    added_tokens = outline.instructions_tokens - resolved_request.instructions_tokens
    return ContextReport(
        status=status,
        conversation_id=resolved_request.conversation.id if is_stored else None,
        policy=turn.policy.name,
        plan=plan,
        budget=budget,
        prompt_tokens=budget.calibrate_tokens(plan.prompt_tokens),
        next_seq=outline.next_seq,
        compaction_status=view.compaction_status,
        summary_usages=[
            one.usage for one in list_unbilled_summaries(resolved_request.conversation, outline) if one.usage
        ],
        log_tokens=budget.calibrate_tokens(outline.instructions_tokens + outline.log_tokens),
        pinned_messages=sum(pin.to_seq - pin.from_seq for pin in pins) if pins else 0,
        compacts_above=_compute_threshold_with_quotations(turn.policy, view),
        max_output_tokens=output_limit,
        recovered=view.is_overflow_recovered,
        fallback=view.fallback,
        warnings=(
            *view.warnings,
            *(() if view.fallback is None else (f"{view.fallback!r} answered in place of the first deployment.",)),
            *(() if output_limit is None else (_describe_lowered_output_limit(view.budget, output_limit),)),
            *resolved_request.warnings,
        ),
        detail=turn.request.delivery.context_detail,
        searches=turn.search_tool_session.searches if turn.search_tool_session is not None else (),
        protocol_fields=view.protocol_fields,
        slope=slope,
        offset_tokens=budget.calibrate_tokens(added_tokens)
        + round((budget.calibration_ratio - slope) * (plan.prompt_tokens - added_tokens)),
    )


def _compute_threshold_with_quotations(policy: ContextPolicy, view: View) -> int:
    """Computes the compaction threshold in tokens that compare with this view's prompt.

    The planner compares a prompt without quotations, so the quotations' tokens are added.
    """
    budget, plan = view.budget, view.plan
    threshold = compute_compaction_threshold(policy, budget, has_summaries=bool(plan.summaries))
    if not plan.quotations:
        return threshold
    quoted_tokens = sum(quotation.tokens for quotation in plan.quotations)
    return min(budget.limit, threshold + budget.calibrate_tokens(quoted_tokens))


def _describe_lowered_output_limit(budget: Budget, limit: int) -> str:
    change = f"from {budget.requested_output} to {limit}" if budget.requested_output else f"to {limit}"
    return f"The answer's limit was lowered {change} tokens: prompt and answer share a window of {budget.window}."


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
                STREAMED_ATTRIBUTE: request.delivery.stream,
            }
        )
