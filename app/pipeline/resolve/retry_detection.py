"""Detects which of a request's messages an earlier attempt has stored already."""

from __future__ import annotations

from collections.abc import Sequence

from app.conversation.conversation_types import Conversation, LogMessage
from app.conversation.item import Item
from app.pipeline.admission.answer_replay import StoredAnswers
from app.pipeline.chat_request import ChatRequest
from app.pipeline.resolve.client_history_matching import ClientHistory
from app.pipeline.resolve.resolved_request import UNANSWERED_MESSAGES
from app.store.contract.conversations import ConversationStore


class RetryDetector:
    """Compares a request's messages with the end of a conversation's log."""

    def __init__(self, store: ConversationStore, stored_answers: StoredAnswers) -> None:
        self._store = store
        self._stored_answers = stored_answers

    async def is_unanswered_retry(self, conversation: Conversation, messages: Sequence[Item]) -> bool:
        """Returns whether the log ends with exactly these messages, stored by an attempt that got no answer."""
        count = len(messages)
        if not count or int(conversation.state.get(UNANSWERED_MESSAGES, 0)) < count:
            return False
        log_tail = await self._store.read_log(
            conversation, conversation.head_seq + 1 - count, conversation.head_seq + 1
        )
        return _are_equal_messages(log_tail, messages)

    async def count_repeated_messages(self, conversation: Conversation, messages: Sequence[Item]) -> int:
        """Returns how many of the first messages of a request, up to and including an assistant message, are the end of
        the log.

        Agents send all messages of a run again after each tool call. After the repeated messages, the log may have
        messages that an attempt without an answer stored.
        """
        unanswered_counts = {0, min(int(conversation.state.get(UNANSWERED_MESSAGES, 0)), len(messages))}
        answer_indexes = [index for index, message in enumerate(messages) if message.role == "assistant"]
        if not answer_indexes:
            return 0
        first_seq = max(0, conversation.head_seq + 1 - max(unanswered_counts) - answer_indexes[-1] - 1)
        log_bytes = [
            _canonical_bytes(entry.message)
            for entry in await self._store.read_log(conversation, first_seq, conversation.head_seq + 1)
        ]
        sent_bytes = [_canonical_bytes(message) for message in messages[: answer_indexes[-1] + 1]]
        # The longest repetition counts, so the comparison begins with the last assistant message.
        for count in (index + 1 for index in reversed(answer_indexes)):
            for unanswered_count in unanswered_counts:
                start = len(log_bytes) - unanswered_count - count
                if start >= 0 and log_bytes[start : start + count] == sent_bytes[:count]:
                    return count
        return 0

    async def is_resent_tail(
        self, request: ChatRequest, named_conversation: Conversation, client_history: ClientHistory
    ) -> bool:
        """Returns whether an appending client sends the newest part of the log again, as an agent does after a tool
        call. A history that is the whole log is a resend."""
        if (
            request.context_mode != "auto"
            or request.is_chat_ui
            or named_conversation.mode == "resend"
            or not client_history.may_contain_answer
        ):
            return False
        count = await self.count_repeated_messages(named_conversation, client_history.messages)
        # A history that repeats the whole log is a resend. One without a message after the repeated ones has nothing to
        # append.
        if count:
            return count <= named_conversation.head_seq and count < len(client_history.messages)
        # No message repeats. The request can still be a retry of an append whose answer is stored.
        return await self._stored_answers.find_retry_answer(named_conversation, request, client_history) is not None


def _are_equal_messages(entries: Sequence[LogMessage], messages: Sequence[Item]) -> bool:
    """Compares messages by their canonical form. A message without a canonical form (the chain skips it) is compared by
    its bytes."""
    return [_canonical_bytes(entry.message) for entry in entries] == [_canonical_bytes(message) for message in messages]


def _canonical_bytes(message: Item) -> bytes:
    return message.canonical_form or message.raw
