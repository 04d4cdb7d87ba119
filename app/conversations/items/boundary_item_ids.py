"""Finds the item ids of messages by their `seq`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from app.conversation.conversation_types import Conversation
from app.conversations.items.item_building import find_message_item_id
from app.store.contract.conversations import ConversationStore

ItemIdsBySeq = Mapping[int, str]
"""Item ids by seq."""


async def read_boundary_item_ids(
    store: ConversationStore, conversation: Conversation, ranges: Sequence[tuple[int, int]]
) -> dict[int, str]:
    """Returns the item ids, by `seq`, of the first and the last message of each range `[from, to)` of the log.

    Ranges mostly are adjacent, so the end of one and the beginning of the next are read together.
    """
    wanted_seqs = {seq for first, past in ranges for seq in (first, past - 1)}
    item_ids: dict[int, str] = {}
    for seq in sorted(wanted_seqs):
        if seq not in item_ids:
            past = seq + 2 if seq + 1 in wanted_seqs else seq + 1
            item_ids |= {
                entry.seq: find_message_item_id(entry) for entry in await store.read_log(conversation, seq, past)
            }
    return item_ids
