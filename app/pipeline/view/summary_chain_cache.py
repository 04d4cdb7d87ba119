"""Caches the summaries of a log from turn to turn: a long log has thousands, of which a view shows a few.

Each turn reads again the summaries that are not folded, and their fold; and the whole chain if one of them changed or
others follow. Folded summaries exist as long as their fold does (`SummaryStore.delete_summary`), so they are not read
again. A view that shows a folded summary again reads the whole chain (`bypass_cache`); from then on, until the chain
changes, the folded summaries are checked, too.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import msgspec
from msgspec.structs import replace

from app.context.plan.summary_chain import find_chain_and_folds
from app.context.view.client_words import NO_WORDS, ClientWords
from app.conversation.conversation_types import Conversation, Summary
from app.pipeline.turn.resolved_request import ResolvedRequest
from app.store.contract.summaries import SummaryStore

MAX_RECHECKED: Final = 64
"""If a turn would have to check more summaries than this, it reads the whole chain instead."""
MAX_CACHED_CHARS: Final = 8 * 1024 * 1024
"""Limit of the cache in characters: the texts of all cached summaries, and `SUMMARY_OVERHEAD_CHARS` for each. Full, the
cache takes 10 MB. A log of 100,000 messages at a window of 8k has 1,000 summaries, some 3 million characters."""
SUMMARY_OVERHEAD_CHARS: Final = 1_000


class SummaryChain(msgspec.Struct, frozen=True):
    """The summaries that stand for a log, and their folds (`context.plan.summary_chain`)."""

    summaries: tuple[Summary, ...] = ()
    folds: tuple[Summary, ...] = ()
    verified_ids: frozenset[str] | None = None
    """Ids of the summaries that were compared with the store in this turn; None if all were."""

    def has_verified_all(self, summaries: Iterable[Summary]) -> bool:
        """Whether all these summaries, which a view shows, were compared with the store in this turn."""
        return self.verified_ids is None or all(summary.id in self.verified_ids for summary in summaries)


EMPTY_CHAIN: Final = SummaryChain()


@dataclass(frozen=True, slots=True)
class _CachedChain:
    """The cached summaries of a conversation, and the positions to check in the next turn."""

    stored_summaries: Sequence[Summary]
    chain: SummaryChain
    recheck_ends: Mapping[bytes, int]
    """Link and `to_seq` of each end at which summaries are checked."""
    recheck_summaries: Sequence[Summary]
    """All stored summaries that end at one of `recheck_ends`."""
    chars: int


class SummaryChainCache:
    """Reads the summaries of conversations. Each process has one cache."""

    def __init__(self, store: SummaryStore) -> None:
        self._store = store
        self._cached_chains: OrderedDict[str, _CachedChain] = OrderedDict()
        self._cached_chars = 0

    async def read_chain(
        self,
        resolved_request: ResolvedRequest,
        *,
        is_replacing: bool,
        new_summaries: Sequence[Summary] = (),
        words: ClientWords = NO_WORDS,
        bypass_cache: bool = False,
    ) -> SummaryChain:
        """Reads the summary chain of a conversation.

        Args:
            resolved_request: the request of the conversation.
            is_replacing: `are_replacing` of `find_chain_and_folds`.
            new_summaries: summaries made for this request, stored or not.
            words: `words` of `find_chain_and_folds`; if the client changed anything, all summaries are read.
            bypass_cache: read all summaries.

        Raises:
            StoreUnavailable: the summaries cannot be read.
        """
        # The log is not stored yet, but another conversation with the same messages may have summaries of it.
        if resolved_request.is_log_unstored:
            return build_chain(
                await self._read_summaries_of_unstored_log(resolved_request),
                is_replacing=is_replacing,
                new_summaries=new_summaries,
                words=words,
            )
        conversation = resolved_request.conversation
        # The cache holds additive chains only. Checkpoints, and logs of which the client omits or changes parts, choose
        # other summaries.
        if is_replacing or words:
            return build_chain(
                await self._read_all(conversation),
                is_replacing=is_replacing,
                new_summaries=new_summaries,
                words=words,
            )
        cached = None if bypass_cache else await self._recheck_cached(conversation)
        if cached is not None:
            stored, chain = cached.stored_summaries, cached.chain
        else:
            stored = await self._read_all(conversation)
            cached = _build_cached_chain(stored, words, rechecks_folded=bypass_cache)
            chain = replace(cached.chain, verified_ids=None)
        self._cache_chain(conversation.id, cached)
        if not new_summaries:
            return chain
        verified_ids = (
            None if chain.verified_ids is None else chain.verified_ids.union(summary.id for summary in new_summaries)
        )
        return replace(build_chain(stored, new_summaries=new_summaries, words=words), verified_ids=verified_ids)

    async def _read_summaries_of_unstored_log(self, resolved_request: ResolvedRequest) -> list[Summary]:
        """Reads summaries that end at a message of a log that is not stored yet."""
        conversation = resolved_request.conversation
        summaries = await self._store.find_summaries(
            tenant=conversation.tenant,
            root=conversation.root,
            links=[entry.link for entry in resolved_request.new_messages],
        )
        return select_summaries_in_place(summaries, resolved_request)

    async def _read_all(self, conversation: Conversation) -> list[Summary]:
        return await self._store.find_summaries(
            tenant=conversation.tenant, root=conversation.root, path=conversation.lineage_with_self
        )

    async def _recheck_cached(self, conversation: Conversation) -> _CachedChain | None:
        """Returns what is cached of a conversation; None if nothing is, or if a summary was added, changed or deleted
        since the last turn."""
        cached = self._cached_chains.get(conversation.id)
        if cached is None:
            return None
        end = cached.chain.summaries[-1]
        current_summaries = await self._store.find_summaries(
            tenant=conversation.tenant,
            root=conversation.root,
            path=conversation.lineage_with_self,
            links=list(cached.recheck_ends),
            from_link=end.to_link,
        )
        # Logs that differ in system messages share links.
        current_summaries = [
            summary
            for summary in current_summaries
            if summary.to_seq > end.to_seq or cached.recheck_ends.get(summary.to_link) == summary.to_seq
        ]
        return cached if current_summaries == cached.recheck_summaries else None

    def _cache_chain(self, conversation_id: str, cached: _CachedChain) -> None:
        replaced = self._cached_chains.pop(conversation_id, None)
        if replaced is not None:
            self._cached_chars -= replaced.chars
        # If each turn checks all summaries, the cache saves nothing.
        saves_reads = len(cached.recheck_summaries) < len(cached.stored_summaries)
        if cached.chain.summaries and saves_reads and len(cached.recheck_ends) <= MAX_RECHECKED:
            self._cached_chains[conversation_id] = cached
            self._cached_chars += cached.chars
        while self._cached_chars > MAX_CACHED_CHARS:
            _, oldest = self._cached_chains.popitem(last=False)
            self._cached_chars -= oldest.chars


def select_summaries_in_place(summaries: Iterable[Summary], resolved_request: ResolvedRequest) -> list[Summary]:
    """Selects the summaries that end at a new message of a request, of a log that is not stored.

    A link proves all messages up to it. Logs that differ in system messages share links, but seqs differ, so only a
    summary at the right seq counts. A wrong one would show words that the request does not carry.
    """
    links = {entry.seq: entry.link for entry in resolved_request.new_messages}
    return [summary for summary in summaries if links.get(summary.to_seq - 1) == summary.to_link]


def build_chain(
    stored: Sequence[Summary] = (),
    *,
    new_summaries: Sequence[Summary] = (),
    is_replacing: bool = False,
    words: ClientWords = NO_WORDS,
) -> SummaryChain:
    """Builds the chain of stored and new summaries without the cache."""
    stored_ids = {summary.id for summary in stored}
    new_summaries = [summary for summary in new_summaries if summary.id not in stored_ids]
    return SummaryChain(*find_chain_and_folds([*stored, *new_summaries], are_replacing=is_replacing, words=words))


def _build_cached_chain(stored: Sequence[Summary], words: ClientWords, *, rechecks_folded: bool) -> _CachedChain:
    summaries, folds = find_chain_and_folds(stored, words=words)
    rechecks_folded = rechecks_folded and len(summaries) <= MAX_RECHECKED
    fold = folds[-1] if folds and not rechecks_folded else None
    rechecked = [summary for summary in summaries if fold is None or summary.from_seq >= fold.to_seq]
    recheck_ends = {summary.to_link: summary.to_seq for summary in ([fold] if fold else []) + rechecked}
    recheck_summaries = [summary for summary in stored if recheck_ends.get(summary.to_link) == summary.to_seq]
    recheck_summaries.sort(key=lambda summary: (summary.to_seq, summary.created_at, summary.id))
    return _CachedChain(
        stored_summaries=stored,
        chain=SummaryChain(summaries, folds, frozenset(summary.id for summary in recheck_summaries)),
        recheck_ends=recheck_ends,
        recheck_summaries=recheck_summaries,
        chars=sum(SUMMARY_OVERHEAD_CHARS + len(summary.text) for summary in stored),
    )
