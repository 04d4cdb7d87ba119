"""Builds new conversations and branches, and the log entries of new messages."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Final

from msgspec.structs import replace

from app.context.count.token_counter import must_count_off_event_loop
from app.conversation.conversation_types import (
    COUNTER_NAME_SEPARATOR,
    IMAGE_RULE_STATE_KEY,
    SHARED_THROUGH,
    Conversation,
    HistoryMode,
    LogMessage,
)
from app.conversation.identity import LinkPosition, compute_links_after_messages, compute_start_position
from app.conversation.item import Item, count_item_bytes
from app.pipeline.turn.last_view_and_calibration import CALIBRATIONS, LAST_VIEWS
from app.pipeline.turn.resolved_request import (
    build_branch_lineage,
    select_marks_for_branch,
    select_state_for_branch,
)
from app.pipeline.turn.token_counting import MessageCounter

NO_STATE: Final[Mapping[str, Any]] = MappingProxyType({})


def build_empty_conversation(
    tenant: str,
    counter: str,
    *,
    conversation_id: str = "",
    root: str = "",
    external_id: str | None = None,
    mode: HistoryMode = "unknown",
    state: Mapping[str, Any] = NO_STATE,
) -> Conversation:
    """Builds a conversation without messages.

    Args:
        tenant: the conversation's tenant.
        counter: the name of the conversation's token counter.
        conversation_id, root: empty if they are not known yet.
        external_id: the client's own id of the conversation.
        mode: whether the client appends or resends its history, if known.
        state: the conversation's first state.
    """
    start = compute_start_position(tenant)
    encoding, _, rule = counter.partition(COUNTER_NAME_SEPARATOR)
    return Conversation(
        id=conversation_id,
        root=root,
        tenant=tenant,
        head_seq=-1,
        head_link=start.link,
        head_skeleton=start.skeleton_link,
        head_tokens_total=0,
        answered=False,
        encoding=encoding,
        external_id=external_id,
        mode=mode,
        state={**state, IMAGE_RULE_STATE_KEY: rule} if rule else state,
    )


def build_branch(parent: Conversation, last: LogMessage, branch_id: str) -> Conversation:
    """Builds a branch that shares its parent's log up to and including `last`."""
    return Conversation(
        id=branch_id,
        root=parent.root,
        tenant=parent.tenant,
        head_seq=last.seq,
        head_link=last.link,
        head_skeleton=last.skeleton,
        head_tokens_total=last.tokens_total,
        answered=last.answered,
        encoding=parent.encoding,
        lineage=build_branch_lineage(parent, last.seq),
        chunk_count=parent.chunk_count,
        state=select_state_for_branch(parent.state, last.seq),
        marks=select_marks_for_branch(parent.marks, last.seq),
        indexed_before=min(parent.indexed_before, last.seq + 1),
    )


def share_log(conversation: Conversation, source: Conversation, last: LogMessage) -> Conversation:
    """Returns a conversation that shares the rows of another's log up to and including `last`. Of the other's state it
    takes over nothing that a person has set."""
    # A history that goes on after the other's last question is shown what that question was shown: the provider's cache
    # has it. Both are computed from the shared messages alone.
    names = (CALIBRATIONS, LAST_VIEWS) if source.head_seq <= last.seq + 1 else (CALIBRATIONS,)
    computed = {name: source.state[name] for name in names if name in source.state}
    return replace(
        advance_head(conversation, [last]),
        encoding=source.encoding,
        lineage=build_branch_lineage(source, last.seq),
        chunk_count=source.chunk_count,
        indexed_before=min(source.indexed_before, last.seq + 1),
        state={**conversation.state, **select_state_for_branch(computed, last.seq)},
        marks={SHARED_THROUGH: last.seq},
    )


async def build_log_entries(
    conversation: Conversation,
    messages: Sequence[Item],
    message_counter: MessageCounter,
    *,
    positions: Sequence[LinkPosition] | None = None,
    answers_from_seq: int = 0,
) -> tuple[LogMessage, ...]:
    """Builds the log entries of new messages after the head of `conversation`, and counts their tokens.

    Long messages are counted in a thread.

    Args:
        conversation: the conversation that the messages are appended to.
        messages: the new messages.
        message_counter: finds the conversation's token counter.
        positions: the link position after each message, if already computed.
        answers_from_seq: from this seq on, an assistant message marks the log as answered, so that the log can be
            recognised by it.
    """
    if not messages:
        return ()
    count = message_counter.find_token_counter(conversation.token_counter_name).count_message
    if must_count_off_event_loop(count_item_bytes(messages)):
        return await asyncio.to_thread(_build_entries, conversation, messages, positions, count, answers_from_seq)
    return _build_entries(conversation, messages, positions, count, answers_from_seq)


def _build_entries(
    conversation: Conversation,
    messages: Sequence[Item],
    positions: Sequence[LinkPosition] | None,
    count: Callable[[Item], int],
    answers_from_seq: int,
) -> tuple[LogMessage, ...]:
    if positions is None:
        positions = list(
            compute_links_after_messages(
                messages, LinkPosition(conversation.head_link, conversation.head_skeleton, False)
            )
        )
    entries: list[LogMessage] = []
    link, total, answered = conversation.head_link, conversation.head_tokens_total, conversation.answered
    seq = conversation.head_seq
    for message, position in zip(messages, positions, strict=True):
        seq += 1
        tokens = count(message)
        total += tokens
        # Some messages do not change the link, so a history that ends with one equals a history that ends before it.
        # Such a message must not make the log recognisable.
        if not answered and seq >= answers_from_seq and position.link != link and message.role == "assistant":
            answered = True
        link = position.link
        entries.append(
            LogMessage(
                seq=seq,
                message=message,
                link=link,
                skeleton=position.skeleton_link,
                in_skeleton=position.is_in_skeleton,
                tokens=tokens,
                tokens_total=total,
                answered=answered,
            )
        )
    return tuple(entries)


def advance_head(conversation: Conversation, entries: Sequence[LogMessage]) -> Conversation:
    """Returns the conversation with its head at the last of these entries."""
    last = entries[-1]
    return replace(
        conversation,
        head_seq=last.seq,
        head_link=last.link,
        head_skeleton=last.skeleton,
        head_tokens_total=last.tokens_total,
        answered=last.answered,
    )
