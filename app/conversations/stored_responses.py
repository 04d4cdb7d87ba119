"""Finds stored responses by id, and builds them and their input items from the log.

A stored response has no copy of the conversation's text, except for the instructions of its request. So whatever is
deleted or erased in the log is gone from the response, too.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any, Final

import orjson

from app.conversation.conversation_types import RESPONSE_ID_PREFIX, Conversation, LogMessage, StoredCompletion
from app.conversations.items.item_building import build_item_id, build_items, parse_item_id
from app.dialects.item_decoding import decode_item, select_lasting_instructions
from app.dialects.items.item_ids import derive_item_id
from app.dialects.items.listed_items import build_input_items, hide_encrypted_reasoning
from app.dialects.items.message import ResponsesMessage
from app.dialects.message_rendering import build_output_items, render_messages_for_responses
from app.dialects.request_translation import INCLUDED_REASONING
from app.errors import NotFound, ResponseNotFound
from app.pipeline.turn.chat_request import Caller
from app.store.contract.conversations import ConversationStore

PAGE_MESSAGES: Final = 100
"""How many messages of the log are read at once for a page of items."""
NUL: Final = "\0"
"""No stored id contains it, because PostgreSQL cannot store it. A query with it would fail."""

ItemObject = dict[str, Any]


class StoredResponses:
    """A caller's stored responses.

    Args:
        render_response: renders a response as a JSON object, from what is kept of it, its answer in the log, the id of
            its conversation, and what the object has besides.
    """

    def __init__(
        self,
        store: ConversationStore,
        render_response: Callable[[StoredCompletion, LogMessage, str, Sequence[str]], bytes],
    ) -> None:
        self._store = store
        self._render_response = render_response

    async def read_response(self, caller: Caller, response_id: str, include: Sequence[str] = ()) -> bytes:
        """Returns a stored response as a JSON object.

        Args:
            include: what the object has besides, as `include` of the request.

        Raises:
            ResponseNotFound: there is none.
        """
        response, conversation = await self._find_with_conversation(caller, response_id)
        answers = await self._store.read_log(conversation, response.seq, response.seq + 1)
        if not answers:
            raise _response_not_found_error(response_id)
        return self._render_response(response, answers[0], conversation.id, include)

    async def delete_response(self, caller: Caller, response_id: str) -> None:
        """Deletes a stored response; its conversation stays.

        Raises:
            ResponseNotFound: there is none.
        """
        response = await self.find_response(caller, response_id)
        if not await self._store.delete_completion(tenant=caller.tenant, completion_id=response.id):
            raise _response_not_found_error(response_id)

    async def list_input_items(
        self,
        caller: Caller,
        response_id: str,
        *,
        after: str | None = None,
        limit: int = 20,
        descending: bool = True,
        include: Sequence[str] = (),
    ) -> tuple[list[ItemObject], bool]:
        """Returns a page of the items that the model was asked with, and whether more follow: system and developer
        messages that came first, then everything in the log before the answer, earlier turns included.

        Raises:
            ResponseNotFound, NotFound: there is no such response, or it has no input item `after`.
        """
        response, conversation = await self._find_with_conversation(caller, response_id)
        items: list[ItemObject] = []
        is_found = after is None
        async for item in self._stream_items(response, conversation, after, descending=descending):
            if is_found:
                items.append(item if INCLUDED_REASONING in include else hide_encrypted_reasoning(item))
                if len(items) > limit:
                    break
            else:
                is_found = item["id"] == after
        if not is_found:
            raise NotFound(f"Item with id {after!r} not found in response {response_id!r}.", param="after")
        return items[:limit], len(items) > limit

    async def find_response(self, caller: Caller, response_id: str) -> StoredCompletion:
        """Returns what is kept of a response beside the log.

        Raises:
            ResponseNotFound: there is none.
        """
        if response_id.startswith(RESPONSE_ID_PREFIX) and NUL not in response_id:
            response = await self._store.find_completion(tenant=caller.tenant, completion_id=response_id)
            if response is not None:
                return response
        raise _response_not_found_error(response_id)

    async def _find_with_conversation(self, caller: Caller, response_id: str) -> tuple[StoredCompletion, Conversation]:
        response = await self.find_response(caller, response_id)
        conversation = await self._store.find_conversation(
            tenant=response.tenant, conversation_id=response.conversation_id
        )
        if conversation is None:
            raise _response_not_found_error(response_id)
        return response, conversation

    async def _stream_items(
        self, response: StoredCompletion, conversation: Conversation, after: str | None, *, descending: bool
    ) -> AsyncIterator[ItemObject]:
        """Yields the items before the answer. If the id `after` tells its message, it begins with that message."""
        instructions = _build_instruction_items(response)
        place = None if after is None else parse_item_id(after)
        first_seq = place.seq if place is not None and place.seq < response.seq else None
        if not descending and first_seq is None:
            for item in instructions:
                yield item
        last_seq = response.seq - 1
        next_seq = first_seq if first_seq is not None else last_seq if descending else 0
        while 0 <= next_seq <= last_seq:
            bounds = (
                (max(0, next_seq + 1 - PAGE_MESSAGES), next_seq + 1)
                if descending
                else (next_seq, min(last_seq + 1, next_seq + PAGE_MESSAGES))
            )
            entries = await self._store.read_log(conversation, *bounds)
            for entry in reversed(entries) if descending else entries:
                items = _build_message_items(entry)
                for item in reversed(items) if descending else items:
                    yield item
            next_seq = bounds[0] - 1 if descending else bounds[1]
        if descending:
            for item in reversed(instructions):
                yield item


def _build_instruction_items(response: StoredCompletion) -> list[ItemObject]:
    """Builds items of the system and developer messages before the log."""
    items: list[ItemObject] = []
    for raw in select_lasting_instructions(response.instructions):
        message = decode_item(raw.encode())
        if isinstance(message, ResponsesMessage):
            items += build_input_items(message)
        else:
            items += map(orjson.loads, render_messages_for_responses([message.raw]).messages)
    return [
        {**item, "id": derive_item_id(response.id, "msg", index)} if "id" not in item else item
        for index, item in enumerate(items)
    ]


def _build_message_items(entry: LogMessage) -> list[ItemObject]:
    """Builds the items of a message of the log, each with an id."""
    if entry.message.role == "assistant" and (response_id := str((entry.meta or {}).get("id") or "")).startswith(
        RESPONSE_ID_PREFIX
    ):
        return build_output_items(entry.message, response_id)
    if not isinstance(entry.message, ResponsesMessage):
        return build_items(entry)
    return [
        item if isinstance(item.get("id"), str) else {**item, "id": build_item_id("msg", entry, part)}
        for part, item in enumerate(build_input_items(entry.message))
    ]


def _response_not_found_error(response_id: str) -> ResponseNotFound:
    return ResponseNotFound(f"Response with id '{response_id}' not found.", param="id")
