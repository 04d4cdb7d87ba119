"""Finds what a message asks for: the terms to search old messages by, and the form of a likely answer. Pure."""

from __future__ import annotations

import re
from typing import Final

from app.conversation.search_terms import extract_query_terms

SHORT_QUESTION_CHARS: Final = 240
"""All words of a message up to this length are searched for (decision 12)."""
SENTENCE_END: Final = re.compile(r"(?<=[.!?])\s+|(?<=[。！？])|\n+")
"""Matches between sentences and lines."""

_CLOSING_CHARACTERS: Final = "\"'”’)»] "
_IDENTIFIER: Final = re.compile(r"\b(?=[\w./@-]*\d)(?=[\w./@-]*[A-Za-z])[\w./@-]{5,}|\b\d{6,}\b")
_FIRST_PERSON: Final = re.compile(r"\b(?:I|my|me|mine|we|our|ours|us)\b", re.IGNORECASE)
_EXAMPLE: Final = re.compile(r"\((?:ex|e\.g|eg|i\.e|for example|for instance|such as|like)\b[^()]*\)", re.IGNORECASE)
_ANSWER_FORM: Final = re.compile(
    r"(?:please\s+)?(?:answer|choose|format|give|list|reply|respond|return|round|state|use|write)\b", re.IGNORECASE
)

_AGE_PATTERN: Final = r"(?i:\b\d{1,3}[- ]years?[- ]old\b|\baged? \d|\bturn(?:s|ed|ing)? \d|\bI(?:['’]m| am) \d\d\b)"
_AMOUNT_PATTERN: Final = r"[$€£¥]\s?\d|\d\s?(?:%|percent\b|dollars?\b|euros?\b|pounds?\b|[A-Z]{3}\b)"
_TIME_PATTERN: Final = (
    r"\d(?i:\s?[ap]\.?m\b)|\d:\d\d|\b(?i:(?:mon|tues|wednes|thurs|fri|satur|sun)day|tomorrow|tonight|noon|midnight)\b"
    r"|\b(?:January|February|March|April|May|June|July|August|September|October|November|December)\b"
    r"|\b(?:19|20)\d\d\b|\d(?:st|nd|rd|th)\b"
)
_NUMBER_PATTERN: Final = (
    r"\d|\b(?i:one|two|three|four|five|six|seven|eight|nine|ten|eleven|twelve|thirteen|fourteen|fifteen|sixteen"
    r"|seventeen|eighteen|nineteen|twenty|thirty|forty|fifty|sixty|seventy|eighty|ninety|hundred|thousand|million|once"
    r"|twice|half)\b"
)
_ASKS_FOR_NAME: Final = (
    r"\bwho(?:se|m)?\b|\bwhere\b|\bname[ds]?\b|\bcalled\b|\bwh(?:at|ich) (?:\w+ )?"
    r"(?:brand|city|company|country|firm|person|place|platform|school|tool|town)\b"
)
_NAME_PATTERN: Final = r"(?<=[\w,;:] )(?!I\b)[A-Z]\w+"
_ANSWER_PATTERNS: Final = tuple(
    (re.compile(question_pattern, re.IGNORECASE), re.compile(answer_pattern))
    for question_pattern, answer_pattern in (
        (r"\bhow old\b|\bwh(?:at|ich)(?:['’]s| is| was)? (?:\w+ )?age\b", _AGE_PATTERN),
        (r"\bhow much\b|\b(?:price|costs?|salary|budget|fee|percent|percentage)\b", _AMOUNT_PATTERN),
        (
            r"\bwhat(?:['’]s| is)?(?: \w+){0,2} time\b|\bwhen\b|\bwh(?:at|ich) (?:date|day|month|year|deadline)\b",
            _TIME_PATTERN,
        ),
        (r"\bhow (?:many|long|far|often|big|large|tall|heavy|high|wide|fast)\b|\bnumbers?\b", _NUMBER_PATTERN),
        (_ASKS_FOR_NAME, _NAME_PATTERN),
    )
)


def extract_question_terms(text: str) -> list[str]:
    """Returns the terms to search old messages by: of a short message all, of a long one those of its questions.

    A long message without a question brings what it needs. Then only terms that name one thing are searched for, such
    as an order's number or a path. Words about the form of the answer are not searched for.
    """
    if len(text) <= SHORT_QUESTION_CHARS:
        # If a short message is all about the answer's form, its words are all there is to search by.
        return extract_query_terms(_remove_answer_form_sentences(text)) or extract_query_terms(text)
    questions = [unit for unit in SENTENCE_END.split(text) if _is_question(unit)]
    if questions:
        return extract_query_terms(_EXAMPLE.sub(" ", " ".join(questions)))
    named = {name.lower() for name in _IDENTIFIER.findall(text)}
    return [term for term in extract_query_terms(" ".join(sorted(named))) if term in named]


def is_about_speaker(text: str) -> bool:
    """Says whether a question is about the person who asks."""
    return _FIRST_PERSON.search(text) is not None


def choose_answer_pattern(text: str) -> re.Pattern[str] | None:
    """Returns the pattern of what a question asks for, such as an amount for `how much`; None if it may be anything."""
    return next((answer for question, answer in _ANSWER_PATTERNS if question.search(text)), None)


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
