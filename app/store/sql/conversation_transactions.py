"""Transactions on logs: erase a conversation, redact messages, rewrite sealed fields, replace marks."""

# ruff: noqa: S608 - built from our own names; values are always parameters

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import orjson

from app.conversation.conversation_types import ClientVersion, Conversation, LogMessage, StoredCompletion, Summary
from app.store.contract.conversations import WriteConflict
from app.store.contract.leases import SUMMARY_LEASE_PREFIXES
from app.store.lineage import (
    ErasurePlan,
    FamilyMember,
    RowCopies,
    find_segments,
    locate_messages,
    plan_erasure,
    plan_row_copies,
)
from app.store.redaction_effects import (
    REDACTED_KEY,
    MessageRedaction,
    RedactionsByConversation,
    compute_running_total_shifts,
    compute_summary_total_shift,
    covers_redacted_message,
    find_redactions_by_conversation,
    sum_token_deltas,
    update_marks_for_redactions,
)
from app.store.sql import fingerprints, summary_transactions, vectors
from app.store.sql.dialects import SqlDialect, TransactionSteps
from app.store.sql.request_table import ERASE_REQUESTS
from app.store.sql.rows import (
    COMPLETION_COLUMNS,
    MESSAGE_COLUMNS,
    SUMMARY_COLUMNS,
    client_version_values,
    decode_lineage,
    decode_summary,
    encode_json,
    encode_lineage,
    encode_optional_json,
    encode_struct,
)
from app.store.sql.search_index import SearchIndexCleanup
from app.store.sql.statements import SPEND_FINGERPRINT

_IS_CONVERSATION: Final = "root = :root AND id = :id AND tenant = :tenant"
_IS_OWN_ROW: Final = "root = :root AND conversation_id = :id"
_IS_VERSION_OVER_MESSAGE: Final = "root = :root AND conversation_id = :member AND seq <= :seq AND to_seq > :seq"
_IS_MESSAGE: Final = "root = :root AND conversation_id = :place AND seq = :seq"
_SUMMARIES_READ_BY: Final = f"""
    SELECT {", ".join(f"k.{name}" for name in SUMMARY_COLUMNS)} FROM chunks k
    WHERE k.root = :root AND k.tenant = :tenant AND k.to_seq > :from_seq AND (
        k.conversation_id = :member OR EXISTS (
            SELECT 1 FROM messages m
            WHERE m.root = k.root AND m.conversation_id = :member AND m.seq = k.to_seq - 1 AND m.link = k.to_link))"""
_SAVE_COMPLETION: Final = f"""
    INSERT INTO completions ({", ".join(COMPLETION_COLUMNS)})
    VALUES ({", ".join(f":{name}" for name in COMPLETION_COLUMNS)})
    ON CONFLICT (tenant, id) DO UPDATE
    SET {", ".join(f"{name} = excluded.{name}" for name in COMPLETION_COLUMNS)}"""
_CHANGE_LINEAGE: Final = "UPDATE conversations SET lineage = :lineage, marks = :marks WHERE root = :root AND id = :id"
_LINK_REMAINS: Final = "FROM messages m WHERE m.root = chunks.root AND m.link = chunks.to_link"
# Without its lease, a summary that is being made of the conversation cannot be stored.
_IS_SUMMARY_LEASE: Final = "".join(f" OR key LIKE '{prefix}%'" for prefix in SUMMARY_LEASE_PREFIXES)
_ERASE_ROWS: Final = (
    "DELETE FROM conversations WHERE root = :root AND id = :id",
    f"DELETE FROM external_ids WHERE {_IS_OWN_ROW}",
    # The keys of a conversation's leases begin with its id.
    f"DELETE FROM leases WHERE root = :root AND (substr(key, 1, length(:id)) = :id{_IS_SUMMARY_LEASE})",
    f"DELETE FROM chunks WHERE {_IS_OWN_ROW} AND NOT EXISTS (SELECT 1 {_LINK_REMAINS})",
)
# Runs after messages are handed over and the summaries that end at no message are deleted: the subquery finds the new
# owner for all others.
_HAND_OVER_SUMMARIES: Final = f"""
    UPDATE chunks SET conversation_id = (SELECT min(m.conversation_id) {_LINK_REMAINS}) WHERE {_IS_OWN_ROW}"""
