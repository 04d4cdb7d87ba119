"""Other words under which a word of a question may stand in old messages: words that mean the same, other forms of the
word, numbers as words and as digits. Pure.

A search adds them to a question's own terms. The index is not changed, so they also find messages that were indexed
long ago.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from importlib.resources import files
from itertools import chain
from typing import Final, NamedTuple

from app.conversation.search_terms import COMMON_TERMS, extract_terms

MAX_ALIASES: Final = 64
"""The most aliases of one question. Those with the highest weights stay."""
FORM_WEIGHT: Final = 0.9
ALIAS_WEIGHT: Final = 0.6
"""What a match counts for, where the question's own word counts for one: another form of the word (`FORM_WEIGHT`) is as
good, another word may mean something else. Between 0.5 and 0.7 the answers found hardly differ; above, exact matches
suffer."""
ENDINGS: Final = ("er", "or", "ment", "ion", "ation")
"""Endings that are put on a stem or taken from it: work, worker; invest, investment; install, installation."""
MIN_STEM_CHARS: Final = 4
MAX_PHRASE_WORDS: Final = 4

_SMALL_NUMBERS: Final = """
    zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen seventeen
    eighteen nineteen
"""
_TENS: Final = "twenty thirty forty fifty sixty seventy eighty ninety"
_LARGE_NUMBERS: Final = {100: "hundred", 1000: "thousand", 1_000_000: "million"}
_ORDINALS: Final = """
    first second third fourth fifth sixth seventh eighth ninth tenth eleventh twelfth thirteenth fourteenth fifteenth
    sixteenth seventeenth eighteenth nineteenth twentieth
"""
_ORDINAL_ENDINGS: Final = {1: "st", 2: "nd", 3: "rd"}


class SearchTerm(NamedTuple):
    """What a term that is searched for counts as."""

    stands_for: str
    """The question's own term; the term itself, if it is the question's own."""
    weight: float
    """How much a match counts, at most 1."""


def find_aliases(question: str, own_terms: Sequence[str]) -> dict[str, SearchTerm]:
    """Returns the terms that may stand for those of a question, best first, at most `MAX_ALIASES`.

    Args:
        question: the text that is searched for. Its phrases are found in it, also if all of their words are common.
        own_terms: the terms of the question; none of them is an alias.
    """
    found: dict[str, SearchTerm] = {}
    for alias, stands_for, weight in chain(
        ((alias, term, FORM_WEIGHT) for term in own_terms for alias in _SAME_WORDS.get(term, ())),
        ((alias, term, ALIAS_WEIGHT) for term in own_terms for alias in _find_synonyms(term)),
        _find_aliases_of_phrases(extract_terms(question), own_terms),
        ((alias, term, ALIAS_WEIGHT) for term in own_terms for alias in _derive_words(term)),
    ):
        if alias not in own_terms:
            found.setdefault(alias, SearchTerm(stands_for, weight))
        if len(found) == MAX_ALIASES:
            break
    return found


def _find_aliases_of_phrases(terms: Sequence[str], own_terms: Sequence[str]) -> Iterator[tuple[str, str, float]]:
    """Yields aliases of all phrases of a question. They stand for the phrase's first term that is searched for."""
    for start in range(len(terms)):
        for end in range(start + 2, min(start + MAX_PHRASE_WORDS, len(terms)) + 1):
            phrase = " ".join(terms[start:end])
            for alias in _find_synonyms(phrase):
                yield alias, next((term for term in terms[start:end] if term in own_terms), phrase), ALIAS_WEIGHT


@lru_cache(maxsize=4096)
def _find_synonyms(key: str) -> tuple[str, ...]:
    """Returns the words that mean the same as a word or phrase, in any form: for `purchase` also `bought`."""
    forms = [key, *_SAME_WORDS.get(key, ())]
    synonyms = [synonym for form in forms for synonym in _SAME_MEANINGS.get(form, ())]
    return tuple(dict.fromkeys([*synonyms, *(form for one in synonyms for form in _SAME_WORDS.get(one, ()))]))


@lru_cache(maxsize=4096)
def _derive_words(stem: str) -> tuple[str, ...]:
    """Returns stems that differ by an ending. Most are no words; a search finds nothing for them."""
    if len(stem) < MIN_STEM_CHARS or not (stem.isascii() and stem.isalpha()):
        return ()
    shorter = [
        stem.removesuffix(ending)
        for ending in ENDINGS
        if stem.endswith(ending) and len(stem) - len(ending) >= MIN_STEM_CHARS
    ]
    derived = chain(shorter, (base + ending for base in [stem, *shorter] for ending in ENDINGS))
    return tuple(dict.fromkeys(word for word in derived if word != stem))


def _read_tables() -> tuple[list[str], str]:
    """Returns the tables of `word_groups.txt`, which says what they mean: lines of words that mean the same, and the
    text with the forms of words."""
    text = files(__package__).joinpath("word_groups.txt").read_text("utf-8")
    lines = [line for line in text.splitlines() if line and not line.startswith("#")]
    end = lines.index("[same word]")
    return lines[1:end], " ".join(lines[end + 1 :])


def _iterate_meaning_pairs(lines: Iterable[str]) -> Iterator[tuple[str, str]]:
    for line in lines:
        head, colon, kinds = line.rpartition(":")
        words = [word.strip() for word in kinds.split(",")]
        for word in [head.strip()] if colon else words:
            yield from ((word, other) for other in words)


def _iterate_form_pairs(table: str) -> Iterator[tuple[str, str]]:
    for group in table.split(";"):
        forms = group.split()
        yield from ((form, other) for form in forms for other in forms)


def _iterate_number_pairs() -> Iterator[tuple[str, str]]:
    small_numbers = _SMALL_NUMBERS.split()
    yield from ((str(number), word) for number, word in enumerate(small_numbers))
    for tens, word in enumerate(_TENS.split(), 2):
        yield str(10 * tens), word
        yield from ((f"{tens}{ones}", f"{word}-{small_numbers[ones]}") for ones in range(1, 10))
    yield from ((str(number), word) for number, word in _LARGE_NUMBERS.items())
    for number, word in enumerate(_ORDINALS.split(), 1):
        yield f"{number}{_ORDINAL_ENDINGS.get(number, 'th')}", word


def _build_alias_table(pairs: Iterable[tuple[str, str]]) -> Mapping[str, tuple[str, ...]]:
    """Returns the terms that may stand for each word or phrase, both ways; phrases stand for nothing."""
    pairs = list(pairs)
    # Of `twenty-five` only the whole is a key, not its parts.
    names = {words for pair in pairs for words in pair}
    keys = {words: " ".join(extract_terms(word)[0] for word in words.split()) for words in names}
    table: dict[str, dict[str, None]] = {}
    for word, other in pairs:
        for key, alias in ((keys[word], keys[other]), (keys[other], keys[word])):
            if alias != key and " " not in alias and alias not in COMMON_TERMS:
                table.setdefault(key, {})[alias] = None
    return {key: tuple(aliases) for key, aliases in table.items()}


_MEANING_LINES, _FORM_GROUPS = _read_tables()
_SAME_WORDS: Final = _build_alias_table(chain(_iterate_form_pairs(_FORM_GROUPS), _iterate_number_pairs()))
_SAME_MEANINGS: Final = _build_alias_table(_iterate_meaning_pairs(_MEANING_LINES))
