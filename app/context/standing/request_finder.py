"""Finds the standing requests in the text of a user's message. No model is called.

Text that the user only repeats does not count: code, lines that begin with `>`, blocks between tags, and longer
passages in quotation marks. Neither does a question, or a request for a single answer.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Final, NamedTuple

from app.context.standing import request_patterns as patterns
from app.conversation.search_terms import extract_terms

MAX_SCANNED_CHARS: Final = 4_000
"""How many characters are scanned at the beginning of a message, and as many at its end. Between them stands pasted
text."""
MAX_REQUEST_CHARS: Final = 400
"""Longer sentences are not kept."""
MIN_REQUEST_CHARS: Final = 5
MAX_REFERENCE_CHARS: Final = 60
"""A sentence up to this length that ends in a pronoun is kept together with the sentence before it."""

_WORD: Final = re.compile(r"[^\W\d_]+(?:['-][^\W\d_]+)*")
_FOREIGN_BLOCK: Final = re.compile(
    r"^[ \t]*(```|~~~).*?(?:^[ \t]*\1|\Z)|^[ \t]*>[^\n]*|<([a-z][\w-]{0,40})[^<>\n]{0,200}>.*?</\2>",
    re.IGNORECASE | re.DOTALL | re.MULTILINE,
)
_QUOTE_MARKS: Final = frozenset('"\u201c\u201e\u00ab')
_LONG_QUOTE: Final = re.compile(
    r"[\"\u201c\u201e\u00ab](?:[^\"\u201c\u201d\u00ab\u00bb\n\s]+\s+){3,80}?[^\"\u201d\u00bb\n]{0,80}[\"\u201d\u00bb]"
)
_NO_LINE_BREAK: Final = re.compile(r"[^\n]")
_SENTENCE_END: Final = re.compile(r"\n+|[.!?]+[\"'\u201d)]*(?=\s)")
_ABBREVIATION: Final = re.compile(
    r"(?:^|[\s(])(?:Mr|Mrs|Ms|Dr|Prof|St|vs|e\.g|i\.e|[a-z])$|^\s*\d{1,2}$", re.IGNORECASE | re.MULTILINE
)
"""What stands before a full stop that does not end a sentence: a title, an initial, the number of a list item."""
MAX_ABBREVIATION_CHARS: Final = 6
_BULLET: Final = re.compile(r"\s*(?:[-*\u2022\u2013+]|\(?\d{1,2}[.)]|\(?[a-z][.)])\s+", re.IGNORECASE)
_DANGLING_PRONOUN: Final = re.compile(r"\b(?:it|them|those|these|this|that)[.!]?$", re.IGNORECASE)
_LAST_CLAUSE: Final = re.compile(r"(?:[,;:\u2013\u2014]|\s-\s)[^,;:\u2013\u2014]*$")
_PLACES_BY_WORD: Final[Mapping[str, Sequence[int]]] = {
    word: [place for place, wording in enumerate(patterns.WORDINGS) if word in wording.words]
    for word in frozenset[str]().union(patterns.WITHDRAWAL_WORDS, *(wording.words for wording in patterns.WORDINGS))
}
"""The places in `WORDINGS` of the wordings that need a word."""
_TRIGGER_WORDS: Final = frozenset(_PLACES_BY_WORD)
_COMMON_TERMS: Final = frozenset(
    extract_terms(
        "a about add after again all also always am an and any anything are as at be because been before but by call "
        "can could d did do does doing don dont ever every few fine for forward from future get give going had has "
        "have here how i if in include into is it its just keep kind let like ll m make may me mention more much must "
        "my need never no not now of off ok on only or other our out please prefer put rather re really remember s "
        "shall should show so some still stop such sure t than that the their them then these they thing this those "
        "to today too under up us use ve very want was we what when whenever which while will with would write you "
        "your anymore longer one actually instead answer answers reply replies respond response responses"
    )
)


class FoundRequest(NamedTuple):
    """A standing request: the sentence `[start, end)` of a text."""

    start: int
    end: int
    strength: int
    subject: frozenset[str]
    withdraws: bool


def find_standing_requests(text: str) -> list[FoundRequest]:
    """Returns the standing requests in the text of a user's message, in order."""
    found: list[FoundRequest] = []
    for offset, part in _select_scanned_parts(text):
        if _may_have_requests(part):
            found += _find_in_part(part, offset)
    return found


def _may_have_requests(text: str) -> bool:
    """Says whether a text has a word that a standing request needs. Most texts have none."""
    return ":" in text or not _TRIGGER_WORDS.isdisjoint(_WORD.findall(_normalize(text)))


def _normalize(text: str) -> str:
    return text.lower().replace("\u2019", "'")


def _select_scanned_parts(text: str) -> Iterator[tuple[int, str]]:
    """Yields what is scanned of a text, with its place: the whole text, or its beginning and its end."""
    if len(text) <= 2 * MAX_SCANNED_CHARS:
        yield 0, text
        return
    # Whole lines only: a line that is cut could begin with a rule that its other half takes back.
    head_end = text.rfind("\n", 0, MAX_SCANNED_CHARS)
    tail_start = text.find("\n", len(text) - MAX_SCANNED_CHARS)
    if head_end > 0:
        yield 0, text[:head_end]
    if tail_start > 0:
        yield tail_start, text[tail_start:]


