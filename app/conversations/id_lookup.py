"""Finds what an id names that somebody has from a client or a log line: a request, an answer, a conversation.

Ids of answers have no index over all tenants. They are found as stored completions and responses, and in the records of
requests, as far as those are kept and searched (`contract.requests.MAX_SEARCHED_RECORDS`).
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Final, Literal

import msgspec

from app.conversation.identity import is_valid_conversation_id
from app.conversations.items.item_building import build_answer_item_id, find_message_item_id, parse_item_id
from app.dialects.items.item_ids import find_response_id
from app.observability.request_record import EndedRequest
from app.pipeline.turn.chat_request import Caller
from app.store.contract.conversations import ConversationQuery, ConversationStore
from app.store.contract.requests import RequestQuery
from app.store.request_history import RequestHistory

REQUEST_PREFIX: Final = "req_"
MESSAGE_PREFIX: Final = "msg_"
MAX_CONVERSATIONS: Final = 10
"""How many conversations of one client's id are returned: several tenants may use it."""


class FoundId(msgspec.Struct, frozen=True):
    """What an id names. `item_id` is the answer's item; it is None if the request has no stored answer."""

    kind: Literal["request", "answer", "conversation"]
    id: str
    tenant: str | None
    conversation_id: str | None
    item_id: str | None = None


@dataclass(eq=False, kw_only=True)
class IdLookup:
    """Finds what an id names, among what the caller may see.

    Args:
        requests: the requests that have ended; None: none are kept.
        list_active_tenants: in which stored answers are looked for by a caller who sees all tenants.
    """

    store: ConversationStore
    requests: RequestHistory | None
    list_active_tenants: Callable[[], Awaitable[Sequence[str]]]

    async def find(self, caller: Caller, name: str) -> list[FoundId]:
        """Returns what an id names: requests first, then answers, then conversations."""
        if not is_valid_conversation_id(name):  # the ids of all kinds have these characters
            return []
        found = [await self._find_request(caller, name), await self._find_completion(caller, name)]
        return [one for one in found if one is not None] + await self._find_conversations(caller, name)

    async def find_item_id(self, caller: Caller, name: str) -> str | None:
        """Returns the item id of the answer that a client's id names."""
        found = await self.find(caller, name)
        return next((one.item_id for one in found if one.item_id is not None), None)

    async def _find_request(self, caller: Caller, name: str) -> FoundId | None:
        tenant = None if caller.sees_all_tenants else caller.tenant
        request = None if self.requests is None else await self._read_request(self.requests, tenant, name)
        if request is None or request.id is None or tenant not in (None, request.tenant):
            return None
        item_id = None if request.answer is None else build_answer_item_id(*request.answer)
        return FoundId("request", request.id, request.tenant, request.facts.conversation_id, item_id)

    async def _read_request(self, requests: RequestHistory, tenant: str | None, name: str) -> EndedRequest | None:
        """Returns the request with an id, or whose answer has it."""
        for request_id in (name, name.replace(MESSAGE_PREFIX, REQUEST_PREFIX, 1)):
            if request_id.startswith(REQUEST_PREFIX) and (request := await requests.find_request(request_id)):
                return request
        if name.isalpha():
            return None  # a word: not worth the search
        item = parse_item_id(name)
        # As an `EndedRequest` has its `answer` and `answer_id`: [12,"0a1b…"],"chatcmpl-1".
        part = f'"],"{find_response_id(name) or name}"' if item is None else f'[{item.seq},"{item.link_start}'
        found = await requests.list_requests(RequestQuery(limit=1, tenant=tenant, record_part=part))
        return found[0] if found else None

    async def _find_completion(self, caller: Caller, name: str) -> FoundId | None:
        completion_id = find_response_id(name) or name
        for tenant in await self.list_active_tenants() if caller.sees_all_tenants else [caller.tenant]:
            completion = await self.store.find_completion(tenant=tenant, completion_id=completion_id)
            if completion is None:
                continue
            place = {"tenant": tenant, "conversation_id": completion.conversation_id}
            conversation = await self.store.find_conversation(**place)
            entries = (
                await self.store.read_log(conversation, completion.seq, completion.seq + 1) if conversation else ()
            )
            return FoundId("answer", completion.id, **place, item_id=next(map(find_message_item_id, entries), None))
        return None

    async def _find_conversations(self, caller: Caller, name: str) -> list[FoundId]:
        if not caller.sees_all_tenants:
            conversation = await self.store.find_conversation(tenant=caller.tenant, conversation_id=name)
            found = [] if conversation is None else [conversation]
        else:
            by_client = ConversationQuery(limit=MAX_CONVERSATIONS, external_id=name, excludes_context_tenants=True)
            family = ConversationQuery(limit=1, descending=False, ancestor_id=name, excludes_context_tenants=True)
            found = [
                *(await self.store.list_conversations(tenant=None, query=by_client)),
                *(one for one in await self.store.list_conversations(tenant=None, query=family) if one.id == name),
            ]
        return [FoundId("conversation", one.id, one.tenant, one.id) for one in found]