_ERASE_REVISIONS: Final = """
    DELETE FROM chunk_revisions WHERE root = :root AND NOT EXISTS (
        SELECT 1 FROM chunks c WHERE c.root = chunk_revisions.root AND c.id = chunk_revisions.chunk_id)"""


def erase_conversation(
    dialect: SqlDialect, search_index: SearchIndexCleanup, conversation: Conversation
) -> TransactionSteps[bool]:
    """Erases a conversation. Returns whether it was still there."""
    root, own = conversation.root, {"root": conversation.root, "id": conversation.id}
    # The conversation is locked before its family is read, so that no new branch can begin from it meanwhile.
    if not (yield from dialect.lock_conversation("1", **own, tenant=conversation.tenant)):
        return False
    family = yield dialect.build_statement(
        f"""
        SELECT id, lineage, marks FROM conversations
        WHERE root = :root AND lineage LIKE :naming ORDER BY id{dialect.row_lock_clause}""",
        root=root,
        naming=f'%"{conversation.id}"%',
    )
    plan = plan_erasure(conversation.id, [_decode_member(row) for row in family])
    yield from fingerprints.lock_places(dialect, conversation)
    for table, erase, is_behind, through_seq in (
        ("messages", "DELETE FROM messages", "seq > :through", plan.kept_through),
        ("message_vectors", "DELETE FROM message_vectors", "seq > :through", plan.kept_through),
        ("client_versions", "DELETE FROM client_versions", "since_seq > :through", plan.inherited_through),
        # seq < 0 is the anchor of the conversation as a whole.
        ("anchors", "DELETE FROM anchors", "(seq < 0 OR seq > :through)", plan.inherited_through),
        ("fingerprints", f"UPDATE fingerprints SET {SPEND_FINGERPRINT}", "seq > :through", plan.inherited_through),
    ):
        yield dialect.build_statement(f"{erase} WHERE {_IS_OWN_ROW} AND {is_behind}", **own, through=through_seq)
        if plan.heir is not None:
            hand_over = f"UPDATE {table} SET conversation_id = :heir WHERE {_IS_OWN_ROW}"
            yield dialect.build_statement(hand_over, **own, heir=plan.heir)
    yield from search_index.move_or_remove_conversation(
        tenant=conversation.tenant,
        root=root,
        conversation_id=conversation.id,
        kept_through=plan.kept_through,
        heir=plan.heir,
    )
    yield from _change_lineages(dialect, root, plan.changed)
    yield from _move_or_delete_completions(dialect, conversation, plan)
    yield dialect.build_statement(ERASE_REQUESTS, conversation_id=conversation.id)
    # Summaries come after messages: whether a summary stays depends on which messages are left.
    for text in _ERASE_ROWS:
        yield dialect.build_statement(text, **own)
    if plan.is_heir_relative:
        yield dialect.build_statement(_HAND_OVER_SUMMARIES, **own)
    else:
        yield from summary_transactions.delete_personal_summaries(dialect, conversation)
    yield from summary_transactions.delete_family_strays(dialect, conversation.tenant, root)
    # `_ERASE_ROWS` deletes summaries only; this deletes the revisions that they leave.
    yield dialect.build_statement(_ERASE_REVISIONS, root=root)
    return True


def save_completion(dialect: SqlDialect, completion: StoredCompletion) -> TransactionSteps[None]:
    """As `ConversationStore.save_completion`."""
    # Locked: an erasure that has begun ends before, and one that comes later finds the completion.
    if (
        yield from dialect.lock_conversation(
            "1", root=completion.root, id=completion.conversation_id, tenant=completion.tenant
        )
    ):
        yield dialect.build_statement(_SAVE_COMPLETION, **encode_struct(completion, dialect.encode_time))


def _decode_member(row: tuple[str, str, str]) -> FamilyMember:
    member, lineage, marks = row
    return FamilyMember(member, decode_lineage(lineage), orjson.loads(marks))


