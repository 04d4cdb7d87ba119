"""Selects and orders the conversations of a page in memory."""

from __future__ import annotations

from datetime import datetime

from app.conversation.api_keys import belongs_to_tenant, is_context_tenant
from app.conversation.conversation_types import Conversation
from app.store.contract.conversations import ConversationQuery


def creation_sort_key(conversation: Conversation) -> tuple[datetime | None, str]:
    """Returns by what a page of conversations is ordered."""
    return conversation.created_at, conversation.id


def _has_own_messages(conversation: Conversation) -> bool:
    return not conversation.lineage or conversation.lineage[-1][1] < conversation.head_seq


def matches_conversation_query(conversation: Conversation, tenant: str | None, query: ConversationQuery) -> bool:
    """Returns whether a query over the conversations of a tenant (None: of all tenants) selects a conversation."""
    created_at, updated_at = conversation.created_at, conversation.updated_at
    assert created_at is not None
    assert updated_at is not None
    sort_key, after = (created_at, conversation.id), query.after
    return (
        (after is None or (sort_key < after if query.descending else sort_key > after))
        and (query.created_after is None or created_at > query.created_after)
        and (query.created_before is None or created_at < query.created_before)
        and (query.updated_after is None or updated_at > query.updated_after)
        and (query.updated_before is None or updated_at < query.updated_before)
        and query.mode in (None, conversation.mode)
        and query.external_id in (None, conversation.external_id)
        and query.metadata.items() <= conversation.metadata.items()
        and (not query.has_own_messages or conversation.external_id is not None or _has_own_messages(conversation))
        and (not query.is_context_only or is_context_tenant(conversation.tenant))
        and (not query.excludes_context_tenants or not is_context_tenant(conversation.tenant))
        and (
            tenant in (None, conversation.tenant)
            or (query.with_derived_tenants and belongs_to_tenant(conversation.tenant, tenant or ""))
        )
        and (
            query.ancestor_id is None
            or any(ancestor_id == query.ancestor_id for ancestor_id, _ in conversation.lineage_with_self)
        )
    )
