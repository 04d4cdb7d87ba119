"""Writes the vectors of messages, and keeps them at the rows of their messages."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import orjson

from app.conversation.conversation_types import Conversation
from app.store.contract.conversations import MessageVectors
from app.store.lineage import find_segments
from app.store.redaction_effects import REDACTED_KEY
from app.store.sql.dialects import SqlDialect, TransactionSteps

# From `messages`: a message that is gone, or has changed, gets no vectors.
_ADD: Final = """
    INSERT INTO message_vectors (root, conversation_id, model, seq, link, vectors)
    SELECT root, conversation_id, CAST(:model AS text), seq, link, :vectors FROM messages
    WHERE root = :root AND conversation_id = :owner AND seq = :seq AND link = :link
    ON CONFLICT (root, conversation_id, model, seq) DO UPDATE SET link = excluded.link, vectors = excluded.vectors"""
_COPY: Final = """
    INSERT INTO message_vectors (root, conversation_id, model, seq, link, vectors)
    SELECT root, CAST(:copier AS text), model, seq, link, vectors FROM message_vectors
    WHERE root = :root AND conversation_id = :owner AND seq >= :from_seq AND seq < :to_seq"""


def add_vectors(
    dialect: SqlDialect, conversation: Conversation, model: str, vectors: Sequence[MessageVectors]
) -> TransactionSteps[None]:
    """As `ConversationStore.add_vectors`."""
    # Locked: a redaction that has begun ends before, and one that comes later finds the vectors.
    rows = yield from dialect.lock_conversation(
        "lineage, head_seq, marks", root=conversation.root, id=conversation.id, tenant=conversation.tenant
    )
    if not rows:
        return
    lineage, head_seq, marks = rows[0]
    path = (*orjson.loads(lineage), (conversation.id, head_seq))
    redacted = frozenset(orjson.loads(marks).get(REDACTED_KEY, ()))
    for one in vectors:
        for segment in find_segments(path, one.seq, one.seq + 1) if one.seq not in redacted else ():
            yield dialect.build_statement(
                _ADD,
                model=model,
                vectors=one.vectors,
                root=conversation.root,
                owner=segment.conversation_id,
                seq=one.seq,
                link=one.link,
            )


def copy_vectors(
    dialect: SqlDialect, root: str, from_id: str, to_id: str, from_seq: int, to_seq: int
) -> TransactionSteps[None]:
    """Copies the vectors of the messages `[from_seq, to_seq)` of a conversation to another."""
    yield dialect.build_statement(_COPY, copier=to_id, root=root, owner=from_id, from_seq=from_seq, to_seq=to_seq)


def remove_vectors(dialect: SqlDialect, root: str, conversation_id: str, seq: int) -> TransactionSteps[None]:
    """Deletes the vectors of one message in a conversation's own rows."""
    yield dialect.build_statement(
        "DELETE FROM message_vectors WHERE root = :root AND conversation_id = :id AND seq = :seq",
        root=root,
        id=conversation_id,
        seq=seq,
    )
