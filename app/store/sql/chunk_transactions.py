"""What is done to chunks in several steps: keep one, give it another text, delete it with what folds it."""

# ruff: noqa: S608 - built from our own names; values are always parameters

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from datetime import datetime
from typing import Any, Final, NamedTuple

from app.conversation.messages import Chunk
from app.store.chunk_revisions import REVISED, replaces, revised, succeeding
from app.store.contract import HeadMoved
from app.store.sql.rows import CHUNK_COLUMNS, as_optional_json, chunk_of, chunk_values
from app.store.sql.statements import CHUNK_ROW
from app.store.sql.transactions import Dialect, Rows, Script

_COLUMNS: Final = ", ".join(CHUNK_COLUMNS)
_HERE: Final = "root = :root AND id = :id AND tenant = :tenant"
_SAME_RANGE: Final = """
    root = :root AND tenant = :tenant AND from_link = :from_link AND to_link = :to_link AND is_fold = :is_fold"""
_INSERT: Final = f"""
    INSERT INTO chunks ({", ".join(CHUNK_ROW)}) VALUES ({", ".join(f":{name}" for name in CHUNK_ROW)})
    ON CONFLICT (root, from_link, to_link, is_fold) DO NOTHING"""
_REPLACE: Final = f"""
    UPDATE chunks SET {", ".join(f"{name} = :{name}" for name in CHUNK_COLUMNS)}
    WHERE root = :root AND id = :old_id AND tenant = :tenant"""
_REVISE: Final = f"UPDATE chunks SET {', '.join(f'{name} = :{name}' for name in REVISED)} WHERE {_HERE}"
_SUPERSEDE: Final = f"""
    INSERT INTO chunk_revisions (root, chunk_id, tenant, {", ".join(REVISED)})
    SELECT root, id, tenant, {", ".join(REVISED)} FROM chunks WHERE {_HERE}"""
_OLDER: Final = f"""
    SELECT {", ".join(REVISED)} FROM chunk_revisions
    WHERE root = :root AND chunk_id = :id AND tenant = :tenant ORDER BY revision"""
_FORGET: Final = "DELETE FROM chunk_revisions WHERE root = :root AND chunk_id = :id AND tenant = :tenant"
_STRAY: Final = """
    NOT EXISTS (SELECT 1 FROM messages m WHERE m.root = k.root AND m.link = k.to_link)
    AND NOT EXISTS (SELECT 1 FROM conversations c WHERE c.root = k.root AND c.id = k.conversation_id)"""
"""A chunk of which the request that it was made for has stored nothing, nor has any other."""
_LOOKED_AT: Final = f"""
    SELECT k.root, k.id, k.tenant, k.created_at < :made_before AND {_STRAY} FROM chunks k
    WHERE (k.root, k.id) > (:after_root, :after_id) ORDER BY k.root, k.id LIMIT :limit"""
LOOKED_AT: Final = 500
"""Chunks that one look for strays goes over."""


class Place(NamedTuple):
    """Where a chunk is kept."""

    root: str
    id: str
    tenant: str


def add(dialect: Dialect, tenant: str, root: str, chunk: Chunk) -> Script[None]:
    """As `Store.add_chunk`; the fence was looked at before."""
    place = {"root": root, "tenant": tenant}
    values = dict(zip(CHUNK_COLUMNS, chunk_values(chunk, dialect.moment(chunk.created_at)), strict=True))
    known = yield dialect.say(
        f"SELECT {_COLUMNS} FROM chunks WHERE {_SAME_RANGE}{dialect.locking}",
        **place,
        from_link=chunk.from_link,
        to_link=chunk.to_link,
        is_fold=bool(chunk.folds),
    )
    if not known:
        yield dialect.say(_INSERT, **place, **values, is_fold=bool(chunk.folds))
        return
    old = chunk_of(known[0])
    if not replaces(chunk, old):
        return
    if old.id == chunk.id:
        yield dialect.say(_SUPERSEDE, **place, id=old.id)
    else:
        yield dialect.say(_FORGET, **place, id=old.id)
    values["revision"] = succeeding(old, chunk).revision
    yield dialect.say(_REPLACE, **place, **values, old_id=old.id)


def revise(dialect: Dialect, tenant: str, root: str, chunk: Chunk) -> Script[None]:
    """As `Store.revise`."""
    place = {"root": root, "tenant": tenant, "id": chunk.id}
    rows = yield dialect.say(f"SELECT revision FROM chunks WHERE {_HERE}{dialect.locking}", **place)
    if not rows or rows[0][0] != chunk.revision - 1:
        raise HeadMoved
    yield dialect.say(_SUPERSEDE, **place)
    yield dialect.say(_REVISE, **place, **_text_values(dialect, chunk))


