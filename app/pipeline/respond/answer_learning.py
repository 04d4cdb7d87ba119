"""Learns from an answer what the next turns of its conversation need: the view that they continue, how the provider
counts, its window, and what its prompt cache has.

A cache that was lost though the gateway changed nothing is told, with what did: without that an application that puts
the time into its instructions pays ten times as much, and nobody sees why. Nothing is guessed: what was sent is
compared with what was sent before, and `unknown` is told where both are equal.
"""

from __future__ import annotations

import logging
import zlib
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final

import msgspec

from app.context.plan.outline import Plan, make_last_view
from app.dialects.usage import TokenUsage
from app.observability.metric_families import LOST_CACHE_TOKENS
from app.observability.metrics import Metrics
from app.observability.request_record import current_request_record
from app.pipeline.call.upstream_call import UpstreamCaller
from app.pipeline.call.window_learning import ModelFactWriter, WindowLearner
from app.pipeline.respond.context_status import ContextReport
from app.pipeline.respond.turn_end import TurnEnd
from app.pipeline.turn.last_view_and_calibration import (
    CALIBRATIONS,
    LAST_VIEWS,
    PROMPT_CACHE,
    CachedPrompt,
    CalibrationSlopes,
    add_last_view,
    build_billed_state,
    is_cache_cold,
    read_cached_prompt,
)
from app.pipeline.turn.turn import Turn, View
from app.upstream.provider_contract import CacheRule, ModelDeployment

MIN_TRUNCATED_PROMPT_TOKENS: Final = 2048
"""Shorter prompts are not checked for truncation: servers are not started with a smaller window."""
TRUNCATED_SHARE: Final = 0.5
"""A provider that counts less than this share of our count has probably cut the prompt: tokenizers hardly differ by
more."""

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class AnswerLearner:
    """Builds the members of a conversation's state that change with an answer."""

    upstream_caller: UpstreamCaller
    window_learner: WindowLearner
    calibration_slopes: CalibrationSlopes
    fact_writer: ModelFactWriter
    metrics: Metrics
    unix_seconds: Callable[[], float]
    _models_warned_of: set[str] = field(default_factory=set)
    """Keys of the deployments about which the log already warns that they may cut prompts: one warning is enough."""

    def learn(self, end: TurnEnd) -> dict[str, Any]:
        """Returns the changed members of `Conversation.state`."""
        return {**self._learn_view(end), **self._learn_counts(end)}

    def _learn_view(self, end: TurnEnd) -> dict[str, Any]:
        turn, view = end.turn, end.upstream_answer.sent_view
        state, client_versions = turn.resolved_request.conversation.state, turn.resolved_request.shown.client_versions
        last_view = make_last_view(
            view.plan,
            view.outline.last_view,
            was_requested=turn.request.compaction.summarize == "now" and bool(view.plan.summaries),
            user_texts=view.outline.user_texts,
        )
        last_view = client_versions.recount_view_for_originals(last_view)
        views = add_last_view(state, turn.policy, view.budget.window, last_view)
        return ({LAST_VIEWS: views} if views else {}) | build_billed_state(view.outline)

    def _learn_counts(self, end: TurnEnd) -> dict[str, Any]:
        """Learns from what the provider counted: the calibration, the window, and what its cache has."""
        turn, view, deployment = end.turn, end.upstream_answer.sent_view, end.upstream_answer.deployment
        conversation, reported = turn.resolved_request.conversation, end.planned_prompt_usage
        if reported is None:
            return self.window_learner.learn_from_answer(conversation.state, deployment, refused=view.refused_size)
        warning = describe_provider_truncation(end.report, reported)
        if warning and deployment.key not in self._models_warned_of:
            self._models_warned_of.add(deployment.key)
            log.warning("%s: %s", deployment.key, warning)
        # The turn's calibration is that of the first deployment; the others are its fallbacks.
        is_first = deployment is turn.target.deployments[0]
        known = turn.calibration if is_first else self.upstream_caller.find_calibration(deployment, turn)
        prompt, sent_tokens = turn.build_counted_prompt(view), reported.sent_tokens
        calibration = known.learn_from_report(prompt, sent_tokens)
        # New conversations start with the slope, here and on other replicas.
        slope_facts = self.calibration_slopes.learn_slope(
            deployment.key, conversation.tenant, conversation.id, calibration
        )
        if slope_facts is not None:
            self.fact_writer.start_write(deployment.key, slope_facts)
        return {
            **self.window_learner.learn_from_answer(
                conversation.state,
                deployment,
                refused=view.refused_size,
                prompt_tokens=sent_tokens,
                truncated_at=known.find_silent_truncation_window(prompt, sent_tokens),
            ),
            **learn_cached_prompt(turn, view, deployment, reported, self.unix_seconds(), self.metrics),
            CALIBRATIONS: {**conversation.state.get(CALIBRATIONS, {}), deployment.key: calibration.to_dict()},
        }


