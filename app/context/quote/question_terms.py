"""Finds what a message asks for: the terms to search old messages by. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

from app.conversation.search_terms import extract_query_terms
from app.conversation.word_aliases import SearchTerm, find_aliases

SHORT_QUESTION_CHARS: Final = 240
"""All words of a message up to this length are searched for (decision 12)."""
SENTENCE_END: Final = re.compile(r"(?<=[.!?])\s+|(?<=[。！？])|\n+")
"""Matches between sentences and lines."""

_CLOSING_CHARACTERS: Final = "\"'”’)»] "
_IDENTIFIER: Final = re.compile(r"\b(?=[\w./@-]*\d)(?=[\w./@-]*[A-Za-z])[\w./@-]{5,}|\b\d{6,}\b")
_EXAMPLE: Final = re.compile(r"\((?:ex|e\.g|eg|i\.e|for example|for instance|such as|like)\b[^()]*\)", re.IGNORECASE)
_ANSWER_FORM: Final = re.compile(
    r"(?:please\s+)?(?:answer|choose|format|give|list|reply|respond|return|round|state|use|write)\b", re.IGNORECASE
)
_QUESTION_WORD: Final = re.compile(
    r"\b(?:how|what|when|where|which|who(?:se|m)?|why|wann|warum|wer|wie|wieviele?|wo|combien|o[ùu]|pourquoi|quand|quel"
    r"|qui|cu[aá]ndo|cu[aá]nt[ao]s?|d[oó]nde|qui[eé]n)\b",
    re.IGNORECASE,
)
_REQUEST: Final = re.compile(
    rf"\s*(?:(?:so|and|but|ok|okay|now|please|hey|hi)\b[,\s]*)*(?:{_QUESTION_WORD.pattern}|(?:(?:can|could) you|find"
    r"|give me|list|look up|name|recall|remind|search|show|tell)\b)",
    re.IGNORECASE,
)


def extract_question_terms(text: str) -> dict[str, SearchTerm]:
    """Returns the terms to search old messages by: of a short message all, of a long one those of its questions.

    A long message without a question brings what it needs. Then only terms that name one thing are searched for, such
    as an order's number or a path. Words about the form of the answer are not searched for.

    The terms of a request bring their aliases, since its answer may stand under other words. A statement is searched
    for by its own words: what is quoted for it costs as much, and is wanted less often.
    """
    if len(text) <= SHORT_QUESTION_CHARS:
        searched_text = _remove_answer_form_sentences(text)
        # If a short message is all about the answer's form, its words are all there is to search by.
        own_terms = extract_query_terms(searched_text) or extract_query_terms(text)
    elif questions := [unit for unit in SENTENCE_END.split(text) if _is_question(unit)]:
        searched_text = _EXAMPLE.sub(" ", " ".join(questions))
        own_terms = extract_query_terms(searched_text)
    else:
        named = {name.lower() for name in _IDENTIFIER.findall(text)}
        searched_text = " ".join(sorted(named))
        own_terms = [term for term in extract_query_terms(searched_text) if term in named]
    terms = {term: SearchTerm(term, 1.0) for term in own_terms}
    return terms if not is_request(text) else terms | find_aliases(searched_text, own_terms)


def is_request(text: str) -> bool:
    """Says whether a message asks for something: a question, or a sentence such as `Remind me of …`."""
    return any(_is_question(sentence) or _REQUEST.match(sentence) for sentence in SENTENCE_END.split(text))


def merge_aliases(scores: Mapping[str, float], terms: Mapping[str, SearchTerm]) -> dict[str, float]:
    """Returns scores of search terms as scores of the question's own terms: that of the best alias, at its weight.

    Several aliases of one word say no more than one of them.
    """
    merged: dict[str, float] = {}
    for term, score in scores.items():
        stands_for, weight = terms[term]
        merged[stands_for] = max(merged.get(stands_for, 0.0), weight * score)
    return merged


def _is_question(sentence: str) -> bool:
    return sentence.rstrip(_CLOSING_CHARACTERS).endswith(("?", "？", "؟"))


def _remove_answer_form_sentences(text: str) -> str:
    """Returns a message without examples in brackets, and without sentences after its question about the
    answer's form.
    """
    sentences = SENTENCE_END.split(_EXAMPLE.sub(" ", text))
    question_index = next((index for index, sentence in enumerate(sentences) if _is_question(sentence)), len(sentences))
    return " ".join(
        one for index, one in enumerate(sentences) if index <= question_index or not _ANSWER_FORM.match(one)
    )
