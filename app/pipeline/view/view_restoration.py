"""What the model saw when it gave a stored answer: the facts that are stored with the answer, and the view restored
from them."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from app.context.plan.budget import Budget
from app.context.plan.outline import LastView, Pin, Plan
from app.context.standing.standing_requests import StandingRequest
from app.context.view.client_versions import NO_VERSIONS, ClientVersions
from app.context.view.view_rendering import render_view
from app.conversation.conversation_types import Conversation, LogMessage, Summary
from app.dialects.missing_tool_results import add_missing_tool_results
from app.pipeline.chat_request import ChatRequest
from app.pipeline.resolve.resolved_request import ResolvedRequest, has_client_versions
from app.pipeline.turn import View
from app.pipeline.view.view_builder import read_shown_before_boundary
from app.store.contract.conversations import ConversationStore
from app.store.contract.summaries import ConversationAndSummaryStore, SummaryStore

VIEW_FACTS = "view"
"""A key of a stored answer's `meta`: the facts of the view that the answer was given to."""
REQUEST_FACTS = "asked"
"""A key of a stored answer's `meta`: the model that the request named, and its policy and output limit if it named
them."""
MAX_OUTPUT_TOKENS = "max_output_tokens"
"""A key of the request facts: the limit of the answer."""
THRESHOLD, LOG_TOKENS = "threshold", "log_tokens"
"""Keys of the view facts, both in calibrated tokens. `THRESHOLD` is what `context.compacts_above` reports today (older
answers only). `LOG_TOKENS` are the tokens of the whole history, instructions and tools included."""


@dataclass(frozen=True, slots=True)
class RestoredView:
    """The view of a stored answer, restored from the store."""

    plan: Plan
    budget: Budget
    policy_name: str
    next_seq: int
    """The length of the log when the answer was requested."""
    client_versions: ClientVersions
    """What the client showed in the place of log messages at that time."""
    is_exact: bool
    """Whether the restored messages are the bytes that were sent. They are not if the client sent its history in
    another form than the log has, or if a message or a summary was erased since."""


def build_view_facts(view: View, resolved_request: ResolvedRequest, *, log_tokens: int) -> dict[str, Any]:
    """Returns the facts from which a view can be restored.

    Args:
        log_tokens: see `LOG_TOKENS`.
    """
    plan = view.plan
    facts: dict[str, Any] = {
        "next_seq": view.outline.next_seq,
        LOG_TOKENS: log_tokens,
    }
    # The client's own messages were sent unchanged: the log alone restores them.
    if view.messages is None:
        return facts
    last_view = LastView(boundary=plan.boundary, edits=tuple(plan.edits.values()), quotations=plan.quotations)
    return {
        **facts,
        "shown": msgspec.to_builtins(last_view),
        "chunks": [summary.id for summary in plan.summaries],
        "revisions": [summary.revision for summary in plan.summaries],
        "pins": [msgspec.to_builtins(pin) for pin in plan.pins],
        "standing": [msgspec.to_builtins(one) for one in plan.standing_requests],
        "dropped": plan.dropped_message_count,
        "digest": _digest_messages(view.messages[len(resolved_request.instructions) :]),
    }


def build_request_facts(request: ChatRequest) -> dict[str, Any]:
    """Returns the facts of a request that the next request is expected to share."""
    facts: dict[str, Any] = {"model": request.model}
    if request.policy:
        facts["policy"] = request.policy
    if request.max_output_tokens:
        facts[MAX_OUTPUT_TOKENS] = request.max_output_tokens
    return facts


def read_request_facts(meta: Mapping[str, Any]) -> Mapping[str, Any]:
    """Returns the model of an answer's request, and its other request facts, from the answer's `meta`."""
    return {"model": meta.get("model"), **meta.get(REQUEST_FACTS, {})}


