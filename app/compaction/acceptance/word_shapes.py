"""Words of a text that nobody can guess again, told by their shape. Pure.

Every pass over a text is linear in its length, whatever it holds.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

LONGEST_VALUE_CHARS = 200
"""Longer words are no values; shapes may take quadratic time within one word."""

_UNSPACED = "\u3040-\u30ff\u3400-\u9fff\uf900-\ufaff\uac00-\ud7af"
"""Scripts without spaces, or that attach endings to foreign words: what is foreign in them stands for itself."""
_WORD = re.compile(rf"[$€£¥]?\d{{1,3}}(?:,\d{{3}})+(?:\.\d+)?%?|(?:[^\W{_UNSPACED}]|[./:@#%+~$€£¥&?=\\-])+")
_QUOTED = re.compile(r'"([^"\n]{2,80})"|“([^”\n]{2,80})”|「([^」\n]{2,80})」|`([^`\n]{2,80})`')
_NAMED = re.compile(
    r"\b(?:my name is|i am called|call me|named|called|nickname is)\s+((?:[^\W\d_][\w'’-]*)(?:\s[A-Z][\w'’-]*){0,2})",
    re.IGNORECASE,
)
_KINDS: tuple[tuple[str, re.Pattern[str], float], ...] = (
    ("url", re.compile(r"(?:[a-z][a-z0-9+.-]*://|www\.)\S{3,}", re.IGNORECASE), 3.0),
    ("email", re.compile(r"[\w.+%-]+@[\w-]+(?:\.[\w-]+)+"), 3.0),
    ("date", re.compile(r"\d{4}-\d{2}-\d{2}(?:T[\d:.+Z-]*)?|\d{1,2}[./]\d{1,2}[./]\d{2,4}|\d{4}/\d{1,2}/\d{1,2}"), 2.2),
    ("time", re.compile(r"\d{1,2}:\d{2}(?::\d{2})?(?:am|pm)?", re.IGNORECASE), 0.9),
    ("amount", re.compile(r"[$€£¥]\d[\d.,]*\w?|\d[\d.,]*[€$£¥%]"), 2.0),
    ("number", re.compile(r"[+-]?\d[\d.]*\d{3}|[+-]?\d{1,3}(?:,\d{3})+(?:\.\d+)?"), 2.0),
    ("number", re.compile(r"[+-]?\d+\.\d+|[+-]?\d{2,3}"), 0.9),
    ("path", re.compile(r"(?:~|\.{1,2}|[A-Za-z]:)?[/\\][\w.@+~\\/-]*\w[\w.@+~\\/-]*|(?:[\w.@+-]+/){2,}[\w.@+-]*"), 2.2),
    ("path", re.compile(r"[\w.@+-]+/[\w.@+/-]*(?:\.\w{1,8}|\d)[\w.-]*"), 2.2),
    ("identifier", re.compile(r"(?=[^\d]*\d)(?=[\d\W_]*[^\W\d_])[#@]?\w[\w.:#-]{8,}\w"), 4.0),
    ("identifier", re.compile(r"(?=[^\d]*\d)(?=[\d\W_]*[^\W\d_])[#@]?\w[\w.:#-]*\w|#\d+"), 3.0),
    ("identifier", re.compile(r"[A-Z0-9]+(?:[-_][A-Z0-9]+)+"), 1.6),
    ("code", re.compile(r"[A-Z]{3,10}"), 0.8),
    ("identifier", re.compile(r"_*[^\W_]+(?:_+[^\W_]+)+_*|\w+(?:\.\w+){1,6}|[a-z]+(?:[A-Z][a-z0-9]+)+|@\w{2,}"), 1.2),
)
"""Kinds by shape, the first that takes the whole word, and what each is worth."""
_PLAIN_WORD = re.compile(
    r"(?:a|about|all|also|am|an|and|any|are|as|at|be|been|but|by|can|could|did|do|does|for|from|had|has|have|"
    r"he|her|here|him|his|how|i|if|in|into|is|it|its|just|like|me|more|my|no|not|now|of|on|one|or|our|out|"
    r"over|please|she|so|some|than|that|the|their|them|then|there|these|they|this|to|today|up|us|very|was|we|"
    r"were|what|when|where|which|who|will|with|would|yes|yet|you|your)",
    re.IGNORECASE,
)
_EDGES_LEFT, _EDGES_RIGHT = ":?=&%", ".:?=&-+~\\"


def labelled_words(text: str) -> Iterator[tuple[str, str]]:
    """Each word that may be a value, trimmed, with the word before it that says what it is."""
    before = ""
    for match in _WORD.finditer(text):
        word = match.group().lstrip(_EDGES_LEFT).rstrip(_EDGES_RIGHT)
        if not word or len(word) > LONGEST_VALUE_CHARS:
            before = ""
            continue
        label, word = _assigned(word)
        if word.isalpha() and not _PLAIN_WORD.fullmatch(word) and worth_of(word) is None:
            before = word.casefold() if len(word) > 2 else before
            continue
        yield label or before, word


def names_in(text: str) -> Iterator[str]:
    """Proper names: capitalised words inside a sentence, or several in a row."""
    run: list[str] = []
    run_starts_sentence = starts_sentence = True
    end = 0
    for match in _WORD.finditer(text):
        gap = text[end : match.start()]
        word = match.group()
        bare = word.rstrip(".:?-").lstrip(":")
        starts_sentence = starts_sentence or end == 0 or gap.strip(" \t*_([\"'“,;—–") != ""
        is_name = _is_name(bare)
        if run and not (is_name and gap == " "):
            yield from _name_of(run, run_starts_sentence)
            run = []
        if is_name:
            run_starts_sentence = starts_sentence if not run else run_starts_sentence
            run.append(bare)
        starts_sentence = word != bare and word[-1] in ".:?"
        if starts_sentence and run:
            yield from _name_of(run, run_starts_sentence)
            run = []
        end = match.end()
    if run:
        yield from _name_of(run, run_starts_sentence)


def _is_name(word: str) -> bool:
    return 2 < len(word) <= 40 and word[:1].isupper() and not word.isupper() and word.replace("-", "").isalpha()


def _name_of(run: Sequence[str], starts_sentence: bool) -> Iterator[str]:
    """The run without a leading word that is capitalised for where it stands."""
    if _PLAIN_WORD.fullmatch(run[0]) or (starts_sentence and len(run) == 1):
        run = run[1:]
    if run:
        yield " ".join(run[:4])


def _assigned(word: str) -> tuple[str, str]:
    """`key=value` and `key:value` taken apart; no label for anything else."""
    if "://" in word:
        return "", word
    for sign in "=:":
        key, found, value = word.partition(sign)
        if found and value and key.replace("_", "").replace("-", "").isalpha() and len(key) > 1:
            return key, value.lstrip(_EDGES_LEFT)
    return "", word


def worth_of(word: str) -> float | None:
    """What a word is worth by its shape; None for an ordinary one."""
    if len(word) < 2 or len(word) > LONGEST_VALUE_CHARS or " " in word or (word.isalpha() and word.islower()):
        return None
    for _, shape, worth in _KINDS:
        if shape.fullmatch(word):
            return worth
    return None


def quotations_in(text: str) -> Iterator[str]:
    """What stands in quotation marks, short ones only."""
    for match in _QUOTED.finditer(text):
        quoted = " ".join(next(filter(None, match.groups())).split())
        if quoted:
            yield quoted


def given_names_in(text: str) -> Iterator[str]:
    """What somebody or something is said to be called."""
    for match in _NAMED.finditer(text):
        yield match.group(1)
