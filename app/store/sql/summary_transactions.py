"""Transactions on summaries: add one, revise one, delete one together with the summaries that fold it."""

# ruff: noqa: S608 - built from our own names; values are always parameters

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Final

from app.conversation.conversation_types import Conversation, Summary
from app.store.contract.conversations import WriteConflict
from app.store.contract.leases import LeaseLost
from app.store.sql.dialects import SqlDialect, Statement, TransactionSteps
from app.store.sql.rows import SUMMARY_COLUMNS, decode_summary, summary_values
from app.store.sql.statements import SUMMARY_INSERT_COLUMNS
from app.store.summary_revision_rules import REVISION_FIELDS, may_replace_summary

_COLUMNS: Final = ", ".join(SUMMARY_COLUMNS)
_IS_SUMMARY: Final = "root = :root AND id = :id AND tenant = :tenant"
_SAME_RANGE: Final = """
    root = :root AND tenant = :tenant AND from_link = :from_link AND to_link = :to_link AND is_fold = :is_fold"""
_INSERT: Final = f"""
    INSERT INTO chunks ({", ".join(SUMMARY_INSERT_COLUMNS)})
    VALUES ({", ".join(f":{name}" for name in SUMMARY_INSERT_COLUMNS)})
    ON CONFLICT (root, from_link, to_link, is_fold) DO NOTHING"""
_REPLACE: Final = f"""
    UPDATE chunks SET {", ".join(f"{name} = :{name}" for name in SUMMARY_COLUMNS)}
    WHERE root = :root AND id = :old_id AND tenant = :tenant"""
_REVISE: Final = f"UPDATE chunks SET {', '.join(f'{name} = :{name}' for name in REVISION_FIELDS)} WHERE {_IS_SUMMARY}"
_SAVE_REVISION: Final = f"""
    INSERT INTO chunk_revisions (root, chunk_id, tenant, {", ".join(REVISION_FIELDS)})
    SELECT root, id, tenant, {", ".join(REVISION_FIELDS)} FROM chunks WHERE {_IS_SUMMARY}"""
_OLDER_REVISIONS: Final = f"""
    SELECT {", ".join(REVISION_FIELDS)} FROM chunk_revisions
    WHERE root = :root AND chunk_id = :id AND tenant = :tenant ORDER BY revision"""
_DELETE_REVISIONS: Final = "DELETE FROM chunk_revisions WHERE root = :root AND chunk_id = :id AND tenant = :tenant"
_IS_STRAY: Final = """
    NOT EXISTS (SELECT 1 FROM messages m WHERE m.root = k.root AND m.link = k.to_link)
    AND NOT EXISTS (SELECT 1 FROM conversations c WHERE c.root = k.root AND c.id = k.conversation_id)"""
"""Condition for a stray summary `k`: no log has its last message, and the conversation that it was made for does not
exist.
"""
_STRAY_PAGE: Final = f"""
    SELECT k.root, k.id, k.tenant, k.created_at < :made_before AND {_IS_STRAY} FROM chunks k
    WHERE (k.root, k.id) > (:after_root, :after_id) ORDER BY k.root, k.id LIMIT :limit"""
STRAY_PAGE_SIZE: Final = 500
"""Summaries that one query for strays reads."""


def add_summary(
    dialect: SqlDialect, tenant: str, root: str, summary: Summary, fence_query: Statement
) -> TransactionSteps[None]:
    """As `SummaryStore.add_summary`. `fence_query` returns a row if the lease of the fence is held."""
    if not (yield fence_query):
        raise LeaseLost
    key_values = {"root": root, "tenant": tenant}
    values = summary_values(summary, dialect.encode_time)
    known = yield dialect.build_statement(
        f"SELECT {_COLUMNS} FROM chunks WHERE {_SAME_RANGE}{dialect.row_lock_clause}",
        **key_values,
        from_link=values["from_link"],
        to_link=summary.to_link,
        is_fold=bool(summary.folds),
    )
    # ON CONFLICT DO NOTHING: another process may have added the same range after the SELECT, which locks only rows that
    # exist.
    if not known:
        yield dialect.build_statement(_INSERT, **key_values, **values, is_fold=bool(summary.folds))
        return
    old = decode_summary(known[0])
    if not may_replace_summary(summary, old):
        return
    # Revisions of the replaced summary have no owner any more.
    yield dialect.build_statement(_DELETE_REVISIONS, **key_values, id=old.id)
    yield dialect.build_statement(_REPLACE, **key_values, **values, old_id=old.id)


def revise_summary(dialect: SqlDialect, tenant: str, root: str, summary: Summary) -> TransactionSteps[None]:
    """As `SummaryStore.revise_summary`."""
    key_values = {"root": root, "tenant": tenant, "id": summary.id}
    rows = yield dialect.build_statement(
        f"SELECT revision FROM chunks WHERE {_IS_SUMMARY}{dialect.row_lock_clause}", **key_values
    )
    if not rows or rows[0][0] != summary.revision - 1:
        raise WriteConflict
    yield dialect.build_statement(_SAVE_REVISION, **key_values)
    values = summary_values(summary, dialect.encode_time)
    yield dialect.build_statement(_REVISE, **key_values, **{name: values[name] for name in REVISION_FIELDS})


