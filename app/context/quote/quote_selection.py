"""Chooses which old passages are quoted for a new message, among candidates that a search found. Pure.

1. The sentences with the most information are chosen; those that add something to the ones before come first. Nothing
   is quoted that shares only common words with the question, and no passage that adds far less than the best.
2. If the message is a short question, the rest of the room is filled: with what stands around the best messages, then
   with the sentences that add less, then with what stands around those.

Quotations cost tokens that no cache holds, so only a question fills the room.
"""

from __future__ import annotations

import heapq
import math
import re
from collections import Counter as Multiset
from collections.abc import Container, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Final, Protocol

from app.context.plan.outline import Quotation, QuotedPassage
from app.context.quote.question_terms import (
    SENTENCE_END,
    SHORT_QUESTION_CHARS,
    choose_answer_pattern,
    extract_question_terms,
    is_about_speaker,
    merge_aliases,
)
from app.context.quote.quotation_message import render_quotation_message
from app.context.quote.sentence_scores import (
    FRAGMENT_CHARS,
    ScoredSentence,
    SentencePlace,
    SentenceSource,
    build_sentence_source,
    find_answer_like_sentences,
    score_sentences,
)
from app.context.view.view_rendering import ViewTokenCounter
from app.conversation.conversation_types import LogMessage
from app.conversation.search_terms import MAX_MESSAGE_CHARS
from app.conversation.word_aliases import SearchTerm

