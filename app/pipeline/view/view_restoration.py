"""What the model saw when it gave a stored answer: references that are stored with the answer, and the view that is
read by them.

The references are ranges of the log, what the client showed there, revisions of summaries, and the JSON text in which
the client sent the last answer back. So nothing is guessed when a view is read, and a digest tells whether these are
the bytes. The promise: an answer says what the model saw.
"""

from __future__ import annotations

import base64
import hashlib
import zlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import msgspec

from app.context.plan.budget import Budget
from app.context.plan.outline import LastView, Pin, Plan
from app.context.user_text.user_text import UserLine
from app.context.view.client_versions import NO_VERSIONS, ClientVersions
from app.context.view.view_rendering import RenderedMessage, render_view_with_origins
from app.conversation.conversation_types import Conversation, LogMessage, Summary
from app.conversation.identity import compute_prefix_digests, digest_texts
from app.dialects.item_decoding import decode_item
from app.dialects.missing_tool_results import add_missing_tool_results
from app.pipeline.turn.chat_request import ChatRequest
from app.pipeline.turn.resolved_request import UNANSWERED_MESSAGES, ResolvedRequest
from app.pipeline.turn.turn import View
from app.pipeline.view.view_builder import find_early_seqs, read_shown_before_boundary
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
DIGEST, HISTORY_DIGEST, RESENT_ANSWER = "digest", "history", "resent"
"""Keys of the view facts. `DIGEST` is of all messages after the instructions; `HISTORY_DIGEST`, in its place, of a long
client history that was sent unchanged. `RESENT_ANSWER` is the JSON text in which the client sent the answer before this
one back: its seq, and the packed text, empty if the text is too long."""
MAX_PACKED_BYTES: Final = 32 * 1024
"""zlib looks back so far. The text of a longer answer would be stored twice."""
MAX_NAMED_SEQS: Final = 10
"""How many messages a sentence names."""


@dataclass(frozen=True, slots=True)
class ViewDifference:
    """Why a view cannot be shown byte for byte."""

    reason: str
    """A sentence."""
    seqs: Sequence[int] = ()
    """The messages that differ, as far as that is known."""


@dataclass(frozen=True, slots=True)
class RestoredView:
    """The view of a stored answer, read from the store."""

    plan: Plan
    budget: Budget
    policy_name: str
    next_seq: int
    """The length of the log when the answer was requested."""
    messages: Sequence[RenderedMessage]
    """The messages after the instructions, as far as they are stored, without stand-ins for tool results."""
    difference: ViewDifference | None
    """How `messages` differ from the bytes that were sent; None if they are these bytes."""
    whole_tokens: int | None
    """Calibrated tokens of the whole history, which would have been sent without the gateway."""
    since_seq: int
    """The first answer whose view had the same summaries."""


def build_view_facts(view: View, resolved_request: ResolvedRequest, *, log_tokens: int) -> dict[str, Any]:
    """Returns the facts by which a view can be read again.

    Args:
        log_tokens: see `LOG_TOKENS`.
    """
    plan, next_seq, history_digest = view.plan, view.outline.next_seq, resolved_request.history_digest
    facts: dict[str, Any] = {"next_seq": next_seq, LOG_TOKENS: log_tokens}
    if (resent_answer := _find_resent_answer(resolved_request, next_seq)) is not None:
        seq, raw = resent_answer
        facts[RESENT_ANSWER] = (seq, _pack_answer(raw))
    # The client's own messages were sent unchanged. The digest of a long history is known already.
    if view.messages is None:
        if history_digest is not None:
            return {**facts, HISTORY_DIGEST: history_digest.hex()}
        return {**facts, DIGEST: digest_texts(resolved_request.client_messages or ())}
    quotations = tuple(one for one in plan.quotations if one.passages)  # most messages get none
    last_view = LastView(boundary=plan.boundary, edits=tuple(plan.edits.values()), quotations=quotations)
    return {
        **facts,
        "shown": msgspec.to_builtins(last_view),
        "chunks": [summary.id for summary in plan.summaries],
        "revisions": [summary.revision for summary in plan.summaries],
        "pins": [msgspec.to_builtins(pin) for pin in plan.pins],
        "user_text": [msgspec.to_builtins(one) for one in plan.user_text],
        "dropped": plan.dropped_message_count,
        DIGEST: digest_texts(view.messages[len(resolved_request.instructions) :]),
    }


def build_request_facts(request: ChatRequest) -> dict[str, Any]:
    """Returns the facts of a request that the next request is expected to share."""
    facts: dict[str, Any] = {"model": request.model}
    if request.context.policy:
        facts["policy"] = request.context.policy
    if request.max_output_tokens:
        facts[MAX_OUTPUT_TOKENS] = request.max_output_tokens
    return facts


def read_request_facts(meta: Mapping[str, Any]) -> Mapping[str, Any]:
    """Returns the model of an answer's request, and its other request facts, from the answer's `meta`."""
    return {"model": meta.get("model"), **meta.get(REQUEST_FACTS, {})}


