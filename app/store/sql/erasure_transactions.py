"""What is done to logs in several steps: erase a conversation, overwrite messages, write them in another form."""

# ruff: noqa: S608 - built from our own names; values are always parameters

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import msgspec
import orjson

from app.conversation.messages import Chunk, ClientVersion, Conversation, LogMessage
from app.store.contract import RANGE_LEASES, HeadMoved
from app.store.lineage import Erasure, erasure, placed
from app.store.shared_redaction import REDACTED, Change, Sharing, covers, marked, sharing, shift_of, shifts, total
from app.store.sql import chunk_transactions
from app.store.sql.rows import (
    CHUNK_COLUMNS,
    Lineage,
    as_json,
    as_optional_json,
    chunk_of,
    lineage_json,
    lineage_of,
    version_values,
)
from app.store.sql.transactions import Dialect, Script, Words

_THIS: Final = "root = :root AND id = :id AND tenant = :tenant"
_VERSION_OVER: Final = "root = :root AND conversation_id = :member AND seq <= :seq AND to_seq > :seq"
_PLACE: Final = "root = :root AND conversation_id = :place AND seq = :seq"
_CHUNKS_READ_BY: Final = f"""
    SELECT {", ".join(f"k.{name}" for name in CHUNK_COLUMNS)} FROM chunks k
    WHERE k.root = :root AND k.tenant = :tenant AND k.to_seq > :from_seq AND (
        k.conversation_id = :member OR EXISTS (
            SELECT 1 FROM messages m
            WHERE m.root = k.root AND m.conversation_id = :member AND m.seq = k.to_seq - 1 AND m.link = k.to_link))"""
_ERASE_REVISIONS: Final = """
    DELETE FROM chunk_revisions WHERE root = :root AND NOT EXISTS (
        SELECT 1 FROM chunks c WHERE c.root = chunk_revisions.root AND c.id = chunk_revisions.chunk_id)"""


class Redacted(msgspec.Struct, frozen=True):
    """What a redaction took away."""

    chunks: list[Chunk]
    texts: list[str]
    """Bodies of messages and texts of chunks as they were."""


def delete(dialect: Dialect, words: Words, doomed: Conversation) -> Script[bool]:
    """Erase a conversation; whether it was still there."""
    root, here, sql = doomed.root, (doomed.root, doomed.id), dialect.sql
    # Locked first, so that no branch can begin from it while its family is looked at.
    if not (yield f"{sql.by_id}{dialect.locking}", (*here, doomed.tenant)):
        return False
    family = yield f"{sql.family} ORDER BY id{dialect.locking}", (root, f'%"{doomed.id}"%')
    plan = erasure(doomed.id, {member: lineage_of(lineage) for member, lineage in family})
    for erase, hand_over in (
        (sql.erase_messages, sql.hand_over_messages),
        (sql.erase_versions, sql.hand_over_versions),
        (sql.erase_anchors, sql.hand_over_anchors),
    ):
        yield erase, (*here, plan.kept_through)
        if plan.heir is not None:
            yield hand_over, (*here, plan.heir)
    yield from words.erase(
        tenant=doomed.tenant, root=root, conversation_id=doomed.id, kept_through=plan.kept_through, heir=plan.heir
    )
    for member, lineage in plan.lineages.items():
        yield sql.change_lineage, (root, member, lineage_json(lineage))
    yield from _settle_completions(dialect, doomed, plan)
    for statement in (
        sql.erase_conversation,
        sql.erase_external_ids,
        sql.erase_leases,
        sql.erase_chunks,
        sql.hand_over_chunks,
    ):
        yield statement, here
    yield from chunk_transactions.delete_strays_of(dialect, doomed.tenant, root)
    yield dialect.say(_ERASE_REVISIONS, root=root)
    return True


def _settle_completions(dialect: Dialect, doomed: Conversation, plan: Erasure) -> Script[None]:
    """Stored completions pass to the heir with the messages that it takes over, or go."""
    here = {"root": doomed.root, "id": doomed.id}
    if plan.heir is not None:
        yield dialect.say(
            """
            UPDATE completions SET conversation_id = :heir
            WHERE root = :root AND conversation_id = :id AND seq <= :kept_through""",
            **here,
            heir=plan.heir,
            kept_through=plan.kept_through,
        )
    yield dialect.say("DELETE FROM completions WHERE root = :root AND conversation_id = :id", **here)


