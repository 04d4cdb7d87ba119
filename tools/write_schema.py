"""Write the DDL that makes an empty database: all tables of `app/store/sql/tables.py`, for each dialect.

    python tools/write_schema.py            # write migrations/sqlite.sql and migrations/postgresql.sql
    python tools/write_schema.py --check    # exit with 1 where they say something else

A start on an empty database runs that text and needs neither SQLAlchemy nor Alembic. A test holds the outcome to be
what the migrations leave.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Mapping
from pathlib import Path

from sqlalchemy.dialects.postgresql.base import PGDialect
from sqlalchemy.dialects.sqlite.base import SQLiteDialect
from sqlalchemy.engine import Dialect
from sqlalchemy.schema import CreateIndex, CreateTable

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

from app.store.sql.tables import is_table_in_dialect, metadata  # noqa: E402 (a script of the repository, not installed)

COMMAND = "python tools/write_schema.py"
_VERSION_TABLE = """\
CREATE TABLE alembic_version (
\tversion_num VARCHAR(32) NOT NULL,
\tCONSTRAINT alembic_version_pkc PRIMARY KEY (version_num)
)"""


def texts() -> Mapping[Path, str]:
    """What each file is to hold."""
    dialects: list[Dialect] = [SQLiteDialect(), PGDialect()]  # type: ignore[no-untyped-call]
    return {ROOT / "migrations" / f"{dialect.name}.sql": _all_tables(dialect) for dialect in dialects}


def _all_tables(dialect: Dialect) -> str:
    statements = [_VERSION_TABLE]
    for table in metadata.sorted_tables:
        if is_table_in_dialect(table, dialect.name):
            statements.append(str(CreateTable(table).compile(dialect=dialect)))
            indexes = sorted(table.indexes, key=lambda index: str(index.name))
            statements += [str(CreateIndex(index).compile(dialect=dialect)) for index in indexes]
    ddl = ";\n\n".join(re.sub(r"[ \t]+$", "", statement.strip(), flags=re.MULTILINE) for statement in statements)
    return f"-- Written by `{COMMAND}`.\n\n{ddl}\n"


def main() -> int:
    parser = argparse.ArgumentParser(prog=COMMAND, description=__doc__)
    parser.add_argument("--check", action="store_true", help="write nothing")
    check = parser.parse_args().check
    stale = {file: text for file, text in texts().items() if not file.exists() or file.read_text() != text}
    for file, text in stale.items():
        if check:
            print(f"{file.relative_to(ROOT)} is not what the tables say; run `{COMMAND}`.", file=sys.stderr)
        else:
            file.write_text(text)
    return 1 if check and stale else 0


if __name__ == "__main__":
    sys.exit(main())
