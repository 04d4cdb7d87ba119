"""Which old passages bear on a new message: a choice among candidates that a search has found. Pure.

The sentences that tell most are quoted, those first that tell what the ones before do not, with as much around them as
there is room for: a short message whole, a question with its answer. Quotations cost tokens that no cache holds, so
nothing is quoted that shares only common words with the question.
"""

from __future__ import annotations

import heapq
import math
from collections import Counter as Multiset
from collections.abc import Container, Iterable, Mapping, Sequence
from typing import Final, Protocol

from app.context.plan.outline import Passage, Quotation
from app.context.quote.question_terms import asked_terms, is_of_speaker, look_of_answer
from app.context.quote.quote_message import quoting
from app.context.quote.sentence_scores import Place, Source, Unit, answering, read, weighed
from app.context.view.view_messages import Counter
from app.conversation.messages import LogMessage
from app.conversation.search_terms import MAX_MESSAGE_CHARS

COMMON_RARITY: Final = 1.5
"""The inverse document frequency of a word in every fifth message: what is not rarer tells nothing by itself."""
RELEVANT_SHARE: Final = 0.15
"""A message bears on the question if what they share tells at least this much of what a word tells that occurs once."""
SHORT_NUMBER_DIGITS: Final = 3
FITTING_ROUNDS: Final = 4
CLOSE_SHARE: Final = 0.18
"""Of the best passage's score: what adds less to those that are chosen is not quoted."""
SAID_SHARE: Final = 0.65
"""What a word still counts for when another message that is quoted holds it: of two passages that hold the same words
of the question, the second tells less than one that holds the others."""
SPEAKER_TOKENS: Final = 16
"""What the line that names a speaker costs, generously."""
GAP_TOKENS: Final = 3
READ_CHARS: Final = 512 * 1024
"""Of candidates, what is read: up to a hundred milliseconds. The best come first, those beside them last."""
LEAST_TOKENS: Final = 8
"""With less room left, nothing more is looked at."""


class Candidate(Protocol):
    """A message that a search found; without a score, one beside such a message."""

    @property
    def message(self) -> LogMessage: ...

    @property
    def score(self) -> float | None: ...


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
        candidates: what `Store.search` found for its terms, best first.
        room_tokens: the most that the quoting message may take, itself included. Raw counts.
        folded_messages: how many messages the search ranged over.
        visible: seqs that the view shows anyway.
    """
    asked = asked_terms(question)
    if not asked:
        return None
    looked_at = _looked_at(candidates, visible)
    terms = frozenset(asked)
    sources = {found.message.seq: read(found.message, terms) for found in looked_at}
    hits = [(sources[found.message.seq].whole.times, found.score) for found in looked_at if found.score is not None]
    if not hits:
        return None
    rarity = _rarities(hits, folded_messages)
    looks = answering(look_of_answer(question), sources)
    if not _bears(rarity, sources.values(), looks, folded_messages):
        return None
    units = weighed(sources, rarity, looks, of_speaker=is_of_speaker(question))
    chosen = _filled(units, sources, room_tokens, count)
    while chosen:
        quotation = _quotation(chosen, sources, before_seq, count)
        if quotation.tokens <= room_tokens:
            return quotation
        chosen = chosen[:-1]
    return None


def _looked_at(candidates: Iterable[Candidate], visible: Container[int]) -> list[Candidate]:
    """Those that the view does not show anyway, the best first, as far as `READ_CHARS` go."""
    looked_at, left = [], READ_CHARS
    for found in candidates:
        if left <= 0:
            break
        if found.message.seq not in visible:
            looked_at.append(found)
            left -= min(len(found.message.message.raw), MAX_MESSAGE_CHARS)
    return looked_at


def _bears(
    rarity: Mapping[str, float],
    sources: Iterable[Source],
    looks: Mapping[Place, float],
    folded_messages: int,
) -> bool:
    """Whether any message shares words with the question that are rare here, or many that are not common.

    A number of few digits turns up anywhere and counts for nothing by itself; what looks like an answer counts beside
    a word of the question.
    """
    telling = {
        term: worth - COMMON_RARITY
        for term, worth in rarity.items()
        if worth > COMMON_RARITY and not (term.isdigit() and len(term) <= SHORT_NUMBER_DIGITS)
    }
    once = math.log(1 + (folded_messages - 0.5) / 1.5) - COMMON_RARITY
    most = 0.0
    for source in sources:
        shared = source.whole.times.keys() & telling.keys()
        if not shared:
            continue
        worth = sum([telling[term] for term in shared])
        if looks:
            beside = (
                looks.get((source.seq, at), 0.0)
                for at, terms in enumerate(source.terms)
                if not shared.isdisjoint(terms.times)
            )
            worth += max(0.0, max(beside, default=0.0) - COMMON_RARITY)
        most = max(most, worth)
    return most > 0 and most >= RELEVANT_SHARE * once


def _rarities(hits: Sequence[tuple[Mapping[str, int], float]], folded_messages: int) -> dict[str, float]:
    """How rare each term is in all that was searched: its inverse document frequency.

    Candidates are only the best of what was found, and terms that they all hold look rarer by them than they are. But
    the score of each is the sum of its terms' true rarities, to which the estimates are brought in line.

    Args:
        hits: what each of those that were found holds of the terms that are asked for, and its score.
    """
    messages = max(folded_messages, len(hits))
    holding = Multiset(term for times, _ in hits for term in times)
    rarities = {
        term: math.log(1 + (messages - matching + 0.5) / (matching + 0.5)) for term, matching in holding.items()
    }
    for _ in range(FITTING_ROUNDS):
        ratios = dict.fromkeys(rarities, 0.0)
        for times, score in hits:
            total = sum(map(rarities.__getitem__, times))
            ratio = min(1.0, score / total) if total else 1.0
            for term in times:
                ratios[term] += ratio
        rarities = {term: worth * ratios[term] / holding[term] for term, worth in rarities.items()}
    return rarities


def _filled(units: Sequence[Unit], sources: Mapping[int, Source], room_tokens: int, count: Counter) -> list[Unit]:
    """The sentences that tell most beside each other for which there is room, best first."""
    left = room_tokens - count.message(quoting([]).body)
    chosen: list[Unit] = []
    said: set[str] = set()
    holding: dict[str, set[int]] = {}
    queue = [(-unit.score, -unit.seq, unit.start, at) for at, unit in enumerate(units)]
    heapq.heapify(queue)
    least = -CLOSE_SHARE * queue[0][0] if queue else 0.0
    while queue and left >= LEAST_TOKENS:
        gained, _, _, at = queue[0]
        unit = units[at]
        gain = _gain(unit, holding)
        if gain < -gained:
            heapq.heapreplace(queue, (-gain, -unit.seq, unit.start, at))
            continue
        heapq.heappop(queue)
        if gain < least:
            break
        text = sources[unit.seq].text[unit.start : unit.end]
        words = " ".join(text.split())
        cost = count.count(text) + (GAP_TOKENS if any(one.seq == unit.seq for one in chosen) else SPEAKER_TOKENS)
        if cost > left or words in said:
            continue
        chosen.append(unit)
        said.add(words)
        left -= cost
        for term in unit.held:
            holding.setdefault(term, set()).add(unit.seq)
    return chosen


def _gain(unit: Unit, holding: Mapping[str, set[int]]) -> float:
    """What a sentence tells beside those that are chosen from other messages."""
    gain = 0.0
    for term, worth in unit.held.items():
        seqs = holding.get(term, ())
        gain += worth * SAID_SHARE ** (len(seqs) - (unit.seq in seqs))
    return unit.weight * gain


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
