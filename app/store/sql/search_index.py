"""Removes, copies and hands over messages of the search index, the same way on SQLite and PostgreSQL.

Each database keeps the terms of messages in a table of its own. Both keep the terms of a tenant's conversations in
`tenant_postings` and `tenant_scopes`.
"""

# ruff: noqa: S608 - built from our own names; values are always parameters

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

from app.store.search.term_ranking import hash_conversation_scope, hash_tenant_scope, term_key_prefix
from app.store.sql.dialects import SqlDialect, Statement, TransactionSteps


@dataclass(frozen=True, slots=True)
class SearchIndexCleanup:
    """Removes messages from a database's search index.

    A conversation's parameters are `:root`, `:id`, `:scope` and `:prefix` (`term_ranking`). Those of a conversation
    that gets messages have `to_` before them.
    """

    dialect: SqlDialect
    rows: str
    """The table of terms, with the condition for a conversation's rows."""
    terms: str
    """A SELECT of a conversation's terms, to which a condition can be added."""
    is_term_in: str
    """A condition: the term is one of `{terms}`."""
    has_terms: str
    """A SELECT that finds a row if a conversation has any term."""
    is_elsewhere: str
    """A SELECT that finds a row if another message than `:seq` has the term `tenant_postings.term`."""
    copy: str
    """Copies the rows `[:from_seq, :to_seq)`."""
    hand_over: str
    """Moves all rows."""

    def remove_message(self, *, tenant: str, root: str, conversation_id: str, seq: int) -> TransactionSteps[None]:
        """Deletes the terms of one message in a conversation's own rows."""
        here = {**_build_place(tenant, root, conversation_id), "seq": seq}
        is_term_in = self.is_term_in.format(terms=f"{self.terms} AND seq = :seq")
        yield self._build_statement(
            f"""
            DELETE FROM tenant_postings WHERE tenant_scope = :tenant_scope AND scope = :scope AND {is_term_in}
              AND NOT EXISTS ({self.is_elsewhere})""",
            here,
        )
        # After the tenant's rows, whose deletion reads these.
        yield self._build_statement(f"DELETE FROM {self.rows} AND seq = :seq", here)
        yield self._build_statement(
            f"""
            DELETE FROM tenant_scopes WHERE tenant_scope = :tenant_scope AND scope = :scope
              AND NOT EXISTS ({self.has_terms})""",
            here,
        )

    def copy_messages(
        self, *, tenant: str, root: str, from_id: str, to_id: str, from_seq: int, to_seq: int
    ) -> TransactionSteps[None]:
        """Copies the terms of the messages `[from_seq, to_seq)` of a conversation to another."""
        places = _build_two_places(tenant, root, from_id, to_id)
        yield self._build_statement(self.copy, {**places, "from_seq": from_seq, "to_seq": to_seq})
        yield from self._index_for_tenant(tenant, root, to_id)

    def move_or_remove_conversation(
        self, *, tenant: str, root: str, conversation_id: str, kept_through: int, heir: str | None
    ) -> TransactionSteps[None]:
        """Deletes the terms of a conversation's messages after `kept_through`, and moves the others to the heir."""
        here = _build_place(tenant, root, conversation_id)
        is_own = "tenant_scope = :tenant_scope AND scope = :scope"
        is_term_in = self.is_term_in.format(terms=self.terms)
        yield self._build_statement(f"DELETE FROM tenant_postings WHERE {is_own} AND {is_term_in}", here)
        yield self._build_statement(f"DELETE FROM tenant_scopes WHERE {is_own}", here)
        kept = {**here, "kept_through": kept_through}
        yield self._build_statement(f"DELETE FROM {self.rows} AND seq > :kept_through", kept)
        if heir is not None:
            yield self._build_statement(self.hand_over, _build_two_places(tenant, root, conversation_id, heir))
            yield from self._index_for_tenant(tenant, root, heir)

    def _index_for_tenant(self, tenant: str, root: str, conversation_id: str) -> TransactionSteps[None]:
        here = _build_place(tenant, root, conversation_id)
        # In order: two writers of the same rows must not wait for each other in a circle.
        yield self._build_statement(
            f"""
            INSERT INTO tenant_postings (tenant_scope, term, scope)
            SELECT DISTINCT CAST(:tenant_scope AS BIGINT), t.term, CAST(:scope AS BIGINT) FROM ({self.terms}) t
            WHERE true ORDER BY 2
            ON CONFLICT (tenant_scope, term, scope) DO NOTHING""",
            here,
        )
        yield self._build_statement(
            f"""
            INSERT INTO tenant_scopes (tenant_scope, scope, root, conversation_id)
            SELECT CAST(:tenant_scope AS BIGINT), CAST(:scope AS BIGINT), CAST(:root AS TEXT), CAST(:id AS TEXT)
            WHERE EXISTS ({self.has_terms})
            ON CONFLICT (tenant_scope, scope) DO NOTHING""",
            here,
        )

    def _build_statement(self, text: str, values: dict[str, Any]) -> Statement:
        """Builds a statement with those of the values that its text names."""
        names = set(re.findall(r"(?<!:):(\w+)", text))
        return self.dialect.build_statement(text, **{name: value for name, value in values.items() if name in names})


def _build_place(tenant: str, root: str, conversation_id: str) -> dict[str, Any]:
    """Returns the parameters of a conversation."""
    return {
        "tenant_scope": hash_tenant_scope(tenant),
        "root": root,
        "id": conversation_id,
        "scope": hash_conversation_scope(root, conversation_id),
        "prefix": term_key_prefix(root, conversation_id),
    }


def _build_two_places(tenant: str, root: str, from_id: str, to_id: str) -> dict[str, Any]:
    target = _build_place(tenant, root, to_id)
    return _build_place(tenant, root, from_id) | {f"to_{name}": value for name, value in target.items()}
