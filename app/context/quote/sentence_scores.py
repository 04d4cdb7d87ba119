"""Splits old messages into sentences, and scores each sentence by what it says about the question. Pure.

The score of a term in a sentence is BM25 (Robertson and Zaragoza, "The Probabilistic Relevance Framework: BM25 and
Beyond", 2009). Neighbouring sentences and messages add a share of theirs: an answer often stands beside the words by
which it is found.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from itertools import chain
from typing import Final, NamedTuple, TypeVar

import msgspec

from app.context.quote.question_terms import merge_aliases
from app.context.quote.quotation_message import extract_quotable_text
from app.conversation.conversation_types import LogMessage
from app.conversation.search_terms import MAX_MESSAGE_CHARS, extract_matching_terms
from app.conversation.word_aliases import SearchTerm

SATURATION: Final = 1.2
LENGTH_SHARE: Final = 0.75
"""BM25's k1 and b, at their usual values."""
RARITY_POWER: Final = 1.5
"""Exponent of a term's rarity: one word that hardly occurs elsewhere is a better guide than two that occur all the
time."""
MESSAGE_SHARE: Final = 0.25
"""Share of a message's score that is added to its own sentences, and to those of its neighbour."""
NEXT_SHARE: Final = 0.5
PREVIOUS_SHARE: Final = 0.35
"""Share of a sentence's score that is added to the sentence after it (`NEXT_SHARE`) and before it
(`PREVIOUS_SHARE`)."""
ANSWER_SHARE: Final = 0.8
"""Share of a question's score that is added to its answer, and of a call's to its result: the question has the words
that are searched for, the answer what is wanted."""
SPEAKER_WEIGHT: Final = 1.25
"""Factor for the user's own messages if the question is about the user (`my`)."""
ANSWER_LOOK_TERM: Final = ""
"""Key for "looks like an answer" among the terms of a sentence. No real term is empty."""
MAX_SENTENCE_CHARS: Final = 400
FRAGMENT_CHARS: Final = 40
"""A shorter sentence says little alone: "Any plans coming up?"."""
SHORT_MESSAGE_CHARS: Final = 240
"""Messages up to this length are not split."""

_SENTENCE_END: Final = re.compile(r"[.!?。！？\n](?:(?<=[.!?])\s+|(?<=[。！？])|(?<=\n)\n*)")
"""Matches where `question_terms.SENTENCE_END` does, ten times as fast: it begins with a set of characters."""

Key = TypeVar("Key")
SentencePlace = tuple[int, int]
"""A message's seq, and the index of one of its sentences."""


class ScoredSentence(msgspec.Struct, frozen=True):
    """A sentence of a message, or several short ones: `[start, end)` of its quotable text."""

    seq: int
    start: int
    end: int
    term_scores: Mapping[str, float]
    """The score of each of the question's terms in it."""
    weight: float
    is_fragment: bool = False
    """Whether it is shorter than `FRAGMENT_CHARS` and has no term of the question."""

    @property
    def score(self) -> float:
        return self.weight * sum(self.term_scores.values())


class TermCounts(NamedTuple):
    """How often a text has each term of the question."""

    occurrences: Mapping[str, int]
    length: int
    """The number of all terms in the text."""


class SentenceSource(msgspec.Struct, frozen=True):
    """A candidate, split into sentences."""

    log_message: LogMessage
    seq: int
    role: str
    text: str
    spans: tuple[tuple[int, int], ...]
    span_term_counts: tuple[TermCounts, ...]
    """Of each span."""
    total_term_counts: TermCounts
    """Of all spans."""


def build_sentence_source(entry: LogMessage, question_terms: AbstractSet[str]) -> SentenceSource:
    """Returns a message as its sentences, each with its counts of the question's terms."""
    text = extract_quotable_text(entry.message)
    if len(text) <= SHORT_MESSAGE_CHARS:
        whole = _count_matching_terms(text, question_terms)
        return SentenceSource(entry, entry.seq, entry.message.role, text, ((0, len(text)),), (whole,), whole)
    spans = tuple(_split_into_sentences(text[:MAX_MESSAGE_CHARS]))
    terms = tuple([_count_matching_terms(text[start:end], question_terms) for start, end in spans])
    return SentenceSource(entry, entry.seq, entry.message.role, text, spans, terms, _merge_term_counts(terms))


def _count_matching_terms(text: str, question_terms: AbstractSet[str]) -> TermCounts:
    matching_terms, length = extract_matching_terms(text, question_terms)
    return TermCounts(_count_occurrences(matching_terms), length)


def _merge_term_counts(terms: Sequence[TermCounts]) -> TermCounts:
    if len(terms) == 1:
        return terms[0]
    matching_terms = chain.from_iterable([term] * often for one in terms for term, often in one.occurrences.items())
    return TermCounts(_count_occurrences(matching_terms), sum([one.length for one in terms]))


def _count_occurrences(matching_terms: Iterable[str]) -> dict[str, int]:
    """Counts each term. There are few: `Counter` takes longer to set up than to count them."""
    times: dict[str, int] = {}
    for term in matching_terms:
        times[term] = times.get(term, 0) + 1
    return times


