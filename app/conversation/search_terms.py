"""The terms of the search index: which terms a message has, and which terms a question asks for. Pure.

Terms are lower case. English is lightly stemmed. Identifiers are indexed whole and in parts. Scripts without spaces
between words are indexed as overlapping pairs of characters. No database tokenizes text itself: all get these terms, so
that each finds the same. Every pass over a text is linear, and no term is longer than `MAX_TERM_CHARS`.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable, Iterator
from collections.abc import Set as AbstractSet
from functools import lru_cache
from itertools import chain
from typing import Any, Final

import orjson

from app.conversation.item import Item

MAX_TERM_CHARS: Final = 64
"""Of a longer word only the beginning is indexed. That is enough to tell hashes apart, and base64 is not worth more."""
MAX_MESSAGE_CHARS: Final = 64 * 1024
"""How many characters of a message are indexed."""
MAX_QUERY_TERMS: Final = 24

_COMBINING_MARKS: Final = (
    "\u0300-\u036f\u0591-\u05c7\u064b-\u065f\u0900-\u0dff\u0e31\u0e34-\u0e3a\u0e47-\u0e4e\u0eb1\u0eb4-\u0ebc"
    "\u0ec8-\u0ece\u102b-\u103e\u17b4-\u17d3"
)
"""Accents, points and vowel signs. They belong to words although they are no letters."""
_WORD: Final = re.compile(rf"[\w{_COMBINING_MARKS}]++(?:[-./][\w{_COMBINING_MARKS}]++)*+")
_ASCII_WORD: Final = re.compile(r"\w++(?:[-./]\w++)*+", re.ASCII)
"""The same for ASCII text, which takes two thirds of the time."""
_SEPARATORS: Final = re.compile(r"[-./_]+")
_UNSPACED_SCRIPT: Final = re.compile(
    "([\u0e00-\u0e4f\u0e5a-\u0eff\u1000-\u109f\u1100-\u11ff\u1780-\u17ff\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff"
    "\uac00-\ud7af\uf900-\ufaff\U00020000-\U0003134f]+)"
)
"""Runs of Thai, Lao, Burmese, Khmer, Japanese and Chinese, which have no spaces between words, and of Korean, whose
words change their endings."""
_CAMEL_CASE_PART: Final = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|\d+")
_ACCENT: Final = re.compile(r"(?<=[a-zA-Z\u0370-\u04ff])[\u0300-\u036f]+")
_CONTRACTION: Final = re.compile(r"['\u2019](?:s|d|m|t|ll|re|ve)\b", re.IGNORECASE)
_NEGATION: Final = re.compile(r"\b\w+n['\u2019]t\b", re.IGNORECASE)
_DIGIT_GROUP: Final = re.compile(r"(?<=\d),(?=\d{3}(?!\d))")
_VOWEL: Final = re.compile(r"[aeiouy]")

COMMON_WORDS: Final = """
    a about actually after again all almost also am an and any anything are as at be been before being but by can
    cannot could currently did do does doing done each earlier either else even ever exactly few for from get give
    go got had has have having he hello help her here hers hey hi him his how however i if in into is it its just
    know let like may maybe me mention mentioned might mine more most much must my nd need no nor not now of off oh
    ok okay on once one only or other our ours out over own please previously rd really recall remember remind
    return said same say see shall she should so some something still such sure take tell th than thank thanks that
    the their theirs them then there these they thing things think this those though through to told too under until
    up us use very want was way we well were what when where which while who whom whose why will with wonder
    wondering would yes yet you your yours
