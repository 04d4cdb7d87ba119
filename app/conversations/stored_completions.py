"""Finds stored completions by id and builds them from the log.

A stored completion has no copy of the conversation's text, except for the instructions of its request. So whatever is
deleted or erased in the log is gone from the completion, too.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final, Protocol

from msgspec.structs import replace

from app.conversation.conversation_types import RESPONSE_ID_PREFIX, Conversation, LogMessage, StoredCompletion
from app.conversation.item import Item
from app.conversations.items.item_building import DELETED
from app.dialects.body.message import decode_body
from app.dialects.body.message_fields import extract_text
from app.dialects.item_decoding import decode_item
from app.errors import CompletionNotFound, NotFound
from app.pipeline.turn.chat_request import Caller
from app.store.contract.conversations import CompletionQuery, ConversationStore

NUL: Final = "\0"
"""No stored id or name contains it, because PostgreSQL cannot store it. A query with it would fail."""
CompletionPageResult = tuple[list[dict[str, Any]], bool]
"""Objects, and whether more follow."""


class BuildCompletionObject(Protocol):
    """Builds the object of a completion from what is kept of it and its answer in the log."""

    def __call__(self, completion: StoredCompletion, answer: LogMessage, *, is_redacted: bool) -> dict[str, Any]: ...


class StoredCompletions:
    """A caller's stored completions."""

    def __init__(self, store: ConversationStore, build_object: BuildCompletionObject) -> None:
        self._store = store
        self._build_object = build_object

    async def list_completions(self, caller: Caller, query: CompletionQuery, after: str | None) -> CompletionPageResult:
        """Returns a page of stored completions, and whether more follow.

        Args:
            after: the id of the last completion of the page before.

        Raises:
            CompletionNotFound: there is no completion `after`.
        """
        if NUL in (query.model or ""):
            return [], False
        if after is not None:
            last = await self._find_completion(caller, after, "after")
            query = replace(query, after=(last.created_at, last.id))
        completions = await self._store.list_completions(
            tenant=caller.tenant, query=replace(query, limit=query.limit + 1, with_responses=False)
        )
        objects = [await self._read_completion_object(completion) for completion in completions[: query.limit]]
        return [one for one in objects if one is not None], len(completions) > query.limit

    async def read_first_choice(self, caller: Caller, completion_id: str) -> dict[str, Any]:
        """Returns a stored completion as an object.

        Raises:
            CompletionNotFound: there is none.
        """
        completion_object = await self._read_completion_object(await self._find_completion(caller, completion_id))
        if completion_object is None:
            raise _completion_not_found_error(completion_id)
        return completion_object

    async def replace_metadata(self, caller: Caller, completion_id: str, metadata: Mapping[str, str]) -> dict[str, Any]:
        """Replaces a completion's metadata; returns the changed object.

        Raises:
            CompletionNotFound: there is none.
        """
        completion = await self._find_completion(caller, completion_id)
        await self._store.replace_completion_metadata(
            tenant=caller.tenant, completion_id=completion.id, metadata=metadata
        )
        return await self.read_first_choice(caller, completion.id)

    async def delete_completion(self, caller: Caller, completion_id: str) -> None:
        """Deletes a stored completion; its conversation stays.

        Raises:
            CompletionNotFound: there is none.
        """
        completion = await self._find_completion(caller, completion_id)
        if not await self._store.delete_completion(tenant=caller.tenant, completion_id=completion.id):
            raise _completion_not_found_error(completion_id)

    async def list_messages(
        self, caller: Caller, completion_id: str, *, after: str | None, limit: int, descending: bool
    ) -> CompletionPageResult:
        """Returns the messages of a completion's request: instructions, then the log before the answer. A page takes
        one read of the log.

        Raises:
            CompletionNotFound, NotFound: there is no such completion, or it has no message `after`.
        """
        completion = await self._find_completion(caller, completion_id)
        conversation = await self._find_conversation(completion)
        if conversation is None:
            raise _completion_not_found_error(completion_id)
        ahead = len(completion.instructions)
        count = ahead + completion.seq
        step = -1 if descending else 1
        first_number = (
            (count - 1 if descending else 0)
            if after is None
            else _parse_message_index(completion_id, after, count) + step
        )
        numbers = range(first_number, -1 if descending else count, step)[:limit]
        stored = await self._read_messages(conversation, [number - ahead for number in numbers if number >= ahead])
        items = [
            _build_message_object(
                completion, number, completion.instructions[number] if number < ahead else stored[number - ahead]
            )
            for number in numbers
            if number < ahead or number - ahead in stored
        ]
        return items, len(range(first_number, -1 if descending else count, step)) > limit

    async def _read_messages(self, conversation: Conversation, seqs: Sequence[int]) -> dict[int, Item]:
        if not seqs:
            return {}
        entries = await self._store.read_log(conversation, min(seqs), max(seqs) + 1)
        return {entry.seq: entry.message for entry in entries}

    async def _find_completion(self, caller: Caller, completion_id: str, param: str | None = None) -> StoredCompletion:
        if NUL not in completion_id and not completion_id.startswith(RESPONSE_ID_PREFIX):
            completion = await self._store.find_completion(tenant=caller.tenant, completion_id=completion_id)
            if completion is not None:
                return completion
        raise _completion_not_found_error(completion_id, param)

    async def _find_conversation(self, completion: StoredCompletion) -> Conversation | None:
        return await self._store.find_conversation(tenant=completion.tenant, conversation_id=completion.conversation_id)

    async def _read_completion_object(self, completion: StoredCompletion) -> dict[str, Any] | None:
        """Builds OpenAI's completion object; None if the conversation was deleted meanwhile."""
        conversation = await self._find_conversation(completion)
        if conversation is None:
            return None
        answers = await self._store.read_log(conversation, completion.seq, completion.seq + 1)
        if not answers:
            return None
        return self._build_object(completion, answers[0], is_redacted=DELETED in (answers[0].meta or {}))


def _build_message_object(completion: StoredCompletion, number: int, message: str | Item) -> dict[str, Any]:
    """Builds a message as OpenAI lists it: `content` is text, and content in parts is also in `content_parts`."""
    body = decode_body(decode_item(message.encode()) if isinstance(message, str) else message)
    content = body.get("content")
    parts = content if isinstance(content, list) else None
    return {
        **body,
        "id": f"{completion.id}-{number}",
        "content": content if parts is None else extract_text(parts) or None,
        "content_parts": parts,
        "name": body.get("name"),
    }


def _parse_message_index(completion_id: str, message_id: str, count: int) -> int:
    """Returns the number in the id of a message of a completion."""
    prefix, _, number = message_id.rpartition("-")
    if prefix != completion_id or not number.isdecimal() or len(number) > len(str(count)) or int(number) >= count:
        raise NotFound(f"Message with id {message_id!r} not found in chat completion {completion_id!r}.", param="after")
    return int(number)


def _completion_not_found_error(completion_id: str, param: str | None = None) -> CompletionNotFound:
    return CompletionNotFound(
        f"Chat completion with id {completion_id!r} not found.",
        param=param,
        hint=None if param else "Only completions of requests with `store: true` are stored.",
    )
