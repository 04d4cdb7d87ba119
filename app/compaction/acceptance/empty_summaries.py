"""Recognises a summary that says nothing about its range: a refusal, an empty phrase, talk about the task. Pure.

Promise: a summary takes the place of messages, so it must speak of them; a refusal in their place would lose them. A
wrong guess costs one more call, then an excerpt of the messages (`mechanical_summary`), which a model replaces later.
"""

from __future__ import annotations

import re
import unicodedata
from collections import Counter
from collections.abc import Iterable
from typing import Final

from app.compaction.acceptance.empty_summary_words import (
    NO_SUMMARY_SENTENCES,
    UNSPECIFIC_CHINESE,
    UNSPECIFIC_WORDS,
)
from app.compaction.acceptance.values_appendix import strip_appendix
from app.conversation.search_terms import COMMON_TERMS, extract_terms

MIN_RANGE_TERMS: Final = 8
"""A range with fewer different words, such as greetings or numbers, proves nothing: a good summary may share none."""
MIN_FOREIGN_TERMS: Final = 6
"""A summary in another script than its range is taken on trust if it has this many terms; a refusal has fewer."""

_SENTENCE: Final = re.compile(r"(?:[^.!?。！？\n]|[.!?](?=[^\s.!?]))+")
_LABEL: Final = r"[\s*#>\"'“«(-]*(?:(?:summary|zusammenfassung|résumé|resumen|resumo|摘要|总结)\W+)?"
_NO_SUMMARY: Final = re.compile(f"{_LABEL}(?:{'|'.join(NO_SUMMARY_SENTENCES)})", re.IGNORECASE)
"""Sentences that speak of the task, or refuse it, do not count. The others decide: a summary may report a refusal."""
_NUMBER: Final = re.compile(r"\d{2}")
_CHINESE_FILLER: Final = re.compile("|".join(sorted(UNSPECIFIC_CHINESE.split(), key=len, reverse=True)))
_UNSPECIFIC_TERMS: Final = COMMON_TERMS.union(extract_terms(UNSPECIFIC_WORDS))


def says_nothing(summary: str, range_texts: Iterable[str]) -> bool:
    """Whether a summary has no word about its range, beside stop words, refusals and talk about the task.

    Args:
        summary: the text of the summary, with or without its appendix.
        range_texts: the texts of the messages and summaries that it replaces.
    """
    sentences = [one for one in _SENTENCE.findall(strip_appendix(summary)) if not _is_refusal(one)]
    terms = _extract_specific_terms(_CHINESE_FILLER.sub(" ", "\n".join(sentences)))
    if not terms:
        return True
    range_terms: set[str] = set()
    for text in range_texts:
        if not terms.isdisjoint(found := extract_terms(text)):
            return False
        range_terms.update(found)
    range_terms = {term for term in range_terms - _UNSPECIFIC_TERMS if any(map(str.isalpha, term))}
    if len(range_terms) < MIN_RANGE_TERMS:
        return False
    # A summary in another script shares no words with its range. It is good if it names several things.
    main_script, _ = Counter(map(_find_script, range_terms)).most_common(1)[0]
    is_foreign = main_script not in set(map(_find_script, terms))
    return not (is_foreign and len(terms) >= MIN_FOREIGN_TERMS)


def _is_refusal(sentence: str) -> bool:
    """Whether a sentence refuses the task, or speaks of it. A sentence with a number tells a fact."""
    return _NO_SUMMARY.match(sentence) is not None and _NUMBER.search(sentence) is None


def _extract_specific_terms(text: str) -> set[str]:
    """Extracts the terms that may name something. A single character, such as a list's number, names nothing."""
    return {term for term in extract_terms(text) if len(term) > 1} - _UNSPECIFIC_TERMS


def _find_script(term: str) -> str:
    """Returns the script of a term's first character, as Unicode names it: `LATIN`, `CJK`, `CYRILLIC`, `DIGIT`."""
    return unicodedata.name(term[0], "").partition(" ")[0]