def _move_or_delete_completions(
    dialect: SqlDialect, conversation: Conversation, plan: ErasurePlan
) -> TransactionSteps[None]:
    """Moves stored completions to the heir with the messages that it inherits, and deletes the others."""
    conversation_key = {"root": conversation.root, "id": conversation.id}
    if plan.heir is not None:
        yield dialect.build_statement(
            """
            UPDATE completions SET conversation_id = :heir
            WHERE root = :root AND conversation_id = :id AND seq <= :inherited_through""",
            **conversation_key,
            heir=plan.heir,
            inherited_through=plan.inherited_through,
        )
    yield dialect.build_statement(
        "DELETE FROM completions WHERE root = :root AND conversation_id = :id", **conversation_key
    )


def redact_messages(
    dialect: SqlDialect, search_index: SearchIndexCleanup, conversation: Conversation, entries: Sequence[LogMessage]
) -> TransactionSteps[list[Summary]]:
    """As `ConversationStore.redact_messages`."""
    root, tenant = conversation.root, conversation.tenant
    places = yield from _locate_stored_messages(dialect, conversation, entries)
    family = yield from _lock_affected_conversations(
        dialect, conversation, list(dict.fromkeys(owner_id for owner_id, _ in places))
    )
    for entry in entries:
        owner_id = next(owner for owner, located in places if located.seq == entry.seq)
        copies = plan_row_copies(conversation.id, owner_id, entry.seq, list(family.values()))
        if copies.changed:
            yield from _copy_rows(dialect, search_index, conversation, copies)
            family |= {member.id: member for member in copies.changed}
            places = yield from _locate_stored_messages(dialect, conversation, entries)
    # All messages are checked before the first is changed: a conflict must leave nothing half done.
    changes = []
    for owner_id, entry in places:
        rows = yield dialect.build_statement(
            f"SELECT link, tokens FROM messages WHERE {_IS_MESSAGE}", root=root, place=owner_id, seq=entry.seq
        )
        if not rows or rows[0][0] != entry.link:
            raise WriteConflict
        changes.append(MessageRedaction(owner_id, entry.seq, entry.tokens - rows[0][1]))
    for owner_id, entry in places:
        yield dialect.build_statement(
            f"UPDATE messages SET body = :body, tokens = :tokens, meta = :meta WHERE {_IS_MESSAGE}",
            root=root,
            place=owner_id,
            seq=entry.seq,
            body=entry.message.raw.decode(),
            tokens=entry.tokens,
            meta=encode_optional_json(entry.meta),
        )
        yield from search_index.remove_message(tenant=tenant, root=root, conversation_id=owner_id, seq=entry.seq)
        yield from vectors.remove_vectors(dialect, root, owner_id, entry.seq)
    yield from fingerprints.spend_redacted_places(dialect, root, changes)
    # A process may be making a summary from the old text. Without its lease it cannot store the summary.
    for prefix in SUMMARY_LEASE_PREFIXES:
        yield dialect.build_statement(
            "DELETE FROM leases WHERE root = :root AND key LIKE :keys", root=root, keys=f"{prefix}%"
        )
    shared = find_redactions_by_conversation(changes, {member.id: member.lineage for member in family.values()})
    for member, member_redactions in shared.items():
        yield from _update_totals_and_marks(dialect, root, member, family[member].marks, member_redactions)
        yield from _delete_versions_and_anchors(dialect, root, member, member_redactions)
    return (yield from _update_summaries_after_redaction(dialect, tenant, root, shared))


def _locate_stored_messages(
    dialect: SqlDialect, conversation: Conversation, entries: Sequence[LogMessage]
) -> TransactionSteps[list[tuple[str, LogMessage]]]:
    """Returns each message with the conversation whose rows hold it now. The lineage is read again: an erasure may have
    moved the messages.
    """
    rows = yield dialect.build_statement(
        f"SELECT lineage, head_seq FROM conversations WHERE {_IS_CONVERSATION}",
        root=conversation.root,
        id=conversation.id,
        tenant=conversation.tenant,
    )
    if not rows:
        raise WriteConflict
    places = locate_messages((*decode_lineage(rows[0][0]), (conversation.id, rows[0][1])), entries)
    if len(places) != len(entries):
        raise WriteConflict
    return places


