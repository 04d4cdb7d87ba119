"""The statements that SQLite and PostgreSQL share: plain SQL with `:name` parameters, which are numbered for each
driver.

Backends run the text on the bare driver with a tuple of arguments.
`build_link_match_query` joins against a list of links, which is an array on PostgreSQL and a VALUES list on SQLite.
Both databases must be told the join order.
"""

# ruff: noqa: S608 - built from our own names when the module is loaded; values are always parameters

from __future__ import annotations

import re
from functools import cache
from typing import Final

from app.store.contract.conversations import MAX_LINK_MATCHES
from app.store.sql.rows import CONVERSATION_COLUMNS, HEAD_COLUMNS, MESSAGE_COLUMNS, SUMMARY_COLUMNS

SUMMARY_INSERT_COLUMNS: Final = ("root", "tenant", "is_fold", *SUMMARY_COLUMNS)
FINGERPRINT_COLUMNS: Final = ("digest", "root", "conversation_id", "seq")
SPEND_FINGERPRINT: Final = "root = NULL, conversation_id = NULL, seq = NULL"
UPDATE_HEAD_PARAMETERS: Final = ("root", "id", "tenant", "after_seq", "total_before", *HEAD_COLUMNS)
# Compare and set: the total is compared, too, because a redaction changes totals without moving the head.
UPDATE_HEAD: Final = f"""
        UPDATE conversations SET {", ".join(f"{name} = :{name}" for name in HEAD_COLUMNS)}
        WHERE root = :root AND id = :id AND tenant = :tenant
          AND head_seq = :after_seq AND head_tokens_total = :total_before"""
LEASE_PARAMETERS: Final = ("lease_root", "lease_key", "holder", "token")
IS_LEASE: Final = "root = :lease_root AND key = :lease_key AND holder = :holder AND token = :token"
RELEASE_LEASE: Final = f"DELETE FROM leases WHERE {IS_LEASE}"


@cache
def number_parameters(sql: str, names: tuple[str, ...], placeholder: str) -> str:
    """Replaces each `:name` by its number in `names`, in the form of the driver (`?1` or `$1`).

    Raises:
        ValueError: one of `names` is not in the text.
    """
    numbers = {name: f"{placeholder}{number}" for number, name in enumerate(names, start=1)}
    # The lookbehind skips PostgreSQL's casts (`::text`). An unused name is a mistake in a statement: asyncpg would
    # refuse the argument, SQLite would ignore it.
    unused = numbers.keys() - set(re.findall(r"(?<!:):(\w+)", sql))
    if unused:
        raise ValueError(f"Parameters {sorted(unused)} do not occur in: {sql}")
    return re.sub(r"(?<!:):(\w+)", lambda found: numbers[found[1]], sql)


def summary_select_columns(*, with_texts: bool) -> str:
    """Returns the column list of a SELECT from `chunks k`. Without `with_texts`, `text` is an empty string."""
    return ", ".join("'' AS text" if name == "text" and not with_texts else f"k.{name}" for name in SUMMARY_COLUMNS)


REPLACE_VERSION: Final = """
        ON CONFLICT (root, conversation_id, since_seq, seq)
        DO UPDATE SET to_seq = excluded.to_seq, bodies = excluded.bodies, tokens_delta = excluded.tokens_delta"""
"""A turn without new messages, such as an answer that is asked for again, brings its versions at the same place."""
SELECT_ANY_CONVERSATION: Final = f"""
        SELECT {", ".join(CONVERSATION_COLUMNS)} FROM conversations WHERE root = :root AND id = :id"""
SELECT_CONVERSATION: Final = f"{SELECT_ANY_CONVERSATION} AND tenant = :tenant"
SELECT_BY_EXTERNAL_ID: Final = f"""
        SELECT {", ".join(f"{'e' if name == 'external_id' else 'c'}.{name}" for name in CONVERSATION_COLUMNS)}
        FROM external_ids e JOIN conversations c ON c.root = e.root AND c.id = e.conversation_id
        WHERE e.tenant = :tenant AND e.external_id = :external_id AND c.tenant = :tenant"""
ADVANCE_INDEXED_BEFORE: Final = """
        UPDATE conversations SET indexed_before = :end_seq
        WHERE root = :root AND id = :id AND tenant = :tenant
          AND indexed_before >= :start_seq AND indexed_before < :end_seq"""


_MATCH_COLUMNS: Final = ", ".join(
    [f"m.{name} AS m_{name}" for name in MESSAGE_COLUMNS] + [f"c.{name} AS c_{name}" for name in CONVERSATION_COLUMNS]
)
_IS_IN_NAMED_LOG: Final = "EXISTS (SELECT 1 FROM named n WHERE n.id = m.conversation_id AND m.seq <= n.upto_seq)"


def build_link_match_query(
    joined: str, *, with_named: bool, with_unanswered: bool = False, true_comparison: str = ""
) -> str:
    """Builds the query for stored messages with one of a list of links, deepest first. Rows: depth, the columns of the
    message, the columns of the conversation whose rows hold it.

    Parameters: `:root`, `:tenant`, and those of `joined`.

    Args:
        joined: the FROM clause, with places for the conditions on `{message}` and `{conversation}`. It joins links `w`
            (`depth`, 0 for the deepest, and `link`), messages `m` and conversations `c` in this order, whatever the
            database's statistics say. A join from the conversation's messages to the links would read all messages.
        with_named: counts also unanswered messages in the relation `named` (`id`, `upto_seq`).
        with_unanswered: counts all unanswered messages.
        true_comparison: turns a stored boolean into a condition that an index serves.
    """
    answered = f"m.answered{true_comparison}"
    counts = f" AND ({answered} OR {_IS_IN_NAMED_LOG})" if with_named else f" AND {answered}"
    source = joined.format(
        message=f"m.root = :root AND m.link = w.link{'' if with_unanswered else counts}",
        conversation="c.root = :root AND c.id = m.conversation_id AND c.tenant = :tenant",
    )
    return f"""
        SELECT w.depth, {_MATCH_COLUMNS}
        FROM {source}
        ORDER BY w.depth, (m.seq = c.head_seq) DESC, c.updated_at DESC, m.seq DESC
        LIMIT {MAX_LINK_MATCHES}"""