COMMON_RARITY: Final = 1.5
"""The inverse document frequency of a word in every fifth message. A word that is no rarer says nothing by itself."""
MIN_RELEVANCE_SHARE: Final = 0.15
"""A message is relevant if the words that it shares with the question are worth at least this share of a word that
occurs once."""
SHORT_NUMBER_DIGITS: Final = 3
RARITY_FITTING_ROUNDS: Final = 4
MIN_SCORE_SHARE: Final = 0.18
"""Share of the best passage's score. A passage that adds less is not quoted."""
REPEATED_TERM_SHARE: Final = 0.65
"""What a word still counts if another quoted message has it: of two passages with the same words of the question,
the second adds less than a passage with other words."""
EXTENDED_FIRST: Final = 2
"""So many of the best messages get what stands around them before sentences that add less are quoted. On FriendsQA
(development part, room 600) 2 finds 63.0 % of the answers, 4 finds 61.0 %, none 59.0 %."""
EXTENSION_STEPS: Final = (0, 1, -1, 2, -2)
"""What is added around a message, in this order: the rest of it, the message after it, the one before it, and the next
two. An answer stands more often after the words by which it is found than before them."""
SPEAKER_TOKENS: Final = 5
"""What names a speaker costs at most this."""
GAP_TOKENS: Final = 3
MAX_READ_CHARS: Final = 512 * 1024
"""How much of the candidates is read: up to a hundred milliseconds. The best come first, their neighbours last."""
MIN_REMAINING_TOKENS: Final = 8
"""If less room is left, no more sentences are considered."""

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
    """
    question_terms = extract_question_terms(question)
    if not question_terms:
        return None
    looked_at = _select_unseen_candidates(candidates, visible_seqs)
    texts = _CandidateTexts(looked_at, frozenset(question_terms))
    sources = texts.read_hits_and_neighbours()
    hits = [
        (sources[found.message.seq].total_term_counts.occurrences, found.score)
        for found in looked_at
        if found.score is not None
    ]
    if not hits:
        return None
    rarity = _estimate_term_rarities(hits, searched_message_count)
    looks = find_answer_like_sentences(choose_answer_pattern(question), sources)
    if not _has_relevant_message(rarity, sources.values(), looks, searched_message_count, question_terms):
        return None
    units = score_sentences(sources, rarity, looks, question_terms, is_about_speaker=is_about_speaker(question))
    selection = _Selection(texts, max_tokens, counter)
    selection.add_best_sentences(units, least_share=MIN_SCORE_SHARE)
    if asks_about_conversation(question):
        selection.limit_room(max_tokens if max_filled_tokens is None else max_filled_tokens)
        selection.add_surroundings(selection.seqs[:EXTENDED_FIRST])
        selection.add_best_sentences(units, least_share=0.0, min_alone_chars=FRAGMENT_CHARS)
        selection.add_surroundings(selection.seqs)
    return selection.build_quotation(before_seq)


def _select_unseen_candidates(
    candidates: Iterable[QuoteCandidate], visible_seqs: Container[int]
) -> list[QuoteCandidate]:
    """Returns the candidates that the view does not show anyway, best first, up to `MAX_READ_CHARS`."""
    looked_at, left = [], MAX_READ_CHARS
    for found in candidates:
        if left <= 0:
            break
        if found.message.seq not in visible_seqs:
            looked_at.append(found)
            left -= min(len(found.message.message.raw), MAX_MESSAGE_CHARS)
    return looked_at


def _has_relevant_message(
    rarity: Mapping[str, float],
    sources: Iterable[SentenceSource],
    answer_rarities: Mapping[SentencePlace, float],
    searched_message_count: int,
    question_terms: Mapping[str, SearchTerm],
) -> bool:
    """Says whether a message shares words with the question that are rare in this conversation, or many that are not
    common.

    A short number occurs anywhere and counts for nothing by itself. Text that looks like an answer counts if a word of
    the question is in the same sentence.
    """
    telling = {
        term: worth - COMMON_RARITY
        for term, worth in rarity.items()
        if worth > COMMON_RARITY and not (term.isdigit() and len(term) <= SHORT_NUMBER_DIGITS)
    }
    once = math.log(1 + (searched_message_count - 0.5) / 1.5) - COMMON_RARITY
    most = 0.0
    for source in sources:
        shared = source.total_term_counts.occurrences.keys() & telling.keys()
        if not shared:
            continue
        worth = sum(merge_aliases({term: telling[term] for term in shared}, question_terms).values())
        if answer_rarities:
            beside = (
                answer_rarities.get((source.seq, index), 0.0)
                for index, terms in enumerate(source.span_term_counts)
                if not shared.isdisjoint(terms.occurrences)
            )
            worth += max(0.0, max(beside, default=0.0) - COMMON_RARITY)
        most = max(most, worth)
    return most > 0 and most >= MIN_RELEVANCE_SHARE * once


def _estimate_term_rarities(
    hits: Sequence[tuple[Mapping[str, int], float]], searched_message_count: int
) -> dict[str, float]:
    """Returns how rare each term is in all searched messages: its inverse document frequency.

    Candidates are only the best matches, so terms that most of them have look less rare than they are. But each score
    is the sum of its terms' true rarities, and the estimates are fitted to the scores.

    Args:
        hits: for each match, the terms of the question in it, and its score.
        searched_message_count: how many messages were searched.
    """
    messages = max(searched_message_count, len(hits))
    holding = Multiset(term for times, _ in hits for term in times)
    rarities = {
        term: math.log(1 + (messages - matching + 0.5) / (matching + 0.5)) for term, matching in holding.items()
    }
    for _ in range(RARITY_FITTING_ROUNDS):
        ratios = dict.fromkeys(rarities, 0.0)
        for times, score in hits:
            total = sum(map(rarities.__getitem__, times))
            ratio = min(1.0, score / total) if total else 1.0
            for term in times:
                ratios[term] += ratio
        rarities = {term: worth * ratios[term] / holding[term] for term, worth in rarities.items()}
    return rarities


class _CandidateTexts:
    """The candidates, split into sentences when they are first needed."""

    def __init__(self, candidates: Sequence[QuoteCandidate], question_terms: frozenset[str]) -> None:
        self._candidates = {found.message.seq: found for found in candidates}
        self._question_terms = question_terms
        self._sources: dict[int, SentenceSource] = {}
        self._user_message_times: Multiset[datetime | None] | None = None
        """How many user messages were stored at each moment; None before it is needed."""

    def read_hits_and_neighbours(self) -> dict[int, SentenceSource]:
        """Returns the hits and the messages next to them, by seq, in the order of the candidates."""
        hits = {seq for seq, found in self._candidates.items() if found.score is not None}
        scored = [seq for seq in self._candidates if not hits.isdisjoint((seq - 1, seq, seq + 1))]
        return {seq: self[seq] for seq in scored}

    def find_date(self, seq: int) -> str:
        """Returns the day on which a message was stored, as `QuotedPassage.date`.

        User messages that were stored at the same moment came in one request. They are an older history that a client
        brought along, and were written at some time before.
        """
        if self._user_message_times is None:
            messages = [found.message for found in self._candidates.values()]
            self._user_message_times = Multiset(one.created_at for one in messages if one.message.role == "user")
        stored_at = self._candidates[seq].message.created_at
        if stored_at is None or self._user_message_times[stored_at] > 1:
            return ""
        return stored_at.astimezone(UTC).date().isoformat()

    def __contains__(self, seq: int) -> bool:
        return seq in self._candidates

    def __getitem__(self, seq: int) -> SentenceSource:
        source = self._sources.get(seq)
        if source is None:
            source = build_sentence_source(self._candidates[seq].message, self._question_terms)
            self._sources[seq] = source
        return source


class _Selection:
    """The spans that are quoted, best first, and the room that is left."""

    def __init__(self, texts: _CandidateTexts, max_tokens: int, counter: ViewTokenCounter) -> None:
        self._texts = texts
        self._counter = counter
        self._max_tokens = max_tokens
        self._left = max_tokens - counter.count_message(render_quotation_message([]))
        self._spans: dict[tuple[int, int, int], None] = {}
        """Seq, start and end of each."""
        self._seqs: dict[int, None] = {}
        self._quoted_sentences: set[str] = set()
        self._seqs_by_term: dict[str, set[int]] = {}

    @property
    def seqs(self) -> list[int]:
        """The quoted messages, best first."""
        return list(self._seqs)

    def limit_room(self, max_tokens: int) -> None:
        """Lets nothing more be added once the whole takes so many tokens."""
        self._left -= max(0, self._max_tokens - max_tokens)

    def add_best_sentences(
        self, units: Sequence[ScoredSentence], *, least_share: float, min_alone_chars: int = 0
    ) -> None:
        """Adds the sentences that add most to each other and for which there is room, best first.

        Args:
            units: all sentences with their scores.
            least_share: sentences that add less than this share of the best sentence's score are not added.
            min_alone_chars: shorter sentences are added only beside a quoted message, as fragments always are.
        """
        queue = [(-unit.score, -unit.seq, unit.start, index) for index, unit in enumerate(units)]
        heapq.heapify(queue)
        least = -least_share * queue[0][0] if queue else 0.0
        while queue and self._left >= MIN_REMAINING_TOKENS:
            gained, _, _, index = queue[0]
            unit = units[index]
            gain = _compute_sentence_gain(unit, self._seqs_by_term)
            # The sentence lost value since it was queued: a chosen one has the same words. Queue it again with its new
            # gain.
            if gain < -gained:
                heapq.heapreplace(queue, (-gain, -unit.seq, unit.start, index))
                continue
            heapq.heappop(queue)
            if gain < least:
                break
            says_little = unit.is_fragment or unit.end - unit.start < min_alone_chars
            if says_little and self._seqs.keys().isdisjoint((unit.seq - 1, unit.seq, unit.seq + 1)):
                continue
            if self._add_span(unit.seq, unit.start, unit.end):
                for term in unit.term_scores:
                    self._seqs_by_term.setdefault(term, set()).add(unit.seq)

    def add_surroundings(self, seqs: Sequence[int]) -> None:
        """Adds what stands around quoted messages, in the order of these messages (`EXTENSION_STEPS`)."""
        for seq in seqs:
            for near in (seq + step for step in EXTENSION_STEPS):
                if self._left < MIN_REMAINING_TOKENS:
                    return
                if near in self._texts:
                    for start, end in self._texts[near].spans:
                        self._add_span(near, start, end)

    def _add_span(self, seq: int, start: int, end: int) -> bool:
        """Adds a sentence if there is room and the same is not quoted yet. Returns whether it was added."""
        text = self._texts[seq].text[start:end]
        words = " ".join(text.split())
        if words in self._quoted_sentences:
            return False
        cost = self._counter.count(text) + (GAP_TOKENS if seq in self._seqs else SPEAKER_TOKENS)
        if cost > self._left:
            return False
        self._spans[seq, start, end] = None
        self._seqs[seq] = None
        self._quoted_sentences.add(words)
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
            messages = [(passage, self._texts[passage.seq].log_message.message) for passage in passages]
            tokens = self._counter.count_message(render_quotation_message(messages))
            if tokens <= self._max_tokens:
                return Quotation(before_seq, passages, tokens)
            # Token costs of sentences do not add up exactly: if the whole is too long, the least of them goes.
            chosen.pop()
        return None

    def _build_passage(self, seq: int, spans: Sequence[tuple[int, int]]) -> QuotedPassage:
        """Returns the spans of a message in order, adjacent ones merged; without spans if they are the whole
        message."""
        text = self._texts[seq].text
        merged = [spans[0]]
        for start, end in spans[1:]:
            if text[merged[-1][1] : start].strip():
                merged.append((start, end))
            else:
                merged[-1] = (merged[-1][0], end)
        is_whole = len(merged) == 1 and not (text[: merged[0][0]] + text[merged[-1][1] :]).strip()
        return QuotedPassage(seq, () if is_whole else tuple(merged), self._texts.find_date(seq))


def _compute_sentence_gain(unit: ScoredSentence, holding: Mapping[str, set[int]]) -> float:
    """Returns what a sentence adds to those chosen from other messages."""
    gain = 0.0
    for term, worth in unit.term_scores.items():
        seqs = holding.get(term, ())
        gain += worth * REPEATED_TERM_SHARE ** (len(seqs) - (unit.seq in seqs))
    return unit.weight * gain
