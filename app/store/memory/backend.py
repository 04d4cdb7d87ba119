"""Conversations in a dict: for tests and for throw-away use. The same contract, nothing survives the process."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import Any

from msgspec.structs import replace

from app.conversation.identity import root_of_conversation
from app.conversation.messages import Anchor, Chunk, ClientVersion, Conversation, LogMessage
from app.conversation.search_terms import terms_of_message
from app.store.contract import (
    MAX_ANCHORS,
    MAX_MATCHES,
    NEAR_LINKS,
    RANGE_LEASES,
    Append,
    Found,
    FoundAnywhere,
    HeadMoved,
    Lease,
    ListQuery,
    Match,
    StoreInfo,
)
from app.store.lineage import deepest_first, erasure, expected_count, own_from, placed, run_of, stretches
from app.store.memory.chunks import MemoryChunks, Place
from app.store.memory.side_tables import MemoryDesk, MemoryLeases
from app.store.search.index_terms import bounded, found_in, score, told
from app.store.shared_redaction import (
    REDACTED,
    Change,
    beginning_at,
    covers,
    kept_versions,
    marked,
    sharing,
    shift_of,
    shifts,
    total,
)

_Index = defaultdict[tuple[str, bytes], dict[tuple[str, int], None]]
"""(root, link) → where it is kept: (conversation id, seq), oldest first."""


class MemoryStore(MemoryChunks, MemoryDesk, MemoryLeases):
    """`Store` in this process's memory."""

    searches_all = True

    def __init__(self, *, clock: Callable[[], datetime]) -> None:
        MemoryDesk.__init__(self, clock=clock)
        MemoryChunks.__init__(self)
        MemoryLeases.__init__(self, clock=clock)
        self._conversations: dict[Place, Conversation] = {}
        self._messages: dict[Place, dict[int, LogMessage]] = defaultdict(dict)
        self._by_link: _Index = defaultdict(dict)
        self._by_skeleton: _Index = defaultdict(dict)
        self._terms: dict[Place, dict[int, frozenset[str]]] = defaultdict(dict)
        self._external_ids: dict[tuple[str, str], Place] = {}
        self._versions: dict[Place, list[ClientVersion]] = defaultdict(list)
        self._anchors: dict[bytes, dict[Anchor, None]] = defaultdict(dict)

    async def open(self) -> None:
        """Nothing to connect to."""

    async def close(self) -> None:
        """Nothing to disconnect."""

    async def scrub(self) -> None:
        """Nothing is left behind."""

    async def check(self) -> StoreInfo:
        return StoreInfo("memory", "memory", {"conversations": len(self._conversations)})

    async def find(
        self,
        *,
        tenant: str,
        root: str,
        links: Sequence[bytes],
        skeletons: Sequence[bytes],
        within: str | None = None,
    ) -> list[Match]:
        near = self._near(tenant, root, links)
        named = self._conversations.get((root, within or ""))
        path = dict(named.path) if named is not None and named.tenant == tenant else {}
        if near and (within is None or any(_is_on(path, match) for match in near)):
            return near
        by_link = self._matches(tenant, root, deepest_first(links), path, by_skeleton=False)
        return by_link + self._matches(tenant, root, deepest_first(skeletons), path, by_skeleton=True)

    def _near(self, tenant: str, root: str, links: Sequence[bytes]) -> list[Match]:
        for link in deepest_first(links[-NEAR_LINKS:]):
            found = self._matches(tenant, root, [link], {}, by_skeleton=False)
            if found:
                return found
        return []

    def _matches(
        self, tenant: str, root: str, links: Sequence[bytes], path: Mapping[str, int], *, by_skeleton: bool
    ) -> list[Match]:
        index = self._by_skeleton if by_skeleton else self._by_link
        found: list[Match] = []
        for link in links:
            keepers = [self._match(root, place, by_skeleton) for place in index.get((root, link), ())]
            counting = [
                match
                for match in keepers
                if match.conversation.tenant == tenant and (match.message.answered or _is_on(path, match))
            ]
            found += sorted(counting, key=_preference, reverse=True)
            if len(found) >= MAX_MATCHES:
                break
        return found[:MAX_MATCHES]

    def _match(self, root: str, place: tuple[str, int], by_skeleton: bool) -> Match:
        conversation_id, seq = place
        here = (root, conversation_id)
        return Match(self._conversations[here], self._messages[here][seq], by_skeleton)

    async def get(self, *, tenant: str, conversation_id: str) -> Conversation | None:
        root = root_of_conversation(conversation_id)
        if root is not None:
            found = self._conversations.get((root, conversation_id))
            return found if found is not None and found.tenant == tenant else None
        place = self._external_ids.get((tenant, conversation_id))
        return None if place is None else replace(self._conversations[place], external_id=conversation_id)

    async def look_up(self, conversation_id: str) -> Conversation | None:
        return self._conversations.get((root_of_conversation(conversation_id) or "", conversation_id))

    async def point(self, *, tenant: str, external_id: str, conversation: Conversation) -> None:
        previous = self._external_ids.get((tenant, external_id))
        if previous is not None:
            self._conversations[previous] = replace(self._conversations[previous], external_id=None)
        here = (conversation.root, conversation.id)
        self._external_ids[tenant, external_id] = here
        self._conversations[here] = replace(self._conversations[here], external_id=external_id)

    async def read(self, conversation: Conversation, from_seq: int, to_seq: int) -> list[LogMessage]:
        return self._read(conversation, from_seq, to_seq)

    async def read_ranges(self, conversation: Conversation, ranges: Sequence[tuple[int, int]]) -> list[LogMessage]:
        return [entry for from_seq, to_seq in ranges for entry in self._read(conversation, from_seq, to_seq)]

    def _read(self, conversation: Conversation, from_seq: int, to_seq: int) -> list[LogMessage]:
        current = self._conversations.get((conversation.root, conversation.id), conversation)
        end = min(to_seq, conversation.head_seq + 1)
        return [
            self._messages[conversation.root, stretch.conversation_id][seq]
            for stretch in stretches(current.path, max(from_seq, 0), end)
            for seq in range(stretch.from_seq, stretch.to_seq)
            if seq in self._messages.get((conversation.root, stretch.conversation_id), ())
        ]

    async def versions(self, conversation: Conversation, *, until_seq: int | None = None) -> list[ClientVersion]:
        until = conversation.head_seq if until_seq is None else until_seq
        return [
            version
            for conversation_id, upto_seq in conversation.path
            for version in self._versions.get((conversation.root, conversation_id), ())
            if version.since_seq <= min(upto_seq, until)
        ]

    async def keep_anchors(self, anchors: Sequence[Anchor]) -> None:
        for anchor in anchors:
            self._anchors[anchor.digest].setdefault(anchor)

    async def find_anchors(self, digests: Sequence[bytes]) -> list[Anchor]:
        return [anchor for digest in digests for anchor in list(reversed(self._anchors.get(digest, {})))[:MAX_ANCHORS]]

    async def index(self, conversation: Conversation, entries: Sequence[LogMessage]) -> None:
        reader = self._kept(conversation)
        gone = set() if reader is None else set(reader.marks.get(REDACTED, ()))
        stored = set()
        for place, entry in placed(conversation.path, entries):
            here = (conversation.root, place)
            kept = self._messages.get(here, {}).get(entry.seq)
            if kept is None or kept.link != entry.link or self._conversations[here].tenant != conversation.tenant:
                continue
            stored.add(entry.seq)
            if entry.seq not in gone:
                self._terms[here][entry.seq] = frozenset(terms_of_message(entry.message))
        start, end = run_of(entries)
        if reader is not None and start <= reader.indexed_before < end and stored.issuperset(range(start, end)):
            self._conversations[reader.root, reader.id] = replace(reader, indexed_before=end)

    async def forget_index(self) -> None:
        self._terms.clear()
        for place, conversation in self._conversations.items():
            self._conversations[place] = replace(conversation, indexed_before=0)

    def _kept(self, conversation: Conversation) -> Conversation | None:
        """The conversation as it is stored."""
        kept = self._conversations.get((conversation.root, conversation.id))
        return kept if kept is not None and kept.tenant == conversation.tenant else None

    async def search(
        self, conversation: Conversation, *, terms: Sequence[str], from_seq: int, before_seq: int, limit: int
    ) -> list[Found]:
        asked, root = frozenset(terms), conversation.root
        log = {entry.seq: entry for entry in self._read(conversation, from_seq, before_seq)}
        parts = stretches(conversation.path, max(from_seq, 0), before_seq)
        holding = {
            seq: asked & self._terms.get((root, stretch.conversation_id), {}).get(seq, frozenset())
            for stretch in parts
            for seq in range(stretch.from_seq, stretch.to_seq)
            if seq in log
        }
        shown, matching = bounded(holding, [(part.from_seq, part.to_seq) for part in parts])
        count = expected_count(conversation, from_seq, before_seq)
        return found_in(log, shown, messages=count, limit=limit, matching=matching)

    async def search_all(self, *, tenant: str, terms: Sequence[str], limit: int) -> list[FoundAnywhere]:
        held = {
            place: frozenset[str]().union(*words.values())
            for place, words in self._terms.items()
            if self._conversations[place].tenant == tenant and any(words.values())
        }
        asked = frozenset(terms)
        weights = told({place: asked & words for place, words in held.items()}, count=len(held))
        found = sorted(
            ((weight, self._conversations[place]) for place, weight in weights.items()),
            key=lambda entry: entry[1].id,
        )
        found.sort(key=lambda entry: (entry[0], entry[1].updated_at or self._clock()), reverse=True)
        best = []
        for weight, conversation in found[:limit]:
            start, end = own_from(conversation), conversation.head_seq + 1
            hits = await self.search(conversation, terms=terms, from_seq=start, before_seq=end, limit=1)
            best += [FoundAnywhere(conversation, hit.message, score(weight)) for hit in hits if hit.score is not None]
        return best

    async def conversations(self, *, tenant: str | None, query: ListQuery) -> list[Conversation]:
        found = [
            conversation
            for conversation in self._conversations.values()
            if tenant in (None, conversation.tenant) and _is_wanted(conversation, query)
        ]
        found.sort(key=_creation, reverse=query.descending)
        return found[: query.limit]

    async def describe(self, *, tenant: str, conversation_id: str, metadata: Mapping[str, str]) -> Conversation | None:
        found = await self.get(tenant=tenant, conversation_id=conversation_id)
        if found is None:
            return None
        here = (found.root, found.id)
        self._conversations[here] = replace(self._conversations[here], metadata=metadata)
        return replace(found, metadata=metadata)

    async def mark(self, conversation: Conversation, marks: Mapping[str, Any]) -> None:
        stored = self._kept(conversation)
        if stored is None or stored.marks != conversation.marks:
            raise HeadMoved
        self._conversations[stored.root, stored.id] = replace(stored, marks=marks)

    async def redact(self, conversation: Conversation, entries: Sequence[LogMessage]) -> list[Chunk]:
        stored = self._kept(conversation)
        if stored is None:
            raise HeadMoved
        root, places = stored.root, placed(stored.path, entries)
        changes = []
        for place, entry in places:
            before = self._messages.get((root, place), {}).get(entry.seq)
            if before is None or before.link != entry.link:
                raise HeadMoved
            changes.append(Change(place, entry.seq, entry.tokens - before.tokens))
        if len(places) != len(entries):
            raise HeadMoved
        for place, entry in places:
            here = (root, place)
            before = self._messages[here][entry.seq]
            self._messages[here][entry.seq] = replace(
                before, message=entry.message, tokens=entry.tokens, meta=entry.meta
            )
            self._terms.get(here, {}).pop(entry.seq, None)
        self._drop_leases(root, RANGE_LEASES)
        return self._move_totals(stored.tenant, root, changes)

    def _move_totals(self, tenant: str, root: str, changes: Sequence[Change]) -> list[Chunk]:
        """What changed messages change elsewhere; the chunks that had to go."""
        shared = sharing(changes, self._family(root))
        for member, theirs in shared.items():
            here = (root, member)
            for from_seq, delta in shifts(member, theirs):
                for seq, message in self._messages.get(here, {}).items():
                    if seq >= from_seq:
                        self._messages[here][seq] = replace(message, tokens_total=message.tokens_total + delta)
            before = self._conversations[here]
            self._conversations[here] = replace(
                before,
                head_tokens_total=before.head_tokens_total + total(theirs),
                marks=marked(before.marks, theirs),
            )
            for change in theirs:
                self._versions[here] = [
                    one for one in self._versions.get(here, ()) if not one.seq <= change.seq < one.to_seq
                ]
                self._drop_anchors(here, change.seq.__eq__)
        gone = []
        for chunk in self._chunks_of(tenant, root):
            readers = [chunk.conversation_id, *self._keepers(root, chunk.to_link, chunk.to_seq - 1)]
            if covers(chunk, readers, shared):
                self._drop_chunk(tenant, root, chunk)
                gone.append(chunk)
            elif shift_of(chunk, readers, shared):
                shift = shift_of(chunk, readers, shared)
                self._put_chunk(tenant, root, replace(chunk, tokens_total=chunk.tokens_total + shift))
        return sorted(gone, key=lambda chunk: (chunk.to_seq, chunk.created_at, chunk.id))

    def _family(self, root: str) -> dict[str, tuple[tuple[str, int], ...]]:
        return {place[1]: member.lineage for place, member in self._conversations.items() if place[0] == root}

    def _keepers(self, root: str, link: bytes, at_seq: int) -> list[str]:
        """Who keeps a message."""
        return [place for place, seq in self._by_link.get((root, link), ()) if seq == at_seq]

    def _drop_anchors(self, here: Place, is_gone: Callable[[int], bool], heir: str | None = None) -> None:
        """Forget the anchors of a conversation at places that are gone; the others pass to an heir."""
        for anchors in self._anchors.values():
            for anchor in [one for one in anchors if (one.root, one.conversation_id) == here]:
                if is_gone(anchor.seq) or heir is not None:
                    del anchors[anchor]
                if not is_gone(anchor.seq) and heir is not None:
                    anchors[replace(anchor, conversation_id=heir)] = None

    async def rewrite(
        self,
        conversation: Conversation,
        *,
        entries: Sequence[LogMessage] = (),
        chunks: Sequence[Chunk] = (),
        versions: Sequence[ClientVersion] = (),
    ) -> None:
        stored = self._kept(conversation)
        if stored is None:
            return
        root, here = stored.root, (stored.root, stored.id)
        redacted = set(stored.marks.get(REDACTED, ())) - set(conversation.marks.get(REDACTED, ()))
        for entry in entries:
            kept = self._messages.get(here, {}).get(entry.seq)
            if (
                kept is not None
                and (kept.link, kept.tokens) == (entry.link, entry.tokens)
                and entry.seq not in redacted
            ):
                self._messages[here][entry.seq] = replace(kept, message=entry.message, meta=entry.meta)
        fresh = {(version.since_seq, version.seq, version.to_seq): version for version in versions}
        self._versions[here] = [
            fresh.get((version.since_seq, version.seq, version.to_seq), version) for version in self._versions[here]
        ]
        self._rewrite_chunks(stored.tenant, root, chunks)
        if (stored.head_seq, stored.head_link) == (conversation.head_seq, conversation.head_link):
            self._conversations[here] = replace(stored, state=conversation.state)

    async def append(self, write: Append) -> None:
        now = self._clock()
        if write.fence is not None:
            self._require(write.fence, now)
        after = write.conversation
        here = (after.root, after.id)
        if write.creates:
            self._create(after, now)
        else:
            stored = self._conversations.get(here)
            if stored is None or stored.tenant != after.tenant or stored.head_seq != write.after_seq:
                raise HeadMoved
            write = beginning_at(write, stored)
            self._conversations[here] = _advanced(stored, write, now)
        self._versions[here] += kept_versions(write, self._conversations[here])
        for message in write.messages:
            self._keep(here, message if message.created_at is not None else replace(message, created_at=now))
        if write.releases and write.fence is not None:
            await self.release_lease(write.fence)

    def _create(self, new: Conversation, now: datetime) -> None:
        here = (new.root, new.id)
        if here in self._conversations:
            raise HeadMoved
        if new.lineage:
            ancestors = [self._conversations.get((new.root, ancestor)) for ancestor, _ in new.lineage]
            if any(ancestor is None or ancestor.tenant != new.tenant for ancestor in ancestors):
                raise HeadMoved
            if ancestors[-1] is not None and ancestors[-1].head_seq < new.lineage[-1][1]:
                raise HeadMoved
        elif new.external_id is not None:
            if (new.tenant, new.external_id) in self._external_ids:
                raise HeadMoved
            self._external_ids[new.tenant, new.external_id] = here
        self._conversations[here] = replace(new, created_at=new.created_at or now, updated_at=now)

    def _keep(self, here: Place, message: LogMessage) -> None:
        root, conversation_id = here
        self._messages[here][message.seq] = message
        self._by_link[root, message.link][conversation_id, message.seq] = None
        if message.in_skeleton:
            self._by_skeleton[root, message.skeleton][conversation_id, message.seq] = None

    def _forget(self, here: Place, message: LogMessage) -> None:
        root, conversation_id = here
        del self._messages[here][message.seq]
        del self._by_link[root, message.link][conversation_id, message.seq]
        if message.in_skeleton:
            del self._by_skeleton[root, message.skeleton][conversation_id, message.seq]

    async def delete(self, *, tenant: str, conversation_id: str) -> bool:
        doomed = await self.get(tenant=tenant, conversation_id=conversation_id)
        if doomed is None:
            return False
        root, here = doomed.root, (doomed.root, doomed.id)
        plan = erasure(doomed.id, self._family(root))
        terms = self._terms.pop(here, {})
        if plan.heir is not None:
            kept = {seq: words for seq, words in terms.items() if seq <= plan.kept_through}
            self._terms[root, plan.heir].update(kept)
        for message in list(self._messages.pop(here, {}).values()):
            self._messages[here][message.seq] = message
            self._forget(here, message)
            if plan.heir is not None and message.seq <= plan.kept_through:
                self._keep((root, plan.heir), message)
        self._messages.pop(here, None)
        versions = self._versions.pop(here, [])
        if plan.heir is not None:
            self._versions[root, plan.heir][:0] = [one for one in versions if one.since_seq <= plan.kept_through]
        self._drop_anchors(here, lambda seq: seq < 0 or seq > plan.kept_through, plan.heir)
        for member, lineage in plan.lineages.items():
            self._conversations[root, member] = replace(self._conversations[root, member], lineage=lineage)
        del self._conversations[here]
        self._external_ids = {name: place for name, place in self._external_ids.items() if place != here}
        self._drop_leases(root, doomed.id)
        await self._settle_chunks(root, doomed.id)
        self._settle_completions(root, doomed.id, plan)
        return True

    async def _settle_chunks(self, root: str, erased: str) -> None:
        """Chunks made in an erased conversation pass to who keeps the message they end at. Without one they stray, and
        go with all others of the family that do."""
        for tenant, chunk in self._all_chunks(root):
            keepers = [conversation_id for conversation_id, _ in self._by_link.get((root, chunk.to_link), ())]
            if chunk.conversation_id == erased and keepers:
                self._put_chunk(tenant, root, replace(chunk, conversation_id=min(keepers)))
        for tenant, chunk in self._all_chunks(root):
            if self._strays(root, chunk):
                await self.delete_chunk(tenant=tenant, root=root, chunk_id=chunk.id)

    async def purge_chunks(self, *, made_before: datetime) -> int:
        strays = [
            (tenant, root, chunk.id)
            for (tenant, root), chunks in self._chunks.items()
            for chunk in chunks.values()
            if chunk.created_at < made_before and self._strays(root, chunk)
        ]
        for tenant, root, chunk_id in strays:
            await self.delete_chunk(tenant=tenant, root=root, chunk_id=chunk_id)
        return len(strays)

    def _strays(self, root: str, chunk: Chunk) -> bool:
        return (root, chunk.conversation_id) not in self._conversations and not self._by_link.get((root, chunk.to_link))

    async def chunks(
        self,
        *,
        tenant: str,
        root: str,
        path: Sequence[tuple[str, int]] = (),
        links: Sequence[bytes] = (),
        after: bytes | None = None,
        texts: bool = True,
    ) -> list[Chunk]:
        upto, wanted = dict(path), set(links)
        found = [
            chunk
            for chunk in self._chunks_of(tenant, root)
            if chunk.to_link in wanted
            or (
                after in (None, chunk.from_link)
                and any(
                    seq == chunk.to_seq - 1 <= upto.get(keeper, -1)
                    for keeper, seq in self._by_link.get((root, chunk.to_link), ())
                )
            )
        ]
        found.sort(key=lambda chunk: (chunk.to_seq, chunk.created_at, chunk.id))
        return found if texts else [replace(chunk, text="") for chunk in found]

    async def add_chunk(self, *, tenant: str, root: str, chunk: Chunk, fence: Lease) -> None:
        self._require(fence, self._clock())
        self._add_chunk(tenant, root, chunk)


