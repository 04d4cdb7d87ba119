"""Pages of what a tenant has: by creation, at equal times by id, from a place on."""

# ruff: noqa: S608 - built from our own names; values are always parameters

from __future__ import annotations

from datetime import datetime
from typing import Any

from app.conversation.identity import root_of_conversation
from app.store.contract import CompletionQuery, ListQuery
from app.store.sql.rows import COMPLETION_COLUMNS, CONVERSATION_COLUMNS, as_json
from app.store.sql.transactions import Dialect, Query

_BOUNDS = (
    ("created_after", "created_at > :created_after"),
    ("created_before", "created_at < :created_before"),
    ("updated_after", "updated_at > :updated_after"),
    ("updated_before", "updated_at < :updated_before"),
)


class _Page:
    """Conditions and their values."""

    def __init__(self, dialect: Dialect, tenant: str | None) -> None:
        self._dialect = dialect
        self._conditions: list[str] = []
        self._values: dict[str, Any] = {}
        if tenant is not None:
            self.require("tenant = :tenant", tenant=tenant)

    def require(self, condition: str, **values: Any) -> None:
        self._conditions.append(condition)
        self._values |= values

    def require_pairs(self, metadata: Any) -> None:
        if metadata:
            self.require(self._dialect.has_pairs.format(column="metadata"), pairs=as_json(metadata))

    def query(
        self, columns: tuple[str, ...], table: str, *, after: tuple[datetime, str] | None, descending: bool, limit: int
    ) -> Query:
        if after is not None:
            moment = self._dialect.moment(after[0])
            sign = "<" if descending else ">"
            self.require(f"(created_at, id) {sign} (:after_moment, :after_id)", after_moment=moment, after_id=after[1])
        where = f"WHERE {' AND '.join(self._conditions)}" if self._conditions else ""
        order = "DESC" if descending else "ASC"
        text = f"""
            SELECT {", ".join(columns)} FROM {table} {where}
            ORDER BY created_at {order}, id {order} LIMIT :limit"""
        return self._dialect.say(text, **self._values, limit=limit)


def conversations(dialect: Dialect, tenant: str | None, query: ListQuery) -> Query:
    """Rows of `CONVERSATION_COLUMNS`."""
    page = _Page(dialect, tenant if query.within is None else None)
    for name, condition in _BOUNDS:
        bound = getattr(query, name)
        if bound is not None:
            page.require(condition, **{name: dialect.moment(bound)})
    if query.mode is not None:
        page.require("mode = :mode", mode=query.mode)
    if query.external_id is not None:
        page.require("external_id = :external_id", external_id=query.external_id)
    page.require_pairs(query.metadata)
    if query.within is not None:
        _require_family(page, query.within, tenant)
    return page.query(
        CONVERSATION_COLUMNS, "conversations", after=query.after, descending=query.descending, limit=query.limit
    )


def _require_family(page: _Page, conversation_id: str, tenant: str | None) -> None:
    page.require(
        "root = :root AND (id = :within OR lineage LIKE :naming)",
        root=root_of_conversation(conversation_id) or "",
        within=conversation_id,
        naming=f'%"{conversation_id}"%',
    )
    if tenant is not None:
        # No index on tenants is to be used: a family is found by its root, however many conversations a tenant has.
        page.require("tenant || '' = :tenant", tenant=tenant)


def completions(dialect: Dialect, tenant: str, query: CompletionQuery) -> Query:
    """Rows of `COMPLETION_COLUMNS`."""
    page = _Page(dialect, tenant)
    if query.model is not None:
        page.require("model = :model", model=query.model)
    page.require_pairs(query.metadata)
    return page.query(
        COMPLETION_COLUMNS, "completions", after=query.after, descending=query.descending, limit=query.limit
    )
