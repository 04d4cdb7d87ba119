"""Notices that a provider's cache was lost though the gateway changed nothing, and tells what did.

Without it an application that puts the time into its instructions pays ten times as much, and nobody sees why. It
guesses nothing: it compares what was sent with what was sent before, and tells `unknown` where both are equal.
"""

from __future__ import annotations

import logging
import zlib
from typing import Any

import msgspec

from app.context.plan.outline import Plan
from app.dialects.usage import TokenUsage
from app.observability.metrics import Metrics
from app.observability.request_record import current_request_record
from app.pipeline.turn.last_view_and_calibration import (
    PROMPT_CACHE,
    CachedPrompt,
    is_cache_cold,
    read_cached_prompt,
)
from app.pipeline.turn.turn import Turn, View
from app.upstream.provider_contract import CacheRule, ModelDeployment

LOST_SHARE, LOST_TOKENS = 0.05, 2_000
"""Smaller losses are not told: caches work in steps, and the newest messages are never cached."""

log = logging.getLogger(__name__)


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
        metrics.count_cache_loss(loss.changed, loss.tokens, *labels)
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
