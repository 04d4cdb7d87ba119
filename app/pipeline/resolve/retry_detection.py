"""Messages that their client sends once more: what of them is stored already."""

from __future__ import annotations

from collections.abc import Sequence

from app.conversation.canonical_form import canonical
from app.conversation.messages import Conversation, LogMessage, Message
from app.pipeline.resolve.resolved_request import PENDING
from app.store.contract import Store


class Repeating:
    """Recognises what an earlier attempt has stored, at the end of a conversation's log."""

    def __init__(self, store: Store) -> None:
        self._store = store

    async def is_pending(self, conversation: Conversation, messages: Sequence[Message]) -> bool:
        """Whether the log ends with exactly these messages, stored by an attempt that got no answer."""
        count = len(messages)
        if not count or int(conversation.state.get(PENDING, 0)) < count:
            return False
        tail = await self._store.read(conversation, conversation.head_seq + 1 - count, conversation.head_seq + 1)
        return _are_same(tail, messages)

    async def said_before(self, conversation: Conversation, messages: Sequence[Message]) -> int:
        """How many of these messages, an answer last among them, stand at the end of the log; behind them may stand
        what an attempt stored that got no answer. Agents send all of a run after each call of a tool."""
        ends = {0, min(int(conversation.state.get(PENDING, 0)), len(messages))}
        answers = [index for index, message in enumerate(messages) if message.role == "assistant"]
        if not answers:
            return 0
        first = max(0, conversation.head_seq + 1 - max(ends) - answers[-1] - 1)
        stored = [
            _form(entry.message) for entry in await self._store.read(conversation, first, conversation.head_seq + 1)
        ]
        sent = [_form(message) for message in messages[: answers[-1] + 1]]
        for count in (index + 1 for index in reversed(answers)):
            for end in ends:
                place = len(stored) - end - count
                if place >= 0 and stored[place : place + count] == sent[:count]:
                    return count
        return 0


def _are_same(entries: Sequence[LogMessage], messages: Sequence[Message]) -> bool:
    """By canonical form; by text where the chain looks through a message."""
    return [_form(entry.message) for entry in entries] == [_form(message) for message in messages]


def _form(message: Message) -> bytes:
    return canonical(message.body) or message.raw
