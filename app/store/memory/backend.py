"""The store in memory, for tests and temporary use. It keeps the same contract, but nothing survives the process."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from functools import partial
from typing import Any

from msgspec.structs import replace

from app.conversation.conversation_types import ClientVersion, Conversation, LogMessage, StoredCompletion, Summary
from app.conversation.identity import extract_family_root
from app.conversation.search_terms import extract_message_terms
from app.store.contract.conversations import (
    LAST_LINKS,
    MAX_LINK_MATCHES,
    ConversationHit,
    ConversationQuery,
    LinkMatch,
    LogAppend,
    SearchHit,
    WriteConflict,
)
from app.store.contract.leases import SUMMARY_LEASE_PREFIXES, Lease
from app.store.contract.store import StoreInfo
from app.store.lineage import (
    FamilyMember,
    count_range_messages,
    find_gapless_leading_range,
    find_segments,
    first_own_seq,
    locate_messages,
    order_links_deepest_first,
    plan_erasure,
    plan_row_copies,
)
from app.store.memory.answers import MemoryAnswers
from app.store.memory.completions import MemoryCompletions
from app.store.memory.conversation_pages import creation_sort_key, matches_conversation_query
from app.store.memory.keys import MemoryKeys
from app.store.memory.leases import MemoryLeases
from app.store.memory.limits import MemoryLimits
from app.store.memory.summaries import ConversationKey, MemorySummaries
from app.store.redaction_effects import (
    REDACTED_KEY,
    MessageRedaction,
    adapt_append_to_redactions,
    compute_running_total_shifts,
    compute_summary_total_shift,
    covers_redacted_message,
    drop_redacted_versions,
    find_redactions_by_conversation,
    sum_token_deltas,
    update_marks_for_redactions,
)
from app.store.search.term_ranking import limit_common_terms, rank_search_hits, sum_term_weights, weights_to_score

_LinkIndex = defaultdict[tuple[str, bytes], dict[tuple[str, int], None]]
"""(root, link) → where messages with this link are: (conversation id, seq), oldest first."""


class MemoryStore(MemoryAnswers, MemoryCompletions, MemorySummaries, MemoryLeases, MemoryKeys, MemoryLimits):
    """`Store` in the memory of this process."""

    is_fully_searchable = True

    def __init__(self, *, clock: Callable[[], datetime]) -> None:
        MemoryAnswers.__init__(self)
        MemoryCompletions.__init__(self)
        MemorySummaries.__init__(self)
        MemoryLeases.__init__(self, clock=clock)
        MemoryKeys.__init__(self, clock=clock)
        MemoryLimits.__init__(self, clock=clock)
        self._messages: dict[ConversationKey, dict[int, LogMessage]] = defaultdict(dict)
        self._positions_by_link: _LinkIndex = defaultdict(dict)
        self._positions_by_skeleton: _LinkIndex = defaultdict(dict)
        self._terms: dict[ConversationKey, dict[int, frozenset[str]]] = defaultdict(dict)
        self._external_ids: dict[tuple[str, str], ConversationKey] = {}
        self._client_versions: dict[ConversationKey, list[ClientVersion]] = defaultdict(list)

    async def open(self) -> None:
        """Does nothing: there is no connection."""

    async def close(self) -> None:
        """Does nothing: there is no connection."""

    async def scrub_deleted_data(self) -> None:
        """Does nothing: deleted data leaves no remains."""

    async def check(self) -> StoreInfo:
        return StoreInfo("memory", "memory", {"conversations": len(self._conversations)})

    async def find_link_matches(
        self,
        *,
        tenant: str,
        root: str,
        links: Sequence[bytes],
        skeletons: Sequence[bytes],
        named_conversation_id: str | None = None,
        with_unanswered: bool = False,
    ) -> list[LinkMatch]:
        find_matches = partial(self._find_matches, tenant, root, with_unanswered=with_unanswered)
        last = order_links_deepest_first(links[-LAST_LINKS:])
        near = next((found for link in last if (found := find_matches([link], {}, by_skeleton=False))), [])
        named = self._conversations.get((root, named_conversation_id or ""))
        path = dict(named.lineage_with_self) if named is not None and named.tenant == tenant else {}
        if near and (named_conversation_id is None or any(_is_match_on_path(path, match) for match in near)):
            return near
        by_link = find_matches(order_links_deepest_first(links), path, by_skeleton=False)
        return by_link + find_matches(order_links_deepest_first(skeletons), path, by_skeleton=True)

    def _find_matches(
        self,
        tenant: str,
        root: str,
        links: Sequence[bytes],
        path: Mapping[str, int],
        *,
        by_skeleton: bool,
        with_unanswered: bool,
    ) -> list[LinkMatch]:
        index = self._positions_by_skeleton if by_skeleton else self._positions_by_link
        found: list[LinkMatch] = []
        for link in links:
            keepers = [self._build_match(root, key, by_skeleton) for key in index.get((root, link), ())]
            counting = [
                match
                for match in keepers
                if match.conversation.tenant == tenant
                and (with_unanswered or match.message.answered or _is_match_on_path(path, match))
            ]
            found += sorted(counting, key=_link_match_sort_key, reverse=True)
            if len(found) >= MAX_LINK_MATCHES:
                break
        return found[:MAX_LINK_MATCHES]

    def _build_match(self, root: str, position: tuple[str, int], by_skeleton: bool) -> LinkMatch:
        conversation_id, seq = position
        conversation_key = (root, conversation_id)
        return LinkMatch(self._conversations[conversation_key], self._messages[conversation_key][seq], by_skeleton)

    async def find_conversation(self, *, tenant: str, conversation_id: str) -> Conversation | None:
        root = extract_family_root(conversation_id)
        if root is not None:
            found = self._conversations.get((root, conversation_id))
            return found if found is not None and found.tenant == tenant else None
        key = self._external_ids.get((tenant, conversation_id))
        return None if key is None else replace(self._conversations[key], external_id=conversation_id)

    async def find_conversation_of_any_tenant(self, conversation_id: str) -> Conversation | None:
        return self._conversations.get((extract_family_root(conversation_id) or "", conversation_id))

    async def assign_external_id(self, *, tenant: str, external_id: str, conversation: Conversation) -> None:
        previous = self._external_ids.get((tenant, external_id))
        if previous is not None:
            self._conversations[previous] = replace(self._conversations[previous], external_id=None)
        conversation_key = (conversation.root, conversation.id)
        self._external_ids[tenant, external_id] = conversation_key
        self._conversations[conversation_key] = replace(self._conversations[conversation_key], external_id=external_id)

    async def read_log(self, conversation: Conversation, from_seq: int, to_seq: int) -> list[LogMessage]:
        return self._read_log_range(conversation, from_seq, to_seq)

    async def read_log_ranges(self, conversation: Conversation, ranges: Sequence[tuple[int, int]]) -> list[LogMessage]:
        return [entry for from_seq, to_seq in ranges for entry in self._read_log_range(conversation, from_seq, to_seq)]

    def _read_log_range(self, conversation: Conversation, from_seq: int, to_seq: int) -> list[LogMessage]:
        # The stored lineage: an ancestor may have been erased since the caller read the conversation.
        current = self._conversations.get((conversation.root, conversation.id), conversation)
        end = min(to_seq, conversation.head_seq + 1)
        return [
            self._messages[conversation.root, stretch.conversation_id][seq]
            for stretch in find_segments(current.lineage_with_self, max(from_seq, 0), end)
            for seq in range(stretch.from_seq, stretch.to_seq)
            if seq in self._messages.get((conversation.root, stretch.conversation_id), ())
        ]

    async def read_client_versions(
        self, conversation: Conversation, *, until_seq: int | None = None
    ) -> list[ClientVersion]:
        until = conversation.head_seq if until_seq is None else until_seq
        return [
            version
            for conversation_id, upto_seq in conversation.lineage_with_self
            for version in self._client_versions.get((conversation.root, conversation_id), ())
            if version.since_seq <= min(upto_seq, until)
        ]

    async def index_messages(self, conversation: Conversation, entries: Sequence[LogMessage]) -> None:
        reader = self._find_stored_conversation(conversation)
        gone = set() if reader is None else set(reader.marks.get(REDACTED_KEY, ()))
        stored = set()
        for owner_id, entry in locate_messages(conversation.lineage_with_self, entries):
            conversation_key = (conversation.root, owner_id)
            # Skips messages that are gone, that were replaced by others, or that belong to another tenant.
            stored_message = self._messages.get(conversation_key, {}).get(entry.seq)
            if (
                stored_message is None
                or stored_message.link != entry.link
                or self._conversations[conversation_key].tenant != conversation.tenant
            ):
                continue
            stored.add(entry.seq)
            if entry.seq not in gone:
                self._terms[conversation_key][entry.seq] = frozenset(extract_message_terms(entry.message))
        start, end = find_gapless_leading_range(entries)
        if reader is not None and start <= reader.indexed_before < end and stored.issuperset(range(start, end)):
            self._conversations[reader.root, reader.id] = replace(reader, indexed_before=end)

    async def clear_search_index(self) -> None:
        self._terms.clear()
        for key, conversation in self._conversations.items():
            self._conversations[key] = replace(conversation, indexed_before=0)

    def _find_stored_conversation(self, conversation: Conversation) -> Conversation | None:
        """Returns the conversation as it is stored, None if its tenant has none."""
        stored_message = self._conversations.get((conversation.root, conversation.id))
        return stored_message if stored_message is not None and stored_message.tenant == conversation.tenant else None

    async def search_log(
        self, conversation: Conversation, *, terms: Sequence[str], from_seq: int, before_seq: int, limit: int
    ) -> list[SearchHit]:
        query_terms, root = frozenset(terms), conversation.root
        log = {entry.seq: entry for entry in self._read_log_range(conversation, from_seq, before_seq)}
        parts = find_segments(conversation.lineage_with_self, max(from_seq, 0), before_seq)
        holding = {
            seq: query_terms & self._terms.get((root, stretch.conversation_id), {}).get(seq, frozenset())
            for stretch in parts
            for seq in range(stretch.from_seq, stretch.to_seq)
            if seq in log
        }
        shown, matching = limit_common_terms(holding, [(part.from_seq, part.to_seq) for part in parts])
        count = count_range_messages(conversation, from_seq, before_seq)
        return rank_search_hits(log, shown, message_count=count, limit=limit, matching_counts=matching)

    async def search_tenant(self, *, tenant: str, terms: Sequence[str], limit: int) -> list[ConversationHit]:
        terms_by_conversation = {
            conversation_key: frozenset[str]().union(*words.values())
            for conversation_key, words in self._terms.items()
            if self._conversations[conversation_key].tenant == tenant and any(words.values())
        }
        query_terms = frozenset(terms)
        weights = sum_term_weights(
            {conversation_key: query_terms & words for conversation_key, words in terms_by_conversation.items()},
            total_count=len(terms_by_conversation),
        )
        found = sorted(
            ((weight, self._conversations[conversation_key]) for conversation_key, weight in weights.items()),
            key=lambda entry: entry[1].id,
        )
        # The sort is stable: at equal weights and times the conversations stay in the order of their ids.
        found.sort(key=lambda entry: (entry[0], entry[1].updated_at or self._clock()), reverse=True)
        best = []
        for weight, conversation in found[:limit]:
            start, end = first_own_seq(conversation), conversation.head_seq + 1
            hits = await self.search_log(conversation, terms=terms, from_seq=start, before_seq=end, limit=1)
            best += [
                ConversationHit(conversation, hit.message, weights_to_score(weight))
                for hit in hits
                if hit.score is not None
            ]
        return best

    async def list_conversations(self, *, tenant: str | None, query: ConversationQuery) -> list[Conversation]:
        found = [
            conversation
            for conversation in self._conversations.values()
            if matches_conversation_query(conversation, tenant, query)
        ]
        found.sort(key=creation_sort_key, reverse=query.descending)
        return found[: query.limit]

    async def replace_metadata(
        self, *, tenant: str, conversation_id: str, metadata: Mapping[str, str]
    ) -> Conversation | None:
        found = await self.find_conversation(tenant=tenant, conversation_id=conversation_id)
        if found is None:
            return None
        conversation_key = (found.root, found.id)
        self._conversations[conversation_key] = replace(self._conversations[conversation_key], metadata=metadata)
        return replace(found, metadata=metadata)

    async def replace_marks(self, conversation: Conversation, marks: Mapping[str, Any]) -> None:
        stored = self._find_stored_conversation(conversation)
        if stored is None or stored.marks != conversation.marks:
            raise WriteConflict
        self._conversations[stored.root, stored.id] = replace(stored, marks=marks)

    async def redact_messages(self, conversation: Conversation, entries: Sequence[LogMessage]) -> list[Summary]:
        stored = self._find_stored_conversation(conversation)
        if stored is None:
            raise WriteConflict
        root, places = stored.root, locate_messages(stored.lineage_with_self, entries)
        # All messages are checked before the first is changed: a conflict must leave nothing half done.
        changes = []
        for owner_id, entry in places:
            before = self._messages.get((root, owner_id), {}).get(entry.seq)
            if before is None or before.link != entry.link:
                raise WriteConflict
            changes.append(MessageRedaction(owner_id, entry.seq, entry.tokens - before.tokens))
        if len(places) != len(entries):
            raise WriteConflict
        for entry in entries:
            self._copy_shared_rows(root, stored.id, entry.seq)
        places = locate_messages(self._conversations[root, stored.id].lineage_with_self, entries)
        changes = [replace(one, conversation_id=owner_id) for one, (owner_id, _) in zip(changes, places, strict=True)]
        for owner_id, entry in places:
            conversation_key = (root, owner_id)
            before = self._messages[conversation_key][entry.seq]
            self._messages[conversation_key][entry.seq] = replace(
                before, message=entry.message, tokens=entry.tokens, meta=entry.meta
            )
            self._terms.get(conversation_key, {}).pop(entry.seq, None)
        self._drop_leases(root, SUMMARY_LEASE_PREFIXES)
        return self._apply_redactions(stored.tenant, root, changes)

    def _copy_shared_rows(self, root: str, redacting_id: str, seq: int) -> None:
        """Gives the conversations that merely share a message that is redacted rows of their own."""
        path = self._conversations[root, redacting_id].lineage_with_self
        owner_id = next(owner_id for owner_id, upto_seq in path if seq <= upto_seq)
        copies = plan_row_copies(redacting_id, owner_id, seq, self._list_family_members(root))
        for copier, copied_path in copies.copies:
            for one in find_segments(copied_path, 0, copied_path[-1][1] + 1):
                source, words = self._messages[root, one.conversation_id], self._terms[root, one.conversation_id]
                for copied_seq in range(one.from_seq, one.to_seq):
                    self._insert_message((root, copier), source[copied_seq])
                    if copied_seq in words:
                        self._terms[root, copier][copied_seq] = words[copied_seq]
        self._replace_family_members(root, copies.changed)

    def _apply_redactions(self, tenant: str, root: str, changes: Sequence[MessageRedaction]) -> list[Summary]:
        """Applies redactions to totals, marks, client versions, anchors and summaries of the family. Returns the
        deleted summaries.
        """
        shared = find_redactions_by_conversation(changes, self._read_lineages(root))
        for member, member_redactions in shared.items():
            conversation_key = (root, member)
            for from_seq, delta in compute_running_total_shifts(member, member_redactions):
                for seq, message in self._messages.get(conversation_key, {}).items():
                    if seq >= from_seq:
                        self._messages[conversation_key][seq] = replace(
                            message, tokens_total=message.tokens_total + delta
                        )
            before = self._conversations[conversation_key]
            self._conversations[conversation_key] = replace(
                before,
                head_tokens_total=before.head_tokens_total + sum_token_deltas(member_redactions),
                marks=update_marks_for_redactions(before.marks, member_redactions),
            )
            for change in member_redactions:
                self._client_versions[conversation_key] = [
                    one
                    for one in self._client_versions.get(conversation_key, ())
                    if not one.seq <= change.seq < one.to_seq
                ]
                self._move_or_delete_answers(conversation_key, change.seq.__eq__)
        gone = []
        for summary in self._list_summaries(tenant, root):
            readers = [
                summary.conversation_id,
                *self._find_conversations_with_link(root, summary.to_link, summary.to_seq - 1),
            ]
            if covers_redacted_message(summary, readers, shared):
                self._drop_summary(tenant, root, summary)
                gone.append(summary)
            elif compute_summary_total_shift(summary, readers, shared):
                shift = compute_summary_total_shift(summary, readers, shared)
                self._put_summary(tenant, root, replace(summary, tokens_total=summary.tokens_total + shift))
        return sorted(gone, key=lambda summary: (summary.to_seq, summary.created_at, summary.id))

    def _read_lineages(self, root: str) -> dict[str, tuple[tuple[str, int], ...]]:
        return {key[1]: member.lineage for key, member in self._conversations.items() if key[0] == root}

    def _list_family_members(self, root: str) -> list[FamilyMember]:
        return [
            FamilyMember(one.id, one.lineage, one.marks) for one in self._conversations.values() if one.root == root
        ]

    def _replace_family_members(self, root: str, members: Sequence[FamilyMember]) -> None:
        for one in members:
            stored = self._conversations[root, one.id]
            self._conversations[root, one.id] = replace(stored, lineage=one.lineage, marks=one.marks)

    def _find_conversations_with_link(self, root: str, link: bytes, at_seq: int) -> list[str]:
        """Returns the conversations whose own rows have the link at `at_seq`."""
        return [keeper_id for keeper_id, seq in self._positions_by_link.get((root, link), ()) if seq == at_seq]

    async def rewrite_sealed_fields(
        self,
        conversation: Conversation,
        *,
        entries: Sequence[LogMessage] = (),
        summaries: Sequence[Summary] = (),
        client_versions: Sequence[ClientVersion] = (),
    ) -> None:
        stored = self._find_stored_conversation(conversation)
        if stored is None:
            return
        root, conversation_key = stored.root, (stored.root, stored.id)
        redacted = set(stored.marks.get(REDACTED_KEY, ())) - set(conversation.marks.get(REDACTED_KEY, ()))
        for entry in entries:
            stored_message = self._messages.get(conversation_key, {}).get(entry.seq)
            if (
                stored_message is not None
                and (stored_message.link, stored_message.tokens) == (entry.link, entry.tokens)
                and entry.seq not in redacted
            ):
                self._messages[conversation_key][entry.seq] = replace(
                    stored_message, message=entry.message, meta=entry.meta
                )
        fresh = {(version.since_seq, version.seq, version.to_seq): version for version in client_versions}
        self._client_versions[conversation_key] = [
            fresh.get((version.since_seq, version.seq, version.to_seq), version)
            for version in self._client_versions[conversation_key]
        ]
        self._rewrite_summary_texts(stored.tenant, root, summaries)
        # Otherwise a turn was written after the caller read the conversation, and its state is newer.
        if (stored.head_seq, stored.head_link) == (conversation.head_seq, conversation.head_link):
            self._conversations[conversation_key] = replace(stored, state=conversation.state)

    async def append(self, write: LogAppend) -> None:
        now = self._clock()
        if write.fence is not None:
            self._require_lease(write.fence, now)
        after = write.conversation
        conversation_key = (after.root, after.id)
        if write.creates_conversation:
            self._create_conversation(after, now)
        else:
            stored = self._conversations.get(conversation_key)
            if stored is None or stored.tenant != after.tenant or stored.head_seq != write.after_seq:
                raise WriteConflict
            write = adapt_append_to_redactions(write, stored)
            self._conversations[conversation_key] = _advance_conversation(stored, write, now)
        self._client_versions[conversation_key] += drop_redacted_versions(write, self._conversations[conversation_key])
        for message in write.messages:
            self._insert_message(
                conversation_key, message if message.created_at is not None else replace(message, created_at=now)
            )
        if write.issued is not None:
            await self.issue_answer(write.issued)
        await self.add_anchors(write.anchors)
        if write.releases_lease and write.fence is not None:
            await self.release_lease(write.fence)

    def _create_conversation(self, conversation: Conversation, now: datetime) -> None:
        key = (conversation.root, conversation.id)
        if key in self._conversations:
            raise WriteConflict
        if conversation.lineage:
            ancestors = [self._conversations.get((conversation.root, ancestor)) for ancestor, _ in conversation.lineage]
            if any(ancestor is None or ancestor.tenant != conversation.tenant for ancestor in ancestors):
                raise WriteConflict
            if ancestors[-1] is not None and ancestors[-1].head_seq < conversation.lineage[-1][1]:
                raise WriteConflict
        # A branch does not take the client's id: `assign_external_id` gives it the id later.
        elif conversation.external_id is not None:
            if (conversation.tenant, conversation.external_id) in self._external_ids:
                raise WriteConflict
            self._external_ids[conversation.tenant, conversation.external_id] = key
        self._conversations[key] = replace(conversation, created_at=conversation.created_at or now, updated_at=now)

    def _insert_message(self, key: ConversationKey, message: LogMessage) -> None:
        root, conversation_id = key
        self._messages[key][message.seq] = message
        self._positions_by_link[root, message.link][conversation_id, message.seq] = None
        if message.in_skeleton:
            self._positions_by_skeleton[root, message.skeleton][conversation_id, message.seq] = None

    def _remove_message(self, key: ConversationKey, message: LogMessage) -> None:
        root, conversation_id = key
        del self._messages[key][message.seq]
        del self._positions_by_link[root, message.link][conversation_id, message.seq]
        if message.in_skeleton:
            del self._positions_by_skeleton[root, message.skeleton][conversation_id, message.seq]

    async def save_completion(self, completion: StoredCompletion) -> None:
        conversation = self._conversations.get((completion.root, completion.conversation_id))
        if conversation is not None and conversation.tenant == completion.tenant:
            self._completions[completion.tenant, completion.id] = completion

    async def erase_conversation(self, *, tenant: str, conversation_id: str) -> bool:
        conversation = await self.find_conversation(tenant=tenant, conversation_id=conversation_id)
        if conversation is None:
            return False
        root, conversation_key = conversation.root, (conversation.root, conversation.id)
        plan = plan_erasure(conversation.id, self._list_family_members(root))
        terms = self._terms.pop(conversation_key, {})
        if plan.heir is not None:
            kept_terms = {seq: words for seq, words in terms.items() if seq <= plan.kept_through}
            self._terms[root, plan.heir].update(kept_terms)
        for message in list(self._messages.pop(conversation_key, {}).values()):
            # `_remove_message` takes the message out of this dict and out of the link indexes.
            self._messages[conversation_key][message.seq] = message
            self._remove_message(conversation_key, message)
            if plan.heir is not None and message.seq <= plan.kept_through:
                self._insert_message((root, plan.heir), message)
        self._messages.pop(conversation_key, None)
        versions = self._client_versions.pop(conversation_key, [])
        if plan.heir is not None:
            self._client_versions[root, plan.heir][:0] = [
                one for one in versions if one.since_seq <= plan.inherited_through
            ]
        self._move_or_delete_answers(conversation_key, lambda seq: seq < 0 or seq > plan.inherited_through, plan.heir)
        self._replace_family_members(root, plan.changed)
        del self._conversations[conversation_key]
        self._external_ids = {name: key for name, key in self._external_ids.items() if key != conversation_key}
        # Without its lease, a summary that is being made of the conversation cannot be stored.
        self._drop_leases(root, (conversation.id, *SUMMARY_LEASE_PREFIXES))
        await self._move_or_delete_summaries(root, conversation.id, hands_over=plan.is_heir_relative)
        self._move_or_delete_completions(root, conversation.id, plan)
        return True

    async def _move_or_delete_summaries(self, root: str, erased_id: str, *, hands_over: bool) -> None:
        """Moves summaries that were made in an erased conversation to a conversation that holds their last message, or
        deletes the personal ones. Deletes the stray summaries of the family.
        """
        for tenant, summary in self._list_root_summaries(root):
            keepers = [
                conversation_id for conversation_id, _ in self._positions_by_link.get((root, summary.to_link), ())
            ]
            if summary.conversation_id == erased_id and keepers and hands_over:
                self._put_summary(tenant, root, replace(summary, conversation_id=min(keepers)))
            elif summary.conversation_id == erased_id and summary.is_personal:
                await self.delete_summary(tenant=tenant, root=root, summary_id=summary.id)
        for tenant, summary in self._list_root_summaries(root):
            if self._is_stray_summary(root, summary):
                await self.delete_summary(tenant=tenant, root=root, summary_id=summary.id)

    async def purge_stray_summaries(self, *, created_before: datetime) -> int:
        strays = [
            (tenant, root, summary.id)
            for (tenant, root), summaries in self._summaries.items()
            for summary in summaries.values()
            if summary.created_at < created_before and self._is_stray_summary(root, summary)
        ]
        for tenant, root, chunk_id in strays:
            await self.delete_summary(tenant=tenant, root=root, summary_id=chunk_id)
        return len(strays)

    def _is_stray_summary(self, root: str, summary: Summary) -> bool:
        return (root, summary.conversation_id) not in self._conversations and not self._positions_by_link.get(
            (root, summary.to_link)
        )

    async def find_summaries(
        self,
        *,
        tenant: str,
        root: str,
        path: Sequence[tuple[str, int]] = (),
        links: Sequence[bytes] = (),
        from_link: bytes | None = None,
        with_texts: bool = True,
    ) -> list[Summary]:
        upto, wanted = dict(path), set(links)
        found = [
            summary
            for summary in self._list_summaries(tenant, root)
            if summary.to_link in wanted
            or (
                from_link in (None, summary.from_link)
                and any(
                    seq == summary.to_seq - 1 <= upto.get(keeper, -1)
                    for keeper, seq in self._positions_by_link.get((root, summary.to_link), ())
                )
            )
        ]
        found.sort(key=lambda summary: (summary.to_seq, summary.created_at, summary.id))
        return found if with_texts else [replace(summary, text="") for summary in found]

    async def add_summary(self, *, tenant: str, root: str, summary: Summary, fence: Lease) -> None:
        self._require_lease(fence, self._clock())
        self._insert_or_replace_summary(tenant, root, summary)


def _is_match_on_path(path: Mapping[str, int], match: LinkMatch) -> bool:
    return match.message.seq <= path.get(match.conversation.id, -1)


def _link_match_sort_key(match: LinkMatch) -> tuple[bool, datetime | None, int]:
    """Heads first, then the most recently updated."""
    conversation, message = match.conversation, match.message
    return message.seq == conversation.head_seq, conversation.updated_at, message.seq


def _advance_conversation(stored: Conversation, write: LogAppend, now: datetime) -> Conversation:
    updated = write.conversation
    return replace(
        stored,
        head_seq=updated.head_seq,
        head_link=updated.head_link,
        head_skeleton=updated.head_skeleton,
        head_tokens_total=updated.head_tokens_total,
        answered=updated.answered,
        mode=updated.mode,
        chunk_count=updated.chunk_count,
        state=updated.state,
        updated_at=now,
    )
