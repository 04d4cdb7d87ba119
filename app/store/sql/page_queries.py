"""Builds the queries for pages of conversations and of stored completions: by a time, then by id, from a given place
on.
"""

# ruff: noqa: S608 - built from our own names; values are always parameters

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any

from app.conversation.api_keys import CONTEXT_TENANT_SUFFIX, END_USER_SEPARATOR
from app.conversation.conversation_types import RESPONSE_ID_PREFIX
from app.conversation.identity import extract_family_root
from app.store.contract.conversations import CompletionQuery, ConversationQuery
from app.store.sql.dialects import SqlDialect, Statement
from app.store.sql.rows import COMPLETION_COLUMNS, CONVERSATION_COLUMNS, encode_json

_CONVERSATION_CONDITIONS = {
    "created_after": "created_at > :created_after",
    "created_before": "created_at < :created_before",
    "updated_after": "updated_at > :updated_after",
    "updated_before": "updated_at < :updated_before",
    "mode": "mode = :mode",
    "external_id": "external_id = :external_id",
    "min_messages": "head_seq >= :min_messages - 1",
}

REQUEST_CONDITIONS = {
    "model": "(model = :model OR answered_by = :model)",
    "context_status": "context_status = :context_status",
    "key_id": "key_id = :key_id",
}
"""Filters by what is known of a conversation's requests."""


class PageQuery:
    """Collects the conditions of a page query and their values."""

    def __init__(self, dialect: SqlDialect, tenant: str | None, *, with_derived_tenants: bool = False) -> None:
        self._dialect = dialect
        self._conditions: list[str] = []
        self._values: dict[str, Any] = {}
        if tenant is not None and with_derived_tenants:
            prefix = f"{tenant}{END_USER_SEPARATOR}"
            condition = "(tenant = :tenant OR substr(tenant, 1, :tenant_prefix_length) = :tenant_prefix)"
            self.add_condition(condition, tenant=tenant, tenant_prefix=prefix, tenant_prefix_length=len(prefix))
        elif tenant is not None:
            self.add_condition("tenant = :tenant", tenant=tenant)

    def add_condition(self, condition: str, **values: Any) -> None:
        self._conditions.append(condition)
        self._values |= values

    def add_filters(self, query: object, conditions: Mapping[str, str]) -> None:
        """Adds the conditions of those fields of a query that are not None."""
        for name, condition in conditions.items():
            value = getattr(query, name)
            if value is not None:
                encoded = self._dialect.encode_time(value) if isinstance(value, datetime) else value
                self.add_condition(condition, **{name: encoded})

    def add_metadata_condition(self, metadata: Any) -> None:
        if metadata:
            self.add_condition(self._dialect.has_pairs_condition.format(column="metadata"), pairs=encode_json(metadata))

    def build_query(
        self,
        columns: tuple[str, ...],
        table: str,
        *,
        after: tuple[datetime | float, str] | None,
        descending: bool,
        limit: int,
        order_by: str = "created_at",
    ) -> Statement:
        if after is not None:
            moment = self._dialect.encode_time(after[0]) if isinstance(after[0], datetime) else after[0]
            sign = "<" if descending else ">"
            self.add_condition(
                f"({order_by}, id) {sign} (:after_moment, :after_id)", after_moment=moment, after_id=after[1]
            )
        where = f"WHERE {' AND '.join(self._conditions)}" if self._conditions else ""
        order = "DESC" if descending else "ASC"
        text = f"""
            SELECT {", ".join(columns)} FROM {table} {where}
            ORDER BY {order_by} {order}, id {order} LIMIT :limit"""
        return self._dialect.build_statement(text, **self._values, limit=limit)


def build_conversations_query(dialect: SqlDialect, tenant: str | None, query: ConversationQuery) -> Statement:
    """Builds the query for a page of conversations. Rows have `CONVERSATION_COLUMNS`."""
    # With an ancestor, `_add_ancestor_condition` adds the tenant.
    page = PageQuery(
        dialect, tenant if query.ancestor_id is None else None, with_derived_tenants=query.with_derived_tenants
    )
    page.add_filters(query, _CONVERSATION_CONDITIONS)
    requested = {name: value for name in REQUEST_CONDITIONS if (value := getattr(query, name)) is not None}
    if requested:
        conditions = " AND ".join(REQUEST_CONDITIONS[name] for name in requested)
        # As a value and not as a join, so that PostgreSQL looks the ids up in a hash table, whatever it estimates.
        selected = f"SELECT conversation_id FROM requests WHERE conversation_id IS NOT NULL AND {conditions}"
        page.add_condition(f"(id IN ({selected})) IS TRUE", **requested)
    page.add_metadata_condition(query.metadata)
    if query.is_context_only:
        page.add_condition("tenant LIKE :context_tenants", context_tenants=f"%{CONTEXT_TENANT_SUFFIX}")
    if query.excludes_context_tenants:
        page.add_condition("tenant NOT LIKE :context_tenants", context_tenants=f"%{CONTEXT_TENANT_SUFFIX}")
    if query.ancestor_id is not None:
        _add_ancestor_condition(page, query.ancestor_id, tenant)
    if query.has_own_messages:
        page.add_condition(
            f"(external_id IS NOT NULL OR coalesce({dialect.last_shared_seq}, -1) < head_seq OR lineage = '[]')"
        )
    return page.build_query(
        CONVERSATION_COLUMNS,
        "conversations",
        after=query.after,
        descending=query.descending,
        limit=query.limit,
        order_by=query.order_by,
    )


def _add_ancestor_condition(page: PageQuery, conversation_id: str, tenant: str | None) -> None:
    page.add_condition(
        "root = :root AND (id = :within OR lineage LIKE :naming)",
        # An id that is not the gateway's has no root: no conversation matches "".
        root=extract_family_root(conversation_id) or "",
        within=conversation_id,
        naming=f'%"{conversation_id}"%',
    )
    if tenant is not None:
        # The expression keeps the database from using the index on tenants: a family is found by its root, however many
        # conversations the tenant has.
        page.add_condition("tenant || '' = :tenant", tenant=tenant)


def build_completions_query(dialect: SqlDialect, tenant: str, query: CompletionQuery) -> Statement:
    """Builds the query for a page of stored completions. Rows have `COMPLETION_COLUMNS`."""
    page = PageQuery(dialect, tenant)
    page.add_filters(query, {"model": "model = :model"})
    page.add_metadata_condition(query.metadata)
    if not query.with_responses:
        prefix = RESPONSE_ID_PREFIX
        page.add_condition("substr(id, 1, :prefix_length) <> :prefix", prefix_length=len(prefix), prefix=prefix)
    return page.build_query(
        COMPLETION_COLUMNS, "completions", after=query.after, descending=query.descending, limit=query.limit
    )
