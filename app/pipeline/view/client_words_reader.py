"""Reads what a client has changed, deleted or left out, compared with the log (`context.view.client_words`)."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Mapping
from typing import Final

from app.context.view.client_versions import ClientVersions
from app.context.view.client_words import ClientWords, VersionEffect, find_version_effect
from app.conversation.conversation_types import ClientVersion, Conversation
from app.pipeline.resolve.resolved_request import ResolvedRequest
from app.store.contract.conversations import ConversationStore

MAX_REMEMBERED_EFFECTS: Final = 200_000
"""Limit of the memory, in messages."""
MAX_COMPARED_ON_LOOP: Final = 32
"""More messages than this are compared in a thread."""

_Effects = dict[int, tuple[ClientVersion, VersionEffect]]


class ClientWordsReader:
    """Reads the client's words of conversations. Remembers the effects of versions, because neither the log's messages
    nor stored versions change: each is compared once."""

    def __init__(self, store: ConversationStore) -> None:
        self._store = store
        self._remembered: OrderedDict[str, _Effects] = OrderedDict()
        self._remembered_count = 0

    async def read_words(self, resolved_request: ResolvedRequest) -> ClientWords:
        """Returns what may be drawn from the log for a request, and in whose words.

        Raises:
            StoreUnavailable: the originals of changed messages cannot be read.
        """
        versions, conversation = resolved_request.client_versions, resolved_request.conversation
        return ClientWords(
            conversation,
            versions,
            await self._read_effects(resolved_request, versions) if versions else {},
            moved_seqs=resolved_request.moved_seqs,
            next_seq=resolved_request.next_seq,
            is_named=resolved_request.is_named,
            is_log_shared=resolved_request.is_log_unstored,
        )

    async def _read_effects(
        self, resolved_request: ResolvedRequest, versions: ClientVersions
    ) -> Mapping[int, VersionEffect]:
        conversation = resolved_request.conversation
        known = self._remembered.pop(conversation.id, {})
        self._remembered_count -= len(known)
        current = {seq: version for seq in versions if (version := versions.get(seq)) is not None}
        effects: _Effects = {seq: known[seq] for seq, version in current.items() if seq in known}
        effects = {seq: one for seq, one in effects.items() if one[0] == current[seq]}
        missing = sorted(seq for seq in current if seq not in effects)
        if missing:
            ranges = [(seq, seq + 1) for seq in missing if seq <= conversation.head_seq]
            stored = await self._store.read_log_ranges(conversation, _join_ranges(ranges)) if ranges else []
            originals = {entry.seq: entry for entry in (*stored, *resolved_request.new_messages)}
            pairs = [
                (current[seq], originals[seq], versions.find_last_shown(seq)) for seq in missing if seq in originals
            ]
            found = (
                [find_version_effect(*pair) for pair in pairs]
                if len(pairs) <= MAX_COMPARED_ON_LOOP
                else await asyncio.to_thread(lambda: [find_version_effect(*pair) for pair in pairs])
            )
            effects |= {pair[0].seq: (pair[0], effect) for pair, effect in zip(pairs, found, strict=True)}
        self._remembered[conversation.id] = effects
        self._remembered_count += len(effects)
        while self._remembered_count > MAX_REMEMBERED_EFFECTS and len(self._remembered) > 1:
            _, oldest = self._remembered.popitem(last=False)
            self._remembered_count -= len(oldest)
        return {seq: effect for seq, (_, effect) in effects.items()}


async def read_owner_words(store: ConversationStore, conversation: Conversation) -> ClientWords:
    """Returns the client's words of a stored conversation, for somebody who names it.

    Raises:
        StoreUnavailable: the client's versions cannot be read.
    """
    if not conversation.has_client_versions:
        return ClientWords(conversation)
    stored = await store.read_client_versions(conversation)
    versions = ClientVersions.from_stored(stored, conversation.redacted_seqs)
    ranges = _join_ranges([(seq, seq + 1) for seq in sorted(versions)])
    originals = {entry.seq: entry for entry in await store.read_log_ranges(conversation, ranges)} if ranges else {}
    effects = {
        seq: find_version_effect(version, originals[seq], versions.find_last_shown(seq))
        for seq in versions
        if seq in originals and (version := versions.get(seq)) is not None
    }
    return ClientWords(conversation, versions, effects, next_seq=conversation.head_seq + 1)


def _join_ranges(ranges: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """Joins neighbouring ranges, so that few are read."""
    joined: list[tuple[int, int]] = []
    for from_seq, to_seq in ranges:
        if joined and joined[-1][1] == from_seq:
            joined[-1] = joined[-1][0], to_seq
        else:
            joined.append((from_seq, to_seq))
    return joined
