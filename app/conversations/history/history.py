"""The course of a conversation: its answers in numbers, its log as people read it, and the branches of its family."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import msgspec

from app.context.plan.policy import Policy
from app.context.plan.summary_chain import active_chain
from app.conversation.messages import Chunk, Conversation, LogMessage
from app.conversations.history.conversations import Records
from app.conversations.history.readable_log import spoken_row, title_of
from app.conversations.history.turn_numbers import Numbering, numbered, role_of
from app.conversations.history.turn_statistics import answer_row
from app.pipeline.chat_request import Caller
from app.pipeline.compact.summary_chain import read_omitted
from app.pipeline.view.pins import pins_of
from app.store.contract import ListQuery, Store
from app.store.lineage import own_from

STRETCH_MESSAGES: Final = 1_024
"""The most that are read at a time while answers are looked for."""
MAX_BRANCHES: Final = 500
TITLE_MESSAGES: Final = 4
"""Among so many messages the first of a user's is looked for."""


class TurnsWish(msgspec.Struct, frozen=True):
    """Which answers are wanted: `limit` of them behind the one of item `after`."""

    limit: int
    newest_first: bool = False
    after: str | None = None


class History:
    """Reads what was said and what it took. Calls no model, writes nothing."""

    def __init__(self, *, store: Store, records: Records, policies: Mapping[str, Policy]) -> None:
        self._store = store
        self._records = records
        self._policies = policies
        self._numbering = Numbering(store)

    async def turns(self, caller: Caller, conversation_id: str, wish: TurnsWish) -> tuple[list[dict[str, Any]], bool]:
        """A page of a conversation's answers, and whether there are more behind it.

        Raises:
            ConversationNotFound, ItemNotFound: there is none, or no such message to go on after.
        """
        conversation = await self._records.of(caller, conversation_id)
        end = conversation.head_seq + 1
        after = None if wish.after is None else (await self._records.entry(conversation, wish.after))[0].seq
        if wish.newest_first:
            found = await self._answers_before(conversation, end if after is None else after, wish.limit + 1)
        else:
            found = await self._answers_from(conversation, 0 if after is None else after + 1, wish.limit + 1)
        rows = [answer_row(answer, turn, self._policies) for answer, turn in found[: wish.limit]]
        return rows, len(found) > wish.limit

    async def _answers_from(
        self, conversation: Conversation, from_seq: int, count: int
    ) -> list[tuple[LogMessage, int]]:
        """The next answers, oldest first, each with the number of its turn."""
        found: list[tuple[LogMessage, int]] = []
        turns = await self._numbering.before(conversation, from_seq)
        end = conversation.head_seq + 1
        while from_seq < end and len(found) < count:
            past = min(end, from_seq + _stretch(count - len(found)))
            entries = await self._store.read(conversation, from_seq, past)
            numbers = numbered(entries, turns)
            found += _answers(entries, numbers)
            from_seq, turns = past, numbers[-1] if numbers else turns
        return found[:count]

    async def _answers_before(
        self, conversation: Conversation, before_seq: int, count: int
    ) -> list[tuple[LogMessage, int]]:
        """The answers before, newest first, each with the number of its turn."""
        found: list[tuple[LogMessage, int]] = []
        while before_seq > 0 and len(found) < count:
            first = max(0, before_seq - _stretch(count - len(found)))
            entries = await self._store.read(conversation, first, before_seq)
            turns = await self._numbering.before(conversation, first)
            found += reversed(_answers(entries, numbered(entries, turns)))
            before_seq = first
        return found[:count]

    async def log(self, caller: Caller, conversation_id: str, from_seq: int, limit: int) -> dict[str, Any]:
        """Messages of a log from a seq on, and how many it has in all.

        Raises:
            ConversationNotFound: there is none.
        """
        conversation = await self._records.of(caller, conversation_id)
        end = conversation.head_seq + 1
        past = min(end, from_seq + limit)
        rows: list[dict[str, Any]] = []
        if from_seq < past:
            summaries = await self._summaries(conversation)
            known = {chunk.to_seq: chunk.through_turn for chunk in summaries}
            turns = await self._numbering.before(conversation, from_seq, known)
            entries = await self._store.read(conversation, from_seq, past)
            pinned = {seq for pin in pins_of(conversation.marks) for seq in range(pin.from_seq, pin.to_seq)}
            for entry, turn in zip(entries, numbered(entries, turns), strict=True):
                covering = _covering(summaries, entry.seq)
                rows.append(spoken_row(entry, turn, is_pinned=entry.seq in pinned, summary_id=covering))
        return {"object": "list", "total": end, "data": rows}

    async def _summaries(self, conversation: Conversation) -> Sequence[Chunk]:
        """The chain that views are made with, without texts; where there is none, the longest of those that replace
        each other."""
        stored = await self._store.chunks(
            tenant=conversation.tenant, root=conversation.root, path=conversation.path, texts=False
        )
        omitted = await read_omitted(self._store, conversation)
        chain, _ = active_chain(stored, omitted=omitted)
        replacing, _ = active_chain([chunk for chunk in stored if not chunk.folds], replacing=True)
        return chain if len(chain) > 1 or not replacing else replacing[-1:]

    async def branches(self, caller: Caller, conversation_id: str) -> tuple[list[dict[str, Any]], bool]:
        """The family of a conversation, oldest first: what it branched from, what branched from that, itself. And
        whether there are more.

        Raises:
            ConversationNotFound: there is none.
        """
        conversation = await self._records.of(caller, conversation_id)
        oldest = conversation.lineage[0][0] if conversation.lineage else conversation.id
        query = ListQuery(limit=MAX_BRANCHES + 1, descending=False, within=oldest)
        family = await self._store.conversations(tenant=caller.tenant, query=query)
        rows = [await self._branch(member, conversation) for member in family[:MAX_BRANCHES]]
        return rows, len(family) > MAX_BRANCHES

    async def _branch(self, member: Conversation, current: Conversation) -> dict[str, Any]:
        return {
            "id": member.id,
            "object": "conversation.branch",
            "parent_id": member.lineage[-1][0] if member.lineage else None,
            "fork_seq": own_from(member) if member.lineage else None,
            "created_at": None if member.created_at is None else int(member.created_at.timestamp()),
            "updated_at": None if member.updated_at is None else int(member.updated_at.timestamp()),
            "messages": member.head_seq + 1,
            "tokens": member.head_tokens_total,
            "title": await self.title(member),
            "current": member.id == current.id,
        }

    async def title(self, conversation: Conversation) -> str | None:
        """What a conversation is called: its own `title`, or the beginning of the first thing that its user said; in a
        branch, that was said after it left its parent, if anything was."""
        named = title_of(conversation.metadata, ())
        for from_seq in sorted({own_from(conversation), 0}, reverse=True):
            if named is None and from_seq <= conversation.head_seq:
                first = await self._store.read(conversation, from_seq, from_seq + TITLE_MESSAGES)
                named = title_of(conversation.metadata, first)
        return named


def _stretch(answers: int) -> int:
    """How many messages are read in search of so many answers: mostly every other one is one."""
    return min(STRETCH_MESSAGES, 2 * answers)


def _answers(entries: Sequence[LogMessage], numbers: Sequence[int]) -> list[tuple[LogMessage, int]]:
    return [pair for pair in zip(entries, numbers, strict=True) if role_of(pair[0]) == "assistant"]


def _covering(summaries: Sequence[Chunk], seq: int) -> str | None:
    return next((chunk.id for chunk in summaries if chunk.from_seq <= seq < chunk.to_seq), None)