def _mask_foreign_text(text: str) -> str:
    """Returns the text with everything that the user only repeats blanked out. Length and line breaks stay."""
    if "```" in text or "~~~" in text or ">" in text:
        text = _FOREIGN_BLOCK.sub(lambda match: "\n" * len(match.group()), text)
    if not _QUOTE_MARKS.isdisjoint(text):
        text = _LONG_QUOTE.sub(lambda match: _NO_LINE_BREAK.sub("\x00", match.group()), text)
    return text


def _find_in_part(text: str, offset: int) -> Iterator[FoundRequest]:
    masked = _mask_foreign_text(text)
    previous: tuple[int, int] | None = None
    is_in_list = False
    for start, end in _split_sentences(masked):
        sentence = masked[start:end]
        bullet = _BULLET.match(sentence)
        # After a heading such as "My rules:" each list item is a rule, until a line that is no item.
        is_listed = is_in_list and bullet is not None
        if is_in_list and bullet is None and (start == 0 or masked[:start].rstrip(" \t").endswith("\n")):
            is_in_list = False
        if patterns.LIST_HEADING.search(sentence):
            is_in_list, previous = True, None
            continue
        start += bullet.end() if bullet else 0
        request = _read_sentence(masked, start, end, previous, is_listed=is_listed)
        if request is not None and not patterns.FENCE.search(text, request.start, request.end):
            yield request._replace(start=offset + request.start, end=offset + request.end)
        previous = start, end


def _split_sentences(text: str) -> Iterator[tuple[int, int]]:
    """Yields the sentences of a text, without the space around them. A sentence ends at the end of its line."""
    start = 0
    for match in _SENTENCE_END.finditer(text):
        end, mark = match.end(), match.group()
        before = max(start, match.start() - MAX_ABBREVIATION_CHARS)
        if mark == "." and _ABBREVIATION.search(text, before, match.start()):
            continue
        yield from _strip_span(text, start, end)
        start = end
    yield from _strip_span(text, start, len(text))


def _strip_span(text: str, start: int, end: int) -> Iterator[tuple[int, int]]:
    """Yields the span without the space at its ends, unless nothing is left."""
    piece = text[start:end]
    if stripped := piece.strip():
        begin = start + len(piece) - len(piece.lstrip())
        yield begin, begin + len(stripped)


def _read_sentence(
    text: str, start: int, end: int, previous: tuple[int, int] | None, *, is_listed: bool
) -> FoundRequest | None:
    """Returns the standing request that a sentence makes; None if it makes none."""
    sentence = text[start:end]
    if len(sentence) > MAX_REQUEST_CHARS:
        return None
    if sentence.endswith("?"):
        # "Never suggest peanuts, I am allergic: what should I cook?" sets a rule before it asks.
        clause_end = _LAST_CLAUSE.search(sentence)
        end = start + clause_end.start() if clause_end else start
        sentence, is_listed = text[start:end], False
        if _find_strength(_normalize(sentence)) < 2:
            return None
    normalized = _normalize(sentence)
    if len(sentence) < MIN_REQUEST_CHARS:
        return None
    strength = max(_find_strength(normalized), 1 if is_listed else 0)
    withdraws = _withdraws_request(normalized)
    if not (strength or withdraws) or patterns.ONCE_ONLY.search(normalized):
        return None
    subject = find_subject(sentence)
    if (
        previous is not None
        and len(sentence) <= MAX_REFERENCE_CHARS
        and _DANGLING_PRONOUN.search(sentence)
        and "\n" not in text[previous[1] : start]
        and end - previous[0] <= MAX_REQUEST_CHARS
    ):
        start = previous[0]
        subject = find_subject(text[start:end])
    return FoundRequest(start, end, max(1, strength), subject, withdraws)


def _withdraws_request(sentence: str) -> bool:
    words = _WORD.findall(sentence)
    return not patterns.WITHDRAWAL_WORDS.isdisjoint(words) and patterns.WITHDRAWAL.search(sentence) is not None


def _find_strength(sentence: str) -> int:
    """Returns the strength of a normalized sentence; 0 if it is no standing request."""
    places = {place for word in _TRIGGER_WORDS.intersection(_WORD.findall(sentence)) for place in _PLACES_BY_WORD[word]}
    strength = 0
    for place in places:
        wording = patterns.WORDINGS[place]
        if wording.strength > strength and wording.pattern.search(sentence):
            strength = wording.strength
    return strength


def find_subject(sentence: str) -> frozenset[str]:
    """Returns what a sentence is about: the names of its slots, without their values, and its other terms that carry
    meaning. So "call me Alex" has the subject of "call me Sam"."""
    slots = []
    for name, pattern in patterns.SUBJECT_SLOTS:
        sentence, count = pattern.subn(" ", sentence)
        if count:
            slots.append(f"={name}")
    return frozenset({*slots, *extract_terms(sentence)} - _COMMON_TERMS)
