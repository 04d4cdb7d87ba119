"""A caller's conversations: found, begun, described, listed, deleted."""

from __future__ import annotations

from app.conversation.messages import Conversation
from app.errors import ConversationNotFound
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
