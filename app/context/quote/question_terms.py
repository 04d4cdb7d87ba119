"""Finds what a message asks for: the terms to search old messages by, and the form of a likely answer. Pure."""

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
_FIRST_PERSON: Final = re.compile(r"\b(?:I|my|me|mine|we|our|ours|us)\b", re.IGNORECASE)
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

_SMALL_NUMBER: Final = (
    r"(?:one|two|three|four|five|six|seven|eight|nine|ten|eleven|twelve|thirteen|fourteen|fifteen|sixteen|seventeen"
    r"|eighteen|nineteen|twenty|thirty|forty|fifty|sixty|seventy|eighty|ninety)\b"
)
_LARGE_NUMBER: Final = r"(?:dozen|hundred|thousand|million|billion)\b"
_TIME_UNIT: Final = r"(?:second|sec|minute|min|hour|hr|day|night|week|weekend|month|year|yr|decade)s?\b"
_AGE_PATTERN: Final = (
    rf"(?i:\b\d{{1,3}}[- ]years?[- ]old\b|\baged? \d|\bturn(?:s|ed|ing)? (?:\d|{_SMALL_NUMBER})"
    r"|(?:\b(?:am|are|is|was|were)|['’](?:m|s|re)) (?:only |just |about |almost )?"
    rf"(?:\d\d?\b(?![.:]\d| ?%| percent)|{_SMALL_NUMBER}))"
)
_AMOUNT_PATTERN: Final = (
    rf"[$€£¥]\s?\d|\d\s?(?:%|k\b|[A-Z]{{3}}\b)|(?:\d|\b(?i:an?\b|{_SMALL_NUMBER}|{_LARGE_NUMBER}))[ -]?"
    r"(?:\w{1,16} )?(?i:percent|dollars?|bucks?|euros?|pounds?|quid|cents?|francs?|grand)\b"
)
_MONTH: Final = (
    r"(?:Jan|Feb|Mar|Apr|Jun|Jul|Aug|Sept?|Oct|Nov|Dec|January|February|March|April|May|June|July|August|September"
    r"|October|November|December)\b"
)
_TIME_PATTERN: Final = (
    r"\d(?i:\s?[ap]\.?m\b)|\d:\d\d|\d\s?(?:Uhr|h)\b|\b(?i:at|by|around|until) \d\d?\b(?! ?[\w%])"
    r"|\b(?i:(?:mon|tues|wednes|thurs|fri|satur|sun)day|yesterday|today|tomorrow|tonight|noon|midnight|o['’]clock|ago"
    r"|christmas|easter)\b|\b(?i:last|next|this|in the) (?i:night|week|weekend|month|year|spring|summer|autumn|fall"
    rf"|winter|morning|afternoon|evening)\b|\b{_MONTH}|\b(?:19|20)\d\d\b|\d(?:st|nd|rd|th)\b"
    rf"|\b(?i:(?:in|after|before|within) (?:an?|\d+|a few|a couple of|{_SMALL_NUMBER}) {_TIME_UNIT})"
)
_DURATION_PATTERN: Final = (
    rf"\b(?i:(?:\d+|an?|few|couple|couple of|several|{_SMALL_NUMBER})[- ](?:more |and a half )?{_TIME_UNIT}"
    r"|since\b|forever\b)"
)
_FREQUENCY_PATTERN: Final = (
    r"\b(?i:always|annually|daily|each|every|hourly|monthly|never|often|once|rarely|sometimes|times|twice|usually"
    r"|weekly|yearly|(?:a|per) (?:day|week|month|year))\b"
)
_NUMBER_PATTERN: Final = rf"\d|\b(?i:{_SMALL_NUMBER}|{_LARGE_NUMBER}|(?:once|twice|half|couple|both)\b)"
_REASON_PATTERN: Final = r"\b(?i:because|cause|due to|so that|that['’]s why|in order to|reason)\b"
_COLOUR_PATTERN: Final = (
    r"\b(?i:black|white|gr[ae]y|red|green|blue|yellow|orange|purple|violet|pink|brown|beige|turquoise|golden?|silver"
    r"|blonde?)\b"
)
_NAME_PATTERN: Final = r"(?<=[\w,;:] )(?!I\b)[A-Z]\w+"
_ASKS_FOR_NUMBER: Final = (
    r"how (?:many|far|big|large|tall|heavy|high|wide|deep|fast|late|close|much (?:weight|does \w+ weigh))\b"
    r"|wh(?:at|ich) size\b|.*\bnumbers?\b|wie ?viele\b|combien\b|cu[aá]nt[ao]s\b"
)
_ASKS_FOR_TIME: Final = (
    r"what(?:['’]s| is)?(?: \w+){0,2} time\b|when\b|wh(?:at|ich)(?:['’]s| is| was)?(?: the)?"
    r" (?:date|days?|month|year|deadline)\b|wann\b|quand\b|cu[aá]ndo\b"
)
_ASKS_FOR_NAME: Final = (
    r"who(?:se|m)?\b|where\b|.*\b(?:name[ds]?|called)\b|wh(?:at|ich) (?:\w+ )?"
    r"(?:brand|city|company|country|firm|person|place|platform|school|tool|town)\b"
    r"|wer\b|wo\b|qui\b|o[ùu]\b|qui[eé]n\b|d[oó]nde\b"
)
_ANSWER_PATTERNS: Final = tuple(
    (re.compile(question_pattern, re.IGNORECASE), re.compile(answer_pattern))
    for question_pattern, answer_pattern in (
        (r"how old\b|wh(?:at|ich)(?:['’]s| is| was)? (?:\w+ )?age\b|wie alt\b|quel âge\b", _AGE_PATTERN),
        (r"how (?:long|much (?:longer|time))\b|wie lange?\b|combien de temps\b|cu[aá]nto tiempo\b", _DURATION_PATTERN),
        (r"how (?:often|frequently)\b|wie oft\b", _FREQUENCY_PATTERN),
        (_ASKS_FOR_NUMBER, _NUMBER_PATTERN),
        (
            r"how much\b|.*\b(?:price|costs?|salary|budget|fee|percent|percentage)\b|wie ?viel\b|cu[aá]nt[ao]\b",
            _AMOUNT_PATTERN,
        ),
        (_ASKS_FOR_TIME, _TIME_PATTERN),
        (r"why\b|warum\b|pourquoi\b", _REASON_PATTERN),
        (r"wh(?:at|ich)(?:['’]s| is| was)?(?: the)? colou?rs?\b", _COLOUR_PATTERN),
        (_ASKS_FOR_NAME, _NAME_PATTERN),
    )
)
"""The beginning of a question, from its question word, and what its answer looks like. The first match counts."""


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


def is_about_speaker(text: str) -> bool:
    """Says whether a question is about the person who asks."""
    return _FIRST_PERSON.search(text) is not None


def choose_answer_pattern(text: str) -> re.Pattern[str] | None:
    """Returns the pattern of what a question asks for, such as an amount for `how much`; None if it may be anything.

    The first question word decides: `What did Ann say when …?` does not ask for a time.
    """
    sentences = SENTENCE_END.split(text)
    question = next((one for one in sentences if _is_question(one)), text)
    first_word = _QUESTION_WORD.search(question)
    asked = question[first_word.start() :] if first_word is not None else question
    return next((answer for begins, answer in _ANSWER_PATTERNS if begins.match(asked)), None)


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
