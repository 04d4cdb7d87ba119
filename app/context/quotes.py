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
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Protocol, TypeVar

from app.context.outline import Passage, Quotation
from app.context.quoting import quotable_text, quoting
from app.context.view import Counter
from app.conversation.messages import LogMessage
from app.conversation.terms import MAX_MESSAGE_CHARS, query_terms, terms_of

SATURATION: Final = 1.2
LENGTH_SHARE: Final = 0.75
"""BM25's k1 and b, at their usual values."""
COMMON_RARITY: Final = 1.5
"""The inverse document frequency of a word in every fifth message: what is not rarer tells nothing by itself."""
RELEVANT_SHARE: Final = 0.15
"""A message bears on the question if what they share tells at least this much of what a word tells that occurs once."""
SHORT_NUMBER_DIGITS: Final = 3
FITTING_ROUNDS: Final = 4
CLOSE_SHARE: Final = 0.45
"""Of the best passage's score: what scores below is not quoted."""
MESSAGE_SHARE: Final = 0.35
"""How much a whole message's score adds to that of its sentences, a sentence's or message's to the one beside it."""
ANSWER_SHARE: Final = 0.8
"""How much a question's score adds to its answer, a call's to its result: the question is found by its words, what is
wanted stands in the answer."""
OWN_WORDS: Final = 1.25
"""Who asks about `my` this and that is asking for what they said themselves."""
LONGEST_UNIT_CHARS: Final = 400
SHORT_MESSAGE_CHARS: Final = 240
"""Messages up to this are not taken apart."""
SPEAKER_TOKENS: Final = 16
"""What the line that names a speaker costs, generously."""
GAP_TOKENS: Final = 3
LEAST_TOKENS: Final = 8
"""With less room left, nothing more is looked at."""

Key = TypeVar("Key")

_NAMES_ONE_THING: Final = re.compile(r"\b(?=[\w./@-]*\d)(?=[\w./@-]*[A-Za-z])[\w./@-]{5,}|\b\d{6,}\b")
_CLOSING: Final = "\"'”’)»] "
_FIRST_PERSON: Final = re.compile(r"\b(?:I|my|me|mine|we|our|ours|us)\b", re.IGNORECASE)
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

    @property
    def role(self) -> str:
        return self.entry.message.role


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
    asked = asked_terms(question)
    hits = [found for found in candidates if found.score is not None and found.message.seq not in visible]
    if not asked or not hits:
        return None
    sources = {found.message.seq: _source(found.message) for found in candidates if found.message.seq not in visible}
    wholes = {seq: sum(source.terms, Multiset()) for seq, source in sources.items()}
    rarity = _rarities(asked, [(wholes[found.message.seq], found.score or 0.0) for found in hits], folded_messages)
    if not _bears(rarity, wholes.values(), folded_messages):
        return None
    ranked = _ranked(sources, wholes, rarity, of_speaker=_FIRST_PERSON.search(question) is not None)
    chosen = _filled(ranked, sources, room_tokens, count)
    while chosen:
        quotation = _quotation(chosen, sources, before_seq, count)
        if quotation.tokens <= room_tokens:
            return quotation
        chosen = chosen[:-1]
    return None


def asked_terms(text: str) -> list[str]:
    """The terms to look old messages up by: of all of a short message, of the questions in a long one.

    A long message without a question brings what it needs along. Only what names one thing, such as an order's number
    or a path, is looked up, and as a whole.
    """
    if len(text) <= SHORT_MESSAGE_CHARS:
        return query_terms(text)
    questions = [unit for unit in _UNIT_END.split(text) if unit.rstrip(_CLOSING).endswith(("?", "？", "؟"))]
    if questions:
        return query_terms(" ".join(questions))
    named = {name.lower() for name in _NAMES_ONE_THING.findall(text)}
    return [term for term in query_terms(" ".join(sorted(named))) if term in named]


def _bears(rarity: Mapping[str, float], wholes: Iterable[Multiset[str]], folded_messages: int) -> bool:
    """Whether any message shares words with the question that are rare here, or many that are not common.

    A number of few digits turns up anywhere and counts for nothing by itself.
    """
    telling = {
        term: worth - COMMON_RARITY
        for term, worth in rarity.items()
        if worth > COMMON_RARITY and not (term.isdigit() and len(term) <= SHORT_NUMBER_DIGITS)
    }
    once = math.log(1 + (folded_messages - 0.5) / 1.5) - COMMON_RARITY
    most = max((sum(worth for term, worth in telling.items() if term in terms) for terms in wholes), default=0.0)
    return most > 0 and most >= RELEVANT_SHARE * once


def _source(entry: LogMessage) -> Source:
    text = quotable_text(entry.message)
    spans = tuple(_units(text[:MAX_MESSAGE_CHARS]))
    return Source(entry, text, spans, tuple(Multiset(terms_of(text[start:end])) for start, end in spans))