def read_summary_revisions(
    dialect: SqlDialect, tenant: str, root: str, summary_id: str
) -> TransactionSteps[list[Summary]]:
    """As `SummaryStore.read_summary_revisions`."""
    key_values = {"root": root, "tenant": tenant, "id": summary_id}
    rows = yield dialect.build_statement(f"SELECT {_COLUMNS} FROM chunks WHERE {_IS_SUMMARY}", **key_values)
    if not rows:
        return []
    present = dict(zip(SUMMARY_COLUMNS, rows[0], strict=True))
    older = yield dialect.build_statement(_OLDER_REVISIONS, **key_values)
    revisions = [present | dict(zip(REVISION_FIELDS, revision, strict=True)) for revision in older]
    return [decode_summary(list(one.values())) for one in (*revisions, present)]


def delete_summary(dialect: SqlDialect, tenant: str, root: str, summary_id: str) -> TransactionSteps[bool]:
    """As `SummaryStore.delete_summary`."""
    key_values = {"root": root, "tenant": tenant}
    rows = yield dialect.build_statement(
        f"SELECT id FROM chunks WHERE {_IS_SUMMARY}{dialect.row_lock_clause}", **key_values, id=summary_id
    )
    # A fold holds the content of the summaries that it folds, so it goes with them, and so do folds of folds.
    doomed = [row[0] for row in rows]
    while doomed:
        one = doomed.pop()
        yield from delete_summary_without_folds(dialect, tenant, root, one)
        folds = yield dialect.build_statement(
            "SELECT id FROM chunks WHERE root = :root AND tenant = :tenant AND is_fold AND folds LIKE :naming",
            **key_values,
            naming=f'%"{one}"%',
        )
        doomed += [row[0] for row in folds]
    return bool(rows)


def build_stray_page_query(dialect: SqlDialect, created_before: datetime, after: tuple[str, str]) -> Statement:
    """Builds the query for `STRAY_PAGE_SIZE` summaries after a root and an id. Rows: root, id, tenant, whether it is a
    stray.
    """
    return dialect.build_statement(
        _STRAY_PAGE,
        made_before=dialect.encode_time(created_before),
        after_root=after[0],
        after_id=after[1],
        limit=STRAY_PAGE_SIZE,
    )


def delete_stray_summaries(dialect: SqlDialect, keys: Sequence[tuple[str, str, str]]) -> TransactionSteps[int]:
    """Deletes those of the summaries with these roots, ids and tenants that are still strays. Returns how many."""
    count = 0
    for root, chunk_id, tenant in keys:
        # Checked again inside the transaction: the turn that the summary was made for may have been written meanwhile.
        strays = yield dialect.build_statement(
            f"SELECT 1 FROM chunks k WHERE {_IS_SUMMARY} AND {_IS_STRAY}", root=root, id=chunk_id, tenant=tenant
        )
        if strays:
            count += yield from delete_summary(dialect, tenant, root, chunk_id)
    return count


def delete_family_strays(dialect: SqlDialect, tenant: str, root: str) -> TransactionSteps[None]:
    """Deletes all stray summaries of a family."""
    strays = yield dialect.build_statement(
        f"SELECT k.id FROM chunks k WHERE k.root = :root AND k.tenant = :tenant AND {_IS_STRAY}",
        root=root,
        tenant=tenant,
    )
    for (chunk_id,) in strays:
        yield from delete_summary(dialect, tenant, root, chunk_id)


def delete_personal_summaries(dialect: SqlDialect, conversation: Conversation) -> TransactionSteps[None]:
    """Deletes the summaries that were made in a conversation and may hold words of its people (`Summary.is_personal`),
    and what folds them."""
    rows = yield dialect.build_statement(
        f"SELECT {_COLUMNS} FROM chunks WHERE root = :root AND conversation_id = :id",
        root=conversation.root,
        id=conversation.id,
    )
    for summary in map(decode_summary, rows):
        if summary.is_personal:
            yield from delete_summary(dialect, conversation.tenant, conversation.root, summary.id)


def delete_summary_without_folds(
    dialect: SqlDialect, tenant: str, root: str, summary_id: str
) -> TransactionSteps[None]:
    """Deletes one summary and its revisions, but not the summaries that fold it."""
    yield dialect.build_statement(f"DELETE FROM chunks WHERE {_IS_SUMMARY}", root=root, tenant=tenant, id=summary_id)
    yield dialect.build_statement(_DELETE_REVISIONS, root=root, tenant=tenant, id=summary_id)


def rewrite_summary_texts(
    dialect: SqlDialect, tenant: str, root: str, summaries: Sequence[Summary]
) -> TransactionSteps[None]:
    """Replaces the texts of the given revisions, in whichever table each revision is now."""
    for summary in summaries:
        arguments = {
            "root": root,
            "tenant": tenant,
            "id": summary.id,
            "revision": summary.revision,
            "text": summary.text,
        }
        yield dialect.build_statement(
            f"UPDATE chunks SET text = :text WHERE {_IS_SUMMARY} AND revision = :revision", **arguments
        )
        yield dialect.build_statement(
            """
            UPDATE chunk_revisions SET text = :text
            WHERE root = :root AND chunk_id = :id AND tenant = :tenant AND revision = :revision""",
            **arguments,
        )
