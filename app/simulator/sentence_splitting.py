"""Splits texts into sentences and word stems, for answers and summaries. Pure; results are cached, since prompts
repeat.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache
from typing import Final

MAX_SENTENCE_CHARS = 600
MAX_CACHED_CHARS: Final = 10_000
"""Longer texts are not cached: they would take gigabytes."""

_SENTENCE_END = re.compile(r"(?<=[.!?\u3002\uff01\uff1f])(?:\s+|(?<=[\u3002\uff01\uff1f]))|\n+")
_WORD = re.compile(r"[^\W_]+(?:[._:/@%#+-]+[^\W_]+)*|[^\W_]", re.UNICODE)
_WORD_PART = re.compile(r"[^\W_]+", re.UNICODE)
_CAMEL_CASE_BOUNDARY = re.compile(r"(?<=[a-z])(?=[A-Z])")
_IDEOGRAPH = re.compile(r"[\u3040-\u30ff\u3400-\u9fff\uac00-\ud7af]")

_STOP_TEXT = (
    "a about again all also am an and any are as ask asked at be been but by can could did do does doing earlier "
    "for from get give had has have he hello her here hey hi him his how i if in into is it its just know let "
    "like list many may me mean mention mentioned more much my now of off ok on one or our out please recall "
    "remember remind said say she so some such tell than thank thanks that the their them then there these they "
    "this those to told too up us used using want was we well were what when where which while who whom whose why "
    "will with would yes you your "
)
STOP_WORDS = frozenset(_STOP_TEXT.split())


@dataclass(frozen=True, slots=True)
class Sentence:
    """A sentence and the stems of its words, without stop words."""

    text: str
    stems: frozenset[str]


@dataclass(frozen=True, slots=True)
class AnalyzedText:
    """A text's sentences in order, and all their stems."""

    sentences: tuple[Sentence, ...]
    stems: frozenset[str]


def split_sentences(text: str) -> AnalyzedText:
    """Splits a text into sentences. Line ends end sentences; an over-long sentence is cut into pieces."""
    return (_split_cached if len(text) <= MAX_CACHED_CHARS else _split)(text)


def _split(text: str) -> AnalyzedText:
    sentences = []
    for raw in _SENTENCE_END.split(text):
        stripped = raw.strip()
        for start in range(0, len(stripped), MAX_SENTENCE_CHARS):
            piece = stripped[start : start + MAX_SENTENCE_CHARS].strip()
            if _WORD_PART.search(piece):
                sentences.append(Sentence(piece, find_word_stems(piece)))
    return AnalyzedText(tuple(sentences), frozenset().union(*(one.stems for one in sentences)))


_split_cached: Final = lru_cache(maxsize=4096)(_split)


def find_word_stems(text: str) -> frozenset[str]:
    """Returns the stems of a text: words without endings, identifiers whole and in parts, ideographs in pairs."""
    word_stems: set[str] = set()
    for match in _WORD.finditer(text):
        written = match.group()
        word = written.lower()
        if _IDEOGRAPH.search(word):
            # Chinese and Japanese have no spaces between words: pairs of characters stand for words.
            word_stems.update(word[at : at + 2] for at in range(max(1, len(word) - 1)))
            continue
        if word not in STOP_WORDS:
            word_stems.add(stem_word(word))
        parts = [*word.split("/"), *_WORD_PART.findall(_CAMEL_CASE_BOUNDARY.sub(" ", written).lower())]
        word_stems.update(stem_word(part) for part in parts if part not in STOP_WORDS and len(part) > 1)
    return frozenset(word_stems)


def stem_word(word: str) -> str:
    """Returns a word without its most common English endings. Crude, but the same for both sides of a comparison."""
    if len(word) <= 3 or not word.isalpha():
        return word
    for ending in ("ations", "ation", "ings", "ing", "edly", "ied", "ies", "ed", "es", "s", "ly", "e", "y"):
        if word.endswith(ending) and len(word) - len(ending) >= 3:
            bare = word[: -len(ending)]
            return bare[:-1] if len(bare) > 3 and bare[-1] == bare[-2] and bare[-1] not in "sl" else bare
    return word