def _units(text: str) -> Iterator[tuple[int, int]]:
    """Sentences and lines, the longest cut at spaces; a short text is one."""
    if len(text) <= SHORT_MESSAGE_CHARS:
        yield (0, len(text))
        return
    start = 0
    for end in [*(found.end() for found in _UNIT_END.finditer(text)), len(text)]:
        while end - start > LONGEST_UNIT_CHARS:
            space = text.rfind(" ", start + LONGEST_UNIT_CHARS // 2, start + LONGEST_UNIT_CHARS)
            cut = space + 1 if space > 0 else start + LONGEST_UNIT_CHARS
            yield (start, cut)
            start = cut
        if text[start:end].strip():
            yield (start, end)
            start = end


def _ranked(
    sources: Mapping[int, Source],
    wholes: Mapping[int, Multiset[str]],
    rarity: Mapping[str, float],
    *,
    of_speaker: bool,
) -> list[Unit]:
    """All sentences that may be quoted, best first. `of_speaker`: the question is about who asks it."""
    whole_scores = _bm25(rarity, wholes)
    unit_scores = _bm25(
        rarity, {(seq, at): terms for seq, source in sources.items() for at, terms in enumerate(source.terms)}
    )
    ranked = []
    for seq, source in sources.items():
        around = max(MESSAGE_SHARE * whole_scores[seq], _completed(seq, sources, whole_scores))
        own_words = OWN_WORDS if of_speaker and source.role == "user" else 1.0
        for at, (start, end) in enumerate(source.spans):
            near = max(unit_scores.get((seq, at - 1), 0.0), unit_scores.get((seq, at + 1), 0.0))
            score = own_words * (unit_scores[seq, at] + MESSAGE_SHARE * near + around)
            ranked.append(Unit(seq, start, end, score))
    return sorted(ranked, key=lambda unit: (-unit.score, -unit.seq, unit.start))


def _rarities(
    asked: Sequence[str], hits: Sequence[tuple[Multiset[str], float]], folded_messages: int
) -> dict[str, float]:
    """How rare each term is in all that was searched: its inverse document frequency.

    Candidates are only the best of what was found, and terms that they all hold look rarer by them than they are. But
    the score of each is the sum of its terms' true rarities, to which the estimates are brought in line.
    """
    rarities = {}
    for term in asked:
        holding = sum(term in terms for terms, _ in hits)
        if holding:
            rarities[term] = math.log(1 + (max(folded_messages, len(hits)) - holding + 0.5) / (holding + 0.5))
    held = [([term for term in rarities if term in terms], score) for terms, score in hits]
    for _ in range(FITTING_ROUNDS):
        ratios: dict[str, list[float]] = {term: [] for term in rarities}
        for terms, score in held:
            total = sum(rarities[term] for term in terms)
            for term in terms:
                ratios[term].append(min(1.0, score / total) if total else 1.0)
        rarities = {term: worth * sum(ratios[term]) / len(ratios[term]) for term, worth in rarities.items()}
    return rarities


def _bm25(rarity: Mapping[str, float], texts: Mapping[Key, Multiset[str]]) -> dict[Key, float]:
    lengths = {key: sum(terms.values()) for key, terms in texts.items()}
    average = max(1.0, sum(lengths.values()) / max(1, len(lengths)))
    scores = {}
    for key, terms in texts.items():
        damped = SATURATION * (1 - LENGTH_SHARE + LENGTH_SHARE * lengths[key] / average)
        scores[key] = sum(
            worth * terms[term] * (SATURATION + 1) / (terms[term] + damped)
            for term, worth in rarity.items()
            if term in terms
        )
    return scores


def _completed(seq: int, sources: Mapping[int, Source], scores: Mapping[int, float]) -> float:
    """What a message is worth for the one that it completes: the question it answers, the call it is the result of;
    less for what merely stands beside it."""
    before, after, role = sources.get(seq - 1), sources.get(seq + 1), sources[seq].role
    worth = 0.0
    if before is not None and role != "user" and (role, before.role) != ("assistant", "assistant"):
        answers = role == "tool" or "?" in before.text
        worth = (ANSWER_SHARE if answers else MESSAGE_SHARE) * scores[seq - 1]
    if after is not None and (role, after.role) in {("user", "assistant"), ("assistant", "tool")}:
        worth = max(worth, MESSAGE_SHARE * scores[seq + 1])
    return worth


def _filled(ranked: Sequence[Unit], sources: Mapping[int, Source], room_tokens: int, count: Counter) -> list[Unit]:
    """The best sentences for which there is room, best first."""
    left = room_tokens - count.message(quoting([]).body)
    chosen: list[Unit] = []
    seqs: set[int] = set()
    for unit in ranked:
        if unit.score < CLOSE_SHARE * ranked[0].score or left < LEAST_TOKENS:
            break
        text = sources[unit.seq].text[unit.start : unit.end]
        cost = count.count(text) + (GAP_TOKENS if unit.seq in seqs else SPEAKER_TOKENS)
        if cost <= left:
            chosen.append(unit)
            seqs.add(unit.seq)
            left -= cost
    return chosen


def _quotation(chosen: Sequence[Unit], sources: Mapping[int, Source], before_seq: int, count: Counter) -> Quotation:
    passages = tuple(
        _passage(sources[seq], sorted((unit.start, unit.end) for unit in chosen if unit.seq == seq))
        for seq in sorted({unit.seq for unit in chosen})
    )
    said = [(passage, sources[passage.seq].entry.message) for passage in passages]
    return Quotation(before_seq, passages, count.message(quoting(said).body))


def _passage(source: Source, spans: Sequence[tuple[int, int]]) -> Passage:
    """Spans of a message in order, those that touch made one; none where they are all of it."""
    merged = [spans[0]]
    for start, end in spans[1:]:
        if source.text[merged[-1][1] : start].strip():
            merged.append((start, end))
        else:
            merged[-1] = (merged[-1][0], end)
    left_out = source.text[: merged[0][0]] + source.text[merged[-1][1] :]
    return Passage(source.seq, () if len(merged) == 1 and not left_out.strip() else tuple(merged))