def redact(
    dialect: Dialect, words: Words, conversation: Conversation, entries: Sequence[LogMessage]
) -> Script[Redacted]:
    """As `Store.redact`."""
    root, tenant = conversation.root, conversation.tenant
    places = yield from _places(dialect, conversation, entries)
    family = yield from _family(dialect, conversation, list(dict.fromkeys(place for place, _ in places)))
    changes, replaced = [], []
    for place, entry in places:
        rows = yield dialect.say(
            f"SELECT link, tokens, body FROM messages WHERE {_PLACE}", root=root, place=place, seq=entry.seq
        )
        if not rows or rows[0][0] != entry.link:
            raise HeadMoved
        changes.append(Change(place, entry.seq, entry.tokens - rows[0][1]))
        replaced.append(rows[0][2])
    for place, entry in places:
        yield dialect.say(
            f"UPDATE messages SET body = :body, tokens = :tokens, meta = :meta WHERE {_PLACE}",
            root=root,
            place=place,
            seq=entry.seq,
            body=entry.message.raw.decode(),
            tokens=entry.tokens,
            meta=as_optional_json(entry.meta),
        )
        yield from words.forget(tenant=tenant, root=root, conversation_id=place, seq=entry.seq)
    for prefix in RANGE_LEASES:
        yield dialect.say("DELETE FROM leases WHERE root = :root AND key LIKE :keys", root=root, keys=f"{prefix}%")
    shared = sharing(changes, {member: lineage for member, (lineage, _) in family.items()})
    for member, theirs in shared.items():
        yield from _move_totals(dialect, root, member, family[member][1], theirs)
        replaced += yield from _forget_versions(dialect, root, member, theirs)
    gone = yield from _settle_chunks(dialect, tenant, root, shared)
    return Redacted(gone, [*replaced, *(chunk.text for chunk in gone)])


def _places(
    dialect: Dialect, conversation: Conversation, entries: Sequence[LogMessage]
) -> Script[list[tuple[str, LogMessage]]]:
    """Where messages of a log are kept now."""
    rows = yield dialect.say(
        f"SELECT lineage, head_seq FROM conversations WHERE {_THIS}",
        root=conversation.root,
        id=conversation.id,
        tenant=conversation.tenant,
    )
    if not rows:
        raise HeadMoved
    places = placed((*lineage_of(rows[0][0]), (conversation.id, rows[0][1])), entries)
    if len(places) != len(entries):
        raise HeadMoved
    return places


def _family(
    dialect: Dialect, conversation: Conversation, keepers: Sequence[str]
) -> Script[dict[str, tuple[Lineage, Mapping[str, Any]]]]:
    """Lineage and marks of whoever keeps a message or may share it, locked: keepers first, so that no branch can
    begin while their families are looked at."""
    root, tenant = conversation.root, conversation.tenant
    for keeper in keepers:
        yield dialect.say(
            f"SELECT id FROM conversations WHERE {_THIS}{dialect.locking}", root=root, id=keeper, tenant=tenant
        )
    family: dict[str, tuple[Lineage, Mapping[str, Any]]] = {}
    for keeper in keepers:
        rows = yield dialect.say(
            f"""
            SELECT id, lineage, marks FROM conversations
            WHERE root = :root AND tenant = :tenant AND (id = :keeper OR lineage LIKE :naming)
            ORDER BY id{dialect.locking}""",
            root=root,
            tenant=tenant,
            keeper=keeper,
            naming=f'%"{keeper}"%',
        )
        family |= {member: (lineage_of(lineage), orjson.loads(marks)) for member, lineage, marks in rows}
    return family


def _move_totals(
    dialect: Dialect, root: str, member: str, marks: Mapping[str, Any], changes: Sequence[Change]
) -> Script[None]:
    for from_seq, delta in shifts(member, changes):
        yield dialect.say(
            """
            UPDATE messages SET tokens_total = tokens_total + :delta
            WHERE root = :root AND conversation_id = :member AND seq >= :from_seq""",
            root=root,
            member=member,
            from_seq=from_seq,
            delta=delta,
        )
    yield dialect.say(
        """
        UPDATE conversations SET head_tokens_total = head_tokens_total + :delta, marks = :marks
        WHERE root = :root AND id = :member""",
        root=root,
        member=member,
        delta=total(changes),
        marks=as_json(marked(marks, changes)),
    )


