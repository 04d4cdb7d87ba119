"""The course of a conversation: its answers in numbers, its log as people read it, and the branches of its family."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping, Sequence
from typing import Any, Final

import msgspec

from app.context.plan.budget import budget_for
from app.context.plan.policy import Policy
from app.context.plan.summary_chain import active_chain
from app.conversation.messages import Chunk, Conversation, LogMessage
from app.conversations.history.conversations import Records
from app.conversations.history.readable_log import spoken_row, title_of
from app.conversations.items.items import message_item_id
from app.pipeline.chat_request import Caller
from app.pipeline.compact.summary_chain import read_omitted
from app.pipeline.view.pins import pins_of
from app.pipeline.view.view_history import LOG_TOKENS, SEEN, THRESHOLD, asked_in
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


Facts = Mapping[str, Any]


def answer_row(answer: LogMessage, turn: int, policies: Mapping[str, Policy]) -> dict[str, Any]:
    """An answer; what is only known of answers that came through the gateway is None of others.

    Args:
        turn: the number of its turn.
        policies: as they are configured now, for answers from before their line was kept with them.
    """
    meta: Facts = answer.meta or {}
    context: Facts = meta.get("context") or {}
    return {
        "id": message_item_id(answer),
        "object": "conversation.turn",
        "turn": turn,
        "seq": answer.seq,
        "created_at": None if answer.created_at is None else int(answer.created_at.timestamp()),
        "model": asked_in(meta).get("model"),
        "status": meta.get("context_status"),
        "finish_reason": meta.get("finish_reason"),
        "incomplete": answer.incomplete,
        **_of_context(context),
        **_of_usage(context, meta.get("usage") or {}),
        **_of_view(context, meta.get(SEEN) or {}, answer, policies),
    }


def _of_context(context: Facts) -> dict[str, Any]:
    return {
        **{name: context.get(name) for name in ("policy", "window", "limit", "prompt_tokens", "compaction")},
        "summaries": len(context["summaries"]) if "summaries" in context else None,
        "recovered": bool(context.get("recovered")),
    }


def _of_usage(context: Facts, usage: Facts) -> dict[str, Any]:
    """What the provider reported."""
    counted: Facts = context.get("calibration") or {}
    written = usage.get("completion_tokens", usage.get("output_tokens"))
    return {
        "reported_tokens": counted.get("reported_tokens"),
        "cached_tokens": counted.get("cached_tokens"),
        "completion_tokens": written if isinstance(written, int) else None,
    }


def _of_view(context: Facts, seen: Facts, answer: LogMessage, policies: Mapping[str, Policy]) -> dict[str, Any]:
    if not context:
        return {"threshold_tokens": None, "log_tokens": None, "saved_tokens": None, "boundary_seq": None}
    sent = int(context["prompt_tokens"])
    whole = seen.get(LOG_TOKENS)
    if whole is None:
        whole = _estimated_log_tokens(context, answer)
    shown: Facts = seen.get("shown") or {}
    boundary: Facts = shown.get("boundary") or {}
    return {
        "threshold_tokens": _threshold_tokens(context, seen, policies),
        "log_tokens": whole,
        "saved_tokens": max(0, whole - sent),
        "boundary_seq": boundary.get("to_seq", 0),
    }


def _estimated_log_tokens(context: Facts, answer: LogMessage) -> int:
    """For answers from before it was kept: the log alone, or what was sent, if that is more (instructions)."""
    raw = answer.tokens_total - answer.tokens
    return max(int(context["prompt_tokens"]), round(raw * _ratio(context)))


def _threshold_tokens(context: Facts, seen: Facts, policies: Mapping[str, Policy]) -> int | None:
    told: int | None = context.get("compacts_above", seen.get(THRESHOLD))
    if told is not None:
        return told
    policy = policies.get(str(context.get("policy")))
    return None if policy is None else budget_for(policy, window=int(context["window"])).soft


def _ratio(context: Facts) -> float:
    """The slope, or the ratio that was kept before there were slopes."""
    calibration = context.get("calibration") or {}
    return float(calibration.get("slope") or calibration.get("ratio") or 1.0)


STRIDE_MESSAGES: Final = 512
"""Read at a time, and how far apart the places are whose number is kept."""
KEPT_CONVERSATIONS: Final = 1_000


class _Spoken(msgspec.Struct):
    """Of a message, who speaks: the rest of a long one is passed over without being decoded."""

    role: str = ""


_spoken = msgspec.json.Decoder(_Spoken).decode


def role_of(entry: LogMessage) -> str:
    """The role of a message."""
    try:
        return _spoken(entry.message.raw).role
    except msgspec.DecodeError:
        return entry.message.role


def opens_turn(entry: LogMessage) -> bool:
    """Whether a turn begins with this message: a user's, or whatever a log begins with (`context.plan.log_cuts`)."""
    return entry.seq == 0 or role_of(entry) == "user"


def numbered(entries: Sequence[LogMessage], before: int) -> list[int]:
    """Of each of these messages, which follow on each other, the number of its turn, counted from 1.

    Args:
        before: how many turns begin in the log before the first of them.
    """
    numbers = []
    for entry in entries:
        before += opens_turn(entry)
        numbers.append(before)
    return numbers


class Numbering:
    """Counts turns, and remembers the counts of the conversations that were asked for last."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._known: OrderedDict[str, dict[int, int]] = OrderedDict()

    async def before(self, conversation: Conversation, seq: int, known: Mapping[int, int] | None = None) -> int:
        """How many turns begin in a conversation's log before a seq.

        Args:
            known: the same for other places, as summaries have it.

        Raises:
            StoreUnavailable: the log cannot be read.
        """
        places = self._places(conversation.id)
        nearest, turns = max(place for place in {**(known or {}), **places}.items() if place[0] <= seq)
        while nearest < seq:
            past = min(seq, nearest - nearest % STRIDE_MESSAGES + STRIDE_MESSAGES)
            turns += sum(map(opens_turn, await self._store.read(conversation, nearest, past)))
            nearest = past
            if nearest % STRIDE_MESSAGES == 0:
                places[nearest] = turns
        return turns

    def _places(self, conversation_id: str) -> dict[int, int]:
        places = self._known.setdefault(conversation_id, {0: 0})
        self._known.move_to_end(conversation_id)
        if len(self._known) > KEPT_CONVERSATIONS:
            self._known.popitem(last=False)
        return places
