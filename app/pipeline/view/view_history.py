"""What the model saw for a stored answer: facts that are kept with it, and the view put together from them again."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from app.context.plan.budget import Budget
from app.context.plan.outline import LastView, Pin, Plan
from app.context.view.client_versions import NO_VERSIONS, ClientVersions
from app.context.view.missing_results import close_calls
from app.context.view.view_messages import render
from app.conversation.messages import Chunk, Conversation, LogMessage
from app.pipeline.chat_request import ChatRequest
from app.pipeline.resolve.resolved_request import Recollection, has_versions
from app.pipeline.view.view_builder import View, read_early
from app.store.contract import Store

SEEN = "view"
"""Of a stored answer's `meta`: the facts of the view that it answers."""
ASKED = "asked"
"""The same: the model that the request named, and the policy and the answer's limit, where it named one."""
MAX_OUTPUT = "max_output_tokens"
"""Of what a request asked for: the limit of its answer."""
THRESHOLD, LOG_TOKENS = "threshold", "log_tokens"
"""Of the facts of a view, both calibrated: the line that `context.compacts_above` tells since (older answers only), and
what the whole history weighed, instructions and tools included."""


@dataclass(frozen=True, slots=True)
class Seen:
    """The view of an answer, from what is stored."""

    plan: Plan
    budget: Budget
    policy: str
    next_seq: int
    """One past the last message of the log as it was then."""
    versions: ClientVersions
    """What the client showed in the place of log messages then."""
    is_exact: bool
    """Whether the very bytes that were sent can be put together. They cannot where a client sent its history in another
    form than before, or where a message or a summary was erased since."""


def facts_of(view: View, place: Recollection, *, log_tokens: int) -> dict[str, Any]:
    """What has to be kept of a view so that it can be put together again.

    Args:
        log_tokens: see `LOG_TOKENS`.
    """
    plan = view.plan
    facts: dict[str, Any] = {
        "next_seq": view.outline.next_seq,
        LOG_TOKENS: log_tokens,
    }
    if view.messages is None:
        return facts
    shown = LastView(boundary=plan.boundary, edits=tuple(plan.edits.values()), quotations=plan.quotations)
    return {
        **facts,
        "shown": msgspec.to_builtins(shown),
        "chunks": [chunk.id for chunk in plan.chunks],
        "revisions": [chunk.revision for chunk in plan.chunks],
        "pins": [msgspec.to_builtins(pin) for pin in plan.pins],
        "dropped": plan.dropped,
        "digest": _digest(view.messages[len(place.instructions) :]),
    }


def asked_facts(request: ChatRequest) -> dict[str, Any]:
    """What has to be kept of a request so that the next one can be expected to ask for the same."""
    asked: dict[str, Any] = {"model": request.model}
    if request.policy:
        asked["policy"] = request.policy
    if request.max_output_tokens:
        asked[MAX_OUTPUT] = request.max_output_tokens
    return asked


def asked_in(meta: Mapping[str, Any]) -> Mapping[str, Any]:
    """What the request of an answer asked for, by the answer's `meta`: `model`, and what else of `ASKED` it named."""
    return {"model": meta.get("model"), **meta.get(ASKED, {})}


async def seen(store: Store, conversation: Conversation, answer: LogMessage) -> Seen | None:
    """The view that an answer was given to; None where nothing is known of it. Reads what it showed, no more.

    Raises:
        StoreUnavailable: the log cannot be read.
    """
    meta = answer.meta or {}
    facts, context = meta.get(SEEN), meta.get("context")
    if not isinstance(facts, Mapping) or not isinstance(context, Mapping):
        return None
    next_seq = int(facts["next_seq"])
    chunks = await _chunks(store, conversation, facts)
    plan = _plan(facts, context, chunks)
    versions = NO_VERSIONS
    if has_versions(conversation):
        stored = await store.versions(conversation, until_seq=next_seq)
        versions = ClientVersions.from_stored(stored, conversation.redacted)
    is_exact = len(chunks) == len(facts.get("chunks", ()))
    if is_exact and "digest" in facts:
        is_exact = facts["digest"] == _digest(await messages_seen(store, conversation, plan, next_seq, versions))
    return Seen(plan, _budget(context), str(context.get("policy")), next_seq, versions, is_exact)


async def messages_seen(
    store: Store, conversation: Conversation, plan: Plan, next_seq: int, versions: ClientVersions
) -> list[bytes]:
    """JSON text of what was sent after the instructions, as far as it is stored.

    Raises:
        StoreUnavailable: the log cannot be read.
    """
    shown = await read_early(store, conversation, plan)
    shown += await store.read(conversation, plan.boundary_seq, next_seq)
    raws = {entry.seq: entry.message.raw for entry in shown}
    messages = render(plan, instructions=[], message_at=raws.__getitem__, next_seq=next_seq, versions=versions)
    return close_calls(messages)


async def _chunks(store: Store, conversation: Conversation, facts: Mapping[str, Any]) -> list[Chunk]:
    """The summaries that stood in a view, each with the text that it had; without those that are gone."""
    wanted: Sequence[str] = facts.get("chunks", ())
    if not wanted:
        return []
    tenant, root = conversation.tenant, conversation.root
    known = {chunk.id: chunk for chunk in await store.chunks(tenant=tenant, root=root, path=conversation.path)}
    revisions: Sequence[int | None] = facts.get("revisions") or [None] * len(wanted)
    found = []
    for chunk_id, revision in zip(wanted, revisions, strict=True):
        chunk = known.get(chunk_id)
        if chunk is not None and revision not in (None, chunk.revision):
            older = await store.revisions(tenant=tenant, root=root, chunk_id=chunk_id)
            chunk = next((one for one in older if one.revision == revision), None)
        if chunk is not None:
            found.append(chunk)
    return found


def _plan(facts: Mapping[str, Any], context: Mapping[str, Any], chunks: Sequence[Chunk]) -> Plan:
    shown = msgspec.convert(facts.get("shown", {}), LastView)
    return Plan(
        status="summarized" if chunks else "trimmed" if shown.edits or facts.get("dropped") else "full",
        chunks=tuple(chunks),
        boundary=shown.boundary,
        prompt_tokens=int(int(context["prompt_tokens"]) / _ratio(context)),
        fits=True,
        pins=msgspec.convert(facts.get("pins", []), tuple[Pin, ...]),
        edits={edit.seq: edit for edit in shown.edits},
        quotations=shown.quotations,
        dropped=int(facts.get("dropped", 0)),
    )


def _budget(context: Mapping[str, Any]) -> Budget:
    window, limit = int(context["window"]), int(context["limit"])
    return Budget(window, window - limit, 0, limit, int(context.get("compacts_above", limit)), _ratio(context))


def _ratio(context: Mapping[str, Any]) -> float:
    """The slope, or the ratio that was kept before there were slopes."""
    calibration = context.get("calibration") or {}
    return float(calibration.get("slope") or calibration.get("ratio") or 1.0)


def _digest(messages: Sequence[bytes]) -> str:
    digest = hashlib.sha256()
    for raw in messages:
        digest.update(len(raw).to_bytes(8, "big"))
        digest.update(bytes(raw))
    return digest.hexdigest()
