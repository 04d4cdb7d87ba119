"""Whether what a summary is to be made from is still what is stored: messages may have been deleted since it was read.

Looked at under the lease of the range, which a deletion ends: what is in date then is so when the summary is stored.
"""

from __future__ import annotations

from typing import Final

from app.compaction.compaction_job import CompactionJob, Spot
from app.conversation.messages import Chunk, Conversation
from app.errors import StoreUnavailable
from app.store.contract import Store

DELETED: Final = "deleted"
"""`LogMessage.meta`: which parts of the message are gone."""


async def is_outdated(store: Store, job: CompactionJob, spot: Spot) -> bool:
    """Whether messages were deleted since a job was prepared, or summaries that it reads are others by now.

    False while the store is away: then nothing is stored either.
    """
    if job.conversation is None:
        return False
    try:
        return (
            await _has_new_marks(store, job.conversation)
            or await _has_other_messages(store, job.conversation, spot)
            or await _has_other_chunks(store, job, spot)
        )
    except StoreUnavailable:
        return False


async def _has_new_marks(store: Store, conversation: Conversation) -> bool:
    keeper, last_seq = conversation.id, conversation.head_seq
    now = await store.get(tenant=conversation.tenant, conversation_id=keeper)
    if now is None and conversation.lineage:
        # A branch that is not stored yet: what is deleted in the log that it shares.
        keeper, last_seq = conversation.lineage[-1]
        now = await store.get(tenant=conversation.tenant, conversation_id=keeper)
    if now is None:
        return False
    known = [seq for seq in conversation.redacted if seq <= last_seq]
    return [seq for seq in now.redacted if seq <= last_seq] != known


async def _has_other_messages(store: Store, conversation: Conversation, spot: Spot) -> bool:
    """Whether a message lacks words by now that the job still has: it may have lacked others before."""
    if not spot.messages or conversation.head_seq < spot.messages[0].seq:
        return False
    read = {entry.seq: entry.message.raw for entry in spot.messages}
    stored = await store.read(conversation, spot.messages[0].seq, spot.messages[-1].seq + 1)
    return any(DELETED in (entry.meta or ()) and entry.message.raw != read.get(entry.seq) for entry in stored)


async def _has_other_chunks(store: Store, job: CompactionJob, spot: Spot) -> bool:
    read = [*spot.folded, *([spot.base] if spot.base is not None else [])]
    if not read:
        return False
    stored = await store.chunks(tenant=job.tenant, root=job.root, links=[chunk.to_link for chunk in read])
    return not {_text(chunk) for chunk in read} <= {_text(chunk) for chunk in stored}


def _text(chunk: Chunk) -> tuple[str, int, str]:
    return chunk.id, chunk.revision, chunk.text