async def restore_view(
    store: ConversationAndSummaryStore, conversation: Conversation, answer: LogMessage
) -> RestoredView | None:
    """Reads the view that an answer was given to, or returns None if nothing is known of the view. Reads only what the
    view showed.

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
        versions = NO_VERSIONS.with_later_versions(stored, conversation.redacted_seqs)
    log_messages = [
        *await read_shown_before_boundary(store, conversation, plan),
        *await store.read_log(conversation, plan.boundary_seq, next_seq),
    ]
    raw_messages = {entry.seq: entry.message.raw for entry in log_messages}
    resent_answers = _read_resent_answers([*log_messages, answer], raw_messages, versions)

    def render(texts: Mapping[int, bytes]) -> list[RenderedMessage]:
        return list(render_view_with_origins(plan, texts.__getitem__, next_seq, versions))

    # The client's texts were sent, or the log's if its history differs from the log in another way, too.
    client_texts = {seq: raw for seq, raw in resent_answers.items() if raw is not None}
    rendered = map(render, ({**raw_messages, **client_texts}, raw_messages))
    messages = next((one for one in rendered if _are_sent_bytes(facts, conversation, one)), None)
    difference = None
    if messages is None:
        messages = render(raw_messages)
        shown_seqs = {*find_early_seqs(plan), *range(plan.boundary_seq, next_seq)}
        unknown_seqs = [seq for seq in sorted(shown_seqs) if resent_answers.get(seq, b"") is None]
        difference = _explain_difference(facts, conversation, summaries, shown_seqs, unknown_seqs)
    # A view's summaries end before its question, so all answers to such views are in its verbatim part.
    answers = (entry for entry in log_messages if entry.seq >= plan.boundary_seq)
    return RestoredView(
        plan,
        _restore_budget(context),
        str(context.get("policy")),
        next_seq,
        messages,
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


def _find_resent_answer(resolved_request: ResolvedRequest, next_seq: int) -> tuple[int, bytes] | None:
    """Returns the seq of the last answer before the request, and the JSON text in which the client sent it back; None
    if the client did not send it."""
    messages = resolved_request.client_messages
    pending = int(resolved_request.conversation.state.get(UNANSWERED_MESSAGES, 0)) + len(resolved_request.new_messages)
    seq = next_seq - pending - 1
    if messages is None or seq < 0:
        return None
    index = seq
    if resolved_request.shown.log_seqs is not None:
        if seq not in resolved_request.shown.log_seqs:
            return None
        index = resolved_request.shown.log_seqs.index(seq)
    return (seq, bytes(messages[index])) if index < len(messages) else None


def _pack_answer(raw: bytes) -> str:
    """Packs what the JSON text of an answer has beside its content: zlib's dictionary is the canonical form, which the
    log's text and the client's share. A hash of the content masks the bytes, so who erases the answer erases them.

    Returns:
        Base64; empty if the text is too long.
    """
    content = decode_item(raw).canonical_form
    if content is None or len(raw) > MAX_PACKED_BYTES:
        return ""
    packer = zlib.compressobj(zdict=content)
    return base64.b64encode(_mask(packer.compress(raw) + packer.flush(), content)).decode()


def _unpack_answer(packed: str, raw: bytes) -> bytes | None:
    """Returns the JSON text that was packed; None if there is none, or `raw` is an answer of other content."""
    content = decode_item(raw).canonical_form
    if content is None or not packed:
        return None
    try:
        return zlib.decompressobj(zdict=content).decompress(_mask(base64.b64decode(packed), content))
    except zlib.error:
        return None


def _mask(data: bytes, content: bytes) -> bytes:
    stream = hashlib.shake_256(content).digest(len(data))
    return bytes([byte ^ mask for byte, mask in zip(data, stream, strict=True)])


def _read_resent_answers(
    entries: Iterable[LogMessage], raw_messages: Mapping[int, bytes], versions: ClientVersions
) -> dict[int, bytes | None]:
    """Returns the JSON texts in which the client sent answers back, by seq; None for a text that is not known. Answers
    that the client changed are in its versions."""
    found: dict[int, bytes | None] = {}
    for entry in entries:
        facts = (entry.meta or {}).get(VIEW_FACTS)
        if isinstance(facts, Mapping) and RESENT_ANSWER in facts:
            seq, packed = facts[RESENT_ANSWER]
            if seq in raw_messages and seq not in versions:
                found[seq] = _unpack_answer(packed, bytes(raw_messages[seq]))
    return found


def _are_sent_bytes(facts: Mapping[str, Any], conversation: Conversation, rendered: Sequence[RenderedMessage]) -> bool:
    """Returns whether messages are those that were sent, by the digest that is stored. Without one, it is not known."""
    messages = add_missing_tool_results([raw for raw, _ in rendered])
    if HISTORY_DIGEST not in facts:
        return bool(facts.get(DIGEST) == digest_texts(messages))
    digests = compute_prefix_digests(messages, conversation.tenant, 1)
    return bool(digests and facts[HISTORY_DIGEST] == digests[0][1].hex())


def _explain_difference(
    facts: Mapping[str, Any],
    conversation: Conversation,
    summaries: Sequence[Summary],
    shown_seqs: Iterable[int],
    unknown_seqs: Sequence[int],
) -> ViewDifference:
    kept_ids = {summary.id for summary in summaries}
    gone_ids = [summary_id for summary_id in facts.get("chunks", ()) if summary_id not in kept_ids]
    if gone_ids:
        return ViewDifference(f"Summary {gone_ids[0]} was deleted since.")
    erased_seqs = sorted(set(conversation.redacted_seqs).intersection(shown_seqs))
    if erased_seqs:
        return ViewDifference(f"{_name_messages(erased_seqs)} deleted or erased since.", erased_seqs)
    if unknown_seqs:
        # Their texts were too long to be kept, which does not prove that they differ from the log's.
        reason = f"{_name_messages(unknown_seqs)} perhaps sent in another form than the log has."
        return ViewDifference(reason, unknown_seqs)
    return ViewDifference("Nothing tells whether these are the bytes that were sent, or which of them differ.")


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
