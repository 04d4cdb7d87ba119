"""Check one summary's place: its range, the links at both ends, its running total, what it folds."""

from __future__ import annotations

from app.conversation.identity import seed
from app.conversation.messages import Conversation
from app.store.audit import Audit, KeptChunk
from app.store.lineage import stretches


async def faults_of_chunk(audit: Audit, kept: KeptChunk) -> list[str]:
    """What is wrong with a chunk. A log that ends with its `to_link` is one that it may stand for: whatever leads there
    begins with the same messages. There may be none: then `is_ahead`."""
    chunk = kept.chunk
    found = []
    if not 0 <= chunk.from_seq < chunk.to_seq:
        return [f"its range is {chunk.from_seq} to {chunk.to_seq}"]
    if kept.is_fold != bool(chunk.folds):
        found.append("its row does not say whether it folds others")
    found += [f"it folds {one}, which is not there" for one in chunk.folds if not await audit.has_chunk(kept, one)]
    places = await audit.keepers(kept.root, chunk.to_link)
    if not places:
        return found
    keepers = [keeper for keeper, seq in places if seq == chunk.to_seq - 1]
    logs = [log for keeper in keepers if (log := await audit.conversation(kept.root, keeper)) is not None]
    logs = [log for log in logs if log.tenant == kept.tenant]
    if not logs:
        return [*found, f"no log has its end, message {chunk.to_seq - 1}"]
    if not await _begins(audit, kept, logs):
        found.append(f"no log that has its end has its beginning, message {chunk.from_seq}")
    totals = {await _total(audit, log, chunk.to_seq - 1) for log in logs}
    if chunk.tokens_total not in totals:
        found.append(f"tokens through its end are {chunk.tokens_total}, its log says {sorted(totals)}")
    return found


async def is_ahead(audit: Audit, kept: KeptChunk) -> bool:
    """Whether no log has its end: the request that brought these messages failed after they were summarized. It is used
    when they come again."""
    return not await audit.keepers(kept.root, kept.chunk.to_link)


async def _begins(audit: Audit, kept: KeptChunk, logs: list[Conversation]) -> bool:
    chunk = kept.chunk
    if chunk.from_seq == 0:
        return chunk.from_link == seed(kept.tenant)
    for log in logs:
        places = stretches(log.path, chunk.from_seq - 1, chunk.from_seq)
        before = await audit.message(kept.root, places[0].conversation_id, chunk.from_seq - 1) if places else None
        if before is not None and before.link == chunk.from_link:
            return True
    return False


async def _total(audit: Audit, log: Conversation, seq: int) -> int:
    entry = await audit.message(log.root, log.id, seq)
    return -1 if entry is None else entry.tokens_total
