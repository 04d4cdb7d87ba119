"""What the model saw for a stored answer: facts that are kept with it, and the view put together from them again."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from app.context.budget import Budget
from app.context.disposition import Disposition, dispositions
from app.context.outline import LastView, Pin, Plan
from app.context.view import render
from app.conversation.messages import Chunk, Conversation, LogMessage
from app.exchange.placement import Recollection
from app.exchange.views import View
from app.store.base import Store

SEEN = "view"
"""Of a stored answer's `meta`: the facts of the view that it answers."""


@dataclass(frozen=True, slots=True)
class Seen:
    """The view of an answer, from what is stored."""

    log: Sequence[LogMessage]
    """The log as it was then, the answer left out."""
    plan: Plan
    budget: Budget
    rows: Sequence[Disposition]
    messages: Sequence[bytes]
    """JSON text of what was sent after the instructions."""
    is_exact: bool
    """Whether these are the very bytes. They are not where a client sent its history in another form than before, or
    where a summary was rewritten or erased since."""


def facts_of(view: View, place: Recollection) -> dict[str, Any]:
    """What has to be kept of a view so that it can be put together again."""
    plan = view.plan
    facts: dict[str, Any] = {"next_seq": view.outline.next_seq}
    if view.messages is None:
        return facts
    shown = LastView(boundary=plan.boundary, edits=tuple(plan.edits.values()), quotations=plan.quotations)
    return {
        **facts,
        "shown": msgspec.to_builtins(shown),
        "chunks": [chunk.id for chunk in plan.chunks],
        "pins": [msgspec.to_builtins(pin) for pin in plan.pins],
        "dropped": plan.dropped,
        "digest": _digest(view.messages[len(place.instructions) :]),
    }


async def seen(store: Store, conversation: Conversation, answer: LogMessage) -> Seen | None:
    """The view that an answer was given to; None where nothing is known of it.

    Raises:
        StoreUnavailable: the log cannot be read.
    """
    meta = answer.meta or {}
    facts, context = meta.get(SEEN), meta.get("context")
    if not isinstance(facts, Mapping) or not isinstance(context, Mapping):
        return None
    log = await store.read(conversation, 0, int(facts["next_seq"]))
    known = {chunk.id: chunk for chunk in await store.chunks(tenant=conversation.tenant, root=conversation.root, path=conversation.path)}
    wanted = facts.get("chunks", [])
    plan = _plan(facts, context, [known[name] for name in wanted if name in known])
    raws = {entry.seq: entry.message.raw for entry in log}
    messages = render(plan, instructions=[], message_at=raws.__getitem__, next_seq=len(log))
    is_exact = all(name in known for name in wanted) and facts.get("digest") in (None, _digest(messages))
    return Seen(log, plan, _budget(context), dispositions(log, plan), messages, is_exact)


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
    return Budget(window, window - limit, 0, limit, limit, _ratio(context))


def _ratio(context: Mapping[str, Any]) -> float:
    return float((context.get("calibration") or {}).get("ratio") or 1.0)


def _digest(messages: Sequence[bytes]) -> str:
    digest = hashlib.sha256()
    for raw in messages:
        digest.update(len(raw).to_bytes(8, "big"))
        digest.update(bytes(raw))
    return digest.hexdigest()
