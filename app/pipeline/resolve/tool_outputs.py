"""Outputs in a Responses request whose calls are in the log, not in the request."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from app.conversation.conversation_types import Conversation
from app.conversation.item import Item
from app.dialects.items.item_reference import build_missing_call_error
from app.pipeline.turn.chat_request import ChatRequest
from app.store.contract.conversations import ConversationStore

MAX_PARALLEL_CALLS: Final = 128
"""How many messages before a tool output are searched for its call. The outputs of parallel calls follow their calls
one after the other."""


def put_early_outputs_first(request: ChatRequest, messages: Sequence[Item]) -> Sequence[Item]:
    """Returns the new messages of a request, the outputs of calls of the log first: providers of Chat Completions
    refuse an output that does not follow its call."""
    if request.protocol != "responses":
        return messages
    early: list[Item] = []
    others: list[Item] = []
    call_ids: set[str | None] = set()
    for message in messages:
        if message.role == "tool" and read_output_call_id(message) not in call_ids:
            early.append(message)
            continue
        others.append(message)
        if message.role == "assistant":
            call_ids |= list_call_ids(message)
    return [*early, *others]


async def check_outputs_against_log(
    store: ConversationStore, request: ChatRequest, conversation: Conversation, messages: Sequence[Item]
) -> None:
    """Checks that the outputs with which a Responses request begins have their calls at the end of the log.

    Raises:
        InvalidRequest: as `check_outputs_have_calls`.
    """
    if request.protocol == "responses" and messages and messages[0].role == "tool":
        first_seq = max(0, conversation.head_seq + 1 - MAX_PARALLEL_CALLS)
        entries = await store.read_log(conversation, first_seq, conversation.head_seq + 1)
        check_outputs_have_calls(request, messages, [entry.message for entry in entries])


def check_outputs_have_calls(request: ChatRequest, messages: Sequence[Item], log_end: Sequence[Item]) -> None:
    """Checks that the outputs with which a Responses request begins answer calls of the last answer.

    Args:
        log_end: the last messages of the log.

    Raises:
        InvalidRequest: an output has no call; `param` names it, such as `input[0].call_id`.
    """
    if request.protocol != "responses":
        return
    answer = next((message for message in reversed(log_end) if message.role != "tool"), None)
    call_ids = set() if answer is None else list_call_ids(answer)
    if None in call_ids:  # a chat provider that gives its calls no ids
        return
    for message in messages:
        if message.role != "tool":
            return
        call_id = read_output_call_id(message)
        if call_id not in call_ids:
            raise build_missing_call_error(request.raw_fields["input"], call_id)


def list_call_ids(answer: Item) -> set[str | None]:
    """Returns the ids of the calls of an answer that the client carries out."""
    return {call.id for call in answer.calls}


def read_output_call_id(message: Item) -> str | None:
    """Returns the id of the call that an output answers."""
    return message.result_for or None
