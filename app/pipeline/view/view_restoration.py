"""What the model saw when it gave a stored answer: the facts that are stored with the answer, and the view restored
from them."""

from __future__ import annotations

import hashlib
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import msgspec

from app.context.plan.budget import Budget
from app.context.plan.outline import LastView, Pin, Plan
from app.context.user_text.user_text import UserLine
from app.context.view.client_versions import NO_VERSIONS, ClientVersions
from app.context.view.view_rendering import render_view
from app.conversation.conversation_types import Conversation, LogMessage, Summary
from app.conversation.identity import compute_prefix_digests
from app.dialects.missing_tool_results import add_missing_tool_results
from app.dialects.resent_answer import FORMS, render_resent_answer
from app.pipeline.chat_request import ChatRequest
from app.pipeline.resolve.client_history import MIN_FAST_PATH_MESSAGES
from app.pipeline.resolve.resolved_request import UNANSWERED_MESSAGES, ResolvedRequest
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
DIGEST, HISTORY_DIGEST, LAST_ANSWER = "digest", "history", "last_answer"
"""Keys of the view facts. `DIGEST` is of a rendered view, `HISTORY_DIGEST` of a client history that was sent unchanged.
`LAST_ANSWER` says in which form the client sent the answer before this one: its seq, and a checksum of its bytes."""
MAX_UNKNOWN_FORMS: Final = 20
"""After so many answers in unknown forms only known ones are tried: each form takes about 10 µs."""
MAX_NAMED_SEQS: Final = 10
"""How many messages a sentence names."""


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
    answer_forms: Mapping[int, bytes]
    """The bytes in which the client sent answers back, by seq; of those answers that the log has in another form."""
    difference: ViewDifference | None
    """How the restored messages differ from the bytes that were sent; None if they are these bytes."""
    whole_tokens: int | None
    """Calibrated tokens of the whole history, which would have been sent without the gateway."""
    since_seq: int
    """The first answer whose view had the same summaries."""


@dataclass(frozen=True, slots=True)
class ViewDifference:
    """Why a view cannot be restored byte for byte."""

    reason: str
    """A sentence."""
    seqs: Sequence[int] = ()
    """The messages that are known to differ."""


