"""Reads, edits, regenerates, rolls back and deletes the summaries of a conversation. Each summary keeps all its
revisions."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

from msgspec.structs import replace

from app.context.view.view_rendering import ViewTokenCounter, count_summary_section_tokens
from app.conversation.conversation_types import Conversation, Summary
from app.conversations.history.conversation_history import find_active_summaries
from app.conversations.history.conversation_records import ConversationRecords
from app.conversations.items.boundary_item_ids import read_boundary_item_ids
from app.conversations.views.stored_turn import StoredTurnBuilder, StoredTurnRequest, check_policy_summarizes
from app.conversations.views.view_and_summary_objects import build_revision_object, build_summary_object
from app.errors import InvalidRequest, RevisionConflict, SummaryNotFound
from app.pipeline.compact.turn_compaction import TurnCompactor
from app.pipeline.turn.background_tasks import BackgroundTasks
from app.pipeline.turn.chat_request import Caller
from app.pipeline.view.view_builder import ViewBuilder
from app.store.contract.conversations import ConversationStore, WriteConflict
from app.store.contract.summaries import ConversationAndSummaryStore

MAX_ATTEMPTS: Final = 4
"""How often a change is tried when others change the summary at the same time. It applies to changes that name no
revision."""


@dataclass(eq=False, kw_only=True)
class SummaryRecords:
    """Summaries as a resource. A branch shares the summaries of the shared part of the log, so a change affects
    both."""

    store: ConversationAndSummaryStore
    records: ConversationRecords
    stored_turns: StoredTurnBuilder
    view_builder: ViewBuilder
    turn_compactor: TurnCompactor
    counter_for: Callable[[str], ViewTokenCounter]
    """Returns the token counter of an encoding."""
    check_model: Callable[[Caller, str], None]
    """Raises a `GatewayError` for a model that a caller's key does not allow."""
    clock: Callable[[], datetime]
    """The aware time for new revisions."""
    tasks: BackgroundTasks

    async def list_summaries(
        self,
        caller: Caller,
        conversation_id: str,
        *,
        limit: int,
        after: str | None,
        newest_first: bool,
        with_inactive: bool,
    ) -> tuple[list[dict[str, Any]], bool]:
        """Returns a page of summaries in the order of the log, and whether more follow.

        Raises:
            ConversationNotFound, SummaryNotFound: there is no such conversation, or no summary `after`.
        """
        conversation = await self.records.find_conversation(caller, conversation_id)
        summaries = await self._read_summaries(conversation)
        active = await self._find_active_ids(conversation, summaries)
        listed = [summary for summary in summaries if with_inactive or summary.id in active]
        if newest_first:
            listed.reverse()
        if after is not None:
            listed = listed[1 + listed.index(_select_summary(listed, after, conversation)) :]
        rows = await read_summary_objects(self.store, conversation, listed[:limit], active=active)
        return rows, len(listed) > limit

    async def read_summary(self, caller: Caller, conversation_id: str, summary_id: str) -> dict[str, Any]:
        """Returns a summary with all its revisions.

        Raises:
            ConversationNotFound, SummaryNotFound: there is none.
        """
        conversation, summaries, summary = await self._find_summary(caller, conversation_id, summary_id)
        active = await self._find_active_ids(conversation, summaries)
        (summary_object,) = await read_summary_objects(self.store, conversation, [summary], active=active)
        revisions = await self._read_revisions(conversation, summary)
        return {**summary_object, "revisions": [build_revision_object(one) for one in revisions]}

    async def edit_summary(
        self, caller: Caller, conversation_id: str, summary_id: str, *, text: str, revision: int | None
    ) -> dict[str, Any]:
        """Gives a summary a text that a person wrote.

        It may be longer than a model's text, but must be shorter than the messages that it stands for.

        Args:
            revision: the revision that the client has seen; None: any.

        Raises:
            ConversationNotFound, SummaryNotFound: there is none.
            InvalidRequest: the text is blank, or too long.
            RevisionConflict: the summary has a newer revision.
        """
        conversation, _, summary = await self._find_summary(caller, conversation_id, summary_id)
        edited = await self._build_edited_summary(conversation, summary, text)
        return await self._store_revision(caller, conversation, summary, edited, revision)

    async def roll_back_summary(
        self, caller: Caller, conversation_id: str, summary_id: str, *, to_revision: int, revision: int | None
    ) -> dict[str, Any]:
        """Makes an earlier text of a summary the newest one.

        Raises:
            ConversationNotFound, SummaryNotFound: there is none.
            InvalidRequest: there is no such revision.
            RevisionConflict: the summary has another revision by now than the one that the client has seen.
        """
        conversation, _, summary = await self._find_summary(caller, conversation_id, summary_id)
        revisions = await self._read_revisions(conversation, summary)
        chosen = next((one for one in revisions if one.revision == to_revision), None)
        if chosen is None:
            raise InvalidRequest(
                f"Summary {summary_id!r} has no revision {to_revision}; it has 1 to {summary.revision}.",
                code="invalid_value",
                param="revision",
            )
        # A mechanical summary is replaced as soon as a model is available. A person chose this text, so it must stay.
        kind = "edited" if chosen.kind == "mechanical" else chosen.kind
        return await self._store_revision(caller, conversation, summary, replace(chosen, kind=kind), revision)

    async def regenerate_summary(
        self, caller: Caller, conversation_id: str, summary_id: str, *, instructions: str | None, model: str | None
    ) -> dict[str, Any]:
        """Regenerates a summary with a model. If that fails, nothing changes.

        Raises:
            ConversationNotFound, SummaryNotFound: there is none.
            InvalidRequest: the policy writes no summaries, or the summary folds others that are deleted.
            ModelRequired, PolicyNotFound, ModelNotFound: as `StoredTurnBuilder.build_turn`.
            ConversationBusy: the same range is being summarized.
            UpstreamUnavailable: no model returned an acceptable summary.
            RevisionConflict: the summary was changed meanwhile.
        """
        conversation, summaries, summary = await self._find_summary(caller, conversation_id, summary_id)
        turn_request = StoredTurnRequest(model=model, summarize="never", instructions=instructions)
        turn = await self.stored_turns.build_turn(caller, conversation, turn_request)
        self.check_model(caller, turn.request.model)
        check_policy_summarizes(turn.policy)
        folded = [one for one in summaries if one.id in summary.folds]
        if len(folded) != len(summary.folds):
            raise InvalidRequest(
                f"Summary {summary_id!r} folds summaries that were deleted.",
                code="summary_incomplete",
                param="summary_id",
            )
        view = await self.view_builder.plan_view(turn, self.view_builder.compute_budget(turn), summarize="never")
        # Shielded: the model's call is paid for, so its summary is stored even if the client disconnects.
        try:
            regenerated = await self.tasks.run_shielded(
                self.turn_compactor.rewrite_summary(turn, view, summary, folded)
            )
        except WriteConflict as moved:
            raise _revision_conflict_error(summary_id) from moved
        return await self.read_summary(caller, conversation.id, regenerated.id)

    async def delete_summary(self, caller: Caller, conversation_id: str, summary_id: str) -> dict[str, Any]:
        """Deletes a summary with all its revisions, and the folds made of it. The messages that it stood for are
        verbatim again, until they are summarized anew.

        Raises:
            ConversationNotFound, SummaryNotFound: there is none.
        """
        conversation, _, summary = await self._find_summary(caller, conversation_id, summary_id)
        await self.store.delete_summary(tenant=conversation.tenant, root=conversation.root, summary_id=summary.id)
        return {"id": summary.id, "object": "conversation.summary.deleted", "deleted": True}

    async def _store_revision(
        self,
        caller: Caller,
        conversation: Conversation,
        summary: Summary,
        revised_summary: Summary,
        revision: int | None,
    ) -> dict[str, Any]:
        """Stores a text as the next revision of a summary; tries again after a conflict if the client named no
        revision."""
        for _ in range(MAX_ATTEMPTS):
            if revision not in (None, summary.revision):
                break
            new_revision = replace(revised_summary, revision=summary.revision + 1, created_at=self.clock())
            try:
                await self.store.revise_summary(
                    tenant=conversation.tenant, root=conversation.root, summary=new_revision
                )
            except WriteConflict:
                summary = _select_summary(await self._read_summaries(conversation), summary.id, conversation)
                continue
            return await self.read_summary(caller, conversation.id, summary.id)
        raise _revision_conflict_error(summary.id)

    async def _build_edited_summary(self, conversation: Conversation, summary: Summary, text: str) -> Summary:
        words = text.strip()
        if not words:
            raise InvalidRequest("The text of a summary must not be blank.", code="invalid_value", param="text")
        count = self.counter_for(conversation.token_counter_name)
        tokens = count_summary_section_tokens(words, through_turn=summary.through_turn, counter=count)
        replaced_tokens = await self._count_replaced_tokens(conversation, summary)
        if tokens >= replaced_tokens:
            raise InvalidRequest(
                f"The text takes {tokens} tokens, and the messages that it stands for take {replaced_tokens}.",
                code="summary_too_long",
                param="text",
                hint="Shorten it, or delete the summary to show the messages verbatim.",
            )
        kind = "part" if summary.kind == "part" else "edited"
        return replace(
            summary, text=words, tokens=tokens, kind=kind, model="", prompt_version="", duration_ms=0, usage=None
        )

    async def _count_replaced_tokens(self, conversation: Conversation, summary: Summary) -> int:
        """Returns the tokens of the messages that a summary stands for."""
        if summary.from_seq == 0:
            return summary.tokens_total
        (before,) = await self.store.read_log(conversation, summary.from_seq - 1, summary.from_seq)
        return summary.tokens_total - before.tokens_total

    async def _find_summary(
        self, caller: Caller, conversation_id: str, summary_id: str
    ) -> tuple[Conversation, list[Summary], Summary]:
        conversation = await self.records.find_conversation(caller, conversation_id)
        summaries = await self._read_summaries(conversation)
        return conversation, summaries, _select_summary(summaries, summary_id, conversation)

    async def _read_summaries(self, conversation: Conversation) -> list[Summary]:
        return await self.store.find_summaries(
            tenant=conversation.tenant, root=conversation.root, path=conversation.lineage_with_self
        )

    async def _find_active_ids(self, conversation: Conversation, summaries: Sequence[Summary]) -> set[str]:
        return {summary.id for summary in await find_active_summaries(self.store, conversation, summaries)}

    async def _read_revisions(self, conversation: Conversation, summary: Summary) -> list[Summary]:
        return await self.store.read_summary_revisions(
            tenant=conversation.tenant, root=conversation.root, summary_id=summary.id
        )


async def read_summary_objects(
    store: ConversationStore, conversation: Conversation, summaries: Sequence[Summary], *, active: Collection[str]
) -> list[dict[str, Any]]:
    """Builds the objects of summaries with the item ids of their ranges; `active` are ids of summaries."""
    spans = [(summary.from_seq, summary.to_seq) for summary in summaries]
    item_ids = await read_boundary_item_ids(store, conversation, spans)
    return [
        build_summary_object(summary, conversation, item_ids, is_active=summary.id in active) for summary in summaries
    ]


def _select_summary(summaries: Sequence[Summary], summary_id: str, conversation: Conversation) -> Summary:
    selected = next((summary for summary in summaries if summary.id == summary_id), None)
    if selected is None:
        raise SummaryNotFound(f"Summary with id {summary_id!r} not found in conversation {conversation.id!r}.")
    return selected


def _revision_conflict_error(summary_id: str) -> RevisionConflict:
    return RevisionConflict(
        f"Summary {summary_id!r} has a newer revision.",
        param="revision",
        hint="Read the summary again, then decide.",
    )
