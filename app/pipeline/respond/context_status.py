"""What an answer says of itself: `context_status`, `conversation_id`, `context`, and the headers. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final, Literal

import msgspec
import orjson
from msgspec.structs import replace

from app.context.count.provider_usage import PromptUsage
from app.context.plan.budget import Budget
from app.context.plan.outline import Plan
from app.conversation.messages import Summary
from app.pipeline.resolve.resolved_request import ResolvedRequest

ContextStatus = Literal["full", "summarized", "trimmed", "degraded", "bypassed"]
FORWARDED_HEADERS: Final = ("retry-after", "retry-after-ms", "x-should-retry")
FORWARDED_HEADER_PREFIXES: Final = ("x-ratelimit-", "openai-")


class ContextReport(msgspec.Struct, frozen=True):
    """The facts of one answer that its client is told.

    `status` stands for all; a conversation is only named where the turn is kept.
    """

    status: ContextStatus
    conversation_id: str | None
    policy: str
    plan: Plan
    budget: Budget
    prompt_tokens: int
    """Of the plan, calibrated."""
    next_seq: int
    compaction_status: Mapping[str, Any]
    log_tokens: int = 0
    """Of the whole history, calibrated: what would have been sent without us."""
    pinned_messages: int = 0
    """Messages of the conversation that are pinned, wherever in the view they stand."""
    compacts_above: int = 0
    """A longer prompt is compacted, or shortened: in tokens that compare with `prompt_tokens`."""
    max_output_tokens: int | None = None
    """The answer's limit as it was sent, where it was lowered."""
    slope: float = 1.0
    """Of the provider's count, by ours."""
    offset_tokens: int = 0
    """Of `prompt_tokens`: what the provider counts beside the slope × our count."""
    recovered: bool = False
    warnings: tuple[str, ...] = ()
    searches: Sequence[Mapping[str, Any]] = ()
    """What the model searched for; grows while the answer is given."""

    def render_status_fields(self) -> bytes:
        """Our two fields as they are spliced into a JSON object, after a comma, without the braces."""
        name = orjson.dumps(self.conversation_id)
        return b'"context_status":"%b","conversation_id":%b' % (self.status.encode(), name)

    def render_all_fields(self, context: Mapping[str, Any]) -> bytes:
        """All three, with `context` as the method of that name gives it."""
        return b'%b,"context":%b' % (self.render_status_fields(), orjson.dumps(context))

    def build_context(self, reported: PromptUsage | None = None) -> dict[str, Any]:
        """The `context` object. Token numbers are calibrated, those of summaries raw.

        Args:
            reported: what the provider said of this view, once that is known.
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
            "verbatim_messages": self.next_seq - plan.boundary.to_seq - edited + _count_early_messages(plan),
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
            "pinned": self.pinned_messages,
            "recovered": self.recovered,
            "compaction": dict(self.compaction_status),
            "calibration": {
                "slope": round(self.slope, 4),
                "offset": self.offset_tokens,
                "estimated_tokens": prompt_tokens,
                "reported_tokens": None if reported is None else reported.tokens,
                "cached_tokens": None if reported is None else reported.cached_tokens,
            },
            "recalls": list(self.searches),
            "warnings": list(self.warnings),
        }

    def build_headers(self, request_id: str, *, is_summarizing: bool = False) -> dict[str, str]:
        """The headers of an answer; `is_summarizing` while a stream has only begun to."""
        headers = {
            "x-context-status": "summarizing" if is_summarizing else self.status,
            "x-context-tokens": render_tokens_header(self.prompt_tokens, self.budget),
            "x-request-id": request_id,
        }
        if self.conversation_id is not None:
            headers["x-conversation-id"] = self.conversation_id
        return headers

    def add_warning(self, warning: str, status: ContextStatus | None = None) -> ContextReport:
        return replace(self, warnings=(*self.warnings, warning), status=status or self.status)


def build_summary_fields(summary: Summary) -> dict[str, Any]:
    """What every answer says of a summary that a view shows."""
    return {
        "id": summary.id,
        "from_seq": summary.from_seq,
        "to_seq": summary.to_seq,
        "through_turn": summary.through_turn,
        "tokens": summary.tokens,
    }


def _count_early_messages(plan: Plan) -> int:
    """How many messages from before the boundary are shown word for word."""
    pinned = sum(pin.to_seq - pin.from_seq for pin in plan.pins) if plan.pins else 0
    return pinned + (plan.boundary.anchor_seq is not None and plan.anchor_seq is not None)


def render_tokens_header(prompt_tokens: int, budget: Budget) -> str:
    """`X-Context-Tokens`: used, and how much may be."""
    return f"{prompt_tokens}/{budget.limit}"


def choose_status(resolved_request: ResolvedRequest, plan: Plan, *, is_stateless: bool) -> ContextStatus:
    """The one word for what the model saw. Trimming is said even where the store was left out."""
    if resolved_request.is_degraded:
        return "degraded"
    if is_stateless and plan.status == "full":
        return "bypassed"
    return plan.status


def select_forwarded_headers(headers: Mapping[str, str]) -> dict[str, str]:
    """Those of an upstream's headers that its client may see."""
    return {
        name: value
        for name, value in headers.items()
        if name in FORWARDED_HEADERS or name.startswith(FORWARDED_HEADER_PREFIXES)
    }
