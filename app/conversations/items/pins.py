"""Pins through the API: a message, with the whole round it is part of, is shown word for word until it is unpinned;
and the list of what is pinned."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import msgspec

from app.context.plan.outline import Pin
from app.conversation.messages import Conversation
from app.conversations.history.conversations import Records
from app.conversations.items.item_list import Listing
from app.conversations.items.items import instruction_index
from app.conversations.views.stored_turn import Standing, Wish, place_of
from app.conversations.views.view_objects import pin_object
from app.errors import ConversationBusy
from app.pipeline.chat_request import Caller
from app.pipeline.resolve.resolved_request import PINS
from app.pipeline.view.pins import Pinning, check_share, pins_of
from app.pipeline.view.view_builder import Views
from app.store.contract import HeadMoved, Store

TRIES: Final = 8
"""Of a change of marks that somebody else's came before."""


class Pins:
    """Pins and unpins."""

    def __init__(
        self,
        *,
        store: Store,
        records: Records,
        listing: Listing,
        standing: Standing,
        views: Views,
        pinning: Pinning,
    ) -> None:
        self._store = store
        self._records = records
        self._listing = listing
        self._standing = standing
        self._views = views
        self._pinning = pinning

    async def page(
        self, caller: Caller, conversation_id: str, limit: int, after: str | None
    ) -> tuple[list[dict[str, Any]], bool]:
        """What is pinned, in the order of the log, and whether there is more of it.

        Args:
            after: id of the last pin of the page before, which is that of its first item.

        Raises:
            ConversationNotFound, ItemNotFound: there is none, or no such item to go on after.
        """
        conversation = await self._records.of(caller, conversation_id)
        last = -1 if after is None else (await self._records.entry(conversation, after))[0].seq
        wanted = [pin for pin in pins_of(conversation.marks) if pin.from_seq > last]
        told = []
        for pin in wanted[:limit]:
            entries = await self._store.read(conversation, pin.from_seq, pin.to_seq)
            told.append(pin_object(pin, entries))
        return told, len(wanted) > limit

    async def pin(self, caller: Caller, conversation_id: str, item_id: str) -> dict[str, Any]:
        """Pin the round of an item; nothing happens where it is pinned already.

        Returns:
            The item with `pinned`.

        Raises:
            ConversationNotFound, ItemNotFound: there is none.
            InvalidRequest: the pins would take more than the policy's share of the window.
            ConversationBusy: others keep changing the conversation's marks.
        """
        for _ in range(TRIES):
            conversation, item, seq = await self._found(caller, conversation_id, item_id)
            pins = pins_of(conversation.marks)
            if seq is not None and not any(_holds(pin, seq) for pin in pins):
                new = await self._pinning.round_at(place_of(conversation), seq)
                others = [pin for pin in pins if not _holds(new, pin.from_seq)]
                together = tuple(sorted((*others, new), key=lambda pin: pin.from_seq))
                await self._check(caller, conversation, together)
                if not await self._marked(conversation, together):
                    continue
            return {**item, "pinned": True}
        raise _busy(conversation_id)

    async def unpin(self, caller: Caller, conversation_id: str, item_id: str) -> dict[str, Any]:
        """Unpin the round of an item; nothing happens where it is not pinned. Instructions stay: they are always shown.

        Returns:
            The item with `pinned`.

        Raises:
            ConversationNotFound, ItemNotFound: there is none.
            ConversationBusy: others keep changing the conversation's marks.
        """
        for _ in range(TRIES):
            conversation, item, seq = await self._found(caller, conversation_id, item_id)
            if seq is None:
                return {**item, "pinned": True}
            pins = pins_of(conversation.marks)
            left = [pin for pin in pins if not _holds(pin, seq)]
            if len(left) == len(pins) or await self._marked(conversation, left):
                return {**item, "pinned": False}
        raise _busy(conversation_id)

    async def _found(
        self, caller: Caller, conversation_id: str, item_id: str
    ) -> tuple[Conversation, dict[str, Any], int | None]:
        """A conversation, one of its items, and where that stands in the log; None for instructions: outside of it."""
        conversation = await self._records.of(caller, conversation_id)
        item = await self._listing.one(conversation, item_id)
        if instruction_index(conversation, item_id) is not None:
            return conversation, item, None
        entry, _ = await self._records.entry(conversation, item_id)
        return conversation, item, entry.seq

    async def _check(self, caller: Caller, conversation: Conversation, pins: tuple[Pin, ...]) -> None:
        """Refuse pins above their share of the window that the conversation was answered with last. Before its first
        answer there is none; a view leaves out what has no room, and says so."""
        if await self._standing.last_answer(conversation) is None:
            return
        turn = await self._standing.turn(caller, conversation, Wish())
        check_share(pins, turn.policy, self._views.budget(turn), param="item_id")

    async def _marked(self, conversation: Conversation, pins: Sequence[Pin]) -> bool:
        """Whether the pins could be stored; not if somebody else changed the marks meanwhile."""
        marks = {**conversation.marks, PINS: [msgspec.to_builtins(pin) for pin in pins]}
        try:
            await self._store.mark(conversation, marks)
        except HeadMoved:
            return False
        return True


def _holds(pin: Pin, seq: int) -> bool:
    return pin.from_seq <= seq < pin.to_seq


def _busy(conversation_id: str) -> ConversationBusy:
    return ConversationBusy(f"Others keep changing conversation {conversation_id!r}.", retry_after_seconds=1)