def _lock_affected_conversations(
    dialect: SqlDialect, conversation: Conversation, keepers: Sequence[str]
) -> TransactionSteps[dict[str, FamilyMember]]:
    """Locks the conversations that hold a message or may share it, and returns them by id."""
    root, tenant = conversation.root, conversation.tenant
    # The owners of the messages come first: while they are locked, no branch can begin from them.
    for keeper in keepers:
        yield from dialect.lock_conversation("1", root=root, id=keeper, tenant=tenant)
    family: dict[str, FamilyMember] = {}
    for keeper in keepers:
        rows = yield dialect.build_statement(
            f"""
            SELECT id, lineage, marks FROM conversations
            WHERE root = :root AND tenant = :tenant AND (id = :keeper OR lineage LIKE :naming)
            ORDER BY id{dialect.row_lock_clause}""",
            root=root,
            tenant=tenant,
            keeper=keeper,
            naming=f'%"{keeper}"%',
        )
        family |= {row[0]: _decode_member(row) for row in rows}
    return family


def _copy_rows(
    dialect: SqlDialect, search_index: SearchIndexCleanup, conversation: Conversation, copies: RowCopies
) -> TransactionSteps[None]:
    """Copies messages with their terms, and stores the lineages that change."""
    root, columns = conversation.root, ", ".join(MESSAGE_COLUMNS)
    for copier, path in copies.copies:
        for one in find_segments(path, 0, path[-1][1] + 1):
            yield dialect.build_statement(
                f"""
                INSERT INTO messages (root, conversation_id, {columns})
                SELECT root, CAST(:copier AS text), {columns} FROM messages
                WHERE root = :root AND conversation_id = :owner AND seq >= :from_seq AND seq < :to_seq""",
                root=root,
                copier=copier,
                owner=one.conversation_id,
                from_seq=one.from_seq,
                to_seq=one.to_seq,
            )
            yield from search_index.copy_messages(
                tenant=conversation.tenant,
                root=root,
                from_id=one.conversation_id,
                to_id=copier,
                from_seq=one.from_seq,
                to_seq=one.to_seq,
            )
            yield from vectors.copy_vectors(dialect, root, one.conversation_id, copier, one.from_seq, one.to_seq)
    yield from _change_lineages(dialect, root, copies.changed)


def _change_lineages(dialect: SqlDialect, root: str, members: Sequence[FamilyMember]) -> TransactionSteps[None]:
    for member in members:
        lineage, marks = encode_lineage(member.lineage), encode_json(member.marks)
        yield dialect.build_statement(_CHANGE_LINEAGE, root=root, id=member.id, lineage=lineage, marks=marks)


def _update_totals_and_marks(
    dialect: SqlDialect, root: str, conversation_id: str, marks: Mapping[str, Any], changes: Sequence[MessageRedaction]
) -> TransactionSteps[None]:
    for from_seq, delta in compute_running_total_shifts(conversation_id, changes):
        yield dialect.build_statement(
            """
            UPDATE messages SET tokens_total = tokens_total + :delta
            WHERE root = :root AND conversation_id = :member AND seq >= :from_seq""",
            root=root,
            member=conversation_id,
            from_seq=from_seq,
            delta=delta,
        )
    yield dialect.build_statement(
        """
        UPDATE conversations SET head_tokens_total = head_tokens_total + :delta, marks = :marks
        WHERE root = :root AND id = :member""",
        root=root,
        member=conversation_id,
        delta=sum_token_deltas(changes),
        marks=encode_json(update_marks_for_redactions(marks, changes)),
    )


def _delete_versions_and_anchors(
    dialect: SqlDialect, root: str, conversation_id: str, changes: Sequence[MessageRedaction]
) -> TransactionSteps[None]:
    """Deletes the client versions and anchors of changed messages."""
    for change in changes:
        message_key = {"root": root, "member": conversation_id, "seq": change.seq}
        yield dialect.build_statement(f"DELETE FROM client_versions WHERE {_IS_VERSION_OVER_MESSAGE}", **message_key)
        yield dialect.build_statement(
            "DELETE FROM anchors WHERE root = :root AND conversation_id = :member AND seq = :seq", **message_key
        )


