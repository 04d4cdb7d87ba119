"""Summaries in memory, with their earlier texts."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

from msgspec.structs import replace

from app.conversation.conversation_types import Summary
from app.store.contract.conversations import WriteConflict
from app.store.summary_revision_rules import apply_summary_revision, may_replace_summary, number_next_revision

ConversationKey = tuple[str, str]
"""Root and conversation id."""
_RangeKey = tuple[bytes, bytes, bool, bytes]
"""The links at both ends of the range, whether the summary is a fold, and its `versions_digest`."""


class MemorySummaries:
    """The part of `Store` that keeps summaries, by tenant, root and range."""

    def __init__(self) -> None:
        self._summaries: dict[ConversationKey, dict[_RangeKey, Summary]] = defaultdict(dict)
        """By tenant and root."""
        self._revisions: dict[tuple[str, str, str], list[Summary]] = defaultdict(list)
        """Superseded texts, oldest first, by tenant, root and summary id."""

    def _list_summaries(self, tenant: str, root: str) -> list[Summary]:
        return list(self._summaries.get((tenant, root), {}).values())

    def _list_root_summaries(self, root: str) -> list[tuple[str, Summary]]:
        """Returns the summaries of a root, each with its tenant."""
        return [
            (owner[0], summary)
            for owner, summaries_by_id in self._summaries.items()
            if owner[1] == root
            for summary in summaries_by_id.values()
        ]

    def _find_summary(self, tenant: str, root: str, summary_id: str) -> Summary | None:
        return next((summary for summary in self._list_summaries(tenant, root) if summary.id == summary_id), None)

    def _put_summary(self, tenant: str, root: str, summary: Summary) -> None:
        self._summaries[tenant, root][_summary_range_key(summary)] = summary

    def _drop_summary(self, tenant: str, root: str, summary: Summary) -> None:
        del self._summaries[tenant, root][_summary_range_key(summary)]
        self._revisions.pop((tenant, root, summary.id), None)

    def _insert_or_replace_summary(self, tenant: str, root: str, summary: Summary) -> None:
        known = self._summaries[tenant, root].get(_summary_range_key(summary))
        if known is None:
            self._put_summary(tenant, root, summary)
        elif may_replace_summary(summary, known):
            # The same id: the old text stays readable as a revision. Another id: the old summary goes with its
            # revisions.
            if known.id == summary.id:
                self._revisions[tenant, root, known.id].append(known)
            else:
                self._drop_summary(tenant, root, known)
            self._put_summary(tenant, root, number_next_revision(known, summary))

    async def revise_summary(self, *, tenant: str, root: str, summary: Summary) -> None:
        known = self._find_summary(tenant, root, summary.id)
        if known is None or known.revision != summary.revision - 1:
            raise WriteConflict
        self._revisions[tenant, root, summary.id].append(known)
        self._put_summary(tenant, root, apply_summary_revision(known, summary))

    async def read_summary_revisions(self, *, tenant: str, root: str, summary_id: str) -> list[Summary]:
        known = self._find_summary(tenant, root, summary_id)
        if known is None:
            return []
        return [
            *(apply_summary_revision(known, old) for old in self._revisions.get((tenant, root, summary_id), ())),
            known,
        ]

    async def delete_summary(self, *, tenant: str, root: str, summary_id: str) -> bool:
        doomed = self._find_summary(tenant, root, summary_id)
        if doomed is None:
            return False
        self._drop_summary(tenant, root, doomed)
        # A fold holds the content of the summaries that it folds.
        for fold in self._list_summaries(tenant, root):
            if summary_id in fold.folds:
                await self.delete_summary(tenant=tenant, root=root, summary_id=fold.id)
        return True

    def _rewrite_summary_texts(self, tenant: str, root: str, summaries: Sequence[Summary]) -> None:
        for summary in summaries:
            known = self._find_summary(tenant, root, summary.id)
            if known is not None and known.revision == summary.revision:
                self._put_summary(tenant, root, replace(known, text=summary.text))
            older = self._revisions.get((tenant, root, summary.id), [])
            older[:] = [replace(old, text=summary.text) if old.revision == summary.revision else old for old in older]


def _summary_range_key(summary: Summary) -> _RangeKey:
    return summary.from_link, summary.to_link, bool(summary.folds), summary.versions_digest
