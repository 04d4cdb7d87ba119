"""Answers a question with the sentences of the prompt that fit best. Pure.

The ranking is BM25 reduced to presence: a question's words weigh more the rarer they are among the sentences (Robertson
& Zaragoza, "The Probabilistic Relevance Framework", 2009). A word elsewhere in the same message counts half.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from app.simulator.sentence_splitting import Sentence, find_word_stems, split_sentences

UNKNOWN_ANSWER = "I don't see that in my context."
NOTED_PREFIX = "Noted:"
MIN_ANSWER_WEIGHT_SHARE = 0.45
"""A sentence answers a question if it has this share of the weight of the question's words."""
MIN_SHARE_OF_BEST_SCORE = 0.8
"""Further sentences are added if they have at least this share of the best score."""
MAX_ANSWER_SENTENCES = 3
QUESTION_MARKS = ("?", "\uff1f")
SAME_MESSAGE_WORD_WEIGHT = 0.5

_QUESTION_START = re.compile(
    r"^(?:\W*)(?:please\s+)?(?:who|whom|whose|what|which|when|where|why|how|remind me|tell me|recall|list|repeat|"
    r"name the|do you|did|does|can you tell|could you tell)\b",
    re.IGNORECASE,
)

_LEADING_LABELS = re.compile(
    r"^[-*•\s]*(?:(?:(?:user|human|assistant|system|developer|summary|tool(?: result)?(?: of [\w.-]+)?):"
    rf"|{NOTED_PREFIX})\s*)*",
    re.IGNORECASE,
)


@dataclass(frozen=True, slots=True)
class PromptText:
    """A text of the prompt, and its speaker."""

    role: str
    text: str


def is_question(text: str) -> bool:
    """Says whether a text asks for something: a line ends in a question mark or begins like a question."""
    lines = [line for line in text.splitlines() if line.strip()]
    asks = any(line.rstrip(" \"')*_").endswith(QUESTION_MARKS) or _QUESTION_START.match(line) for line in lines)
    return asks or "? " in text


def find_answer_sentences(question: str, prompt_texts: Sequence[PromptText]) -> list[str]:
    """Returns the sentences in `prompt_texts` that answer `question`, best first; empty if none fits."""
    question_stems = find_word_stems(question)
    if not question_stems:
        return []
    passages = [split_sentences(source.text) for source in prompt_texts]
    facts = [
        (sentence, whole.stems) for whole in passages for sentence in whole.sentences if may_be_answer(sentence.text)
    ]
    weights = _weigh_words(question_stems, [found for found, _ in facts])
    full_weight = sum(weights.values())
    scored = []
    for position, (found, message_stems) in enumerate(facts):
        matching_stems = question_stems & found.stems
        if not matching_stems:
            continue
        share = _sum_weights(weights, matching_stems) + SAME_MESSAGE_WORD_WEIGHT * _sum_weights(
            weights, (question_stems & message_stems) - matching_stems
        )
        new_stem_count = len(found.stems - question_stems)
        # A sentence with only the question's own words repeats the question.
        if share / full_weight >= MIN_ANSWER_WEIGHT_SHARE and new_stem_count:
            # Between equal sentences the shorter one wins, which has fewer other words.
            scored.append((share / full_weight - 0.002 * new_stem_count, position, found.text))
    return _select_best_sentences(scored)


def may_be_answer(text: str) -> bool:
    """Says whether a sentence may be an answer. Questions, fence lines and `UNKNOWN_ANSWER` may not."""
    bare = strip_labels(text)
    return not (bare.startswith((UNKNOWN_ANSWER, "<")) or bare.rstrip("\"'*_").endswith(QUESTION_MARKS))


def strip_labels(text: str) -> str:
    """Returns a sentence without list dash, speaker and `Noted:` in front."""
    return _LEADING_LABELS.sub("", text).strip()


def _weigh_words(words: Iterable[str], sentences: Sequence[Sentence]) -> dict[str, float]:
    """Returns the weight of each of a question's words: the rarer among the sentences, the more."""
    sentence_counts: Counter[str] = Counter()
    for fact in sentences:
        sentence_counts.update(fact.stems.intersection(words))
    total = len(sentences)
    return {
        word: math.log(1 + (total - sentence_counts[word] + 0.5) / (sentence_counts[word] + 0.5)) + 0.5
        for word in words
    }


def _sum_weights(weights: dict[str, float], words: Iterable[str]) -> float:
    return sum(weights[word] for word in words)


def _select_best_sentences(scored: list[tuple[float, int, str]]) -> list[str]:
    """Returns the best few sentences; of equal ones the later first, and none that contains or repeats another."""
    selected: list[str] = []
    ranked = sorted(scored, key=lambda entry: (-entry[0], -entry[1]))
    for score, _, text in ranked:
        if len(selected) == MAX_ANSWER_SENTENCES or score < MIN_SHARE_OF_BEST_SCORE * ranked[0][0]:
            break
        bare = strip_labels(text)
        if not any(bare in other or other in bare for other in selected):
            selected.append(bare)
    return selected
