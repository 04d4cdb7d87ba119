"""Chooses which old passages are quoted for a new message, among candidates that a search found. Pure.

1. Messages are cut into passages: a short message is one, of a long one each passage has a few sentences. The passages
   are ranked by the words of the question in them. What answers a passage comes along: the answer to a question, the
   result of a call; and the message between two that are quoted.
2. If the message is a short question, what stands around the best messages comes along, and the rest of the room is
   filled with passages of lower rank.

Quotations cost tokens that no cache holds, so only a question fills the room. Nothing is quoted that shares only common
words with the question.
"""

from __future__ import annotations

import math
import re
from collections import Counter as Multiset
from collections.abc import Container, Iterable, Mapping, Sequence
from datetime import UTC
from typing import Final, Protocol

from app.context.plan.outline import Quotation, QuotedPassage
from app.context.quote.meaning import PassagePlace, fuse_ranks
from app.context.quote.passages import (
    MessagePassages,
    Passage,
    estimate_rarities,
    rank_passages,
    split_into_passages,
)
from app.context.quote.question_terms import (
    SENTENCE_END,
    SHORT_QUESTION_CHARS,
    extract_question_terms,
    merge_aliases,
)
from app.context.quote.quotation_message import render_quotation_message
from app.context.view.view_rendering import ViewTokenCounter
from app.conversation.conversation_types import LogMessage
from app.conversation.item import TOOL_RESULT_ROLES
from app.conversation.search_terms import MAX_MESSAGE_CHARS
from app.conversation.word_aliases import SearchTerm

COMMON_RARITY: Final = 1.5
"""The inverse document frequency of a word in every fifth message. A word that is no rarer says nothing by itself."""
MIN_RELEVANCE_SHARE: Final = 0.15
"""A message is relevant if the words that it shares with the question are worth at least this share of a word that
occurs once."""
SHORT_NUMBER_DIGITS: Final = 3
MIN_SCORE_SHARE: Final = 0.5
"""Share of the best passage's score. For a statement, a passage below it is not quoted."""
MEANT_ALONE: Final = 6
"""If no message shares telling words with a question, so many passages are quoted for what they mean. How near is near
enough differs between models, so a question about nothing in the conversation gets them, too."""
MEANT_FIRST: Final = 8
"""So many of the passages that mean what is asked for are quoted before anything around the best is."""
EXTENDED_FIRST: Final = 4
"""So many of the best messages get what stands around them before passages of lower rank are quoted."""
EXTENSION_STEPS: Final = (0, 1, -1)
"""What is added around a message, in this order: the rest of it, the message after it, and the one before it. An answer
stands more often after the words by which it is found than before them."""
SPEAKER_TOKENS: Final = 5
"""What names a speaker costs at most this."""
MAX_READ_CHARS: Final = 512 * 1024
"""How much of the candidates is read: up to a hundred milliseconds. The best come first, their neighbours last."""
MIN_REMAINING_TOKENS: Final = 8
"""If less room is left, no more passages are considered."""

_ASKS: Final = re.compile(
    r".*[?？؟][\"'”’)»\]]*\s*$"
    r"|\W*(?:(?:please|and|so|now|ok|okay)\W+)*"
    r"(?:who|whose|whom|what|when|where|which|why|how|did|does|remind|recall|tell|list|name|repeat"
    r"|answer|choose|give|reply|respond|return|state)\b",
    re.IGNORECASE | re.DOTALL,
)
"""Matches a sentence that asks for something, or says how the answer shall look."""


class QuoteCandidate(Protocol):
    """A message that a search found; without a score, a neighbour of such a message."""

    @property
    def message(self) -> LogMessage: ...

    @property
    def score(self) -> float | None: ...


def asks_about_conversation(text: str) -> bool:
    """Says whether a message is short and at least half of it asks for something. Other messages bring what they are
    about; a short question more often asks for what was said before."""
    if len(text) > SHORT_QUESTION_CHARS:
        return False
    asking = [sentence for sentence in SENTENCE_END.split(text) if _ASKS.match(sentence)]
    return 2 * sum(map(len, asking)) >= len(text.strip()) > 0


