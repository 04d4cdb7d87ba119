"""Finds, lists, describes and deletes a caller's conversations."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from typing import Any, Final

from msgspec.structs import replace

from app.conversation.conversation_types import Conversation, LogMessage
from app.conversation.identity import is_valid_conversation_id
from app.conversations.items.item_building import build_items, parse_item_id
from app.errors import ConversationNotFound, ItemNotFound
from app.pipeline.turn.chat_request import Caller
from app.store.contract.conversations import ConversationQuery, ConversationStore

BRANCH_PAGE_SIZE: Final = 1_000
"""How many conversations are read at once in the search for branches."""
ALL_TENANTS_HINT: Final = "Send `X-Concertina-Tenant: *` to look in all tenants."
"""For operators who look in one tenant."""


class ConversationRecords:
    """Conversations as a resource. A caller finds conversations of its own tenant only."""

    def __init__(self, store: ConversationStore) -> None:
        self._store = store

    async def find_conversation(self, caller: Caller, conversation_id: str) -> Conversation:
        """Returns the conversation with this id: the gateway's id or the client's own.

        Raises:
            ConversationNotFound: the caller has none with this id.
        """
        if is_valid_conversation_id(conversation_id):
            conversation = await self._store.find_conversation(tenant=caller.tenant, conversation_id=conversation_id)
            if conversation is not None:
                return conversation
        raise _conversation_not_found_error(caller, conversation_id)

    async def find_message(self, conversation: Conversation, item_id: str) -> tuple[LogMessage, int]:
        """Returns the message that an item id names, and the number of the item in it.

        Raises:
            ItemNotFound: the conversation has no such message.
        """
        position = parse_item_id(item_id)
        if position is not None and position.seq <= conversation.head_seq:
            for entry in await self._store.read_log(conversation, position.seq, position.seq + 1):
                if position.matches_message(entry):
                    return entry, position.part
        raise ItemNotFound(f"Item with id {item_id!r} not found in conversation {conversation.id!r}.")

    async def build_conversation_object(self, conversation: Conversation) -> dict[str, Any]:
        """Builds OpenAI's conversation object, with fields of the gateway."""
        return {
            "id": conversation.id,
            "object": "conversation",
            "created_at": int(conversation.created_at.timestamp()) if conversation.created_at else 0,
            "metadata": dict(conversation.metadata),
            "updated_at": int(conversation.updated_at.timestamp()) if conversation.updated_at else 0,
            "messages": conversation.head_seq + 1,
            "tokens": conversation.head_tokens_total,
            "external_id": conversation.external_id,
            "mode": conversation.mode,
            "summaries": conversation.chunk_count,
            "parent": await self._build_parent_object(conversation),
        }

    async def _build_parent_object(self, conversation: Conversation) -> dict[str, Any] | None:
        """Builds the reference to a branch's parent and to the last item that both share; None without a parent."""
        if not conversation.relatives:
            return None
        parent_id, seq = conversation.relatives[-1]
        shared = await self._store.read_log(conversation, seq, seq + 1)
        items = [item for entry in shared for item in build_items(entry, with_deleted=True)]
        return {"conversation_id": parent_id, "through_item": items[-1]["id"] if items else None}

    async def list_conversations(
        self, caller: Caller, query: ConversationQuery, *, after: str | None = None
    ) -> tuple[list[Conversation], bool]:
        """Returns a page of the caller's conversations, and whether more follow.

        Args:
            query: the filters; its `after` is ignored.
            after: the id of the last conversation of the page before.

        Raises:
            ConversationNotFound: there is no conversation `after`.
        """
        position = None
        if after is not None:
            last = await self._find_last_of_page(caller, after)
            last_at = getattr(last, query.order_by)
            assert last_at is not None
            position = (last_at, last.id)
        # One more than the page: it tells whether more follow.
        page_query = replace(query, limit=query.limit + 1, after=position)
        tenant = None if caller.sees_all_tenants else caller.tenant
        page_query = replace(page_query, excludes_context_tenants=caller.sees_all_tenants)
        conversations = await self._store.list_conversations(tenant=tenant, query=page_query)
        return conversations[: query.limit], len(conversations) > query.limit

    async def _find_last_of_page(self, caller: Caller, conversation_id: str) -> Conversation:
        """Returns the conversation after which a page begins.

        Raises:
            ConversationNotFound: no conversation of the caller's list has this id.
        """
        if not caller.sees_all_tenants:
            return await self.find_conversation(caller, conversation_id)
        query = ConversationQuery(limit=1, descending=False, ancestor_id=conversation_id, excludes_context_tenants=True)
        for found in await self._store.list_conversations(tenant=None, query=query):
            if found.id == conversation_id:
                return found
        raise _conversation_not_found_error(caller, conversation_id)

    async def replace_metadata(self, caller: Caller, conversation_id: str, metadata: Mapping[str, str]) -> Conversation:
        """Replaces a conversation's metadata; returns the changed conversation.

        Raises:
            ConversationNotFound: the caller has none with this id.
        """
        if is_valid_conversation_id(conversation_id):
            conversation = await self._store.replace_metadata(
                tenant=caller.tenant, conversation_id=conversation_id, metadata=metadata
            )
            if conversation is not None:
                return conversation
        raise _conversation_not_found_error(caller, conversation_id)

    async def delete_conversation(self, caller: Caller, conversation_id: str, *, with_branches: bool) -> Conversation:
        """Deletes a conversation, and with `with_branches` all its branches; returns the deleted conversation.

        Branches that stay keep the messages that they share with it.

        Raises:
            ConversationNotFound: the caller has none with this id.
        """
        conversation = await self.find_conversation(caller, conversation_id)
        # First: whatever fails after it, no capsule gives words that are erased.
        await self._store.add_tombstone(root=conversation.root, family_id=conversation.family_id)
        for branch in await self._find_branches(conversation) if with_branches else ():
            await self._store.erase_conversation(tenant=caller.tenant, conversation_id=branch.id)
        if not await self._store.erase_conversation(tenant=caller.tenant, conversation_id=conversation.id):
            raise _conversation_not_found_error(caller, conversation_id)
        return conversation

    async def _find_branches(self, conversation: Conversation) -> list[Conversation]:
        """Returns all branches of a conversation, the deepest first: a branch is deleted before what it branched
        from."""
        query = ConversationQuery(limit=BRANCH_PAGE_SIZE, descending=False, ancestor_id=conversation.id)
        branches = [
            one
            async for page in stream_conversation_pages(self._store, conversation.tenant, query)
            for one in page
            if any(ancestor == conversation.id for ancestor, _ in one.relatives)
        ]
        return sorted(branches, key=lambda branch: len(branch.lineage), reverse=True)


async def stream_conversation_pages(
    store: ConversationStore, tenant: str | None, query: ConversationQuery
) -> AsyncIterator[list[Conversation]]:
    """Yields the conversations of a tenant (None: of all tenants) that a query selects, `query.limit` at a time."""
    while page := await store.list_conversations(tenant=tenant, query=query):
        yield page
        if len(page) < query.limit:
            return
        last = page[-1]
        assert last.created_at is not None
        query = replace(query, after=(last.created_at, last.id))


def _conversation_not_found_error(caller: Caller, conversation_id: str) -> ConversationNotFound:
    hint = ALL_TENANTS_HINT if caller.may_see_all_tenants else None
    return ConversationNotFound(f"Conversation with id {conversation_id!r} not found.", hint=hint)