def _split_into_sentences(text: str) -> Iterator[tuple[int, int]]:
    """Yields sentences and lines; the longest are cut at spaces."""
    if len(text) <= MAX_SENTENCE_CHARS and _SENTENCE_END.search(text) is None and text.strip():
        yield (0, len(text))
        return
    start = 0
    for end in [*(found.end() for found in _SENTENCE_END.finditer(text)), len(text)]:
        while end - start > MAX_SENTENCE_CHARS:
            space = text.rfind(" ", start + MAX_SENTENCE_CHARS // 2, start + MAX_SENTENCE_CHARS)
            cut = space + 1 if space > 0 else start + MAX_SENTENCE_CHARS
            yield (start, cut)
            start = cut
        if text[start:end].strip():
            yield (start, end)
            start = end


def find_answer_like_sentences(
    answer_pattern: re.Pattern[str] | None, sources: Mapping[int, SentenceSource]
) -> dict[SentencePlace, float]:
    """Returns the sentences that look like an answer, and how rare that is among all sentences."""
    if answer_pattern is None:
        return {}
    places = [(seq, index) for seq, source in sources.items() for index in range(len(source.spans))]
    holding = [
        (seq, index) for seq, index in places if answer_pattern.search(sources[seq].text, *sources[seq].spans[index])
    ]
    rarity = math.log(1 + (len(places) - len(holding) + 0.5) / (len(holding) + 0.5))
    return dict.fromkeys(holding, rarity)


def score_sentences(
    sources: Mapping[int, SentenceSource],
    rarity: Mapping[str, float],
    answer_rarities: Mapping[SentencePlace, float],
    question_terms: Mapping[str, SearchTerm],
    *,
    is_about_speaker: bool,
) -> list[ScoredSentence]:
    """Returns all sentences that may be quoted, with their scores.

    Args:
        sources: the candidates by seq.
        rarity: of the question's terms and their aliases.
        answer_rarities: sentences that look like an answer, and how rare that is.
        question_terms: those terms.
        is_about_speaker: whether the question is about the person who asks.
    """
    rarity = {term: rare**RARITY_POWER for term, rare in rarity.items()}
    message_term_scores = _compute_bm25_scores(
        rarity, {seq: source.total_term_counts for seq, source in sources.items()}, question_terms
    )
    sentence_term_scores = _compute_bm25_scores(
        rarity,
        {(seq, index): terms for seq, source in sources.items() for index, terms in enumerate(source.span_term_counts)},
        question_terms,
    )
    whole_scores = {seq: sum(term_scores.values()) for seq, term_scores in message_term_scores.items()}
    unit_scores = {key: sum(term_scores.values()) for key, term_scores in sentence_term_scores.items()}
    units = []
    for seq, source in sources.items():
        share, around = _choose_context_message(seq, sources, whole_scores)
        # Neither the message nor its context has any term of the question.
        if not whole_scores[around]:
            continue
        weight = SPEAKER_WEIGHT if is_about_speaker and source.role == "user" else 1.0
        for index, (start, end) in enumerate(source.spans):
            term_scores = dict(sentence_term_scores[seq, index])
            _add_scores(term_scores, message_term_scores[around], share)
            if len(source.spans) > 1:
                near_share, near = max(
                    (NEXT_SHARE * unit_scores.get((seq, index - 1), 0.0), index - 1),
                    (PREVIOUS_SHARE * unit_scores.get((seq, index + 1), 0.0), index + 1),
                )
                if near_share:
                    _add_scores(term_scores, sentence_term_scores[seq, near], near_share / unit_scores[seq, near])
            if (seq, index) in answer_rarities:
                term_scores[ANSWER_LOOK_TERM] = answer_rarities[seq, index] ** RARITY_POWER
            is_fragment = end - start < FRAGMENT_CHARS and not sentence_term_scores[seq, index]
            units.append(ScoredSentence(seq, start, end, term_scores, weight, is_fragment))
    return units


def _add_scores(term_scores: dict[str, float], more: Mapping[str, float], share: float) -> None:
    for term, worth in more.items():
        term_scores[term] = term_scores.get(term, 0.0) + share * worth


def _compute_bm25_scores(
    rarity: Mapping[str, float], texts: Mapping[Key, TermCounts], question_terms: Mapping[str, SearchTerm]
) -> dict[Key, dict[str, float]]:
    """Returns the BM25 score of each term in each text."""
    average = max(1.0, sum(terms.length for terms in texts.values()) / max(1, len(texts)))
    scores_by_key: dict[Key, dict[str, float]] = {}
    for key, (times, length) in texts.items():
        if not times:
            scores_by_key[key] = {}
            continue
        damped = SATURATION * (1 - LENGTH_SHARE + LENGTH_SHARE * length / average)
        scores_by_key[key] = merge_aliases(
            {
                term: rarity[term] * often * (SATURATION + 1) / (often + damped)
                for term, often in times.items()
                if term in rarity
            },
            question_terms,
        )
    return scores_by_key


def _choose_context_message(
    seq: int, sources: Mapping[int, SentenceSource], scores: Mapping[int, float]
) -> tuple[float, int]:
    """Returns the message whose score counts most for the sentences of a message, and the share of it that counts.

    It is the message itself, the question that it answers, the call that it is the result of, or, with a smaller share,
    a neighbour.
    """
    before, after, role = sources.get(seq - 1), sources.get(seq + 1), sources[seq].role
    shares = [(MESSAGE_SHARE, seq)]
    if before is not None and role != "user" and (role, before.role) != ("assistant", "assistant"):
        answers = role == "tool" or "?" in before.text
        shares.append((ANSWER_SHARE if answers else MESSAGE_SHARE, seq - 1))
    if after is not None and (role, after.role) in {("user", "assistant"), ("assistant", "tool")}:
        shares.append((MESSAGE_SHARE, seq + 1))
    return max(shares, key=lambda share: share[0] * scores[share[1]])
