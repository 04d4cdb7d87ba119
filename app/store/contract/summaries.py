"""The contract for summaries."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Protocol

from app.conversation.conversation_types import Summary
from app.store.contract.conversations import ConversationStore
from app.store.contract.leases import Lease


class SummaryStore(Protocol):
    """Keeps summaries with their revisions, by tenant, root and range.

    Raises:
        StoreUnavailable: from every method, when the database cannot be reached or does not answer in time.
    """

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
        """Returns a tenant's summaries whose last message is on `path` (matched by link) or has one of `links`, by
        `to_seq`, then creation.

        Args:
            from_link: of the summaries on `path`, returns only those that begin after the message with this link. The
                work of the query then does not grow with the log.
            with_texts: False: texts are empty, and the query reads none of them.
        """

    async def add_summary(self, *, tenant: str, root: str, summary: Summary, fence: Lease) -> None:
        """Stores a summary. There is at most one for the same range, kind of range (fold or not) and `versions_digest`:
        a second one is ignored, except that a summary by a model or a person replaces a mechanical summary or a part
        summary, with its revisions.

        Raises:
            LeaseLost: the lease of the fence is lost; nothing was written.
        """

    async def revise_summary(self, *, tenant: str, root: str, summary: Summary) -> None:
        """Gives a summary another text. `summary` has the same id and range and the next `revision`; the old text is
        kept among the revisions. The other fields (range, links, folds, the conversation it was made in) stay.

        Raises:
            WriteConflict: the summary is gone, or its stored revision is not the one before `summary.revision`.
        """

    async def read_summary_revisions(self, *, tenant: str, root: str, summary_id: str) -> list[Summary]:
        """Returns all texts that a summary has had, oldest first, the present one last; empty if there is no such
        summary.
        """

    async def delete_summary(self, *, tenant: str, root: str, summary_id: str) -> bool:
        """Deletes a summary with its revisions, and every summary that folds it, directly or through others. Returns
        whether it existed.
        """

    async def purge_stray_summaries(self, *, created_before: datetime) -> int:
        """Deletes stray summaries, with their revisions and the summaries that fold them. A stray summary was made
        before `created_before` for a conversation that does not exist, and ends at a message that is in no log, so no
        other erasure reaches it. Returns how many strays were found.
        """


class ConversationAndSummaryStore(ConversationStore, SummaryStore, Protocol):
    """Conversations and their summaries, for callers that need both."""
