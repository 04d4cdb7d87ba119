"""Lets operators act for every tenant: the holder of the operator's token, and of an API key with scope `admin`."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

from msgspec.structs import replace

from app.conversation.api_keys import SCOPES, is_context_tenant
from app.errors import InvalidRequest
from app.pipeline.turn.chat_request import Caller
from app.store.contract.conversations import ConversationQuery, ConversationStore

TENANT_HEADER: Final = "x-concertina-tenant"
"""The header in which an operator names the tenant that a request is about."""
ALL_TENANTS: Final = "*"
_TENANT_PATTERN: Final = re.compile(r"[\x21-\x7e]{1,200}")


class OperatorAccess:
    """Chooses the tenant of an operator's request."""

    def __init__(self, conversations: ConversationStore) -> None:
        self._conversations = conversations

    def choose_tenant(self, caller: Caller, headers: Mapping[str, str]) -> Caller:
        """Returns an operator with every scope, in the tenant that the header names.

        Raises:
            InvalidRequest: the header names no tenant.
        """
        named = headers.get(TENANT_HEADER)
        if named is None or named == ALL_TENANTS:
            sees_all = named is not None
            return replace(caller, scopes=SCOPES, sees_all_tenants=sees_all, may_see_all_tenants=not sees_all)
        if not _TENANT_PATTERN.fullmatch(named) or is_context_tenant(named):
            raise InvalidRequest(
                "The header `X-Concertina-Tenant` names no tenant.",
                hint="Send a tenant as `GET /v1/conversations` shows it to an operator, or `*` for all tenants.",
            )
        return replace(caller, tenant=named, scopes=SCOPES, may_see_all_tenants=True)

    async def enter_conversation(self, caller: Caller, conversation_id: str) -> Caller:
        """Returns the caller in the tenant of a conversation, if the caller sees all tenants.

        Args:
            conversation_id: the gateway's id. With a client's own id, or one that does not exist, the caller stays in
                its own tenant.

        Raises:
            StoreUnavailable: the conversation cannot be looked up.
        """
        if not caller.sees_all_tenants:
            return caller
        query = ConversationQuery(limit=1, descending=False, ancestor_id=conversation_id, excludes_context_tenants=True)
        family = await self._conversations.list_conversations(tenant=None, query=query)
        found = next((one for one in family if one.id == conversation_id), None)
        return caller if found is None else replace(caller, tenant=found.tenant)
