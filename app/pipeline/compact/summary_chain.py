"""The summaries that stand for a log, remembered from turn to turn: a long log has thousands, of which a view shows a
few.

A turn looks again at those that are not folded, at their fold, and for what begins behind them. What a fold stands for
is there as long as the fold is (`Store.delete_chunk`), so it is remembered as it was read; a view that shows any of it
again asks for all to be read `anew`, and what is folded is looked at from then on.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import dataclass
from typing import Final

import msgspec
from msgspec.structs import replace

from app.context.plan.summary_chain import active_chain, find_omitted
from app.context.view.client_versions import ClientVersions
from app.conversation.messages import Chunk, Conversation
from app.pipeline.resolve.resolved_request import Recollection, has_versions
from app.store.contract import Store

MOST_WATCHED: Final = 64
"""Where more than so many are looked at in each turn, all are read instead."""
REMEMBERED_CHARS: Final = 16 * 1024 * 1024
"""What the summaries of all remembered conversations may take, each with `CHUNK_CHARS` for what is not its text."""
CHUNK_CHARS: Final = 1_000
MOST_STEPS: Final = 8
"""So many summaries, one behind the other, may have come since the last look; more are read with all others."""


class Chain(msgspec.Struct, frozen=True):
    """The chunks that stand for a log, and their folds (`context.plan.summary_chain`)."""

    chunks: tuple[Chunk, ...] = ()
    folds: tuple[Chunk, ...] = ()
    read: frozenset[str] | None = None
    """Ids of those that are as they are stored now; None where all are."""

    def has_read(self, shown: Iterable[Chunk]) -> bool:
        """Whether what a view shows is as it is stored now."""
        return self.read is None or all(chunk.id in self.read for chunk in shown)


NO_CHAIN: Final = Chain()


@dataclass(frozen=True, slots=True)
class _Known:
    """What is remembered of a conversation."""

    stored: Sequence[Chunk]
    chain: Chain
    ends: Mapping[bytes, int]
    """Where what is looked at again ends: link and `to_seq`."""
    watched: Sequence[Chunk]
    """All that ends there."""
    unfolds: bool
    """Whether what is folded is looked at, too."""
    chars: int


class Chains:
    """Reads the chunks of conversations. One for each process."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._known: OrderedDict[str, _Known] = OrderedDict()
        self._chars = 0

    async def of(
        self,
        place: Recollection,
        *,
        replacing: bool,
        made: Sequence[Chunk] = (),
        omitted: Set[int] = frozenset(),
        anew: bool = False,
    ) -> Chain:
        """The chain of a conversation.

        Args:
            replacing: as of `active_chain`.
            made: chunks made for this request, whether or not the store could keep them.
            omitted: as of `active_chain`; where there are any, all chunks are read.
            anew: read all there are.

        Raises:
            StoreUnavailable: they cannot be read.
        """
        if place.is_fresh:
            return chain_of(await self._among_the_new(place), replacing=replacing, made=made)
        conversation = place.conversation
        if replacing or omitted:
            return chain_of(await self._all(conversation), replacing=replacing, made=made, omitted=omitted)
        known = None if anew else await self._looked_at_again(conversation)
        if known is not None:
            stored, chain = known.stored, known.chain
        else:
            stored = await self._all(conversation)
            known = _known_of(stored, unfolds=anew)
            chain = replace(known.chain, read=None)
        self._remember(conversation.id, known)
        if not made:
            return chain
        read = None if chain.read is None else chain.read.union(chunk.id for chunk in made)
        return replace(chain_of(stored, made=made), read=read)

    async def _among_the_new(self, place: Recollection) -> list[Chunk]:
        """Chunks that end at a message of a log that is not stored yet."""
        conversation = place.conversation
        first_seq = conversation.head_seq + 1
        chunks = await self._store.chunks(
            tenant=conversation.tenant, root=conversation.root, links=[entry.link for entry in place.new]
        )

        def is_in_place(chunk: Chunk) -> bool:
            index = chunk.to_seq - 1 - first_seq
            return 0 <= index < len(place.new) and place.new[index].link == chunk.to_link

        # Logs that differ in system messages share links; a chunk counts in its own log only.
        return [chunk for chunk in chunks if is_in_place(chunk)]

    async def _all(self, conversation: Conversation) -> list[Chunk]:
        return await self._store.chunks(tenant=conversation.tenant, root=conversation.root, path=conversation.path)

    async def _looked_at_again(self, conversation: Conversation) -> _Known | None:
        """What is remembered, with what has come since; None where nothing is, or any of it is not what it was."""
        known = self._known.get(conversation.id)
        for _ in range(MOST_STEPS):
            if known is None or len(known.ends) > MOST_WATCHED:
                return None
            end = known.chain.chunks[-1]
            found = await self._store.chunks(
                tenant=conversation.tenant,
                root=conversation.root,
                path=conversation.path,
                links=list(known.ends),
                after=end.to_link,
            )
            # Logs that differ in system messages share links.
            found = [one for one in found if one.to_seq > end.to_seq or known.ends.get(one.to_link) == one.to_seq]
            if found == known.watched:
                return known
            by_id = {chunk.id: chunk for chunk in found}
            if any(by_id.pop(chunk.id, None) != chunk for chunk in known.watched):
                return None
            known = _known_of([*known.stored, *by_id.values()], unfolds=known.unfolds)
        return None

    def _remember(self, conversation_id: str, known: _Known) -> None:
        before = self._known.pop(conversation_id, None)
        if before is not None:
            self._chars -= before.chars
        # Where all are looked at again, nothing would be gained.
        gains = len(known.watched) < len(known.stored)
        if known.chain.chunks and gains and len(known.ends) <= MOST_WATCHED:
            self._known[conversation_id] = known
            self._chars += known.chars
        while self._chars > REMEMBERED_CHARS:
            _, oldest = self._known.popitem(last=False)
            self._chars -= oldest.chars


