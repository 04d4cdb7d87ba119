"""Sets, removes and lists pins for the API. A pin covers the whole round of an item, and keeps it verbatim."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import msgspec

from app.context.plan.outline import Pin
from app.conversation.conversation_types import Conversation
from app.conversations.history.conversation_records import ConversationRecords
from app.conversations.items.item_building import find_instruction_index
from app.conversations.items.item_reader import ItemReader
from app.conversations.views.stored_turn import StoredTurnBuilder, StoredTurnRequest, build_bare_resolved_request
from app.conversations.views.view_and_summary_objects import build_pin_object
from app.errors import ConversationBusy
from app.pipeline.turn.chat_request import Caller
from app.pipeline.turn.resolved_request import PINS
from app.pipeline.view.pins import PinUpdater, check_pin_share, decode_pins
from app.pipeline.view.view_builder import ViewBuilder
from app.store.contract.conversations import ConversationStore, WriteConflict

MAX_ATTEMPTS: Final = 8
"""How often a change of marks is tried when others change them at the same time."""


@dataclass(eq=False, kw_only=True)
class PinStore:
    """Sets, removes and lists pins."""

    store: ConversationStore
    records: ConversationRecords
    item_reader: ItemReader
    stored_turns: StoredTurnBuilder
    view_builder: ViewBuilder
    pinning: PinUpdater

    async def list_pins(
        self, caller: Caller, conversation_id: str, limit: int, after: str | None
    ) -> tuple[list[dict[str, Any]], bool]:
        """Returns a page of pins in the order of the log, and whether more follow.

        Args:
            after: the id of the last pin of the page before, which is the id of its first item.

        Raises:
            ConversationNotFound, ItemNotFound: there is no such conversation, or no item `after`.
        """
        conversation = await self.records.find_conversation(caller, conversation_id)
        last = -1 if after is None else (await self.records.find_message(conversation, after))[0].seq
        later_pins = [pin for pin in decode_pins(conversation.marks) if pin.from_seq > last]
        pin_objects = []
        for pin in later_pins[:limit]:
            entries = await self.store.read_log(conversation, pin.from_seq, pin.to_seq)
            pin_objects.append(build_pin_object(pin, entries))
        return pin_objects, len(later_pins) > limit

    async def pin_item(self, caller: Caller, conversation_id: str, item_id: str) -> dict[str, Any]:
        """Pins the round of an item, unless it is pinned already.

        Returns:
            The item with `pinned`.

        Raises:
            ConversationNotFound, ItemNotFound: there is no such conversation or item.
            InvalidRequest: the pins would take more than the policy's share of the window.
            ConversationBusy: others keep changing the conversation's marks.
        """
        for _ in range(MAX_ATTEMPTS):
            conversation, item, seq = await self._find_item(caller, conversation_id, item_id)
            pins = decode_pins(conversation.marks)
            if seq is not None and not any(_pin_covers_seq(pin, seq) for pin in pins):
                new = await self.pinning.build_round_pin(build_bare_resolved_request(conversation), seq)
                other_pins = [pin for pin in pins if not _pin_covers_seq(new, pin.from_seq)]
                all_pins = tuple(sorted((*other_pins, new), key=lambda pin: pin.from_seq))
                await self._check_pin_share(caller, conversation, all_pins)
                if not await self._try_store_pins(conversation, all_pins):
                    continue
            return {**item, "pinned": True}
        raise make_conversation_busy_error(conversation_id)

    async def unpin_item(self, caller: Caller, conversation_id: str, item_id: str) -> dict[str, Any]:
        """Unpins the round of an item, if it is pinned. Instructions stay pinned: a view always has them.

        Returns:
            The item with `pinned`.

        Raises:
            ConversationNotFound, ItemNotFound: there is no such conversation or item.
            ConversationBusy: others keep changing the conversation's marks.
        """
        for _ in range(MAX_ATTEMPTS):
            conversation, item, seq = await self._find_item(caller, conversation_id, item_id)
            if seq is None:
                return {**item, "pinned": True}
            pins = decode_pins(conversation.marks)
            remaining_pins = [pin for pin in pins if not _pin_covers_seq(pin, seq)]
            if len(remaining_pins) == len(pins) or await self._try_store_pins(conversation, remaining_pins):
                return {**item, "pinned": False}
        raise make_conversation_busy_error(conversation_id)

    async def _find_item(
        self, caller: Caller, conversation_id: str, item_id: str
    ) -> tuple[Conversation, dict[str, Any], int | None]:
        """Returns a conversation, one of its items, and the item's `seq`; None for an instruction, which is not in the
        log."""
        conversation = await self.records.find_conversation(caller, conversation_id)
        item = await self.item_reader.find_item(conversation, item_id)
        if find_instruction_index(conversation, item_id) is not None:
            return conversation, item, None
        entry, _ = await self.records.find_message(conversation, item_id)
        return conversation, item, entry.seq

    async def _check_pin_share(self, caller: Caller, conversation: Conversation, pins: tuple[Pin, ...]) -> None:
        """Refuses pins above their share of the window of the last answer's model. Before the first answer no window is
        known; then a view leaves out pins that have no room, and reports it."""
        if await self.stored_turns.find_last_answer(conversation) is None:
            return
        turn = await self.stored_turns.build_turn(caller, conversation, StoredTurnRequest())
        check_pin_share(pins, turn.policy, self.view_builder.compute_budget(turn), param="item_id")

    async def _try_store_pins(self, conversation: Conversation, pins: Sequence[Pin]) -> bool:
        """Stores the pins; False if another request changed the marks meanwhile."""
        marks = {**conversation.marks, PINS: [msgspec.to_builtins(pin) for pin in pins]}
        try:
            await self.store.replace_marks(conversation, marks)
        except WriteConflict:
            return False
        return True


def _pin_covers_seq(pin: Pin, seq: int) -> bool:
    return pin.from_seq <= seq < pin.to_seq


def make_conversation_busy_error(conversation_id: str) -> ConversationBusy:
    return ConversationBusy(f"Other requests keep changing conversation {conversation_id!r}.", retry_after_seconds=1)