"""
"""Words of questions that say nothing about the subject, before stemming."""


def extract_terms(text: str) -> list[str]:
    """Returns the terms of a text in order, with repetitions."""
    return list(chain.from_iterable(_extract_terms_by_word(text)))


def extract_matching_terms(text: str, wanted_terms: AbstractSet[str]) -> tuple[list[str], int]:
    """Returns the terms of a text that are wanted, in order and with repetitions, and how many terms the text has
    altogether."""
    by_word = _extract_terms_by_word(text)
    return list(filter(wanted_terms.__contains__, chain.from_iterable(by_word))), sum(map(len, by_word))


def _extract_terms_by_word(text: str) -> list[tuple[str, ...]]:
    text = _normalize_spelling(text)
    words = (_ASCII_WORD if text.isascii() else _WORD).findall(text)
    # Long words (base64, hashes) come once: in the cache they would evict common words and take much memory.
    if max(map(len, words), default=0) > MAX_TERM_CHARS:
        return [
            _split_word_cached(word) if len(word) <= MAX_TERM_CHARS else tuple(_split_word_into_terms(word))
            for word in words
        ]
    return list(map(_split_word_cached, words))


def extract_query_terms(text: str) -> list[str]:
    """Returns the different terms of a question without common words, at most `MAX_QUERY_TERMS`.

    Of a long text, terms from the beginning and from the end are taken: the question is usually there, and pasted text
    is between them.
    """
    terms = extract_terms(_NEGATION.sub(" ", text))
    query_terms = list(dict.fromkeys(term for term in terms if term not in COMMON_TERMS))
    if len(query_terms) <= MAX_QUERY_TERMS:
        return query_terms
    half = MAX_QUERY_TERMS // 2
    return query_terms[:half] + query_terms[-half:]


def extract_message_terms(message: Item) -> list[str]:
    """Returns the terms of a message: of its text, or a result's text, and of the tools that it calls with their
    arguments."""
    return extract_terms(extract_searchable_text(message))


def extract_searchable_text(message: Item) -> str:
    """Returns the beginning of all text of a message, at most `MAX_MESSAGE_CHARS`."""
    texts = [message.text[:MAX_MESSAGE_CHARS]]
    for call in message.calls:
        if call.kind != "other":
            texts += (call.name, _extract_argument_text(call.arguments))
    for call in message.hosted_calls:
        texts += (call.name, _extract_argument_text(call.arguments))
    return "\n".join(texts)[:MAX_MESSAGE_CHARS]


def _extract_argument_text(arguments: str) -> str:
    """Returns the text of arguments without JSON's escapes: a line break in a file's text must separate words."""
    try:
        return " ".join(_iterate_json_leaves(orjson.loads(arguments)))
    except orjson.JSONDecodeError:
        return arguments


def _iterate_json_leaves(document: Any) -> Iterator[str]:
    """Yields keys and values in order, at any depth."""
    # A list instead of recursion: arguments may be nested deeper than Python's stack allows.
    waiting = [document]
    while waiting:
        value = waiting.pop()
        if isinstance(value, dict):
            for key, child in reversed(value.items()):
                waiting += (child, key)
        elif isinstance(value, list):
            waiting += reversed(value)
        elif value is not None:
            yield str(value)


def _split_word_into_terms(word: str) -> Iterator[str]:
    """Yields the whole word if it has several parts, then its parts."""
    parts = [part for part in _SEPARATORS.split(word) if part]
    if len(parts) > 1:
        yield word[:MAX_TERM_CHARS].lower()
    for part in parts:
        yield from _split_part_into_terms(part)


# 6,000 messages of agents and chats took 131 µs each with 8,192 words as with 16,384, and 178 µs with 4,096.
@lru_cache(maxsize=8_192)
def _split_word_cached(word: str) -> tuple[str, ...]:
    return tuple(_split_word_into_terms(word))


def _normalize_spelling(text: str) -> str:
    """One spelling: compatibility forms folded, Latin, Greek and Cyrillic letters without accents, `1,234` as 1234."""
    if not text.isascii():
        text = _ACCENT.sub("", unicodedata.normalize("NFKD", text))
        text = unicodedata.normalize("NFC", text)
    if "'" in text or "\u2019" in text:
        text = _CONTRACTION.sub("", text)
    return _DIGIT_GROUP.sub("", text) if "," in text else text


def _split_part_into_terms(part: str) -> Iterable[str]:
    if part.isascii():
        return _stem_word_and_parts(part) if len(part) <= MAX_TERM_CHARS else (part[:MAX_TERM_CHARS].lower(),)
    return _split_unspaced_into_terms(part)


def _split_unspaced_into_terms(part: str) -> Iterator[str]:
    for at, run in enumerate(_UNSPACED_SCRIPT.split(part)):
        if at % 2 == 0:
            if run:
                yield from _stem_word_and_parts(run[:MAX_TERM_CHARS])
        elif len(run) == 1:
            yield run
        else:
            yield from (run[start : start + 2] for start in range(len(run) - 1))


def _stem_word_and_parts(word: str) -> tuple[str, ...]:
    """Returns the stem of a word and, for words such as `camelCase` and `item42`, the stems of its parts."""
    humps = _CAMEL_CASE_PART.findall(word) if word.isascii() and not word.isdigit() else []
    return (stem_word(word.lower()), *(stem_word(hump.lower()) for hump in humps if len(humps) > 1))


def stem_word(word: str) -> str:
    """Returns a lower-case English word without plural, -ing, -ed and a last e. Other words are returned as they
    are."""
    if len(word) < 4 or not (word.isascii() and word.isalpha()):
        return word
    word = _remove_plural(word)
    for ending in ("ing", "ed"):
        base = word.removesuffix(ending)
        if base != word and len(base) >= 2 and not word.endswith("eed") and _VOWEL.search(base):
            word = _remove_doubled_consonant(base)
            break
    if len(word) >= 4 and word.endswith("e"):
        return word[:-1]
    return word[:-1] + "i" if len(word) >= 4 and word.endswith("y") else word


def _remove_plural(word: str) -> str:
    if word.endswith("ies") and len(word) > 4:
        return word[:-3] + "y"
    if word.endswith(("sses", "xes", "zes", "ches", "shes")):
        return word[:-2]
    if word.endswith("s") and not word.endswith(("ss", "us", "is")):
        return word[:-1]
    return word


def _remove_doubled_consonant(base: str) -> str:
    """Returns `runn` as `run`. `fall`, `miss` and `buzz` stay."""
    doubled = len(base) > 3 and base[-1] == base[-2] and base[-1] not in "lsz"
    return base[:-1] if doubled else base


COMMON_TERMS: Final = frozenset(map(stem_word, COMMON_WORDS.split()))