def _forget_versions(dialect: Dialect, root: str, member: str, changes: Sequence[Change]) -> Script[list[str]]:
    """Delete what a client shows in the place of changed messages, and their anchors; the bodies as they were."""
    bodies: list[str] = []
    for change in changes:
        here = {"root": root, "member": member, "seq": change.seq}
        rows = yield dialect.say(f"SELECT bodies FROM client_versions WHERE {_VERSION_OVER}", **here)
        bodies += [text for (text,) in rows if text]
        yield dialect.say(f"DELETE FROM client_versions WHERE {_VERSION_OVER}", **here)
        yield dialect.say("DELETE FROM anchors WHERE root = :root AND conversation_id = :member AND seq = :seq", **here)
    return bodies


def _settle_chunks(dialect: Dialect, tenant: str, root: str, shared: Sharing) -> Script[list[Chunk]]:
    """Delete chunks that cover a change, move the totals of those behind one; the deleted ones."""
    found: dict[str, Chunk] = {}
    readers: dict[str, list[str]] = {}
    for member, changes in shared.items():
        from_seq = min(change.seq for change in changes)
        rows = yield dialect.say(_CHUNKS_READ_BY, root=root, tenant=tenant, member=member, from_seq=from_seq)
        for chunk in map(chunk_of, rows):
            found[chunk.id] = chunk
            readers.setdefault(chunk.id, []).append(member)
    gone = [chunk for chunk in found.values() if covers(chunk, readers[chunk.id], shared)]
    for chunk in gone:
        yield from chunk_transactions.remove(dialect, tenant, root, chunk.id)
        del found[chunk.id]
    for chunk in found.values():
        yield dialect.say(
            """
            UPDATE chunks SET tokens_total = tokens_total + :delta
            WHERE root = :root AND id = :id AND tenant = :tenant""",
            root=root,
            id=chunk.id,
            tenant=tenant,
            delta=shift_of(chunk, readers[chunk.id], shared),
        )
    return sorted(gone, key=lambda chunk: (chunk.to_seq, chunk.created_at, chunk.id))


def rewrite(
    dialect: Dialect,
    conversation: Conversation,
    entries: Sequence[LogMessage],
    chunks: Sequence[Chunk],
    versions: Sequence[ClientVersion],
) -> Script[None]:
    """As `Store.rewrite`."""
    here = {"root": conversation.root, "id": conversation.id, "tenant": conversation.tenant}
    rows = yield dialect.say(
        f"SELECT marks, head_seq, head_link FROM conversations WHERE {_THIS}{dialect.locking}", **here
    )
    if not rows:
        return
    marks, head_seq, head_link = rows[0]
    redacted = set(orjson.loads(marks).get(REDACTED, ())) - set(conversation.marks.get(REDACTED, ()))
    for entry in entries:
        if entry.seq in redacted:
            continue
        yield dialect.say(
            f"UPDATE messages SET body = :body, meta = :meta WHERE {_PLACE} AND link = :link AND tokens = :tokens",
            root=conversation.root,
            place=conversation.id,
            seq=entry.seq,
            link=entry.link,
            tokens=entry.tokens,
            body=entry.message.raw.decode(),
            meta=as_optional_json(entry.meta),
        )
    for version in versions:
        seq, since_seq, to_seq, bodies, _ = version_values(version)
        yield dialect.say(
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
    yield from chunk_transactions.rewrite(dialect, conversation.tenant, conversation.root, chunks)
    if (head_seq, head_link) == (conversation.head_seq, conversation.head_link):
        yield dialect.say(
            f"UPDATE conversations SET state = :state WHERE {_THIS}", **here, state=as_json(conversation.state)
        )


def mark(dialect: Dialect, conversation: Conversation, marks: Mapping[str, Any]) -> Script[None]:
    """As `Store.mark`."""
    here = {"root": conversation.root, "id": conversation.id, "tenant": conversation.tenant}
    rows = yield dialect.say(f"SELECT marks FROM conversations WHERE {_THIS}{dialect.locking}", **here)
    if not rows or orjson.loads(rows[0][0]) != conversation.marks:
        raise HeadMoved
    yield dialect.say(f"UPDATE conversations SET marks = :marks WHERE {_THIS}", **here, marks=as_json(marks))
