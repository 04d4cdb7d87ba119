"""A caller's conversations: found, begun, described, listed, deleted."""

from __future__ import annotations

from app.archive.items import parse_item_id
from app.conversation.messages import Conversation, LogMessage
from app.errors import ConversationNotFound, ItemNotFound
from app.exchange.request import Caller
from app.store.base import Store


class Records:
    """Conversations as a resource. Nothing of one tenant is ever found by another."""

    def __init__(self, store: Store) -> None:
        self._store = store

    async def of(self, caller: Caller, conversation_id: str) -> Conversation:
        """The conversation with this id of ours, or with this id of the client's own.

        Raises:
            ConversationNotFound: the caller has none.
        """
        found = await self._store.get(tenant=caller.tenant, conversation_id=conversation_id)
        if found is None:
            raise ConversationNotFound(f"Conversation with id {conversation_id!r} not found.")
        return found

    async def entry(self, conversation: Conversation, item_id: str) -> tuple[LogMessage, int]:
        """The message that an item id names, and which of its items.

        Raises:
            ItemNotFound: the conversation has no such message.
        """
        place = parse_item_id(item_id)
        if place is not None and place.seq <= conversation.head_seq:
            for entry in await self._store.read(conversation, place.seq, place.seq + 1):
                if place.names(entry):
                    return entry, place.part
        raise ItemNotFound(f"Item with id {item_id!r} not found in conversation {conversation.id!r}.")
