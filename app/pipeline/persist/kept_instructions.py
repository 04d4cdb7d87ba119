"""Keeps the instructions of a request with its answer, so that what the model saw can be shown whole.

Clients send the same instructions with each request. They are stored with the first answer to them; later
answers name that answer.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any, Final

from msgspec.structs import replace

from app.conversation.conversation_types import Conversation, LogMessage
from app.conversation.identity import digest_texts
from app.conversation.item import Item
from app.pipeline.turn.resolved_request import INSTRUCTIONS_PLACE
from app.store.contract.conversations import ConversationStore

INSTRUCTIONS: Final = "instructions"
"""A key of an answer's `meta`: the instructions, as JSON texts."""


def keep_instructions(
    answer: LogMessage, instructions: Sequence[Item], state: Mapping[str, Any]
) -> tuple[LogMessage, dict[str, Any]]:
    """Returns an answer with its instructions, or with the place where they are stored; and what changes in the
    conversation's state."""
    if not instructions:
        return replace(answer, meta={**(answer.meta or {}), INSTRUCTIONS: ()}), {}
    digest = digest_texts(message.raw for message in instructions)[:32]
    last = state.get(INSTRUCTIONS_PLACE)
    if last is not None and last[0] == digest:
        return replace(answer, meta={**(answer.meta or {}), INSTRUCTIONS_PLACE: last}), {}
    place = [digest, answer.seq]
    texts = [message.raw.decode() for message in instructions]
    meta = {**(answer.meta or {}), INSTRUCTIONS: texts, INSTRUCTIONS_PLACE: place}
    return replace(answer, meta=meta), {INSTRUCTIONS_PLACE: place}


async def read_instructions(
    store: ConversationStore, conversation: Conversation, answer: LogMessage
) -> tuple[str, ...] | None:
    """Returns the instructions of the request that an answer belongs to, as JSON texts.

    Returns:
        None if they are not kept: the answer was stored by an older version, somebody erased them, or the answer is
        merely shared. Empty if there were none.

    Raises:
        StoreUnavailable: the log cannot be read.
    """
    meta = answer.meta or {}
    if answer.seq <= conversation.shared_through:
        return None  # the request that this answer was stored with may be somebody else's
    place = meta.get(INSTRUCTIONS_PLACE)
    if place is None:
        return () if INSTRUCTIONS in meta else None
    digest, seq = place
    entries = [answer] if seq == answer.seq else await store.read_log(conversation, seq, seq + 1)
    kept = next((entry.meta.get(INSTRUCTIONS) for entry in entries if entry.meta), None)
    if kept is None or digest_texts(text.encode() for text in kept)[:32] != digest:
        return None
    return tuple(kept)


def drop_instructions(answer: LogMessage, texts: Collection[str]) -> LogMessage:
    """Returns an answer without those of its instructions that are among `texts`."""
    kept: Sequence[str] = (answer.meta or {}).get(INSTRUCTIONS, ())
    if not any(text in texts for text in kept):
        return answer
    return replace(answer, meta={**(answer.meta or {}), INSTRUCTIONS: [text for text in kept if text not in texts]})
