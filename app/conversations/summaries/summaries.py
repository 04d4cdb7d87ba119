"""The summaries of a conversation: read, edited, written anew, rolled back, deleted. Each keeps all its texts."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import datetime
from typing import Any, Final

from msgspec.structs import replace

from app.context.plan.summary_chain import active_chain
from app.context.view.view_messages import Counter, section_tokens
from app.conversation.messages import Chunk, Conversation
from app.conversations.history.conversations import Records
from app.conversations.items.item_ids import item_ids
from app.conversations.views.stored_turn import Standing, Wish, check_summarizes
from app.conversations.views.view_objects import revision_object, summary_object
from app.errors import InvalidRequest, RevisionConflict, SummaryNotFound
from app.pipeline.background_tasks import Tasks
from app.pipeline.chat_request import Caller
from app.pipeline.compact.summary_chain import read_omitted
from app.pipeline.compact.turn_compaction import Compacting
from app.pipeline.view.view_builder import Views
from app.store.contract import HeadMoved, Store

TRIES: Final = 4
"""Of a change that somebody else's came before, where the client did not say which revision it means."""


class Summaries:
    """Summaries as a resource. A branch shares those of the log that it shares: a change is seen by both."""

    def __init__(
        self,
        *,
        store: Store,
        records: Records,
        standing: Standing,
        views: Views,
        compacting: Compacting,
        counter_for: Callable[[str], Counter],
        allow: Callable[[Caller, str], None],
        clock: Callable[[], datetime],
        tasks: Tasks,
    ) -> None:
        """
        Args:
            counter_for: the token counter of an encoding.
            allow: refuses a model that a caller's key does not allow, with a `GatewayError`.
            clock: the time that edits are dated with, aware.
        """
        self._store = store
        self._records = records
        self._standing = standing
        self._views = views
        self._compacting = compacting
        self._counter_for = counter_for
        self._allow = allow
        self._clock = clock
        self._tasks = tasks

    async def page(
        self,
        caller: Caller,
        conversation_id: str,
        *,
        limit: int,
        after: str | None,
        newest_first: bool,
        with_inactive: bool,
    ) -> tuple[list[dict[str, Any]], bool]:
        """Summaries by place in the log, and whether there are more.

        Raises:
            ConversationNotFound, SummaryNotFound: there is none, or none to go on after.
        """
        conversation = await self._records.of(caller, conversation_id)
        chunks = await self._chunks(conversation)
        active = await self._active_ids(conversation, chunks)
        listed = [chunk for chunk in chunks if with_inactive or chunk.id in active]
        if newest_first:
            listed.reverse()
        if after is not None:
            listed = listed[1 + listed.index(_named(listed, after, conversation)) :]
        return await self._told(conversation, listed[:limit], active), len(listed) > limit

    async def one(self, caller: Caller, conversation_id: str, summary_id: str) -> dict[str, Any]:
        """A summary with all texts that it has had.

        Raises:
            ConversationNotFound, SummaryNotFound: there is none.
        """
        conversation, chunks, chunk = await self._found(caller, conversation_id, summary_id)
        (told,) = await self._told(conversation, [chunk], await self._active_ids(conversation, chunks))
        revisions = await self._revisions(conversation, chunk)
        return {**told, "revisions": [revision_object(one) for one in revisions]}

    async def edit(
        self, caller: Caller, conversation_id: str, summary_id: str, *, text: str, revision: int | None
    ) -> dict[str, Any]:
        """Give a summary a text that a person wrote.

        It may be longer than a model's may, but must be shorter than the messages that it stands for.

        Args:
            revision: the one that the client has seen; None: whichever it is.

        Raises:
            ConversationNotFound, SummaryNotFound: there is none.
            InvalidRequest: the text is blank, or too long.
            RevisionConflict: it is another revision by now.
        """
        conversation, _, chunk = await self._found(caller, conversation_id, summary_id)
        edited = await self._edited(conversation, chunk, text)
        return await self._replace(caller, conversation, chunk, edited, revision)

    async def roll_back(
        self, caller: Caller, conversation_id: str, summary_id: str, *, to_revision: int, revision: int | None
    ) -> dict[str, Any]:
        """Make an earlier text of a summary the newest one.

        Raises:
            ConversationNotFound, SummaryNotFound: there is none.
            InvalidRequest: it has had no such revision.
            RevisionConflict: it is another revision by now than the one that the client has seen.
        """
        conversation, _, chunk = await self._found(caller, conversation_id, summary_id)
        revisions = await self._revisions(conversation, chunk)
        chosen = next((one for one in revisions if one.revision == to_revision), None)
        if chosen is None:
            raise InvalidRequest(
                f"Summary {summary_id!r} has no revision {to_revision}; it has 1 to {chunk.revision}.",
                code="invalid_value",
                param="revision",
            )
        # What a person chose is not for the next model that is back to replace.
        kind = "edited" if chosen.kind == "mechanical" else chosen.kind
        return await self._replace(caller, conversation, chunk, replace(chosen, kind=kind), revision)

    async def regenerate(
        self, caller: Caller, conversation_id: str, summary_id: str, *, instructions: str | None, model: str | None
    ) -> dict[str, Any]:
        """Have a model write a summary once more. Where it fails, nothing changes.

        Raises:
            ConversationNotFound, SummaryNotFound: there is none.
            InvalidRequest: the policy writes no summaries, or it folds some that are gone.
            ModelRequired, PolicyNotFound, ModelNotFound: as `Standing.turn`.
            ConversationBusy: the same stretch is being summarized by somebody else.
            UpstreamUnavailable: no model gave a summary that can be used.
            RevisionConflict: it was changed meanwhile.
        """
        conversation, chunks, chunk = await self._found(caller, conversation_id, summary_id)
        wish = Wish(model=model, summarize="never", instructions=instructions)
        turn = await self._standing.turn(caller, conversation, wish)
        self._allow(caller, turn.request.model)
        check_summarizes(turn.policy)
        folded = [one for one in chunks if one.id in chunk.folds]
        if len(folded) != len(chunk.folds):
            raise InvalidRequest(
                f"Summary {summary_id!r} folds summaries that are gone.", code="summary_incomplete", param="summary_id"
            )
        view = await self._views.planned(turn, self._views.budget(turn), summarize="never")
        try:
            made = await self._tasks.finish(self._compacting.again(turn, view, chunk, folded))
        except HeadMoved as moved:
            raise _conflict(summary_id) from moved
        return await self.one(caller, conversation.id, made.id)

    async def delete(self, caller: Caller, conversation_id: str, summary_id: str) -> dict[str, Any]:
        """Delete a summary with all its texts, and the folds that stand on it. What it stood for is shown word for word
        again, or summarized anew when the room is needed.

        Raises:
            ConversationNotFound, SummaryNotFound: there is none.
        """
        conversation, _, chunk = await self._found(caller, conversation_id, summary_id)
        await self._store.delete_chunk(tenant=conversation.tenant, root=conversation.root, chunk_id=chunk.id)
        return {"id": chunk.id, "object": "conversation.summary.deleted", "deleted": True}

    async def _replace(
        self, caller: Caller, conversation: Conversation, chunk: Chunk, text: Chunk, revision: int | None
    ) -> dict[str, Any]:
        """Store a text as the next revision of a chunk."""
        for _ in range(TRIES):
            if revision not in (None, chunk.revision):
                break
            following = replace(text, revision=chunk.revision + 1, created_at=self._clock())
            try:
                await self._store.revise(tenant=conversation.tenant, root=conversation.root, chunk=following)
            except HeadMoved:
                chunk = _named(await self._chunks(conversation), chunk.id, conversation)
                continue
            return await self.one(caller, conversation.id, chunk.id)
        raise _conflict(chunk.id)

    async def _edited(self, conversation: Conversation, chunk: Chunk, text: str) -> Chunk:
        words = text.strip()
        if not words:
            raise InvalidRequest("The text of a summary must not be blank.", code="invalid_value", param="text")
        count = self._counter_for(conversation.counter)
        tokens = section_tokens(words, through_turn=chunk.through_turn, count=count)
        replaced_tokens = await self._replaced_tokens(conversation, chunk)
        if tokens >= replaced_tokens:
            raise InvalidRequest(
                f"The text takes {tokens} tokens, and the messages that it stands for take {replaced_tokens}.",
                code="summary_too_long",
                param="text",
                hint="Shorten it, or delete the summary to have the messages shown word for word.",
            )
        kind = "part" if chunk.kind == "part" else "edited"
        return replace(
            chunk, text=words, tokens=tokens, kind=kind, model="", prompt_version="", duration_ms=0, usage=None
        )

    async def _replaced_tokens(self, conversation: Conversation, chunk: Chunk) -> int:
        """What the messages weigh that a summary stands for."""
        if chunk.from_seq == 0:
            return chunk.tokens_total
        (before,) = await self._store.read(conversation, chunk.from_seq - 1, chunk.from_seq)
        return chunk.tokens_total - before.tokens_total

    async def _found(
        self, caller: Caller, conversation_id: str, summary_id: str
    ) -> tuple[Conversation, list[Chunk], Chunk]:
        conversation = await self._records.of(caller, conversation_id)
        chunks = await self._chunks(conversation)
        return conversation, chunks, _named(chunks, summary_id, conversation)

    async def _chunks(self, conversation: Conversation) -> list[Chunk]:
        return await self._store.chunks(tenant=conversation.tenant, root=conversation.root, path=conversation.path)

    async def _active_ids(self, conversation: Conversation, chunks: Sequence[Chunk]) -> set[str]:
        """The summaries that follow on each other from the log's beginning, without those of messages that the client
        leaves out; where one of everything reaches further, that one alone (policy `checkpoint`, a rolling summary).
        Folds only repeat them."""
        chain, _ = active_chain(chunks, omitted=await read_omitted(self._store, conversation))
        whole = active_chain([chunk for chunk in chunks if not chunk.folds], replacing=True)[0]
        if whole and (not chain or whole[-1].to_seq > chain[-1].to_seq):
            return {whole[-1].id}
        return {chunk.id for chunk in chain}

    async def _revisions(self, conversation: Conversation, chunk: Chunk) -> list[Chunk]:
        return await self._store.revisions(tenant=conversation.tenant, root=conversation.root, chunk_id=chunk.id)

    async def _told(
        self, conversation: Conversation, chunks: Sequence[Chunk], active: set[str]
    ) -> list[dict[str, Any]]:
        ends = await item_ids(self._store, conversation, [(chunk.from_seq, chunk.to_seq) for chunk in chunks])
        return [summary_object(chunk, conversation, ends, is_active=chunk.id in active) for chunk in chunks]


def _named(chunks: Sequence[Chunk], summary_id: str, conversation: Conversation) -> Chunk:
    found = next((chunk for chunk in chunks if chunk.id == summary_id), None)
    if found is None:
        raise SummaryNotFound(f"Summary with id {summary_id!r} not found in conversation {conversation.id!r}.")
    return found


def _conflict(summary_id: str) -> RevisionConflict:
    return RevisionConflict(
        f"Summary {summary_id!r} is another revision by now.", param="revision", hint="Read it again, then decide."
    )
