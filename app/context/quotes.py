"""Which old passages bear on a new message: a choice among candidates that a search has found. Pure.

Messages are taken apart into sentences, ranked by BM25 (Robertson and Zaragoza, "The Probabilistic Relevance Framework:
BM25 and Beyond", 2009), and the best are quoted with as much around them as there is room for: a short message whole, a
question with its answer. Quotations cost tokens that no cache holds, so nothing is quoted that shares only common words
with the question.
"""

from __future__ import annotations

import math
import re
from collections import Counter as Multiset
from collections.abc import Container, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Protocol

from app.context.outline import Passage, Quotation
from app.context.quoting import quotable_text, quoting
from app.context.view import Counter
from app.conversation.messages import LogMessage
from app.conversation.terms import MAX_MESSAGE_CHARS, query_terms, terms_of

SATURATION: Final = 1.2
LENGTH_SHARE: Final = 0.75
"""BM25's k1 and b, at their usual values."""
RELEVANT_SHARE: Final = 0.4
"""A message bears on the question if what they share tells at least this much of what a word tells that occurs once."""
CLOSE_SHARE: Final = 0.3
"""Of the best passage's score: what scores below is not quoted."""
MESSAGE_SHARE: Final = 0.35
"""How much a whole message's score adds to that of its sentences, and a neighbour's to a sentence beside it."""
LONGEST_UNIT_CHARS: Final = 400
SHORT_MESSAGE_CHARS: Final = 240
"""Messages up to this are not taken apart."""
CHARS_PER_TOKEN_AT_LEAST: Final = 1
SPEAKER_TOKENS: Final = 16
"""What the line that names a speaker costs, generously."""
EXACT_TRIES: Final = 8

_UNIT_END: Final = re.compile(r"(?<=[.!?])\s+|(?<=[。！？])|\n+")


class Candidate(Protocol):
    """A message that a search found; without a score, one beside such a message."""

    @property
    def message(self) -> LogMessage: ...

    @property
    def score(self) -> float | None: ...


@dataclass(frozen=True, slots=True)
class Unit:
    """A sentence or so of a message: `[start, end)` of its quotable text."""

    seq: int
    start: int
    end: int
    score: float
    tokens: int


@dataclass(frozen=True, slots=True)
class Source:
    """A candidate, read."""

    entry: LogMessage
    text: str
    spans: tuple[tuple[int, int], ...]
    terms: tuple[Multiset[str], ...]
    """Of each span."""

    @property
    def seq(self) -> int:
        return self.entry.seq


def choose_quotes(
    question: str,
    candidates: Sequence[Candidate],
    *,
    before_seq: int,
    room_tokens: int,
    folded_messages: int,
    visible: Container[int],
    count: Counter,
) -> Quotation | None:
    """What to quote in front of the user message `before_seq`; None where nothing bears on it.

    Args:
        question: the text of that message.
        candidates: what `Store.search` found for its terms.
        room_tokens: the most that the quoting message may take, itself included. Raw counts.
        folded_messages: how many messages the search ranged over.
        visible: seqs that the view shows anyway.
    """
    asked = query_terms(question)
    hits = [found for found in candidates if found.score is not None and found.message.seq not in visible]
    if not asked or not hits or not _bears(hits, folded_messages):
        return None
    sources = {
        found.message.seq: _source(found.message) for found in candidates if found.message.seq not in visible
    }
    ranked = _ranked(sources, asked, folded_messages, count)
    chosen = _filled(ranked, sources, room_tokens, count)
    while chosen:
        quotation = _quotation(chosen, sources, before_seq, count)
        if quotation.tokens <= room_tokens:
            return quotation
        chosen = chosen[:-1]
    return None
