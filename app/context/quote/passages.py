"""Splits old messages into passages, and scores each by the words of the question in it. Pure.

The score is BM25 (Robertson and Zaragoza, "The Probabilistic Relevance Framework: BM25 and Beyond", 2009).
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from typing import Final

import msgspec

from app.context.quote.question_terms import merge_aliases
from app.context.quote.quotation_message import extract_quotable_text
from app.conversation.conversation_types import LogMessage
from app.conversation.search_terms import MAX_MESSAGE_CHARS, extract_matching_terms
from app.conversation.word_aliases import SearchTerm

SATURATION: Final = 1.2
LENGTH_SHARE: Final = 0.75
"""BM25's k1 and b, at their usual values."""
RARITY_FITTING_ROUNDS: Final = 4
WHOLE_MESSAGE_CHARS: Final = 240
"""A message up to this length is one passage."""
PASSAGE_CHARS: Final = 60
"""A passage of a longer message has so many characters at least, in whole sentences."""
MAX_PASSAGE_CHARS: Final = 400
"""A longer sentence is cut at a space."""

_SENTENCE_END: Final = re.compile(r"[.!?。！？\n](?:(?<=[.!?])\s+|(?<=[。！？])|(?<=\n)\n*)")
"""Matches where `question_terms.SENTENCE_END` does, ten times as fast: it begins with a set of characters."""


class Passage(msgspec.Struct, frozen=True):
    """`[start, end)` of a message's quotable text, with its counts of the question's terms."""

    seq: int
    start: int
    end: int
    occurrences: Mapping[str, int]
    term_count: int
    """The number of all terms in it."""


class MessagePassages(msgspec.Struct, frozen=True):
    """A candidate and its passages, in order."""

    log_message: LogMessage
    text: str
    passages: tuple[Passage, ...]

    @property
    def terms(self) -> frozenset[str]:
        """The question's terms in it."""
        return frozenset(term for passage in self.passages for term in passage.occurrences)


def split_into_passages(entry: LogMessage, question_terms: AbstractSet[str]) -> MessagePassages:
    text = extract_quotable_text(entry.message)
    spans = [(0, len(text))] if len(text) <= WHOLE_MESSAGE_CHARS else _split_text(text[:MAX_MESSAGE_CHARS])
    passages = []
    for start, end in spans:
        terms, term_count = extract_matching_terms(text[start:end], question_terms)
        passages.append(Passage(entry.seq, start, end, Counter(terms), term_count))
    return MessagePassages(entry, text, tuple(passages))


def _split_text(text: str) -> Iterator[tuple[int, int]]:
    """Yields runs of whole sentences and lines; the longest sentences are cut at spaces."""
    start = 0
    for end in [*(found.end() for found in _SENTENCE_END.finditer(text)), len(text)]:
        while end - start > MAX_PASSAGE_CHARS:
            space = text.rfind(" ", start + MAX_PASSAGE_CHARS // 2, start + MAX_PASSAGE_CHARS)
            cut = space + 1 if space > 0 else start + MAX_PASSAGE_CHARS
            yield (start, cut)
            start = cut
        if end - start >= PASSAGE_CHARS or (end == len(text) and text[start:end].strip()):
            yield (start, end)
            start = end


def estimate_rarities(hits: Sequence[tuple[AbstractSet[str], float]], searched_message_count: int) -> dict[str, float]:
    """Returns the inverse document frequency of each term in all searched messages.

    Hits are only the best matches, so a term that most of them have looks rarer than it is: it stands in many messages
    that the search left out. But each score is the sum of its terms' true rarities, and the estimates are fitted to the
    scores.

    Args:
        hits: for each match, the terms of the question in it, and its score.
        searched_message_count: how many messages were searched.
    """
    holding = Counter(term for terms, _ in hits for term in terms)
    count = max(searched_message_count, len(hits))
    rarities = {term: math.log(1 + (count - times + 0.5) / (times + 0.5)) for term, times in holding.items()}
    for _ in range(RARITY_FITTING_ROUNDS):
        ratios = dict.fromkeys(rarities, 0.0)
        for terms, score in hits:
            estimated = sum(rarities[term] for term in terms)
            ratio = min(1.0, score / estimated) if estimated else 1.0
            for term in terms:
                ratios[term] += ratio
        rarities = {term: rarity * ratios[term] / holding[term] for term, rarity in rarities.items()}
    return rarities


def rank_passages(
    passages: Iterable[Passage], rarity: Mapping[str, float], question_terms: Mapping[str, SearchTerm]
) -> list[tuple[float, Passage]]:
    """Returns the passages with terms of the question and their scores, best first; of equal ones the newest first."""
    scored = [passage for passage in passages if passage.occurrences]
    average = max(1.0, sum(passage.term_count for passage in scored) / max(1, len(scored)))
    ranked = []
    for passage in scored:
        damped = SATURATION * (1 - LENGTH_SHARE + LENGTH_SHARE * passage.term_count / average)
        by_term = {
            term: rarity[term] * often * (SATURATION + 1) / (often + damped)
            for term, often in passage.occurrences.items()
        }
        ranked.append((sum(merge_aliases(by_term, question_terms).values()), passage))
    return sorted(ranked, key=lambda pair: (-pair[0], -pair[1].seq, pair[1].start))