@dataclass(slots=True)
class _ShownLog:
    """The log messages that a view shows, and in which form the client sent the answers among them."""

    raw_messages: dict[int, bytes] = field(default_factory=dict)
    checksums: dict[int, int] = field(default_factory=dict)
    """The checksum of the client's form, by the answer's seq."""
    answer_seqs: list[int] = field(default_factory=list)
    """The answers that this gateway gave."""


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
    last_answer = _find_last_answer(resolved_request, view.outline.next_seq)
    if last_answer is not None:
        facts[LAST_ANSWER] = last_answer
    # The client's own messages were sent unchanged.
    if view.messages is None:
        if resolved_request.history_digest is not None and resolved_request.expanded_messages is None:
            facts[HISTORY_DIGEST] = resolved_request.history_digest.hex()
        return facts
    last_view = LastView(boundary=plan.boundary, edits=tuple(plan.edits.values()), quotations=plan.quotations)
    return {
        **facts,
        "shown": msgspec.to_builtins(last_view),
        "chunks": [summary.id for summary in plan.summaries],
        "revisions": [summary.revision for summary in plan.summaries],
        "pins": [msgspec.to_builtins(pin) for pin in plan.pins],
        "user_text": [msgspec.to_builtins(one) for one in plan.user_text],
        "dropped": plan.dropped_message_count,
        DIGEST: _digest_messages(view.messages[len(resolved_request.instructions) :]),
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
    if conversation.has_client_versions:
        stored = await store.read_client_versions(conversation, until_seq=next_seq)
        versions = ClientVersions.from_stored(stored, conversation.redacted_seqs)
    shown_messages = await _read_shown_log(store, conversation, plan, next_seq)
    log = _collect_shown_log(shown_messages, answer)
    answer_forms, unknown_seqs = _find_answer_forms(log)

    def render(forms: Mapping[int, bytes]) -> list[bytes]:
        return _render_log(plan, next_seq, versions, {**log.raw_messages, **forms})

    difference = None
    if _is_sent_view(facts, conversation, render({})):
        answer_forms = {}
    elif not _is_sent_view(facts, conversation, render(answer_forms)):
        difference = _explain_difference(facts, conversation, summaries, log, unknown_seqs)
    # A view's summaries end before its question, so all answers to such views are in its verbatim part.
    answers = (entry for entry in shown_messages if entry.seq >= plan.boundary_seq)
    return RestoredView(
        plan,
        _restore_budget(context),
        str(context.get("policy")),
        next_seq,
        versions,
        answer_forms,
        difference,
        whole_tokens=facts.get(LOG_TOKENS),
        since_seq=next((one.seq for one in answers if _list_summary_ids(one) == _list_summary_ids(answer)), answer.seq),
    )


def count_replaced_tokens(summaries: Sequence[Summary]) -> list[int | None]:
    """Returns the raw tokens of the messages that each of a view's summaries stands for; None if the summaries before
    it do not tell where they begin."""
    totals = {0: 0} | {summary.to_seq: summary.tokens_total for summary in summaries}
    return [
        summary.tokens_total - totals[summary.from_seq] if summary.from_seq in totals else None for summary in summaries
    ]


def explain_view(view: RestoredView) -> str:
    """Returns in a sentence why a view was sent as it was."""
    plan, threshold = view.plan, view.budget.compaction_threshold
    whole = "an unknown number of" if view.whole_tokens is None else f"{view.whole_tokens:,}"
    if plan.status == "full":
        prompt_tokens = view.budget.calibrate_tokens(plan.prompt_tokens)
        return f"Sent in full: {prompt_tokens:,} tokens of a threshold of {threshold:,}."
    if not plan.summaries:
        return f"Shortened without a summary: the whole history has {whole} tokens, the limit is {view.budget.limit:,}."
    cause = (
        f"{whole} tokens would have passed the threshold of {threshold:,}"
        if view.whole_tokens is not None and view.whole_tokens > threshold
        else f"the whole history has {whole} tokens of a threshold of {threshold:,}, and what was summarized comes "
        "back only when there is more room"
    )
    parts = [
        f"summary {summary.id} ({summary.tokens:,} tokens) stands for messages {summary.from_seq} to "
        f"{summary.to_seq - 1}" + ("" if replaced is None else f" ({replaced:,} tokens)")
        for summary, replaced in zip(plan.summaries, count_replaced_tokens(plan.summaries), strict=True)
    ]
    return f"Summarized since message {view.since_seq}: {cause}; {', '.join(parts)}."


def _list_summary_ids(answer: LogMessage) -> Sequence[str]:
    facts = (answer.meta or {}).get(VIEW_FACTS)
    return list(facts.get("chunks", ())) if isinstance(facts, Mapping) else []


async def restore_view_messages(
    store: ConversationStore, conversation: Conversation, view: RestoredView
) -> list[bytes]:
    """Returns the JSON text of the messages that were sent after the instructions, as far as they are stored.

    Raises:
        StoreUnavailable: the log cannot be read.
    """
    log_messages = await _read_shown_log(store, conversation, view.plan, view.next_seq)
    raw_messages = {entry.seq: entry.message.raw for entry in log_messages}
    return _render_log(view.plan, view.next_seq, view.client_versions, {**raw_messages, **view.answer_forms})


def _find_last_answer(resolved_request: ResolvedRequest, next_seq: int) -> tuple[int, int] | None:
    """Returns the seq of the last answer before the request, and the checksum of the bytes in which the client sent it
    back; None if the client did not send it."""
    messages = resolved_request.client_messages
    pending = int(resolved_request.conversation.state.get(UNANSWERED_MESSAGES, 0)) + len(resolved_request.new_messages)
    seq = next_seq - pending - 1
    if messages is None or seq < 0:
        return None
    index = seq
    if resolved_request.log_seqs is not None:
        if seq not in resolved_request.log_seqs:
            return None
        index = resolved_request.log_seqs.index(seq)
    return (seq, zlib.crc32(messages[index])) if index < len(messages) else None


async def _read_shown_log(
    store: ConversationStore, conversation: Conversation, plan: Plan, next_seq: int
) -> list[LogMessage]:
    early_messages = await read_shown_before_boundary(store, conversation, plan)
    return [*early_messages, *await store.read_log(conversation, plan.boundary_seq, next_seq)]


def _render_log(plan: Plan, next_seq: int, versions: ClientVersions, raw_messages: Mapping[int, bytes]) -> list[bytes]:
    messages = render_view(
        plan, instructions=[], find_raw_message=raw_messages.__getitem__, next_seq=next_seq, versions=versions
    )
    return add_missing_tool_results(messages)


def _collect_shown_log(entries: Iterable[LogMessage], answer: LogMessage) -> _ShownLog:
    log = _ShownLog()
    for entry in entries:
        log.raw_messages[entry.seq] = entry.message.raw
        if entry.meta:
            log.answer_seqs.append(entry.seq)
        log.checksums.update(_read_last_answer(entry))
    log.checksums.update(_read_last_answer(answer))
    return log


def _read_last_answer(answer: LogMessage) -> Iterator[tuple[int, int]]:
    facts = (answer.meta or {}).get(VIEW_FACTS)
    if isinstance(facts, Mapping) and LAST_ANSWER in facts:
        seq, checksum = facts[LAST_ANSWER]
        yield seq, checksum


def _find_answer_forms(log: _ShownLog) -> tuple[dict[int, bytes], list[int]]:
    """Finds the bytes in which the client sent answers back.

    Returns:
        The bytes by seq, of answers that the log has in another form; and the seqs of answers whose bytes are not
        found.
    """
    forms: dict[int, bytes] = {}
    unknown_seqs: list[int] = []
    # A client sends most answers in one form, so the form of the last answer is tried first for the next one.
    likely_forms: list[int] = []
    for seq, checksum in sorted(log.checksums.items()):
        raw = log.raw_messages.get(seq)
        if raw is None or zlib.crc32(raw) == checksum:
            continue
        other_forms = range(len(FORMS)) if len(unknown_seqs) < MAX_UNKNOWN_FORMS else ()
        for form in dict.fromkeys((*reversed(likely_forms), *other_forms)):
            rendered = render_resent_answer(bytes(raw), form)
            if rendered is not None and zlib.crc32(rendered) == checksum:
                forms[seq] = rendered
                likely_forms = [*(one for one in likely_forms if one != form), form]
                break
        else:
            unknown_seqs.append(seq)
    # Old answers, such as pinned ones, were sent back in requests whose facts are not among those of the view.
    for seq in set(log.answer_seqs) - log.checksums.keys() if likely_forms else ():
        rendered = render_resent_answer(bytes(log.raw_messages[seq]), likely_forms[-1])
        if rendered is not None:
            forms[seq] = rendered
    return forms, unknown_seqs


def _is_sent_view(facts: Mapping[str, Any], conversation: Conversation, messages: Sequence[bytes]) -> bool:
    """Returns whether messages are those that were sent, by the digest that is stored."""
    if DIGEST in facts:
        return bool(facts[DIGEST] == _digest_messages(messages))
    if HISTORY_DIGEST in facts:
        ((_, digest),) = compute_prefix_digests(messages, conversation.tenant, 1) or [(0, b"")]
        return bool(facts[HISTORY_DIGEST] == digest.hex())
    # So short a history has no digest.
    return len(messages) < MIN_FAST_PATH_MESSAGES


def _explain_difference(
    facts: Mapping[str, Any],
    conversation: Conversation,
    summaries: Sequence[Summary],
    log: _ShownLog,
    unknown_seqs: Sequence[int],
) -> ViewDifference:
    kept_ids = {summary.id for summary in summaries}
    gone_ids = [summary_id for summary_id in facts.get("chunks", ()) if summary_id not in kept_ids]
    erased_seqs = sorted(log.raw_messages.keys() & set(conversation.redacted_seqs))
    if gone_ids:
        return ViewDifference(f"Summary {gone_ids[0]} was deleted since.")
    if erased_seqs:
        return ViewDifference(f"{_name_messages(erased_seqs)} deleted or erased since.", erased_seqs)
    if unknown_seqs:
        return ViewDifference(f"{_name_messages(unknown_seqs)} sent in another form than the log has.", unknown_seqs)
    if DIGEST not in facts and HISTORY_DIGEST not in facts:
        return ViewDifference("The gateway kept nothing to compare these messages with.")
    return ViewDifference("A message was sent in another form than the log has. It is not known which.")


def _name_messages(seqs: Sequence[int]) -> str:
    """Returns `Message 3 was` or `Messages 3, 5 and 2 more were`."""
    if len(seqs) == 1:
        return f"Message {seqs[0]} was"
    more = len(seqs) - MAX_NAMED_SEQS
    names = [*map(str, seqs[:MAX_NAMED_SEQS]), *([f"{more} more"] if more > 0 else [])]
    return f"Messages {', '.join(names[:-1])} and {names[-1]} were"


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
        user_text=msgspec.convert(facts.get("user_text", []), tuple[UserLine, ...]),
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
