"""Stored completions in memory."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime

from msgspec.structs import replace

from app.conversation.conversation_types import StoredCompletion
from app.dialects.responses.item_ids import RESPONSE_ID_PREFIX
from app.store.contract.conversations import CompletionQuery
from app.store.lineage import ErasurePlan


class MemoryCompletions:
    """The part of `ConversationStore` that keeps stored completions."""

    def __init__(self) -> None:
        self._completions: dict[tuple[str, str], StoredCompletion] = {}

    async def list_completions(self, *, tenant: str, query: CompletionQuery) -> list[StoredCompletion]:
        found = [
            completion
            for completion in self._completions.values()
            if completion.tenant == tenant
            and (query.with_responses or not completion.id.startswith(RESPONSE_ID_PREFIX))
            and query.model in (None, completion.model)
            and query.metadata.items() <= completion.metadata.items()
            and (
                query.after is None
                or _is_after_cursor((completion.created_at, completion.id), query.after, query.descending)
            )
        ]
        found.sort(key=lambda completion: (completion.created_at, completion.id), reverse=query.descending)
        return found[: query.limit]

    async def find_completion(self, *, tenant: str, completion_id: str) -> StoredCompletion | None:
        return self._completions.get((tenant, completion_id))

    async def replace_completion_metadata(
        self, *, tenant: str, completion_id: str, metadata: Mapping[str, str]
    ) -> bool:
        completion = self._completions.get((tenant, completion_id))
        if completion is not None:
            self._completions[tenant, completion_id] = replace(completion, metadata=metadata)
        return completion is not None

    async def delete_completion(self, *, tenant: str, completion_id: str) -> bool:
        return self._completions.pop((tenant, completion_id), None) is not None

    def _move_or_delete_completions(self, root: str, conversation_id: str, plan: ErasurePlan) -> None:
        """Moves completions of an erased conversation to its heir with the messages that the heir inherits, and deletes
        the others.
        """
        for key, completion in list(self._completions.items()):
            if (completion.root, completion.conversation_id) != (root, conversation_id):
                continue
            if plan.heir is not None and completion.seq <= plan.inherited_through:
                self._completions[key] = replace(completion, conversation_id=plan.heir)
            else:
                del self._completions[key]


def _is_after_cursor(sort_key: tuple[datetime, str], after: tuple[datetime, str], descending: bool) -> bool:
    return sort_key < after if descending else sort_key > after