async def restore_view(
    store: ConversationAndSummaryStore, conversation: Conversation, answer: LogMessage
) -> RestoredView | None:
    """Restores the view that an answer was given to, or returns None if nothing is known of the view. Reads only what
    the view showed.

    Raises:
        StoreUnavailable: the log cannot be read.
    """
    meta = answer.meta or {}
    facts, context = meta.get(VIEW_FACTS), meta.get("context")
    if not isinstance(facts, Mapping) or not isinstance(context, Mapping):
        return None
    next_seq = int(facts["next_seq"])
    summaries = await _read_view_summaries(store, conversation, facts)
    plan = _restore_plan(facts, context, summaries)
    versions = NO_VERSIONS
    if has_client_versions(conversation):
        stored = await store.read_client_versions(conversation, until_seq=next_seq)
        versions = ClientVersions.from_stored(stored, conversation.redacted_seqs)
    is_exact = len(summaries) == len(facts.get("chunks", ()))
    # A view without a digest was the client's own messages, which the log restores.
    if is_exact and "digest" in facts:
        is_exact = facts["digest"] == _digest_messages(
            await restore_view_messages(store, conversation, plan, next_seq, versions)
        )
    return RestoredView(plan, _restore_budget(context), str(context.get("policy")), next_seq, versions, is_exact)


async def restore_view_messages(
    store: ConversationStore, conversation: Conversation, plan: Plan, next_seq: int, versions: ClientVersions
) -> list[bytes]:
    """Returns the JSON text of the messages that were sent after the instructions, as far as they are stored.

    Raises:
        StoreUnavailable: the log cannot be read.
    """
    log_messages = await read_shown_before_boundary(store, conversation, plan)
    log_messages += await store.read_log(conversation, plan.boundary_seq, next_seq)
    raw_log_messages = {entry.seq: entry.message.raw for entry in log_messages}
    messages = render_view(
        plan, instructions=[], find_raw_message=raw_log_messages.__getitem__, next_seq=next_seq, versions=versions
    )
    return add_missing_tool_results(messages)


async def _read_view_summaries(
    store: SummaryStore, conversation: Conversation, facts: Mapping[str, Any]
) -> list[Summary]:
    """Returns the summaries of a view, each with the text that it had then. Summaries that were deleted are left
    out."""
    summary_ids: Sequence[str] = facts.get("chunks", ())
    if not summary_ids:
        return []
    tenant, root = conversation.tenant, conversation.root
    summaries_by_id = {
        summary.id: summary
        for summary in await store.find_summaries(tenant=tenant, root=root, path=conversation.lineage_with_self)
    }
    revisions: Sequence[int | None] = facts.get("revisions") or [None] * len(summary_ids)
    summaries = []
    for summary_id, revision in zip(summary_ids, revisions, strict=True):
        summary = summaries_by_id.get(summary_id)
        if summary is not None and revision not in (None, summary.revision):
            old_revisions = await store.read_summary_revisions(tenant=tenant, root=root, summary_id=summary_id)
            summary = next((one for one in old_revisions if one.revision == revision), None)
        if summary is not None:
            summaries.append(summary)
    return summaries


def _restore_plan(facts: Mapping[str, Any], context: Mapping[str, Any], summaries: Sequence[Summary]) -> Plan:
    last_view = msgspec.convert(facts.get("shown", {}), LastView)
    return Plan(
        status="summarized" if summaries else "trimmed" if last_view.edits or facts.get("dropped") else "full",
        summaries=tuple(summaries),
        boundary=last_view.boundary,
        prompt_tokens=int(int(context["prompt_tokens"]) / _restore_slope(context)),
        fits=True,
        pins=msgspec.convert(facts.get("pins", []), tuple[Pin, ...]),
        standing_requests=msgspec.convert(facts.get("standing", []), tuple[StandingRequest, ...]),
        edits={edit.seq: edit for edit in last_view.edits},
        quotations=last_view.quotations,
        dropped_message_count=int(facts.get("dropped", 0)),
    )


def _restore_budget(context: Mapping[str, Any]) -> Budget:
    window, limit = int(context["window"]), int(context["limit"])
    return Budget(window, window - limit, 0, limit, int(context.get("compacts_above", limit)), _restore_slope(context))


def _restore_slope(context: Mapping[str, Any]) -> float:
    """Returns the slope that is stored with an answer. Older answers have a ratio instead."""
    calibration = context.get("calibration") or {}
    return float(calibration.get("slope") or calibration.get("ratio") or 1.0)


def _digest_messages(messages: Sequence[bytes]) -> str:
    digest = hashlib.sha256()
    for raw in messages:
        digest.update(len(raw).to_bytes(8, "big"))
        digest.update(bytes(raw))
    return digest.hexdigest()
