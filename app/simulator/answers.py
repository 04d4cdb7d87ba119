"""Answer a question with the sentences that fit it best, out of everything that a prompt shows. Pure.

Ranking is BM25's idea reduced to presence: a question's words weigh by how rare they are among the sentences
(Robertson & Zaragoza, "The Probabilistic Relevance Framework", 2009); words found elsewhere in the same message count
half.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from app.simulator.text import Sentence, passage, stems

UNKNOWN = "I don't see that in my context."
NOTED = "Noted:"
ACCEPTED_SHARE = 0.45
"""A sentence answers a question when it holds this share of the weight of the question's words."""
RUNNER_UP_SHARE = 0.8
"""Further sentences are told when they score at least this share of the best."""
MOST_SENTENCES = 3
QUESTION_MARKS = ("?", "\uff1f")
NEIGHBOUR_WEIGHT = 0.5

_QUESTION_START = re.compile(
    r"^(?:\W*)(?:please\s+)?(?:who|whom|whose|what|which|when|where|why|how|remind me|tell me|recall|list|repeat|"
    r"name the|do you|did|does|can you tell|could you tell)\b",
    re.IGNORECASE,
)

_LABELS = re.compile(
    r"^[-*•\s]*(?:(?:(?:user|human|assistant|system|developer|summary|tool(?: result)?(?: of [\w.-]+)?):"
    rf"|{NOTED})\s*)*",
    re.IGNORECASE,
)


@dataclass(frozen=True, slots=True)
class Source:
    """A text that the prompt shows, and who said it."""

    role: str
    text: str


def is_question(text: str) -> bool:
    """Whether a text asks for something: it has a sentence that ends in a question mark or starts like a question."""
    lines = [line for line in text.splitlines() if line.strip()]
    asks = any(line.rstrip(" \"')*_").endswith(QUESTION_MARKS) or _QUESTION_START.match(line) for line in lines)
    return asks or "? " in text


def recall(question: str, sources: Sequence[Source]) -> list[str]:
    """The sentences among `sources` that answer `question`, best first; empty when nothing fits."""
    wanted = stems(question)
    if not wanted:
        return []
    passages = [passage(source.text) for source in sources]
    facts = [(found, whole.stems) for whole in passages for found in whole.sentences if is_fact(found.text)]
    weights = _weights(wanted, [found for found, _ in facts])
    full_weight = sum(weights.values())
    scored = []
    for position, (found, around) in enumerate(facts):
        own = wanted & found.stems
        if not own:
            continue
        share = _total(weights, own) + NEIGHBOUR_WEIGHT * _total(weights, (wanted & around) - own)
        told = len(found.stems - wanted)
        if share / full_weight >= ACCEPTED_SHARE and told:
            scored.append((share / full_weight - 0.002 * told, position, found.text))
    return _best(scored)


def is_fact(text: str) -> bool:
    """Whether a sentence may answer anything: questions, fences and the admission of not knowing may not."""
    bare = unlabelled(text)
    return not (bare.startswith((UNKNOWN, "<")) or bare.rstrip("\"'*_").endswith(QUESTION_MARKS))


def unlabelled(text: str) -> str:
    """A sentence without list dash, speaker and `Noted:` in front, as one would say it oneself."""
    return _LABELS.sub("", text).strip()


def _weights(wanted: Iterable[str], facts: Sequence[Sentence]) -> dict[str, float]:
    """How much each word of a question tells: more the rarer it is among the facts."""
    seen: Counter[str] = Counter()
    for fact in facts:
        seen.update(fact.stems.intersection(wanted))
    total = len(facts)
    return {word: math.log(1 + (total - seen[word] + 0.5) / (seen[word] + 0.5)) + 0.5 for word in wanted}


def _total(weights: dict[str, float], words: Iterable[str]) -> float:
    return sum(weights[word] for word in words)


def _best(scored: list[tuple[float, int, str]]) -> list[str]:
    """The best few, later ones first among equals, none that says what another already says."""
    chosen: list[str] = []
    ranked = sorted(scored, key=lambda entry: (-entry[0], -entry[1]))
    for score, _, text in ranked:
        if len(chosen) == MOST_SENTENCES or score < RUNNER_UP_SHARE * ranked[0][0]:
            break
        bare = unlabelled(text)
        if not any(bare in other or other in bare for other in chosen):
            chosen.append(bare)
    return chosen