async def read_omitted(store: Store, conversation: Conversation) -> Set[int]:
    """Seqs of the messages that the client of a conversation leaves out.

    Raises:
        StoreUnavailable: the client's versions cannot be read.
    """
    if not has_versions(conversation):
        return frozenset()
    return find_omitted(ClientVersions.from_stored(await store.versions(conversation), conversation.redacted))


def chain_of(
    stored: Sequence[Chunk] = (),
    *,
    made: Sequence[Chunk] = (),
    replacing: bool = False,
    omitted: Set[int] = frozenset(),
) -> Chain:
    """The chain that all of these make up, none of them remembered."""
    known = {chunk.id for chunk in stored}
    made = [chunk for chunk in made if chunk.id not in known]
    return Chain(*active_chain([*stored, *made], replacing=replacing, omitted=omitted))


def _known_of(stored: Sequence[Chunk], *, unfolds: bool) -> _Known:
    chunks, folds = active_chain(stored)
    unfolds = unfolds and len(chunks) <= MOST_WATCHED
    fold = folds[-1] if folds and not unfolds else None
    looked_at = [chunk for chunk in chunks if fold is None or chunk.from_seq >= fold.to_seq]
    ends = {chunk.to_link: chunk.to_seq for chunk in ([fold] if fold else []) + looked_at}
    watched = [chunk for chunk in stored if ends.get(chunk.to_link) == chunk.to_seq]
    watched.sort(key=lambda chunk: (chunk.to_seq, chunk.created_at, chunk.id))
    return _Known(
        stored=stored,
        chain=Chain(chunks, folds, frozenset(chunk.id for chunk in watched)),
        ends=ends,
        watched=watched,
        unfolds=unfolds,
        chars=sum(CHUNK_CHARS + len(chunk.text) for chunk in stored),
    )