def describe_provider_truncation(report: ContextReport, reported: TokenUsage | None) -> str | None:
    """Describes a prompt of which the provider seems to have cut most; None if there is no such sign.

    Ollama cuts prompts without an error.
    """
    sent_tokens = report.prompt_tokens
    if (
        reported is None
        or sent_tokens < MIN_TRUNCATED_PROMPT_TOKENS
        or reported.sent_tokens >= TRUNCATED_SHARE * sent_tokens
    ):
        return None
    return (
        f"The provider counted {reported.prompt_tokens} tokens in a prompt of {sent_tokens}. If it cut the "
        "prompt, its window is "
        "smaller than the one that is configured here."
    )


LOST_SHARE, LOST_TOKENS = 0.05, 2_000
"""Smaller losses are not told: caches work in steps, and the newest messages are never cached."""


class CacheLoss(msgspec.Struct, frozen=True):
    """Tokens that were read from the cache before and were not now."""

    changed: str
    """`model`, `tools`, `instructions`, `history`, `idle` (for longer than the cache's lifetime) or `unknown`."""
    tokens: int
    seq: int | None = None
    """The first message that the client's history has otherwise."""


def learn_cached_prompt(
    turn: Turn, view: View, deployment: ModelDeployment, usage: TokenUsage, now: float, metrics: Metrics
) -> dict[str, Any]:
    """Returns the member of the conversation's state for a prompt that was sent. Tells a loss in the log, the metrics
    and the request's timeline."""
    conversation = turn.resolved_request.conversation
    before = read_cached_prompt(conversation.state)
    # Most providers without a cache report no cached tokens, ever.
    if before is None and not (usage.cached_tokens or usage.written_tokens):
        return {}
    prompt = CachedPrompt(
        conversation_id=conversation.id,
        model_key=deployment.key,
        instructions=turn.instructions_digest,
        view=_compute_checksum(view.plan),
        quotation_count=len(view.plan.quotations),
        prompt_tokens=usage.prompt_tokens,
        cached_tokens=usage.cached_tokens,
        sent_at=now,
    )
    if before is not None and (loss := find_cache_loss(turn, before, prompt, deployment.cache)) is not None:
        labels = (deployment.provider.name, metrics.model_label(deployment.upstream_model))
        metrics.counter_series(LOST_CACHE_TOKENS, loss.changed, *labels).inc(loss.tokens)
        changed = loss.changed if loss.seq is None else f"{loss.changed} at message {loss.seq}"
        log.warning("%s: the prompt cache was lost, %d tokens: %s", deployment.key, loss.tokens, changed)
        if (record := current_request_record()) is not None:
            record.end_step(record.begin_step("cache_lost", msgspec.to_builtins(loss)))
    return {PROMPT_CACHE: msgspec.to_builtins(prompt)}


def find_cache_loss(turn: Turn, before: CachedPrompt, prompt: CachedPrompt, rule: CacheRule) -> CacheLoss | None:
    """Returns what a prompt lost of the cache, if no edit of the gateway explains it. A long new message lowers the
    share, too, but loses nothing."""
    if not (before.prompt_tokens and prompt.prompt_tokens):
        return None  # some providers report no prompt, or one of no tokens
    share = before.cached_tokens / before.prompt_tokens - prompt.cached_tokens / prompt.prompt_tokens
    tokens = before.cached_tokens - prompt.cached_tokens
    if share <= LOST_SHARE or tokens <= LOST_TOKENS:
        return None
    if before.model_key != prompt.model_key:
        return CacheLoss("model", tokens)
    schemas, _, instructions = prompt.instructions.partition(".")
    schemas_before, _, instructions_before = before.instructions.partition(".")
    if schemas != schemas_before:
        return CacheLoss("tools", tokens)
    if instructions != instructions_before:
        return CacheLoss("instructions", tokens)
    if before.view != prompt.view or prompt.quotation_count < before.quotation_count:
        return None
    conversation, rewritten_seq = turn.resolved_request.conversation, turn.resolved_request.shown.rewritten_seq
    if rewritten_seq is not None:
        return CacheLoss("history", tokens, rewritten_seq)
    if before.conversation_id != prompt.conversation_id and conversation.lineage:
        return CacheLoss("history", tokens, conversation.lineage[-1][1] + 1)
    return CacheLoss("idle" if is_cache_cold(before, rule, prompt.sent_at) else "unknown", tokens)


def _compute_checksum(plan: Plan) -> int:
    """Returns a checksum of what stands before the newest messages of a view; 0 for the log as it is."""
    if plan.shows_log_unchanged:
        return 0
    shown = (
        plan.boundary.to_seq,
        [(summary.id, summary.revision) for summary in plan.summaries],
        plan.pins,
        plan.user_text,
        list(plan.edits.values()),
        plan.dropped_message_count,
    )
    return zlib.crc32(msgspec.json.encode(shown))