def choose_quotation(
    question: str,
    candidates: Sequence[QuoteCandidate],
    *,
    before_seq: int,
    max_tokens: int,
    searched_message_count: int,
    visible_seqs: Container[int],
    counter: ViewTokenCounter,
    max_filled_tokens: int | None = None,
    meant: Sequence[PassagePlace] = (),
) -> Quotation | None:
    """Returns what to quote in front of the user message `before_seq`; None if nothing is relevant.

    Args:
        question: the text of that message.
        candidates: what `ConversationStore.search_log` found for its terms, best first.
        before_seq: the message to quote for.
        max_tokens: the most that the quoting message may take, with its frame. Raw count.
        searched_message_count: how many messages were searched.
        visible_seqs: messages that the view shows anyway.
        counter: counts in the conversation's encoding.
        max_filled_tokens: up to how many of these tokens the room is filled for a short question; None: all.
        meant: for a short question, the passages that mean what it asks for, nearest first. Their messages are among
            the candidates.
    """
    question_terms = extract_question_terms(question)
    unseen = _select_unseen_candidates(candidates, visible_seqs)
    messages = _CandidateMessages(unseen, frozenset(question_terms))
    scored = [(messages[found.message.seq], found.score) for found in unseen if found.score is not None]
    hits = [message for message, _ in scored]
    rarity = estimate_rarities([(message.terms, score) for message, score in scored], searched_message_count)
    selection = _Selection(messages, max_tokens, counter)
    near = messages.find_passages(meant)
    if not _has_relevant_message(rarity, hits, searched_message_count, question_terms):
        selection.add_passages(near[:MEANT_ALONE])
        return selection.build_quotation(before_seq)
    ranked = rank_passages([passage for message in hits for passage in message.passages], rarity, question_terms)
    least_score = MIN_SCORE_SHARE * ranked[0][0]
    best = [passage for score, passage in ranked if score >= least_score]
    selection.add_passages(fuse_ranks(best, near[:MEANT_FIRST]) if near else best)
    if asks_about_conversation(question):
        selection.limit_room(max_tokens if max_filled_tokens is None else max_filled_tokens)
        selection.add_surroundings(selection.seqs[:EXTENDED_FIRST])
        selection.add_passages(fuse_ranks([passage for _, passage in ranked], near))
        selection.add_surroundings(selection.seqs)
    return selection.build_quotation(before_seq)


def _select_unseen_candidates(
    candidates: Iterable[QuoteCandidate], visible_seqs: Container[int]
) -> list[QuoteCandidate]:
    """Returns the candidates that the view does not show anyway, best first, up to `MAX_READ_CHARS`."""
    unseen, left = [], MAX_READ_CHARS
    for found in candidates:
        if left <= 0:
            break
        if found.message.seq not in visible_seqs:
            unseen.append(found)
            left -= min(len(found.message.message.raw), MAX_MESSAGE_CHARS)
    return unseen


def _has_relevant_message(
    rarity: Mapping[str, float],
    messages: Iterable[MessagePassages],
    searched_message_count: int,
    question_terms: Mapping[str, SearchTerm],
) -> bool:
    """Says whether a message shares words with the question that are rare in this conversation, or many that are not
    common. A short number occurs anywhere and counts for nothing by itself.
    """
    telling = {
        term: worth - COMMON_RARITY
        for term, worth in rarity.items()
        if worth > COMMON_RARITY and not (term.isdigit() and len(term) <= SHORT_NUMBER_DIGITS)
    }
    once = math.log(1 + (searched_message_count - 0.5) / 1.5) - COMMON_RARITY
    shared = ({term: telling[term] for term in message.terms & telling.keys()} for message in messages)
    most = max((sum(merge_aliases(terms, question_terms).values()) for terms in shared), default=0.0)
    return most > 0 and most >= MIN_RELEVANCE_SHARE * once


class _CandidateMessages:
    """The candidates by seq, split into passages when they are first needed."""

    def __init__(self, candidates: Iterable[QuoteCandidate], question_terms: frozenset[str]) -> None:
        self._entries = {found.message.seq: found.message for found in candidates}
        self._question_terms = question_terms
        self._split: dict[int, MessagePassages] = {}
        self._user_message_times = Multiset(
            one.created_at for one in self._entries.values() if one.message.role == "user"
        )
        """How many user messages were stored at each moment."""

    def __contains__(self, seq: int) -> bool:
        return seq in self._entries

    def __getitem__(self, seq: int) -> MessagePassages:
        if seq not in self._split:
            self._split[seq] = split_into_passages(self._entries[seq], self._question_terms)
        return self._split[seq]

    def find_passages(self, places: Sequence[PassagePlace]) -> list[Passage]:
        """Returns the passages at places. Where the client shows a message in other words, it may have fewer."""
        known = [self[place.seq].passages[place.passage :][:1] for place in places if place.seq in self]
        return [passage for passages in known for passage in passages]

    def list_answers(self, seq: int) -> list[int]:
        """Returns the messages that answer a message: the results of its calls, or the message after a question."""
        message, after = self[seq], seq + 1
        if message.log_message.message.calls_tools:
            while after in self and self._entries[after].message.role in TOOL_RESULT_ROLES:
                after += 1
            return list(range(seq + 1, after))
        return [after] if after in self and ("?" in message.text or "？" in message.text) else []

    def find_date(self, seq: int) -> str:
        """Returns the day on which a message was stored, as `QuotedPassage.date`.

        User messages that were stored at the same moment came in one request. They are an older history that a client
        brought along, and were written at some time before.
        """
        stored_at = self._entries[seq].created_at
        if stored_at is None or self._user_message_times[stored_at] > 1:
            return ""
        return stored_at.astimezone(UTC).date().isoformat()


