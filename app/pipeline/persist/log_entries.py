"""Logs that begin, branch and grow: new messages take their places behind the last one."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Final

from msgspec.structs import replace

from app.context.count.token_counter import is_long
from app.conversation.identity import Position, start_of, walk
from app.conversation.messages import IMAGE_RULE, RULE_MARK, Conversation, LogMessage, Message, Mode, size_of
from app.pipeline.resolve.resolved_request import BROUGHT, lineage_through, marks_through, state_through
from app.pipeline.token_counting import Counting

NOTHING_BROUGHT: Final[Mapping[str, Any]] = MappingProxyType({BROUGHT: 0})
"""The state of a conversation that no request began."""


def empty_log(
    tenant: str,
    counter: str,
    *,
    conversation_id: str = "",
    root: str = "",
    external_id: str | None = None,
    mode: Mode = "unknown",
    state: Mapping[str, Any] = NOTHING_BROUGHT,
) -> Conversation:
    """A conversation before its first message; without an id and a root where they are not known yet.

    Args:
        counter: the name of its token counter.
    """
    start = start_of(tenant)
    encoding, _, rule = counter.partition(RULE_MARK)
    return Conversation(
        id=conversation_id,
        root=root,
        tenant=tenant,
        head_seq=-1,
        head_link=start.link,
        head_skeleton=start.skeleton,
        head_tokens_total=0,
        answered=False,
        encoding=encoding,
        external_id=external_id,
        mode=mode,
        state={**state, IMAGE_RULE: rule} if rule else state,
    )


def branch_of(parent: Conversation, last: LogMessage, branch_id: str) -> Conversation:
    """A new conversation that shares its parent's log through `last`."""
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
        lineage=lineage_through(parent, last.seq),
        chunk_count=parent.chunk_count,
        state=state_through(parent.state, last.seq),
        marks=marks_through(parent.marks, last.seq),
        indexed_before=min(parent.indexed_before, last.seq + 1),
    )


async def entries_behind(
    before: Conversation,
    messages: Sequence[Message],
    counting: Counting,
    *,
    positions: Sequence[Position] | None = None,
    answers_from_seq: int = 0,
) -> list[LogMessage]:
    """Messages in their places behind the last one of `before`, counted; off the event loop when that takes long.

    Args:
        positions: where the chains stand after each message, if that is known already.
        answers_from_seq: an assistant's message makes the log recognisable from this place on.
    """
    if not messages:
        return []
    count = counting.counter(before.counter).message
    if is_long(size_of(messages)):
        return await asyncio.to_thread(_placed, before, messages, positions, count, answers_from_seq)
    return _placed(before, messages, positions, count, answers_from_seq)


def _placed(
    before: Conversation,
    messages: Sequence[Message],
    positions: Sequence[Position] | None,
    count: Callable[[Mapping[str, Any]], int],
    answers_from_seq: int,
) -> list[LogMessage]:
    if positions is None:
        positions = list(walk(messages, Position(before.head_link, before.head_skeleton, False)))
    entries: list[LogMessage] = []
    link, total, answered = before.head_link, before.head_tokens_total, before.answered
    seq = before.head_seq
    for message, position in zip(messages, positions, strict=True):
        seq += 1
        body = message.body
        tokens = count(body)
        total += tokens
        # A message that the chain looks through cannot be told from the one before it.
        if not answered and seq >= answers_from_seq and position.link != link and body.get("role") == "assistant":
            answered = True
        link = position.link
        entries.append(
            LogMessage(
                seq=seq,
                message=message,
                link=link,
                skeleton=position.skeleton,
                in_skeleton=position.in_skeleton,
                tokens=tokens,
                tokens_total=total,
                answered=answered,
            )
        )
    return entries


def ending_with(before: Conversation, entries: Sequence[LogMessage]) -> Conversation:
    """A conversation whose log ends with the last of these entries."""
    last = entries[-1]
    return replace(
        before,
        head_seq=last.seq,
        head_link=last.link,
        head_skeleton=last.skeleton,
        head_tokens_total=last.tokens_total,
        answered=last.answered,
    )
