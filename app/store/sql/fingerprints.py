"""Fingerprints in SQL: the rows of issued answers, proofs from rows, and how a redaction spends places."""

# ruff: noqa: S608 - built from our own names; values are always parameters

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Final

from app.conversation.conversation_types import MAX_SEQ, AnswerProof, Conversation, IssuedAnswer
from app.store.redaction_effects import MessageRedaction
from app.store.sql.dialects import SqlDialect, TransactionSteps
from app.store.sql.rows import decode_conversation, encode_lineage
from app.store.sql.statements import SPEND_FINGERPRINT

FingerprintRow = tuple[bytes, str | None, str | None, int | None, str]
"""The values of `FINGERPRINT_COLUMNS`, then the owner's places as JSON: conversation ids, each with the first seq that
has another owner."""

_LOCK_PLACES: Final = """
    SELECT count(*) FROM (
        SELECT digest FROM fingerprints WHERE root = :root AND conversation_id = :id ORDER BY digest{row_lock_clause}) f
    """
_FIND_DIGESTS: Final = """
    SELECT digest FROM fingerprints WHERE root = :root AND conversation_id = :id AND seq = :seq"""
_SPEND: Final = f"UPDATE fingerprints SET {SPEND_FINGERPRINT} WHERE digest = :digest"


def build_fingerprint_rows(answers: Iterable[IssuedAnswer]) -> list[FingerprintRow]:
    """Returns one row for each fingerprint, by digest: two writers that lock rows in one order cannot deadlock. A
    fingerprint that two of the answers have is spent: answers that are written together have different owners."""
    rows: dict[bytes, FingerprintRow] = {}
    for issued in answers:
        own_place = () if issued.conversation_id is None else ((issued.conversation_id, MAX_SEQ),)
        owners = encode_lineage((*issued.owner_lineage, *own_place))
        root, seq = (None, None) if issued.conversation_id is None else (issued.root, issued.seq)
        for digest in set(issued.fingerprints):
            if digest in rows:
                rows[digest] = (digest, None, None, None, "[]")
            else:
                rows[digest] = (digest, root, issued.conversation_id, seq, owners)
    return [rows[digest] for digest in sorted(rows)]


def decode_proof(row: Sequence[Any]) -> AnswerProof:
    """Decodes a row of digest, seq, and the columns of the conversation, which are NULL if there is none. An answer
    that was deleted or erased proves nothing: nobody may find its conversation by the words that were removed from it.
    """
    digest, seq, *columns = row
    conversation = None if columns[0] is None else decode_conversation(columns)
    if conversation is None or seq is None or seq in conversation.redacted_seqs:
        return AnswerProof(digest, None, -1)
    return AnswerProof(digest, conversation, seq)


def lock_places(dialect: SqlDialect, conversation: Conversation) -> TransactionSteps[None]:
    """Locks a conversation's fingerprints in the order in which appends lock them, so that the two cannot deadlock."""
    yield dialect.build_statement(
        _LOCK_PLACES.format(row_lock_clause=dialect.row_lock_clause), root=conversation.root, id=conversation.id
    )


def spend_redacted_places(
    dialect: SqlDialect, root: str, changes: Sequence[MessageRedaction]
) -> TransactionSteps[None]:
    """Spends the fingerprints of redacted messages, in the order in which appends lock them."""
    digests: set[bytes] = set()
    for change in changes:
        rows = yield dialect.build_statement(_FIND_DIGESTS, root=root, id=change.conversation_id, seq=change.seq)
        digests |= {digest for (digest,) in rows}
    for digest in sorted(digests):
        yield dialect.build_statement(_SPEND, digest=digest)
