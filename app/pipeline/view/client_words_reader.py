"""Reads what a client has changed, deleted or left out, compared with the log (`context.view.client_words`)."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator
from typing import Final

from app.context.view.client_versions import NO_VERSIONS, ClientVersions
from app.context.view.client_words import ClientWords, VersionEffect, find_version_effect
from app.conversation.conversation_types import Conversation, LogMessage
from app.pipeline.turn.resolved_request import ResolvedRequest
from app.store.contract.conversations import ConversationStore

MAX_COMPARED_ON_LOOP: Final = 32
"""More messages than this are compared in a thread."""
MAX_READ_GAP_MESSAGES: Final = 2
"""Ranges with at most this many messages between them are read as one range, and the messages between are ignored."""


async def read_client_words(store: ConversationStore, resolved_request: ResolvedRequest) -> ClientWords:
    """Returns what may be drawn from the log for a request, and in whose words.

    Raises:
        StoreUnavailable: the originals of changed messages cannot be read.
    """
    conversation, versions = resolved_request.conversation, resolved_request.shown.client_versions
    effects: dict[int, VersionEffect] = {}
    if versions:
        known_messages = (*resolved_request.shown.changed_messages, *resolved_request.new_messages)
        effects = await _find_effects(store, conversation, versions, known_messages)
    return ClientWords(
        conversation,
        versions,
        effects,
        moved_seqs=resolved_request.shown.moved_seqs,
        next_seq=resolved_request.next_seq,
        is_named=resolved_request.is_named,
        is_log_shared=resolved_request.is_log_unstored,
    )


async def read_owner_words(store: ConversationStore, conversation: Conversation) -> ClientWords:
    """Returns the client's words of a stored conversation, for somebody who names it.

    Raises:
        StoreUnavailable: the client's versions cannot be read.
    """
    if not conversation.has_client_versions:
        return ClientWords(conversation)
    stored = await store.read_client_versions(conversation)
    versions = NO_VERSIONS.with_later_versions(stored, conversation.redacted_seqs)
    effects = await _find_effects(store, conversation, versions, ())
    return ClientWords(conversation, versions, effects, next_seq=conversation.head_seq + 1)


async def _find_effects(
    store: ConversationStore,
    conversation: Conversation,
    versions: ClientVersions,
    known_messages: Iterable[LogMessage],
) -> dict[int, VersionEffect]:
    """Returns the effect of each version whose log message is among the known ones or stored, by its seq."""
    originals = {entry.seq: entry for entry in known_messages}
    missing_seqs = sorted(seq for seq in versions if seq not in originals and seq <= conversation.head_seq)
    if missing_seqs:
        ranges = list(merge_into_ranges(missing_seqs))
        originals |= {entry.seq: entry for entry in await store.read_log_ranges(conversation, ranges)}

    def compare_all() -> dict[int, VersionEffect]:
        return {
            seq: find_version_effect(version, originals[seq], versions.find_last_shown(seq))
            for seq in versions
            if seq in originals and (version := versions.get(seq)) is not None
        }

    return compare_all() if len(versions) <= MAX_COMPARED_ON_LOOP else await asyncio.to_thread(compare_all)


def merge_into_ranges(seqs: Iterable[int]) -> Iterator[tuple[int, int]]:
    """Yields ranges `[from, to)` that contain the given seqs, in order. Seqs a few messages apart share a range."""
    first = end = -MAX_READ_GAP_MESSAGES
    for seq in seqs:
        if seq - end > MAX_READ_GAP_MESSAGES:
            if end > first:
                yield first, end
            first = seq
        end = seq + 1
    if end > first:
        yield first, end
