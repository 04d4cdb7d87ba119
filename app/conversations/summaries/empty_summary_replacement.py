"""Finds stored summaries that say nothing about their range, as earlier versions accepted them, and has them made anew.

A mechanical summary takes the place of such a summary until a model replaces it, after the next answer whose view shows
it (`pipeline.compact.precompaction`). A fold or a part is deleted: the next request that needs one makes it.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Sequence
from datetime import datetime
from typing import Final

from msgspec.structs import replace

from app.compaction.acceptance.empty_summaries import says_nothing
from app.compaction.acceptance.mechanical_summary import build_mechanical_replacement
from app.compaction.acceptance.values_appendix import strip_appendix
from app.compaction.summarizer.transcript import build_transcript_entries
from app.context.view.view_rendering import ViewTokenCounter
from app.conversation.conversation_types import Conversation, LogMessage, Summary
from app.errors import StoreUnreadable
from app.store.contract.conversations import WriteConflict
from app.store.contract.summaries import ConversationAndSummaryStore

MAX_EMPTY_CHARS: Final = 600
"""Longer summaries are not looked at: a refusal is shorter, and reading each range would take long."""
MAX_READ_MESSAGES: Final = 2_000
"""How many messages of a range are read. A longer range gets no mechanical summary."""
WRITTEN_BY_MODELS: Final = ("model", "part")


class EmptySummaryReplacer:
    """Replaces or deletes a database's summaries that say nothing. A wrong guess costs one summary call, no message.

    Args:
        store: where the summaries are.
        counter_for: returns the token counter of an encoding.
        now: the time of the replacements.
    """

    def __init__(
        self, store: ConversationAndSummaryStore, *, counter_for: Callable[[str], ViewTokenCounter], now: datetime
    ) -> None:
        self._store = store
        self._counter_for = counter_for
        self._now = now

    async def run(self, conversations: AsyncIterator[Conversation]) -> int:
        """Goes through all summaries that were made in these conversations, and returns how many said nothing.

        Raises:
            StoreUnavailable: the database became unavailable.
        """
        count = 0
        async for conversation in conversations:
            # Sealed with a key that is not configured.
            with contextlib.suppress(StoreUnreadable):
                for summary in await self._store.find_summaries(
                    tenant=conversation.tenant, root=conversation.root, path=conversation.lineage_with_self
                ):
                    if summary.conversation_id == conversation.id and summary.kind in WRITTEN_BY_MODELS:
                        # Another task may have changed the summary meanwhile.
                        with contextlib.suppress(WriteConflict):
                            count += await self._replace_if_empty(conversation, summary)
        return count

    async def _replace_if_empty(self, conversation: Conversation, summary: Summary) -> bool:
        if len(strip_appendix(summary.text)) > MAX_EMPTY_CHARS:
            return False
        messages = await self._read_range(conversation, summary)
        texts = [entry.spoken_text for entry in build_transcript_entries(messages)]
        if not messages or not await asyncio.to_thread(says_nothing, summary.text, texts):
            return False
        tenant, root = conversation.tenant, conversation.root
        replacement = await self._build_replacement(conversation, summary, messages)
        if replacement is None:
            return await self._store.delete_summary(tenant=tenant, root=root, summary_id=summary.id)
        await self._store.revise_summary(tenant=tenant, root=root, summary=replacement)
        return True

    async def _read_range(self, conversation: Conversation, summary: Summary) -> list[LogMessage]:
        to_seq = min(summary.to_seq, summary.from_seq + MAX_READ_MESSAGES)
        return await self._store.read_log(conversation, summary.from_seq, to_seq)

    async def _build_replacement(
        self, conversation: Conversation, summary: Summary, messages: Sequence[LogMessage]
    ) -> Summary | None:
        """Builds the next revision, without a model; None for a fold, a part, or a range that is too long."""
        is_whole = [entry.seq for entry in messages] == list(range(summary.from_seq, summary.to_seq))
        if not is_whole or summary.kind == "part" or summary.folds:
            return None
        replacement = await asyncio.to_thread(
            build_mechanical_replacement,
            summary,
            messages,
            new_id=summary.id,
            created_at=self._now,
            counter=self._counter_for(conversation.token_counter_name),
        )
        return None if replacement is None else replace(replacement, revision=summary.revision + 1)
