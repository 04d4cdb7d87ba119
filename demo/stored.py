"""What the database holds at the end, read through the store."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from app.context.plan.summary_chain import find_chain_and_folds
from app.conversation.conversation_types import LogMessage, Summary
from app.store.store_factory import create_store


@dataclass(frozen=True, slots=True)
class Stored:
    """A conversation in full: every message, and the summaries beside them."""

    log: Sequence[LogMessage]
    chunks: Sequence[Summary]

    def holds(self, messages: Sequence[Mapping[str, object]]) -> bool:
        """Whether the log is exactly these messages in this order."""
        kept = [(entry.message.role, entry.message.text) for entry in self.log]
        return kept == [(message["role"], message["content"]) for message in messages]


async def read(database_url: str, conversation_id: str) -> Stored:
    """Read a conversation, whether or not a gateway has the database open."""
    store = create_store(database_url)
    await store.open()
    try:
        conversation = await store.find_conversation_of_any_tenant(conversation_id)
        if conversation is None:
            return Stored((), ())
        log = await store.read_log(conversation, 0, conversation.head_seq + 1)
        chunks = await store.find_summaries(
            tenant=conversation.tenant, root=conversation.root, path=conversation.lineage_with_self
        )
        chain, _ = find_chain_and_folds(chunks)
    finally:
        await store.close()
    return Stored(log, chain)
