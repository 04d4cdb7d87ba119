"""What the model would see of a conversation now, and what it saw for an answer: a page of messages at a time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import orjson

from app.context.plan.outline import Plan
from app.context.view.message_origins import Origin, origins
from app.context.view.missing_results import is_missing_result
from app.conversation.messages import Conversation
from app.conversations.history.conversations import Records
from app.conversations.items.item_ids import item_ids
from app.conversations.views.stored_turn import Standing, Wish, asked_of
from app.conversations.views.view_objects import (
    message_row,
    preview_body,
    ranges_of,
    seen_body,
    sent_place,
    view_summary,
)
from app.errors import ItemNotFound, ViewNotFound
from app.pipeline.chat_request import Caller
from app.pipeline.view.pins import pins_of
from app.pipeline.view.view_builder import Views
from app.pipeline.view.view_history import messages_seen, seen
from app.pipeline.view.view_preview import Preview, preview, rows
from app.store.contract import Store

STRETCH_MESSAGES: Final = 64
"""Read at a time for a page, which keeps an excerpt of each: messages may be long."""


@dataclass(frozen=True, slots=True)
class PageWish:
    """Which messages are wanted: `limit` of them behind the one of item `after`, newest first or oldest first."""

    limit: int
    newest_first: bool = True
    after: str | None = None
    with_sent: bool = False
    """Whether the messages are wanted too as they are sent, and what each stands for."""


class Looking:
    """Views of stored conversations. Calls no model, writes nothing."""

    def __init__(self, *, store: Store, records: Records, standing: Standing, views: Views) -> None:
        self._store = store
        self._records = records
        self._standing = standing
        self._views = views

    async def now(self, caller: Caller, conversation_id: str, wish: Wish, page: PageWish) -> dict[str, Any]:
        """What would be sent if the conversation went on now.

        Raises:
            ConversationNotFound, ItemNotFound: there is none, or no such message to go on after.
            ModelRequired, PolicyNotFound, ModelNotFound: as `Standing.turn`.
        """
        conversation = await self._records.of(caller, conversation_id)
        turn = await self._standing.turn(caller, conversation, wish)
        shown = await preview(self._views, turn)
        end = conversation.head_seq + 1
        body = preview_body(
            shown,
            model=turn.request.model,
            policy=turn.policy.name,
            summaries=await self._summaries(conversation, shown.plan),
            ranges=await self._ranges(conversation, shown.plan),
            messages=await self._page(conversation, shown.plan, end, page),
        )
        if page.with_sent:
            sent = await self._views.rendered(turn.place, shown.plan, end)
            versions = turn.place.versions
            body |= as_sent(
                sent, origins(shown.plan, instructions=len(shown.instructions), next_seq=end, versions=versions)
            )
        return body

    async def then(self, caller: Caller, conversation_id: str, item_id: str, page: PageWish) -> dict[str, Any]:
        """What the model saw for the answer that an item is part of.

        Raises:
            ConversationNotFound, ItemNotFound: there is none.
            ViewNotFound: the item is no answer of this gateway.
        """
        conversation = await self._records.of(caller, conversation_id)
        answer, _ = await self._records.entry(conversation, item_id)
        view = await seen(self._store, conversation, answer)
        if view is None:
            raise ViewNotFound(
                f"Item {item_id!r} is no answer that this gateway gave, so no view is known for it.",
                param="item_id",
                hint="Ask for the context of an assistant's message that came through the gateway.",
            )
        shown = Preview(conversation, (), view.budget, view.plan, view.budget.soft)
        body = seen_body(
            shown,
            model=str(asked_of(answer)["model"]),
            policy=view.policy,
            summaries=await self._summaries(conversation, view.plan),
            messages=await self._page(conversation, view.plan, view.next_seq, page),
            item_id=item_id,
            is_exact=view.is_exact,
        )
        if page.with_sent:
            sent = await messages_seen(self._store, conversation, view.plan, view.next_seq, view.versions)
            body |= as_sent(sent, origins(view.plan, instructions=0, next_seq=view.next_seq, versions=view.versions))
        return body

    async def _page(self, conversation: Conversation, plan: Plan, end: int, page: PageWish) -> dict[str, Any]:
        """A list object of messages of the log `[0, end)`."""
        past = await self._seq_of(conversation, page.after, end)
        if page.newest_first:
            last = end if past is None else past
            first = max(0, last - page.limit)
            has_more = first > 0
        else:
            first = 0 if past is None else past + 1
            last = min(end, first + page.limit)
            has_more = last < end
        pinned = {seq for pin in pins_of(conversation.marks) for seq in range(pin.from_seq, pin.to_seq)}
        told: list[dict[str, Any]] = []
        for seq in range(first, last, STRETCH_MESSAGES):
            found = await rows(self._store, conversation, plan, seq, min(last, seq + STRETCH_MESSAGES))
            told += [message_row(entry, row, is_pinned=row.seq in pinned) for entry, row in found]
        if page.newest_first:
            told.reverse()
        return {
            "object": "list",
            "data": told,
            "first_id": told[0]["id"] if told else None,
            "last_id": told[-1]["id"] if told else None,
            "has_more": has_more,
        }

    async def _seq_of(self, conversation: Conversation, item_id: str | None, end: int) -> int | None:
        if item_id is None:
            return None
        entry, _ = await self._records.entry(conversation, item_id)
        if entry.seq >= end:
            raise ItemNotFound(f"Item with id {item_id!r} came after this view.", param="after")
        return entry.seq

    async def _summaries(self, conversation: Conversation, plan: Plan) -> list[dict[str, Any]]:
        spans = [(chunk.from_seq, chunk.to_seq) for chunk in plan.chunks]
        ends = await item_ids(self._store, conversation, spans)
        return [view_summary(chunk, ends) for chunk in plan.chunks]

    async def _ranges(self, conversation: Conversation, plan: Plan) -> list[dict[str, Any]]:
        """What would be summarized first."""
        spans = [(one.from_seq, one.to_seq) for one in plan.to_summarize]
        return ranges_of(plan, await item_ids(self._store, conversation, spans))


def as_sent(raws: Sequence[bytes], stands_for: Sequence[Origin]) -> dict[str, Any]:
    """The messages as they are sent, and for each what it stands for; for a result that was missing, what the message
    before it does."""
    left = iter(stands_for)
    origins: list[Origin] = []
    for raw in raws:
        origins.append(origins[-1] if is_missing_result(raw) else next(left))
    return {
        "sent": [orjson.loads(bytes(raw)) for raw in raws],
        "sent_places": [sent_place(origin) for origin in origins],
    }
