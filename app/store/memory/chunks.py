"""Chunks in a dict, with the texts that they had before."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

from msgspec.structs import replace

from app.conversation.messages import Chunk
from app.store.chunk_revisions import replaces, revised, succeeding
from app.store.contract import HeadMoved

Place = tuple[str, str]
"""Root and conversation id."""
_Range = tuple[bytes, bytes, bool]
"""The links at both ends, and whether it is a fold."""


class MemoryChunks:
    """The part of `Store` that keeps chunks by their range, each tenant's apart."""

    def __init__(self) -> None:
        self._chunks: dict[Place, dict[_Range, Chunk]] = defaultdict(dict)
        """By tenant and root."""
        self._revisions: dict[tuple[str, str, str], list[Chunk]] = defaultdict(list)
        """Superseded texts, oldest first, by tenant, root and chunk id."""

    def _chunks_of(self, tenant: str, root: str) -> list[Chunk]:
        return list(self._chunks.get((tenant, root), {}).values())

    def _all_chunks(self, root: str) -> list[tuple[str, Chunk]]:
        """Chunks with their tenants."""
        return [
            (place[0], chunk) for place, held in self._chunks.items() if place[1] == root for chunk in held.values()
        ]

    def _chunk(self, tenant: str, root: str, chunk_id: str) -> Chunk | None:
        return next((chunk for chunk in self._chunks_of(tenant, root) if chunk.id == chunk_id), None)

    def _put_chunk(self, tenant: str, root: str, chunk: Chunk) -> None:
        self._chunks[tenant, root][_range_of(chunk)] = chunk

    def _drop_chunk(self, tenant: str, root: str, chunk: Chunk) -> None:
        del self._chunks[tenant, root][_range_of(chunk)]
        self._revisions.pop((tenant, root, chunk.id), None)

    def _add_chunk(self, tenant: str, root: str, chunk: Chunk) -> None:
        known = self._chunks[tenant, root].get(_range_of(chunk))
        if known is None:
            self._put_chunk(tenant, root, chunk)
        elif replaces(chunk, known):
            if known.id == chunk.id:
                self._revisions[tenant, root, known.id].append(known)
            else:
                self._drop_chunk(tenant, root, known)
            self._put_chunk(tenant, root, succeeding(known, chunk))

    async def revise(self, *, tenant: str, root: str, chunk: Chunk) -> None:
        known = self._chunk(tenant, root, chunk.id)
        if known is None or known.revision != chunk.revision - 1:
            raise HeadMoved
        self._revisions[tenant, root, chunk.id].append(known)
        self._put_chunk(tenant, root, revised(known, chunk))

    async def revisions(self, *, tenant: str, root: str, chunk_id: str) -> list[Chunk]:
        known = self._chunk(tenant, root, chunk_id)
        if known is None:
            return []
        return [*(revised(known, old) for old in self._revisions.get((tenant, root, chunk_id), ())), known]

    async def delete_chunk(self, *, tenant: str, root: str, chunk_id: str) -> bool:
        doomed = self._chunk(tenant, root, chunk_id)
        if doomed is None:
            return False
        self._drop_chunk(tenant, root, doomed)
        for fold in self._chunks_of(tenant, root):
            if chunk_id in fold.folds:
                await self.delete_chunk(tenant=tenant, root=root, chunk_id=fold.id)
        return True

    def _rewrite_chunks(self, tenant: str, root: str, chunks: Sequence[Chunk]) -> None:
        for chunk in chunks:
            known = self._chunk(tenant, root, chunk.id)
            if known is not None and known.revision == chunk.revision:
                self._put_chunk(tenant, root, replace(known, text=chunk.text))
            older = self._revisions.get((tenant, root, chunk.id), [])
            older[:] = [replace(old, text=chunk.text) if old.revision == chunk.revision else old for old in older]


def _range_of(chunk: Chunk) -> _Range:
    return chunk.from_link, chunk.to_link, bool(chunk.folds)