def revisions(dialect: Dialect, tenant: str, root: str, chunk_id: str) -> Script[list[Chunk]]:
    """As `Store.revisions`."""
    place = {"root": root, "tenant": tenant, "id": chunk_id}
    rows = yield dialect.say(f"SELECT {_COLUMNS} FROM chunks WHERE {_HERE}", **place)
    if not rows:
        return []
    present = chunk_of(rows[0])
    older = yield dialect.say(_OLDER, **place)
    return [*(revised(present, _with_text(rows[0], old)) for old in older), present]


def delete(dialect: Dialect, tenant: str, root: str, chunk_id: str) -> Script[bool]:
    """As `Store.delete_chunk`."""
    place = {"root": root, "tenant": tenant}
    rows = yield dialect.say(f"SELECT id FROM chunks WHERE {_HERE}{dialect.locking}", **place, id=chunk_id)
    doomed = [row[0] for row in rows]
    while doomed:
        one = doomed.pop()
        yield from remove(dialect, tenant, root, one)
        folds = yield dialect.say(
            "SELECT id FROM chunks WHERE root = :root AND tenant = :tenant AND is_fold AND folds LIKE :naming",
            **place,
            naming=f'%"{one}"%',
        )
        doomed += [row[0] for row in folds]
    return bool(rows)


async def purge(
    dialect: Dialect,
    look: Callable[[str, tuple[Any, ...]], Awaitable[Rows]],
    delete_all: Callable[[Sequence[Place]], Awaitable[int]],
    made_before: datetime,
) -> int:
    """As `Store.purge_chunks`: looks at all chunks, some at a time, and deletes what strays among them.

    Args:
        look: runs a statement that only reads.
        delete_all: runs `delete_strays`.
    """
    found, after = 0, ("", "")
    while True:
        asked = dialect.say(
            _LOOKED_AT,
            made_before=dialect.moment(made_before),
            after_root=after[0],
            after_id=after[1],
            limit=LOOKED_AT,
        )
        rows = await look(*asked)
        if strays := [Place(root, id_, tenant) for root, id_, tenant, strays in rows if strays]:
            found += await delete_all(strays)
        if len(rows) < LOOKED_AT:
            return found
        after = rows[-1][0], rows[-1][1]


def delete_strays(dialect: Dialect, places: Sequence[Place]) -> Script[int]:
    """Delete those of some chunks that still stray; how many."""
    count = 0
    for root, chunk_id, tenant in places:
        strays = yield dialect.say(
            f"SELECT 1 FROM chunks k WHERE {_HERE} AND {_STRAY}", root=root, id=chunk_id, tenant=tenant
        )
        if strays:
            count += yield from delete(dialect, tenant, root, chunk_id)
    return count


def delete_strays_of(dialect: Dialect, tenant: str, root: str) -> Script[None]:
    """Delete whatever strays in a family."""
    strays = yield dialect.say(
        f"SELECT k.id FROM chunks k WHERE k.root = :root AND k.tenant = :tenant AND {_STRAY}", root=root, tenant=tenant
    )
    for (chunk_id,) in strays:
        yield from delete(dialect, tenant, root, chunk_id)


def remove(dialect: Dialect, tenant: str, root: str, chunk_id: str) -> Script[None]:
    """Delete one chunk and its revisions."""
    yield dialect.say(f"DELETE FROM chunks WHERE {_HERE}", root=root, tenant=tenant, id=chunk_id)
    yield dialect.say(_FORGET, root=root, tenant=tenant, id=chunk_id)


def rewrite(dialect: Dialect, tenant: str, root: str, chunks: Sequence[Chunk]) -> Script[None]:
    """Replace the texts of revisions."""
    for chunk in chunks:
        place = {"root": root, "tenant": tenant, "id": chunk.id, "revision": chunk.revision, "text": chunk.text}
        yield dialect.say(f"UPDATE chunks SET text = :text WHERE {_HERE} AND revision = :revision", **place)
        yield dialect.say(
            """
            UPDATE chunk_revisions SET text = :text
            WHERE root = :root AND chunk_id = :id AND tenant = :tenant AND revision = :revision""",
            **place,
        )


def _text_values(dialect: Dialect, chunk: Chunk) -> dict[str, Any]:
    values = {name: getattr(chunk, name) for name in REVISED}
    return values | {"created_at": dialect.moment(chunk.created_at), "usage": as_optional_json(chunk.usage)}


def _with_text(row: Sequence[Any], text: Sequence[Any]) -> Chunk:
    """A chunk from its row, with the `REVISED` columns of another text."""
    values = dict(zip(CHUNK_COLUMNS, row, strict=True)) | dict(zip(REVISED, text, strict=True))
    return chunk_of([values[name] for name in CHUNK_COLUMNS])