def _is_on(path: Mapping[str, int], match: Match) -> bool:
    return match.message.seq <= path.get(match.conversation.id, -1)


def _preference(match: Match) -> tuple[bool, datetime | None, int]:
    """Heads first, then the most recently updated."""
    conversation, message = match.conversation, match.message
    return message.seq == conversation.head_seq, conversation.updated_at, message.seq


def _creation(conversation: Conversation) -> tuple[datetime | None, str]:
    return conversation.created_at, conversation.id


def _is_wanted(conversation: Conversation, query: ListQuery) -> bool:
    created_at, updated_at = conversation.created_at, conversation.updated_at
    assert created_at is not None
    assert updated_at is not None
    place, after = (created_at, conversation.id), query.after
    return (
        (after is None or (place < after if query.descending else place > after))
        and (query.created_after is None or created_at > query.created_after)
        and (query.created_before is None or created_at < query.created_before)
        and (query.updated_after is None or updated_at > query.updated_after)
        and (query.updated_before is None or updated_at < query.updated_before)
        and query.mode in (None, conversation.mode)
        and query.external_id in (None, conversation.external_id)
        and query.metadata.items() <= conversation.metadata.items()
        and (query.within is None or any(place == query.within for place, _ in conversation.path))
    )


def _advanced(stored: Conversation, write: Append, now: datetime) -> Conversation:
    after = write.conversation
    return replace(
        stored,
        head_seq=after.head_seq,
        head_link=after.head_link,
        head_skeleton=after.head_skeleton,
        head_tokens_total=after.head_tokens_total,
        answered=after.answered,
        mode=after.mode,
        chunk_count=after.chunk_count,
        state=after.state,
        updated_at=now,
    )