def _update_summaries_after_redaction(
    dialect: SqlDialect, tenant: str, root: str, changes_by_conversation: RedactionsByConversation
) -> TransactionSteps[list[Summary]]:
    """Deletes the summaries that cover a change, and moves the running totals of those behind one. Returns the deleted
    ones.
    """
    found: dict[str, Summary] = {}
    readers: dict[str, list[str]] = {}
    for member, changes in changes_by_conversation.items():
        from_seq = min(change.seq for change in changes)
        rows = yield dialect.build_statement(
            _SUMMARIES_READ_BY, root=root, tenant=tenant, member=member, from_seq=from_seq
        )
        for summary in map(decode_summary, rows):
            found[summary.id] = summary
            readers.setdefault(summary.id, []).append(member)
    gone = [
        summary
        for summary in found.values()
        if covers_redacted_message(summary, readers[summary.id], changes_by_conversation)
    ]
    for summary in gone:
        yield from summary_transactions.delete_summary_without_folds(dialect, tenant, root, summary.id)
        del found[summary.id]
    for summary in found.values():
        yield dialect.build_statement(
            """
            UPDATE chunks SET tokens_total = tokens_total + :delta
            WHERE root = :root AND id = :id AND tenant = :tenant""",
            root=root,
            id=summary.id,
            tenant=tenant,
            delta=compute_summary_total_shift(summary, readers[summary.id], changes_by_conversation),
        )
    return sorted(gone, key=lambda summary: (summary.to_seq, summary.created_at, summary.id))


def rewrite_sealed_fields(
    dialect: SqlDialect,
    conversation: Conversation,
    entries: Sequence[LogMessage],
    summaries: Sequence[Summary],
    client_versions: Sequence[ClientVersion],
) -> TransactionSteps[None]:
    """As `ConversationStore.rewrite_sealed_fields`."""
    conversation_key = {"root": conversation.root, "id": conversation.id, "tenant": conversation.tenant}
    rows = yield from dialect.lock_conversation("marks, head_seq, head_link", **conversation_key)
    if not rows:
        return
    marks, head_seq, head_link = rows[0]
    redacted = set(orjson.loads(marks).get(REDACTED_KEY, ())) - set(conversation.marks.get(REDACTED_KEY, ()))
    for entry in entries:
        # The message was redacted after the caller read it: writing it would restore the old text.
        if entry.seq in redacted:
            continue
        yield dialect.build_statement(
            f"UPDATE messages SET body = :body, meta = :meta WHERE {_IS_MESSAGE} AND link = :link AND tokens = :tokens",
            root=conversation.root,
            place=conversation.id,
            seq=entry.seq,
            link=entry.link,
            tokens=entry.tokens,
            body=entry.message.raw.decode(),
            meta=encode_optional_json(entry.meta),
        )
    for version in client_versions:
        seq, since_seq, to_seq, bodies, _ = client_version_values(version)
        yield dialect.build_statement(
            """
            UPDATE client_versions SET bodies = :bodies
            WHERE root = :root AND conversation_id = :id AND since_seq = :since_seq AND seq = :seq
              AND to_seq = :to_seq""",
            root=conversation.root,
            id=conversation.id,
            since_seq=since_seq,
            seq=seq,
            to_seq=to_seq,
            bodies=bodies,
        )
    yield from summary_transactions.rewrite_summary_texts(dialect, conversation.tenant, conversation.root, summaries)
    # Otherwise a turn was written after the caller read the conversation, and its state is newer.
    if (head_seq, head_link) == (conversation.head_seq, conversation.head_link):
        yield dialect.build_statement(
            f"UPDATE conversations SET state = :state WHERE {_IS_CONVERSATION}",
            **conversation_key,
            state=encode_json(conversation.state),
        )


def replace_marks(dialect: SqlDialect, conversation: Conversation, marks: Mapping[str, Any]) -> TransactionSteps[None]:
    """As `ConversationStore.replace_marks`."""
    conversation_key = {"root": conversation.root, "id": conversation.id, "tenant": conversation.tenant}
    rows = yield from dialect.lock_conversation("marks", **conversation_key)
    if not rows or orjson.loads(rows[0][0]) != conversation.marks:
        raise WriteConflict
    yield dialect.build_statement(
        f"UPDATE conversations SET marks = :marks WHERE {_IS_CONVERSATION}",
        **conversation_key,
        marks=encode_json(marks),
    )
