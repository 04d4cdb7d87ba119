"""Finds stored summaries that say nothing about their range, as earlier versions accepted them, and has them made anew.

A mechanical summary takes the place of such a summary until a model replaces it, after the next answer whose view shows
it (`pipeline.compact.precompaction`). A fold or a part is deleted: the next request that needs one makes it.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from datetime import datetime
from typing import Final

from msgspec.structs import replace

from app.compaction.acceptance.empty_summaries import says_nothing
from app.compaction.acceptance.mechanical_summary import build_mechanical_replacement
from app.compaction.acceptance.values_appendix import strip_appendix
from app.compaction.summarizer.transcript import build_transcript_entries
from app.context.view.view_rendering import ViewTokenCounter
from app.conversation.conversation_types import Conversation, Summary
from app.errors import StoreUnreadable
from app.store.contract.conversations import WriteConflict
from app.store.contract.summaries import ConversationAndSummaryStore

MAX_EMPTY_CHARS: Final = 600
"""Longer summaries are not looked at: a refusal is shorter, and reading each range would take long."""
MAX_READ_MESSAGES: Final = 2_000
"""How many messages of a range are read. A longer range gets no mechanical summary."""
WRITTEN_BY_MODELS: Final = ("model", "part")


async def replace_empty_summaries(
    store: ConversationAndSummaryStore,
    conversations: AsyncIterator[Conversation],
    *,
    counter_for: Callable[[str], ViewTokenCounter],
    now: datetime,
) -> int:
    """Replaces or deletes the summaries that were made in these conversations and say nothing. A wrong guess costs one
    summary call, no message.

    Args:
        counter_for: returns the token counter of an encoding.
        now: the time of the replacements.

    Returns:
        How many summaries said nothing.

    Raises:
        StoreUnavailable: the database became unavailable.
    """
    count = 0
    async for conversation in conversations:
        # Sealed with a key that is not configured.
        with contextlib.suppress(StoreUnreadable):
            counter = counter_for(conversation.token_counter_name)
            for summary in await store.find_summaries(
                tenant=conversation.tenant, root=conversation.root, path=conversation.lineage_with_self
            ):
                if summary.conversation_id == conversation.id and summary.kind in WRITTEN_BY_MODELS:
                    # Another task may have changed the summary meanwhile.
                    with contextlib.suppress(WriteConflict):
                        count += await _replace_if_empty(store, conversation, summary, counter, now)
    return count


async def _replace_if_empty(
    store: ConversationAndSummaryStore,
    conversation: Conversation,
    summary: Summary,
    counter: ViewTokenCounter,
    now: datetime,
) -> bool:
    if len(strip_appendix(summary.text)) > MAX_EMPTY_CHARS:
        return False
    to_seq = min(summary.to_seq, summary.from_seq + MAX_READ_MESSAGES)
    messages = await store.read_log(conversation, summary.from_seq, to_seq)
    texts = [entry.spoken_text for entry in build_transcript_entries(messages)]
    if not messages or not await asyncio.to_thread(says_nothing, summary.text, texts):
        return False
    tenant, root = conversation.tenant, conversation.root
    is_whole = [entry.seq for entry in messages] == list(range(summary.from_seq, summary.to_seq))
    if is_whole and summary.kind != "part" and not summary.folds:
        replacement = await asyncio.to_thread(
            build_mechanical_replacement, summary, messages, new_id=summary.id, created_at=now, counter=counter
        )
        if replacement is not None:
            revised = replace(replacement, revision=summary.revision + 1)
            await store.revise_summary(tenant=tenant, root=root, summary=revised)
            return True
    return await store.delete_summary(tenant=tenant, root=root, summary_id=summary.id)
