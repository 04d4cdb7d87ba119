"""Shows the view that would be sent now, and the view that was sent for an answer, one page of messages at a time."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

import msgspec

from app.context.plan.budget import compute_compaction_threshold
from app.context.plan.outline import Plan
from app.context.view.message_fate import compute_message_fates
from app.context.view.view_rendering import INSTRUCTIONS_ORIGIN, MessageOrigin, RenderedMessage
from app.conversation.conversation_types import Conversation
from app.conversation.item import Item
from app.conversations.history.conversation_records import ConversationRecords
from app.conversations.items.boundary_item_ids import read_boundary_item_ids
from app.conversations.items.item_building import parse_item_id
from app.conversations.views.stored_turn import StoredTurnBuilder, StoredTurnRequest
from app.conversations.views.view_and_summary_objects import (
    build_common_view_fields,
    build_range_objects,
    build_view_message_row,
    build_view_summary_object,
)
from app.dialects.item_decoding import decode_item
from app.dialects.message_rendering import build_message_object
from app.dialects.missing_tool_results import add_missing_tool_results, is_placeholder_result
from app.errors import ItemNotFound, ViewNotFound
from app.pipeline.persist.kept_instructions import read_instructions
from app.pipeline.turn.chat_request import Caller
from app.pipeline.view.pins import decode_pins
from app.pipeline.view.view_builder import ViewBuilder
from app.pipeline.view.view_restoration import (
    count_replaced_tokens,
    explain_view,
    read_request_facts,
    restore_view,
)
from app.store.contract.summaries import ConversationAndSummaryStore

READ_MESSAGES: Final = 64
"""How many messages are read at once. A page keeps only an excerpt of each, and messages may be long."""


@dataclass(frozen=True, slots=True)
class ViewPageQuery:
    """Selects a page: `limit` messages after the item `after`, newest or oldest first."""

    limit: int
    newest_first: bool = True
    after: str | None = None
    with_sent: bool = False
    """Whether the answer also has the messages as they are sent, and what each stands for."""


@dataclass(eq=False, kw_only=True)
class ViewPages:
    """Shows views of stored conversations. It calls no model and writes nothing."""

    store: ConversationAndSummaryStore
    records: ConversationRecords
    stored_turns: StoredTurnBuilder
    view_builder: ViewBuilder
    find_item_id: Callable[[Caller, str], Awaitable[str | None]]
    """Finds the item id of the answer that a client's id names."""

    async def preview_next_view(
        self, caller: Caller, conversation_id: str, turn_request: StoredTurnRequest, page: ViewPageQuery
    ) -> dict[str, Any]:
        """Returns the view that would be sent if the conversation went on now.

        Raises:
            ConversationNotFound, ItemNotFound: there is no such conversation, or no item `page.after`.
            ModelRequired, PolicyNotFound, ModelNotFound: as `StoredTurnBuilder.build_turn`.
        """
        conversation = await self.records.find_conversation(caller, conversation_id)
        turn = await self.stored_turns.build_turn(caller, conversation, turn_request)
        resolved_request, budget = turn.resolved_request, self.view_builder.compute_budget(turn)
        view = await self.view_builder.plan_view(turn, budget, summarize=turn.request.compaction.summarize)
        plan, budget, end = view.plan, view.budget, conversation.head_seq + 1
        compacts_above = compute_compaction_threshold(turn.policy, budget, has_summaries=bool(plan.summaries))
        spans = [(summary.from_seq, summary.to_seq) for summary in plan.summaries]
        spans += [(one.from_seq, one.to_seq) for one in plan.to_summarize]
        item_ids = await read_boundary_item_ids(self.store, conversation, spans)
        body = {
            "object": "context.preview",
            **build_common_view_fields(conversation, plan, budget, model=turn.request.model, policy=turn.policy.name),
            "compacts_above": compacts_above,
            "fits": plan.fits,
            "instructions": [build_message_object(message.raw) for message in resolved_request.instructions],
            "summaries": [build_view_summary_object(summary, item_ids) for summary in plan.summaries],
            "to_summarize": build_range_objects(plan, item_ids),
            "notes": [{"code": note.code, **note.facts} for note in plan.notes],
            "messages": await self._build_message_page(conversation, plan, end, page),
        }
        if page.with_sent:
            rendered = await self.view_builder.render_plan_with_origins(resolved_request, plan, end)
            body |= build_sent_message_fields(resolved_request.instructions, rendered)
        return body

    async def show_sent_view(
        self, caller: Caller, conversation_id: str, item_id: str, page: ViewPageQuery
    ) -> dict[str, Any]:
        """Returns the view that was sent for the answer to which an item belongs.

        Args:
            item_id: or the id that the client got with the answer, or with the request.

        Raises:
            ConversationNotFound, ItemNotFound: there is no such conversation or item.
            ViewNotFound: the item's message did not come through the gateway.
        """
        conversation = await self.records.find_conversation(caller, conversation_id)
        if parse_item_id(item_id) is None:
            item_id = await self.find_item_id(caller, item_id) or item_id
        answer, _ = await self.records.find_message(conversation, item_id)
        view = await restore_view(self.store, conversation, answer)
        if view is None:
            raise ViewNotFound(
                f"Item {item_id!r} is not an answer of this gateway, so no view is stored for it.",
                param="item_id",
                hint="Name an assistant message that this gateway answered.",
            )
        kept = await read_instructions(self.store, conversation, answer)
        instructions = tuple(decode_item(text.encode()) for text in kept or ())
        plan, difference = view.plan, view.difference
        spans = [(summary.from_seq, summary.to_seq) for summary in plan.summaries]
        item_ids = await read_boundary_item_ids(self.store, conversation, spans)
        replaced_tokens = count_replaced_tokens(plan.summaries)
        model = str(read_request_facts(answer.meta or {})["model"])
        body = {
            "object": "context.seen",
            **build_common_view_fields(conversation, plan, view.budget, model=model, policy=view.policy_name),
            "compacts_above": view.budget.compaction_threshold,
            "item_id": item_id,
            "reason": explain_view(view),
            "would_have_been_tokens": view.whole_tokens,
            "exact": difference is None,
            "inexact_reason": None if difference is None else difference.reason,
            "inexact_seqs": [] if difference is None else list(difference.seqs),
            "fits": True,
            # None if the instructions of the request are not kept.
            "instructions": None if kept is None else [build_message_object(one.raw) for one in instructions],
            "summaries": [
                {**build_view_summary_object(summary, item_ids), "replaced_tokens": replaced}
                for summary, replaced in zip(plan.summaries, replaced_tokens, strict=True)
            ],
            "messages": await self._build_message_page(conversation, plan, view.next_seq, page),
        }
        if page.with_sent:
            body |= build_sent_message_fields(instructions, view.messages)
        return body

    async def _build_message_page(
        self, conversation: Conversation, plan: Plan, end: int, page: ViewPageQuery
    ) -> dict[str, Any]:
        """Returns a list object with a page of the messages `[0, end)` of the log."""
        after_seq = await self._find_after_seq(conversation, page.after, end)
        if page.newest_first:
            last = end if after_seq is None else after_seq
            first_seq = max(0, last - page.limit)
            has_more = first_seq > 0
        else:
            first_seq = 0 if after_seq is None else after_seq + 1
            last = min(end, first_seq + page.limit)
            has_more = last < end
        pinned = {seq for pin in decode_pins(conversation.marks) for seq in range(pin.from_seq, pin.to_seq)}
        message_rows: list[dict[str, Any]] = []
        for seq in range(first_seq, last, READ_MESSAGES):
            entries = await self.store.read_log(conversation, seq, min(last, seq + READ_MESSAGES))
            message_rows += [
                build_view_message_row(entry, fate, is_pinned=fate.seq in pinned)
                for entry, fate in zip(entries, compute_message_fates(entries, plan), strict=True)
            ]
        if page.newest_first:
            message_rows.reverse()
        return {
            "object": "list",
            "data": message_rows,
            "first_id": message_rows[0]["id"] if message_rows else None,
            "last_id": message_rows[-1]["id"] if message_rows else None,
            "has_more": has_more,
        }

    async def _find_after_seq(self, conversation: Conversation, item_id: str | None, end: int) -> int | None:
        if item_id is None:
            return None
        entry, _ = await self.records.find_message(conversation, item_id)
        if entry.seq >= end:
            raise ItemNotFound(f"Item with id {item_id!r} is newer than this view.", param="after")
        return entry.seq


def build_sent_message_fields(instructions: Sequence[Item], rendered: Sequence[RenderedMessage]) -> dict[str, Any]:
    """Returns the messages as they are sent, and for each what it stands for. The gateway adds a result for a call that
    has none; it has no origin of its own and gets that of the message before it."""
    raws = add_missing_tool_results([*[one.raw for one in instructions], *[raw for raw, _ in rendered]])
    remaining_origins = iter([*[INSTRUCTIONS_ORIGIN] * len(instructions), *[origin for _, origin in rendered]])
    origins: list[MessageOrigin] = []
    for raw in raws:
        origins.append(origins[-1] if is_placeholder_result(raw) else next(remaining_origins))
    return {
        "sent": [build_message_object(bytes(raw)) for raw in raws],
        "sent_places": [msgspec.to_builtins(origin) for origin in origins],
    }