class _Selection:
    """The passages that are quoted, best first, and the room that is left."""

    def __init__(self, messages: _CandidateMessages, max_tokens: int, counter: ViewTokenCounter) -> None:
        self._messages = messages
        self._counter = counter
        self._max_tokens = max_tokens
        self._left = max_tokens - counter.count_message(render_quotation_message([]))
        self._spans: dict[tuple[int, int, int], None] = {}
        """Seq, start and end of each."""
        self._quoted_texts: set[str] = set()

    @property
    def seqs(self) -> list[int]:
        """The quoted messages, best first."""
        return list(dict.fromkeys(seq for seq, _, _ in self._spans))

    def limit_room(self, max_tokens: int) -> None:
        """Lets nothing more be added once the whole takes so many tokens."""
        self._left -= max(0, self._max_tokens - max_tokens)

    def add_passages(self, passages: Sequence[Passage]) -> None:
        """Adds passages, each with what answers it, and the messages between two that are quoted."""
        for passage in passages:
            if self._left < MIN_REMAINING_TOKENS:
                return
            if self._add_passage(passage):
                self._add_answers(passage.seq)
                for step in (1, -1):
                    if passage.seq + 2 * step in self.seqs:
                        self._add_message(passage.seq + step)

    def add_surroundings(self, seqs: Sequence[int]) -> None:
        """Adds what stands around quoted messages, in the order of these messages."""
        for seq in seqs:
            for step in EXTENSION_STEPS:
                self._add_message(seq + step)
                self._add_answers(seq + step)

    def _add_answers(self, seq: int) -> None:
        """Adds the best parts of the messages that answer a quoted one: those with words of the question, or the first
        one."""
        for answer in self._messages.list_answers(seq) if seq in self.seqs else ():
            passages = self._messages[answer].passages
            for passage in [one for one in passages if one.occurrences] or passages[:1]:
                self._add_passage(passage)

    def _add_message(self, seq: int) -> None:
        for passage in self._messages[seq].passages if seq in self._messages else ():
            self._add_passage(passage)

    def _add_passage(self, passage: Passage) -> bool:
        """Adds a passage if there is room and the same is not quoted yet. Returns whether it was added."""
        text = self._messages[passage.seq].text[passage.start : passage.end]
        words = " ".join(text.split())
        if words in self._quoted_texts:
            return False
        cost = self._counter.count(text) + SPEAKER_TOKENS
        if cost > self._left:
            return False
        self._spans[passage.seq, passage.start, passage.end] = None
        self._quoted_texts.add(words)
        self._left -= cost
        return True

    def build_quotation(self, before_seq: int) -> Quotation | None:
        """Returns what is quoted for the message `before_seq`; None if nothing is."""
        chosen = list(self._spans)
        while chosen:
            passages = tuple(
                self._build_passage(seq, sorted((start, end) for other, start, end in chosen if other == seq))
                for seq in sorted({seq for seq, _, _ in chosen})
            )
            messages = [(passage, self._messages[passage.seq].log_message.message) for passage in passages]
            tokens = self._counter.count_message(render_quotation_message(messages))
            if tokens <= self._max_tokens:
                return Quotation(before_seq, passages, tokens)
            # Token costs of sentences do not add up exactly: if the whole is too long, the least of them goes.
            chosen.pop()
        return None

    def _build_passage(self, seq: int, spans: Sequence[tuple[int, int]]) -> QuotedPassage:
        """Returns the spans of a message in order, adjacent ones merged; without spans if they are the whole
        message."""
        text = self._messages[seq].text
        merged = [spans[0]]
        for start, end in spans[1:]:
            if text[merged[-1][1] : start].strip():
                merged.append((start, end))
            else:
                merged[-1] = (merged[-1][0], end)
        is_whole = len(merged) == 1 and not (text[: merged[0][0]] + text[merged[-1][1] :]).strip()
        return QuotedPassage(seq, () if is_whole else tuple(merged), self._messages.find_date(seq))
