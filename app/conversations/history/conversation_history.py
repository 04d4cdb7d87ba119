"""Reads the history of a conversation: its turns in numbers, its log for people to read, the branches of its family."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Literal

from app.context.plan.summary_chain import find_chain_and_folds
from app.conversation.conversation_types import Conversation, LogMessage, Summary
from app.conversations.history.conversation_records import ConversationRecords, stream_conversation_pages
from app.conversations.history.readable_log import build_message_row, derive_title
from app.conversations.items.item_building import find_message_item_id
from app.pipeline.turn.chat_request import Caller
from app.pipeline.turn.resolved_request import UNANSWERED_MESSAGES
from app.pipeline.view.client_words_reader import read_owner_words
from app.pipeline.view.pins import decode_pins
from app.pipeline.view.view_restoration import LOG_TOKENS, THRESHOLD, VIEW_FACTS, read_request_facts
from app.store.contract.conversations import ConversationQuery, ConversationStore
from app.store.contract.summaries import ConversationAndSummaryStore
from app.store.lineage import first_own_seq

READ_MESSAGES: Final = 1_024
"""The most messages that are read at once while answers are searched."""
MAX_BRANCHES: Final = 500
MAX_FAMILY_PAGES: Final = 20
"""How many pages of `MAX_BRANCHES` conversations are searched for a family: most that share its rows may be others."""
ListField = Literal["title", "last_answer"]
TITLE_MESSAGES: Final = 4
"""How many messages are searched for the first user message."""


@dataclass(eq=False, kw_only=True)
class ConversationHistory:
    """Reads turns, logs and branches. It calls no model and writes nothing."""

    store: ConversationAndSummaryStore
    records: ConversationRecords
    _turn_counts: OrderedDict[str, dict[int, int]] = field(default_factory=OrderedDict, init=False)
    """The counts of turns before some places, by `seq`, of the conversations that were read last."""

    async def list_turns(
        self, caller: Caller, conversation_id: str, *, limit: int, after: str | None, newest_first: bool
    ) -> tuple[list[dict[str, Any]], bool]:
        """Returns a page of a conversation's answers, and whether more follow.

        Raises:
            ConversationNotFound, ItemNotFound: there is no such conversation, or no item `query.after`.
        """
        conversation = await self.records.find_conversation(caller, conversation_id)
        end = conversation.head_seq + 1
        start_seq = end if newest_first else 0
        if after is not None:
            entry, _ = await self.records.find_message(conversation, after)
            start_seq = entry.seq if newest_first else entry.seq + 1
        read_answers = self._read_answers_before if newest_first else self._read_answers_after
        answers = await read_answers(conversation, start_seq, limit + 1)
        rows = [build_turn_row(answer, turn) for answer, turn in answers[:limit]]
        # What erased messages and a client's own versions have is not in the log's totals.
        if not conversation.redacted_seqs and not conversation.has_client_versions:
            for row, (answer, _) in zip(rows, answers, strict=False):
                _add_instructions(row, answer)
        return rows, len(answers) > limit

    async def _read_answers_after(
        self, conversation: Conversation, from_seq: int, count: int
    ) -> list[tuple[LogMessage, int]]:
        """Returns up to `count` answers from `from_seq` on, oldest first, each with the number of its turn."""
        answers: list[tuple[LogMessage, int]] = []
        turns = await self._count_turns_before(conversation, from_seq)
        end = conversation.head_seq + 1
        while from_seq < end and len(answers) < count:
            past = min(end, from_seq + _estimate_messages_to_read(count - len(answers)))
            entries = await self.store.read_log(conversation, from_seq, past)
            numbers = number_turns(entries, turns)
            answers += _select_answers(entries, numbers)
            from_seq, turns = past, numbers[-1] if numbers else turns
        return answers[:count]

    async def _read_answers_before(
        self, conversation: Conversation, before_seq: int, count: int
    ) -> list[tuple[LogMessage, int]]:
        """Returns up to `count` answers before `before_seq`, newest first, each with the number of its turn."""
        answers: list[tuple[LogMessage, int]] = []
        while before_seq > 0 and len(answers) < count:
            batch_start = max(0, before_seq - _estimate_messages_to_read(count - len(answers)))
            entries = await self.store.read_log(conversation, batch_start, before_seq)
            turns = await self._count_turns_before(conversation, batch_start)
            answers += reversed(_select_answers(entries, number_turns(entries, turns)))
            before_seq = batch_start
        return answers[:count]

    async def _count_turns_before(
        self, conversation: Conversation, seq: int, known_counts: Mapping[int, int] | None = None
    ) -> int:
        """Returns how many turns begin in a conversation's log before `seq`.

        Args:
            known_counts: the counts at other places by `seq`, taken from summaries. Counting starts at the nearest one.

        Raises:
            StoreUnavailable: the log cannot be read.
        """
        counts_by_seq = self._cached_counts(conversation.id)
        nearest, turns = max(
            seq_and_count
            for seq_and_count in {**(known_counts or {}), **counts_by_seq}.items()
            if seq_and_count[0] <= seq
        )
        while nearest < seq:
            past = min(seq, nearest - nearest % TURN_NUMBER_STRIDE_MESSAGES + TURN_NUMBER_STRIDE_MESSAGES)
            turns += sum(map(starts_turn, await self.store.read_log(conversation, nearest, past)))
            nearest = past
            if nearest % TURN_NUMBER_STRIDE_MESSAGES == 0:
                counts_by_seq[nearest] = turns
        return turns

    def _cached_counts(self, conversation_id: str) -> dict[int, int]:
        counts_by_seq = self._turn_counts.setdefault(conversation_id, {0: 0})
        self._turn_counts.move_to_end(conversation_id)
        if len(self._turn_counts) > MAX_CACHED_CONVERSATIONS:
            self._turn_counts.popitem(last=False)
        return counts_by_seq

    async def read_log_page(self, caller: Caller, conversation_id: str, from_seq: int, limit: int) -> dict[str, Any]:
        """Returns up to `limit` messages of a log from `from_seq` on, and the number of all its messages.

        Raises:
            ConversationNotFound: there is no such conversation.
        """
        conversation = await self.records.find_conversation(caller, conversation_id)
        end = conversation.head_seq + 1
        past = min(end, from_seq + limit)
        rows: list[dict[str, Any]] = []
        if from_seq < past:
            stored = await self.store.find_summaries(
                tenant=conversation.tenant,
                root=conversation.root,
                path=conversation.lineage_with_self,
                with_texts=False,
            )
            summaries = await find_active_summaries(self.store, conversation, stored)
            known = {summary.to_seq: summary.through_turn for summary in summaries}
            turns = await self._count_turns_before(conversation, from_seq, known)
            entries = await self.store.read_log(conversation, from_seq, past)
            pinned = {seq for pin in decode_pins(conversation.marks) for seq in range(pin.from_seq, pin.to_seq)}
            for entry, turn in zip(entries, number_turns(entries, turns), strict=True):
                covering = _find_covering_summary_id(summaries, entry.seq)
                rows.append(build_message_row(entry, turn, is_pinned=entry.seq in pinned, summary_id=covering))
        return {"object": "list", "total": end, "data": rows}

    async def list_family(self, caller: Caller, conversation_id: str) -> tuple[list[dict[str, Any]], bool]:
        """Returns the family of a conversation, itself included, oldest first, and whether there are more branches.

        Raises:
            ConversationNotFound: there is no such conversation.
        """
        conversation = await self.records.find_conversation(caller, conversation_id)
        family, has_more = await self._find_family(conversation)
        return [await self._build_branch_row(member, conversation) for member in family], has_more

    async def _find_family(self, conversation: Conversation) -> tuple[list[Conversation], bool]:
        """Returns up to `MAX_BRANCHES` conversations of a family, oldest first, and whether there may be more."""
        query = ConversationQuery(limit=MAX_BRANCHES + 1, descending=False, ancestor_id=conversation.family_id)
        family: list[Conversation] = []
        page_count = 0
        async for page in stream_conversation_pages(self.store, conversation.tenant, query):
            # Conversations that merely share rows of the family are in the page, too.
            family += [member for member in page if member.family_id == conversation.family_id]
            page_count += 1
            if len(family) > MAX_BRANCHES or page_count == MAX_FAMILY_PAGES:
                return family[:MAX_BRANCHES], True
        return family, False

    async def _build_branch_row(self, member: Conversation, current: Conversation) -> dict[str, Any]:
        return {
            "id": member.id,
            "object": "conversation.branch",
            "parent_id": member.relatives[-1][0] if member.relatives else None,
            "fork_seq": first_own_seq(member) if member.relatives else None,
            "created_at": None if member.created_at is None else int(member.created_at.timestamp()),
            "updated_at": None if member.updated_at is None else int(member.updated_at.timestamp()),
            "messages": member.head_seq + 1,
            "tokens": member.head_tokens_total,
            "title": await self.find_title(member),
            "current": member.id == current.id,
        }

    async def find_title(self, conversation: Conversation) -> str | None:
        """Returns a conversation's title: `title` of its metadata, or the beginning of its first user message. In a
        branch, its own first user message comes before the shared one, so that branches have different titles."""
        title: str | None = (await self.read_list_fields(conversation, ("title",)))["title"]
        return title

    async def read_list_fields(self, conversation: Conversation, fields: Sequence[ListField]) -> dict[str, Any]:
        """Reads what a list shows of a conversation beside its record, in at most one round trip.

        Args:
            fields: `title` (see `find_title`); `last_answer`: also returns `unanswered`, the number of messages after
                the last answer, which are more than 0 while a request runs and after one has failed.
        """
        own_title = derive_title(conversation.metadata, ())
        title_starts = sorted({first_own_seq(conversation), 0}, reverse=True)
        title_seqs = {
            seq
            for start in title_starts
            for seq in range(start, min(start + TITLE_MESSAGES, conversation.head_seq + 1))
            if "title" in fields and own_title is None
        }
        unanswered = min(int(conversation.state.get(UNANSWERED_MESSAGES, 0)), conversation.head_seq + 1)
        answer_seq = conversation.head_seq - unanswered
        seqs = title_seqs | ({answer_seq} if "last_answer" in fields and answer_seq >= 0 else set())
        ranges = [(seq, seq + 1) for seq in sorted(seqs)]
        entries = {entry.seq: entry for entry in await self.store.read_log_ranges(conversation, ranges)} if seqs else {}
        found: dict[str, Any] = {}
        if "title" in fields:
            titles = (
                derive_title(
                    conversation.metadata,
                    [entries[seq] for seq in range(start, start + TITLE_MESSAGES) if seq in entries],
                )
                for start in title_starts
            )
            found["title"] = own_title or next(filter(None, titles), None)
        if "last_answer" in fields:
            found |= {"last_answer": _build_last_answer(entries.get(answer_seq)), "unanswered": unanswered}
        return found


async def find_active_summaries(
    store: ConversationStore, conversation: Conversation, summaries: Sequence[Summary]
) -> Sequence[Summary]:
    """Returns the active ones of a conversation's summaries: the chain from the log's beginning, without summaries of
    messages that the client leaves out. If one summary of the whole log reaches further (policy `checkpoint`, a
    rolling summary), it alone is active. Folds are never active, because they repeat other summaries."""
    chain, replacing = await find_summary_chains(store, conversation, summaries)
    is_replaced = replacing and (not chain or replacing[-1].to_seq > chain[-1].to_seq)
    return replacing[-1:] if is_replaced else chain


async def find_summary_chains(
    store: ConversationStore, conversation: Conversation, summaries: Sequence[Summary]
) -> tuple[Sequence[Summary], Sequence[Summary]]:
    """Returns the chain of summaries of policies that add one to another, and that of policies that replace one by a
    longer one."""
    words = await read_owner_words(store, conversation)
    chain, _ = find_chain_and_folds(summaries, words=words)
    unfolded = [summary for summary in summaries if not summary.folds]
    replacing, _ = find_chain_and_folds(unfolded, are_replacing=True, words=words)
    return chain, replacing


def _build_last_answer(entry: LogMessage | None) -> dict[str, Any] | None:
    """Builds what a list shows of an answer; None without an answer. Its model and status are None if it did not come
    through the gateway."""
    if entry is None or entry.message.role != "assistant":
        return None
    meta: AnswerMeta = entry.meta or {}
    return {
        "model": read_request_facts(meta).get("model"),
        "context_status": meta.get("context_status"),
        "incomplete": entry.incomplete,
    }


def _estimate_messages_to_read(answers: int) -> int:
    """Returns how many messages to read to find a number of answers: about every other message is one."""
    return min(READ_MESSAGES, 2 * answers)


def _select_answers(entries: Sequence[LogMessage], numbers: Sequence[int]) -> list[tuple[LogMessage, int]]:
    return [pair for pair in zip(entries, numbers, strict=True) if pair[0].message.role == "assistant"]


def _find_covering_summary_id(summaries: Sequence[Summary], seq: int) -> str | None:
    return next((summary.id for summary in summaries if summary.from_seq <= seq < summary.to_seq), None)


AnswerMeta = Mapping[str, Any]


def build_turn_row(answer: LogMessage, turn: int) -> dict[str, Any]:
    """Builds the row of an answer. Facts of the request are None for answers that did not come through the gateway.

    Args:
        turn: the number of its turn, counted from 1.
    """
    meta: AnswerMeta = answer.meta or {}
    context: AnswerMeta = meta.get("context") or {}
    view_record: AnswerMeta = meta.get(VIEW_FACTS) or {}
    usage: AnswerMeta = meta.get("usage") or {}
    reported: AnswerMeta = context.get("calibration") or {}
    completion_tokens = usage.get("completion_tokens", usage.get("output_tokens"))
    log_tokens = view_record.get(LOG_TOKENS)
    boundary: AnswerMeta = (view_record.get("shown") or {}).get("boundary") or {}
    return {
        "id": find_message_item_id(answer),
        "object": "conversation.turn",
        "turn": turn,
        "seq": answer.seq,
        "created_at": None if answer.created_at is None else int(answer.created_at.timestamp()),
        "model": read_request_facts(meta).get("model"),
        "status": meta.get("context_status"),
        "finish_reason": meta.get("finish_reason"),
        "incomplete": answer.incomplete,
        **{name: context.get(name) for name in ("policy", "window", "limit", "prompt_tokens", "compaction")},
        "summaries": len(context["summaries"]) if "summaries" in context else None,
        "recovered": bool(context.get("recovered")),
        "reported_tokens": reported.get("reported_tokens"),
        "cached_tokens": reported.get("cached_tokens"),
        "completion_tokens": completion_tokens if isinstance(completion_tokens, int) else None,
        "threshold_tokens": context.get("compacts_above", view_record.get(THRESHOLD)),
        "parts": build_prompt_parts(context) if context else None,
        "log_tokens": log_tokens,
        "saved_tokens": None if log_tokens is None else max(0, log_tokens - int(context["prompt_tokens"])),
        "boundary_seq": boundary.get("to_seq", 0) if context else None,
    }


def build_prompt_parts(context: AnswerMeta) -> dict[str, int | None]:
    """Builds the calibrated tokens of each part of the prompt that an answer was given to. `verbatim` is the rest: the
    messages, whole or shortened, the gateway's words around summaries, and the instructions while they are None.

    Args:
        context: as stored with the answer.
    """
    raw_summaries = sum(summary["tokens"] for summary in context.get("summaries", ()))
    parts = {
        "summaries": round(raw_summaries * _read_slope(context)),
        "user_text": int((context.get("user_text") or {}).get("tokens", 0)),
        "quotations": int(context.get("quoted_tokens", 0)),
    }
    return {"instructions": None, **parts, "verbatim": int(context["prompt_tokens"]) - sum(parts.values())}


def _add_instructions(row: dict[str, Any], answer: LogMessage) -> None:
    """Takes the tokens of instructions and tools from `verbatim`: what the whole history had, less its messages."""
    meta: AnswerMeta = answer.meta or {}
    facts: AnswerMeta = meta.get(VIEW_FACTS) or {}
    if row["parts"] is None or row["log_tokens"] is None or facts.get("next_seq") != answer.seq:
        return
    messages = round((answer.tokens_total - answer.tokens) * _read_slope(meta["context"]))
    instructions = min(row["parts"]["verbatim"], max(0, row["log_tokens"] - messages))
    row["parts"] |= {"instructions": instructions, "verbatim": row["parts"]["verbatim"] - instructions}


def _read_slope(context: AnswerMeta) -> float:
    return float((context.get("calibration") or {}).get("slope") or 1.0)


TURN_NUMBER_STRIDE_MESSAGES: Final = 512
"""How many messages are read at once, and the distance between places whose turn count is cached."""
MAX_CACHED_CONVERSATIONS: Final = 1_000


def starts_turn(entry: LogMessage) -> bool:
    """Returns whether a turn begins with this message: a user message, or the first of a log (as in
    `context.plan.log_rounds`)."""
    return entry.seq == 0 or entry.message.role == "user"


def number_turns(entries: Sequence[LogMessage], turns_before: int) -> list[int]:
    """Returns for each of these consecutive messages the number of its turn, counted from 1.

    Args:
        turns_before: how many turns begin in the log before the first entry.
    """
    numbers = []
    for entry in entries:
        turns_before += starts_turn(entry)
        numbers.append(turns_before)
    return numbers
