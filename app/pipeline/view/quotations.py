"""Quotations: old messages that the newest user message asks for, shown next to it when the view hides part of the log.

A quotation for an earlier message stays in its place until the boundary moves or there is no room, so that the next
view begins with the same bytes as this one. Each user message is searched for once, however many rounds its turn takes
(docs/decisions/0012).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from msgspec.structs import replace

from app.context.plan.budget import compute_compaction_threshold
from app.context.plan.outline import Quotation
from app.context.plan.policy import ContextPolicy
from app.context.quote.meaning import PassagePlace
from app.context.quote.question_terms import extract_question_terms
from app.context.quote.quote_selection import asks_about_conversation, choose_quotation
from app.conversation.conversation_types import Conversation, LogMessage
from app.conversation.search_terms import extract_message_terms
from app.dialects.item_decoding import decode_item
from app.errors import StoreUnavailable
from app.observability.request_record import timed_step
from app.pipeline.turn.background_tasks import BackgroundTasks
from app.pipeline.turn.resolved_request import ResolvedRequest
from app.pipeline.turn.token_counting import MessageCounter
from app.pipeline.turn.turn import Turn, View
from app.pipeline.view.meaning_search import MeaningSearch
from app.pipeline.view.message_search import MessageSearch
from app.pipeline.view.view_builder import ViewBuilder
from app.store.contract.conversations import SearchHit
from app.store.search.term_ranking import rank_search_hits

log = logging.getLogger(__name__)

MAX_CANDIDATES: Final = 32
"""The most messages that a search returns, without their neighbours."""
MAX_QUESTION_CHARS: Final = 4_000
"""How many characters of the newest message are searched for. Of a longer message the end is used, where the question
usually stands."""
MAX_INDEXED_IN_TURN: Final = 256
"""The most messages that are indexed during a turn, at about one millisecond each. More messages are indexed in the
background."""
MAX_ROOM_FACTOR: Final = 2
"""All quotations of a view together may take this many times the policy's share of the window, if the view leaves that
much free."""
MAX_FILLED_SHARE: Final = 2 / 3
MAX_FILLED_TOKENS: Final = 1_000
"""A question may fill this share of the room, up to so many tokens: on FriendsQA, a quarter of a thousand tokens finds
54 % of the answers, half of it 65 %, all of it 70 %, and more tokens hardly more."""
LATER_FILLED_SHARE: Final = 0.4
"""While a quotation that filled the room stays, a later question may fill this share of what the first may. Without it,
a careless early question would leave the later ones with little more than statements get: in generated dialogues at a
window of 8,192 they then found 67 % of the answers instead of 90 %."""
FILLED_SHARE: Final = 1 / 3
"""A quotation that takes more than this share of the room has filled it."""
MIN_ROOM_TOKENS: Final = 256
"""If less room than this is left, a new quotation replaces the old ones: the present question matters more than the
prompt cache, which must read what follows the old quotations again."""


@dataclass(eq=False, kw_only=True)
class QuotationBuilder:
    """Adds quotations to views."""

    view_builder: ViewBuilder
    message_search: MessageSearch
    meaning_search: MeaningSearch
    message_counter: MessageCounter
    tasks: BackgroundTasks

    @timed_step("quotations")
    async def add_quotations(self, turn: Turn, view: View) -> View:
        """Adds quotations for the newest user message to a view. If the store is unavailable, only the earlier
        quotations are kept."""
        plan = view.plan
        # Nothing to quote if the view shows the whole log.
        if (
            not plan.boundary_seq
            or not turn.resolved_request.storage.is_stored
            or (turn.request.context.recall or turn.policy.recall_mode) != "quote"
        ):
            return view
        quotations = keep_last_quotations(view)
        newest_user_message = find_newest_user_message(turn.resolved_request, view)
        if newest_user_message is not None and all(one.before_seq != newest_user_message.seq for one in quotations):
            try:
                quotations = await self._add_quotation_for_newest_message(turn, view, quotations, newest_user_message)
            except StoreUnavailable as error:
                # An answer without quotations is better than none.
                log.warning("could not search old messages for quotations: %s", error.message)
        prompt_tokens = plan.prompt_tokens + sum(one.tokens for one in quotations)
        plan = replace(plan, quotations=quotations, prompt_tokens=prompt_tokens)
        if not any(one.passages for one in quotations):
            return replace(view, plan=plan)
        return await self.view_builder.render_view(turn.resolved_request, view, plan)

    async def _add_quotation_for_newest_message(
        self, turn: Turn, view: View, kept_quotations: tuple[Quotation, ...], newest_user_message: LogMessage
    ) -> tuple[Quotation, ...]:
        """Returns the quotations with one for the newest message added (`share_room`).

        If nothing is quoted for a message, an empty quotation is stored, so that the message is not searched for again.
        """
        question = newest_user_message.message.text[-MAX_QUESTION_CHARS:]
        share_tokens, room_tokens = compute_room_tokens(turn.policy, view)
        kept_quotations, has_filled_quotation = share_room(kept_quotations, room_tokens)
        remaining_tokens = room_tokens - sum(one.tokens for one in kept_quotations)
        filled_tokens = min(int(room_tokens * MAX_FILLED_SHARE), MAX_FILLED_TOKENS)
        if has_filled_quotation:
            filled_tokens = min(int(filled_tokens * LATER_FILLED_SHARE), remaining_tokens)
        found = await self._find_candidates(turn.resolved_request, question, view.plan.boundary_seq)
        meant = await self._find_meant_passages(turn, question, view.plan.boundary_seq)
        found = await self._add_meant_messages(turn.resolved_request.conversation, found, meant)
        candidates = [
            replace(one, message=view.words.quote_message(one.message))
            for one in found
            if _may_be_quoted(one.message, turn, view)
        ]
        shown_seqs = {seq for pin in view.plan.pins for seq in range(pin.from_seq, pin.to_seq)}
        if view.plan.repeated_message_seq is not None:
            shown_seqs.add(view.plan.repeated_message_seq)
        # Of a message that is shown in part, another part may be the answer.
        shown_seqs.update(one.seq for one in view.plan.user_text if one.is_whole)
        quoted_seqs = {passage.seq for one in kept_quotations for passage in one.passages if not passage.spans}
        # In a thread: scoring the sentences of long candidates would block the event loop.
        new_quotation = await asyncio.to_thread(
            choose_quotation,
            question,
            candidates,
            meant=meant,
            before_seq=newest_user_message.seq,
            max_tokens=min(max(share_tokens, filled_tokens), remaining_tokens),
            max_filled_tokens=filled_tokens,
            searched_message_count=view.plan.boundary_seq,
            visible_seqs=shown_seqs | quoted_seqs,
            counter=self.message_counter.find_token_counter(turn.resolved_request.conversation.token_counter_name),
        )
        return (*kept_quotations, new_quotation or Quotation(newest_user_message.seq, (), 0))

    async def _find_candidates(
        self, resolved_request: ResolvedRequest, question: str, before_seq: int
    ) -> Sequence[SearchHit]:
        """Returns the messages that may be quoted: what a search finds for the question's terms, best first, then the
        neighbours. If many messages are not indexed yet, the client's own messages are searched instead.
        """
        conversation = resolved_request.conversation
        terms = list(extract_question_terms(question))
        # Nothing is stored, so the index is empty: the search runs over the messages of the request.
        if resolved_request.is_log_unstored:
            entries = [entry for entry in resolved_request.new_messages if entry.seq < before_seq]
            return await asyncio.to_thread(search_unstored_messages, entries, terms)
        if before_seq - self.message_search.find_indexed_end(conversation) <= MAX_INDEXED_IN_TURN:
            return await self.message_search.find_messages(
                conversation, terms, from_seq=0, before_seq=before_seq, limit=MAX_CANDIDATES
            )
        self.tasks.spawn(self._index_in_background(conversation, before_seq))
        if not resolved_request.is_aligned_by_index or resolved_request.client_messages is None:
            return []
        entries = [
            _make_unstored_log_message(seq, raw)
            for seq, raw in enumerate(resolved_request.client_messages[:before_seq])
        ]
        return await asyncio.to_thread(search_unstored_messages, entries, terms)

    async def _find_meant_passages(self, turn: Turn, question: str, before_seq: int) -> list[PassagePlace]:
        """Returns the passages that mean what a short question asks for, if the policy names an embedding model."""
        model, resolved_request = turn.policy.quotations.recall_embeddings, turn.resolved_request
        if model is None or resolved_request.is_log_unstored or not asks_about_conversation(question):
            return []
        return await self.meaning_search.find_passages(
            resolved_request.conversation, model, question, before_seq=before_seq
        )

    async def _add_meant_messages(
        self, conversation: Conversation, found: Sequence[SearchHit], meant: Sequence[PassagePlace]
    ) -> Sequence[SearchHit]:
        """Returns the candidates with the messages of passages, and the messages after these, which may answer."""
        known = {one.message.seq for one in found}
        wanted = sorted({seq for place in meant for seq in (place.seq, place.seq + 1)} - known)
        if not wanted:
            return found
        entries = await self.message_search.read_messages(conversation, wanted)
        return [*found, *(SearchHit(entry, None) for entry in entries)]

    async def _index_in_background(self, conversation: Conversation, before_seq: int) -> None:
        try:
            await self.message_search.index_messages(conversation, before_seq)
        except StoreUnavailable as error:
            log.warning("could not index old messages for search: %s", error.message)


def _may_be_quoted(entry: LogMessage, turn: Turn, view: View) -> bool:
    """Returns whether a message may be quoted. Of a message that the client merely leaves out, the policy decides."""
    is_omitted = entry.seq in view.outline.omitted_seqs
    return view.words.may_be_quoted(entry.seq) and (not is_omitted or turn.policy.quotations.restore == "quotes")


def keep_last_quotations(view: View) -> tuple[Quotation, ...]:
    """Returns the quotations of the last view, if this view has the same boundary. If there is no room for them, empty
    quotations stand in their places, so that they are not searched for again: otherwise a growing view would quote less
    with every round."""
    plan, last_view = view.plan, view.outline.last_view
    if last_view.boundary != plan.boundary:
        return ()
    quotations = tuple(one for one in last_view.quotations if one.before_seq < view.outline.next_seq)
    room_tokens = view.budget.compute_raw_tokens(view.budget.limit) - plan.prompt_tokens
    if sum(one.tokens for one in quotations) <= room_tokens:
        return quotations
    return tuple(Quotation(one.before_seq, (), 0) for one in quotations)


def find_newest_user_message(resolved_request: ResolvedRequest, view: View) -> LogMessage | None:
    """Returns the last user message, if it is known without a read of the store."""
    known_messages = [*(view.outline.tail or ()), *resolved_request.new_messages]
    found = next((entry for entry in reversed(known_messages) if entry.message.role == "user"), None)
    if found is not None or not resolved_request.is_aligned_by_index or resolved_request.client_messages is None:
        return found
    for seq in reversed(range(len(resolved_request.client_messages))):
        entry = _make_unstored_log_message(seq, resolved_request.client_messages[seq])
        if entry.message.role == "user":
            return entry
    return None


def _make_unstored_log_message(seq: int, raw: bytes) -> LogMessage:
    """Returns a message of the client as a log message of which only the seq is known."""
    return LogMessage(seq, decode_item(bytes(raw)), b"", b"", False, 0, 0, False)


def search_unstored_messages(entries: Sequence[LogMessage], terms: Sequence[str]) -> list[SearchHit]:
    """Returns what a search would find in messages that are not stored yet."""
    term_set = frozenset(terms)
    by_seq = {entry.seq: entry for entry in entries}
    terms_by_seq = {seq: term_set.intersection(extract_message_terms(entry.message)) for seq, entry in by_seq.items()}
    return rank_search_hits(by_seq, terms_by_seq, message_count=len(entries), limit=MAX_CANDIDATES)


def share_room(kept_quotations: tuple[Quotation, ...], room_tokens: int) -> tuple[tuple[Quotation, ...], bool]:
    """Returns the earlier quotations that stay beside a new one, all or none, and whether one of them filled
    the room."""
    if room_tokens - sum(one.tokens for one in kept_quotations) < min(room_tokens, MIN_ROOM_TOKENS):
        return (), False
    return kept_quotations, any(one.tokens > room_tokens * FILLED_SHARE for one in kept_quotations)


def compute_room_tokens(policy: ContextPolicy, view: View) -> tuple[int, int]:
    """Returns how many raw tokens a quotation for a statement may have, and all quotations of the view together: the
    policy's share of the window for the one; for all, more if the view leaves much free. Both fit below the limit.

    A view grows up to the compaction threshold. Quotations may have what lies between the threshold and the limit, and
    half of what is free below the threshold, so that the next turns rarely displace them before a compaction.
    """
    budget = view.budget
    used_tokens = budget.calibrate_tokens(view.plan.prompt_tokens)
    free_tokens = max(0, budget.limit - used_tokens)
    threshold = compute_compaction_threshold(policy, budget, has_summaries=bool(view.plan.summaries))
    share_tokens = int(budget.window * policy.quotations.recall_ratio)
    unused_tokens = budget.limit - (used_tokens + max(used_tokens, threshold)) // 2
    all_tokens = max(share_tokens, min(MAX_ROOM_FACTOR * share_tokens, unused_tokens))
    return (
        budget.compute_raw_tokens(min(share_tokens, free_tokens)),
        budget.compute_raw_tokens(min(all_tokens, free_tokens)),
    )
