"""Reads what the user said in the part of the log that a view hides (docs/decisions/0054).

What is kept is stored with the last view, as places in the log. A message is read once, when the boundary moves past
it; after that only what was kept of it is read again, at the next move.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from datetime import UTC
from typing import Final

from app.context.plan.budget import Budget, compute_planned_window
from app.context.plan.outline import Plan
from app.context.plan.summary_range_finder import TAIL_SHARE
from app.context.user_text.user_text import NO_USER_TEXT, UserText
from app.context.user_text.user_text_message import count_user_text_frame_tokens
from app.context.user_text.user_text_selection import (
    LogText,
    UserTextRoom,
    compute_user_text_room,
    extend_user_text,
)
from app.context.view.client_words import ClientWords
from app.conversation.conversation_types import Conversation, LogMessage
from app.pipeline.turn.resolved_request import DROPPED_USER_TEXT, ResolvedRequest
from app.pipeline.turn.token_counting import MessageCounter
from app.pipeline.turn.turn import Turn
from app.pipeline.view.client_words_reader import merge_into_ranges
from app.store.contract.conversations import ConversationStore

MAX_READ_MESSAGES: Final = 12_000
"""How many messages are read in one turn. Of a longer log nothing is shown until all of it was read, in the next
turns."""
MAX_HEAD_MESSAGES: Final = 64


class UserTextReader:
    """Reads logs for user text."""

    def __init__(self, *, store: ConversationStore, message_counter: MessageCounter) -> None:
        self._store = store
        self._message_counter = message_counter

    async def read_through(
        self, turn: Turn, budget: Budget, words: ClientWords, known: UserText, plan: Plan
    ) -> UserText:
        """Returns the user text of the messages that a plan hides, in the words that the client shows now.

        Args:
            known: what is kept of the messages before `known.before_seq`.

        Raises:
            StoreUnavailable: the log cannot be read.
        """
        resolved_request, policy = turn.resolved_request, turn.policy
        to_seq = min(plan.boundary_seq, known.before_seq + MAX_READ_MESSAGES)
        head = range(min(known.head_to, MAX_HEAD_MESSAGES))
        wanted = {*head, *(one.seq for one in known.lines), *range(known.before_seq, to_seq)}
        messages = await self._read_messages(resolved_request, wanted)
        head_to = known.head_to
        if head_to == known.before_seq:
            head_to = next((one.seq for one in messages if one.message.role == "assistant"), to_seq)
        rewritten = dict(words.list_rewritten_messages())
        gone_seqs = find_gone_seqs(resolved_request.conversation, words, (one.seq for one in messages))
        # In raw tokens: what is shown must not change when the calibration learns.
        window = compute_planned_window(policy, budget.window)
        room = compute_user_text_room(window, policy.user_text_ratio)
        # Half of it may make summaries fold sooner, the other half is only what they and a long tail leave.
        shown_tokens = sum(one.tokens for one in plan.summaries) + budget.compute_raw_tokens(int(window * TAIL_SHARE))
        left_tokens = max(budget.compute_raw_tokens(budget.limit) - shown_tokens, room.tokens // 2)
        tokens = min(room.tokens, left_tokens)
        head_tokens = min(room.head_tokens, max(left_tokens - tokens // 2, tokens // 2))
        counter = self._message_counter.find_token_counter(resolved_request.conversation.token_counter_name)
        # In a thread: splitting long text would block the event loop.
        return await asyncio.to_thread(
            extend_user_text,
            known,
            [
                LogText(one.seq, rewritten.get(one.seq, one.message), find_day(one, messages[0]))
                for one in messages
                if one.seq not in gone_seqs
            ],
            before_seq=to_seq,
            head_to=head_to,
            room=UserTextRoom(tokens, head_tokens),
            saved_tokens=plan.boundary.tokens_total - sum(one.tokens for one in plan.summaries),
            frame_tokens=count_user_text_frame_tokens(counter.count_message),
            count=counter.count,
        )

    async def _read_messages(self, resolved_request: ResolvedRequest, wanted: set[int]) -> list[LogMessage]:
        """Returns messages of the log, in order."""
        conversation = resolved_request.conversation
        ranges = list(merge_into_ranges(sorted(seq for seq in wanted if seq <= conversation.head_seq)))
        stored = await self._store.read_log_ranges(conversation, ranges) if ranges else []
        return [one for one in (*stored, *resolved_request.new_messages) if one.seq in wanted]


def find_day(entry: LogMessage, first: LogMessage) -> str:
    """Returns the day on which a message was stored, in UTC. Empty for what came together with the first message: it
    may be an older history that the client brought along."""
    moment = entry.created_at
    return "" if moment is None or moment == first.created_at else moment.astimezone(UTC).date().isoformat()


def select_valid_user_text(known: UserText, resolved_request: ResolvedRequest, words: ClientWords) -> UserText:
    """Returns stored user text without messages that must not be shown; nothing if the client has rewritten messages of
    the user since, so that all are read again."""
    changed = {version.seq for version in resolved_request.shown.new_versions if version.seq < known.before_seq}
    if changed and any(
        seq in changed and message.role == "user" and words.may_be_quoted(seq)
        for seq, message in words.list_rewritten_messages()
    ):
        return NO_USER_TEXT
    return known.drop_messages(find_gone_seqs(resolved_request.conversation, words, (one.seq for one in known.lines)))


def find_gone_seqs(conversation: Conversation, words: ClientWords, seqs: Iterable[int]) -> set[int]:
    """Returns the messages that are not shown as user text: erased, left out or taken back by the client, or dropped
    through the API."""
    dropped = {seq for seq, _ in conversation.marks.get(DROPPED_USER_TEXT, ())}
    gone = {*conversation.redacted_seqs, *words.omitted_seqs, *dropped}
    return {seq for seq in seqs if seq in gone or not words.may_be_quoted(seq)}
