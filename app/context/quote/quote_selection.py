"""Chooses which old passages are quoted for a new message, among candidates that a search found. Pure.

The sentences with the most information are quoted; those that add something to the ones before come first. As much text
around them is added as there is room for: a short message whole, a question with its answer. Quotations cost tokens
that no cache holds, so nothing is quoted that shares only common words with the question.
"""

from __future__ import annotations

import heapq
import math
from collections import Counter as Multiset
from collections.abc import Container, Iterable, Mapping, Sequence
from typing import Final, Protocol

from app.context.plan.outline import Quotation, QuotedPassage
from app.context.quote.question_terms import (
    choose_answer_pattern,
    extract_question_terms,
    is_about_speaker,
    merge_aliases,
)
from app.context.quote.quotation_message import render_quotation_message
from app.context.quote.sentence_scores import (
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
SPEAKER_TOKENS: Final = 16
"""The line that names a speaker costs at most this."""
GAP_TOKENS: Final = 3
MAX_READ_CHARS: Final = 512 * 1024
"""How much of the candidates is read: up to a hundred milliseconds. The best come first, their neighbours last."""
MIN_REMAINING_TOKENS: Final = 8
"""If less room is left, no more sentences are considered."""


class QuoteCandidate(Protocol):
    """A message that a search found; without a score, a neighbour of such a message."""

    @property
    def message(self) -> LogMessage: ...

    @property
    def score(self) -> float | None: ...


def choose_quotation(
    question: str,
    candidates: Sequence[QuoteCandidate],
    *,
    before_seq: int,
    max_tokens: int,
    searched_message_count: int,
    visible_seqs: Container[int],
    counter: ViewTokenCounter,
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
    """
    question_terms = extract_question_terms(question)
    if not question_terms:
        return None
    looked_at = _select_unseen_candidates(candidates, visible_seqs)
    terms = frozenset(question_terms)
    sources = {found.message.seq: build_sentence_source(found.message, terms) for found in looked_at}
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
    chosen = _choose_sentences(units, sources, max_tokens, counter)
    while chosen:
        quotation = _build_quotation(chosen, sources, before_seq, counter)
        if quotation.tokens <= max_tokens:
            return quotation
        # Token costs of sentences do not add up exactly: if the whole is too long, the least of them goes.
        chosen = chosen[:-1]
    return None


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


def _choose_sentences(
    units: Sequence[ScoredSentence], sources: Mapping[int, SentenceSource], max_tokens: int, counter: ViewTokenCounter
) -> list[ScoredSentence]:
    """Returns the sentences that add most to each other and for which there is room, best first."""
    left = max_tokens - counter.count_message(render_quotation_message([]))
    chosen: list[ScoredSentence] = []
    said: set[str] = set()
    holding: dict[str, set[int]] = {}
    queue = [(-unit.score, -unit.seq, unit.start, index) for index, unit in enumerate(units)]
    heapq.heapify(queue)
    least = -MIN_SCORE_SHARE * queue[0][0] if queue else 0.0
    while queue and left >= MIN_REMAINING_TOKENS:
        gained, _, _, index = queue[0]
        unit = units[index]
        gain = _compute_sentence_gain(unit, holding)
        # The sentence lost value since it was queued: a chosen one has the same words. Queue it again with its new
        # gain.
        if gain < -gained:
            heapq.heapreplace(queue, (-gain, -unit.seq, unit.start, index))
            continue
        heapq.heappop(queue)
        if gain < least:
            break
        text = sources[unit.seq].text[unit.start : unit.end]
        words = " ".join(text.split())
        cost = counter.count(text) + (GAP_TOKENS if any(one.seq == unit.seq for one in chosen) else SPEAKER_TOKENS)
        if cost > left or words in said:
            continue
        chosen.append(unit)
        said.add(words)
        left -= cost
        for term in unit.term_scores:
            holding.setdefault(term, set()).add(unit.seq)
    return chosen


def _compute_sentence_gain(unit: ScoredSentence, holding: Mapping[str, set[int]]) -> float:
    """Returns what a sentence adds to those chosen from other messages."""
    gain = 0.0
    for term, worth in unit.term_scores.items():
        seqs = holding.get(term, ())
        gain += worth * REPEATED_TERM_SHARE ** (len(seqs) - (unit.seq in seqs))
    return unit.weight * gain


def _build_quotation(
    chosen: Sequence[ScoredSentence], sources: Mapping[int, SentenceSource], before_seq: int, counter: ViewTokenCounter
) -> Quotation:
    passages = tuple(
        _build_passage(sources[seq], sorted((unit.start, unit.end) for unit in chosen if unit.seq == seq))
        for seq in sorted({unit.seq for unit in chosen})
    )
    passages_with_messages = [(passage, sources[passage.seq].log_message.message) for passage in passages]
    return Quotation(before_seq, passages, counter.count_message(render_quotation_message(passages_with_messages)))


def _build_passage(source: SentenceSource, spans: Sequence[tuple[int, int]]) -> QuotedPassage:
    """Returns the spans of a message in order, adjacent ones merged; without spans if they are the whole message."""
    merged = [spans[0]]
    for start, end in spans[1:]:
        if source.text[merged[-1][1] : start].strip():
            merged.append((start, end))
        else:
            merged[-1] = (merged[-1][0], end)
    left_out = source.text[: merged[0][0]] + source.text[merged[-1][1] :]
    return QuotedPassage(source.seq, () if len(merged) == 1 and not left_out.strip() else tuple(merged))
