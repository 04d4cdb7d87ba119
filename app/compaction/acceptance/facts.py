"""What a stretch of a log mentions that nobody can guess again: identifiers, numbers, addresses, dates, names. Pure.

Values are found in plain text by their shape (`compaction.acceptance.facts`), in tool calls and JSON results also
by their place.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import orjson

from app.compaction.summarizer.transcript import spoken
from app.context.stages.round_lines import call_of
from app.conversation.messages import LogMessage

Source = Literal["user", "argument", "assistant", "result", "kept"]

READ_CHARS = 100_000
"""Of one text, what is looked at: its first and last half."""
LONGEST_PHRASE_CHARS = 80
KEY_DIGITS = 3
"""A JSON key with so many digits is a value, not a name of values."""
MOST_LEAVES = 5_000
"""Of one JSON document, how many leaves are looked at."""

SOURCE_WORTH: dict[Source, float] = {"kept": 4.0, "argument": 3.0, "user": 3.0, "assistant": 1.5, "result": 1.0}
"""Where a value was seen; `kept`: in the list of important values that an earlier summary carries."""
REPEATED_WORTH = 0.35
"""What each further message that mentions it adds, as a share …"""
MOST_REPEATS = 4
"""… for at most this many."""
CROWD_EXPONENT = 0.35
"""A value that stands among n of its kind in one result is worth its n-th part to this power."""
NAMING_WORTH = 1.3
"""Times as much for a value whose label says that it names something."""

_NAMING = re.compile(r"(?:^|_|\b)(?:ids?|numbers?|no|keys?|codes?|tokens?|email|phone|account)$", re.IGNORECASE)
TELLING_WORTH = 1.0
"""Below it, a shape is too common to be looked for in results: short numbers, times, codes of three letters."""
GIVEN_NAME_WORTH, NAME_WORTH, QUOTED_WORTH, PHRASE_WORTH = 2.0, 1.0, 1.5, 0.7


@dataclass(slots=True)
class Mention:
    """A value and everything that was seen of it."""

    text: str
    label: str
    shape_worth: float
    crowd: int
    """Among how many values of the same label in one result it stood, where that was fewest."""
    order: int
    """Its place among all values, by first mention."""
    sources: set[Source] = field(default_factory=set)
    places: set[int] = field(default_factory=set)

    @property
    def is_important(self) -> bool:
        """Said by the user, passed to a tool, found important by an earlier summary, or mentioned again."""
        said = bool(self.sources & {"user", "argument", "kept"}) or len(self.places) > 1
        return said and self.shape_worth >= TELLING_WORTH

    @property
    def worth(self) -> float:
        worths = sorted((SOURCE_WORTH[source] for source in self.sources), reverse=True)
        repeated = 1 + REPEATED_WORTH * min(MOST_REPEATS, len(self.places) - 1)
        crowd: float = self.crowd**CROWD_EXPONENT
        return self.shape_worth * (worths[0] + sum(worths[1:]) / 2) * repeated / crowd


class Values:
    """Collects mentions. `place` is anything that tells messages apart."""

    def __init__(self) -> None:
        self._mentions: dict[str, Mention] = {}

    def sorted(self) -> list[Mention]:
        """Most worth first, then the longest, then in order of appearance."""
        return sorted(self._mentions.values(), key=lambda one: (-one.worth, -len(one.text)))

    def add_message(self, logged: LogMessage) -> None:
        message = logged.message
        if message.role in {"tool", "function"}:
            self._result(spoken(message), logged.seq)
            return
        self.add_text(spoken(message), "assistant" if message.role == "assistant" else "user", logged.seq)
        for call in message.tool_calls:
            self._arguments(call_of(call)[1], logged.seq)

    def add_text(self, text: str, source: Source, place: int) -> None:
        """What a text mentions, names and quotations included."""
        text = _ends_of(text)
        for label, word in labelled_words(text):
            self._word(label, word, source, place)
        for quoted in quotations_in(text):
            if worth_of(quoted) is None:
                self.add(quoted, "", QUOTED_WORTH, source, place)
        for name in given_names_in(text):
            self.add(name, "name", GIVEN_NAME_WORTH, source, place)
        for name in names_in(text):
            self.add(name, "", NAME_WORTH, source, place)

    def add(self, text: str, label: str, shape_worth: float, source: Source, place: int, crowd: int = 1) -> None:
        """A value that was seen."""
        known = self._mentions.get(text.casefold())
        if known is None:
            known = self._mentions[text.casefold()] = Mention(text, label, 0.0, crowd, len(self._mentions))
        known.label = known.label or label
        known.shape_worth = max(known.shape_worth, shape_worth * (NAMING_WORTH if _NAMING.search(label) else 1))
        known.crowd = min(known.crowd, crowd)
        known.sources.add(source)
        known.places.add(place)

    def add_kept(self, label: str, value: str, source: Source, place: int, crowd: int) -> None:
        """A value that an earlier summary carries along."""
        self.add(value, label, worth_of(value) or PHRASE_WORTH, source, place, crowd)

    def _word(self, label: str, word: str, source: Source, place: int, crowd: int = 1) -> None:
        worth = worth_of(word)
        if worth is not None and (worth >= TELLING_WORTH or source != "result"):
            self.add(word, label, worth, source, place, crowd)

    def _arguments(self, arguments: str, place: int) -> None:
        decoded = _decoded(arguments)
        if decoded is None:
            self._plain(arguments, "argument", place)
            return
        for label, leaf in _leaves(decoded):
            self._leaf(label, leaf, "argument", place)

    def _result(self, text: str, place: int) -> None:
        decoded = _decoded(text)
        if decoded is None:
            self._plain(text, "result", place)
            return
        leaves = list(_leaves(decoded))
        crowds: dict[str, int] = {}
        for label, _ in leaves:
            crowds[label] = crowds.get(label, 0) + 1
        for label, leaf in leaves:
            self._leaf(label, leaf, "result", place, crowds[label])

    def _plain(self, text: str, source: Source, place: int) -> None:
        words = list(labelled_words(_ends_of(text)))
        for label, word in words:
            self._word(label, word, source, place, 1 if source == "argument" else 1 + len(words) // 16)

    def _leaf(self, label: str, leaf: str, source: Source, place: int, crowd: int = 1) -> None:
        """A value of a JSON document: whole where it is short, otherwise whatever it mentions."""
        if worth_of(leaf) is not None:
            self._word(label, leaf, source, place, crowd)
        elif "\n" in leaf or len(leaf) > LONGEST_PHRASE_CHARS:
            self._plain(leaf, source, place)
        elif len(leaf) > 2:
            self.add(" ".join(leaf.split()), label, PHRASE_WORTH, source, place, crowd)


def values_in(messages: Sequence[LogMessage]) -> list[Mention]:
    """What a stretch of the log mentions, most worth first."""
    found = Values()
    for logged in messages:
        found.add_message(logged)
    return found.sorted()


def _ends_of(text: str) -> str:
    if len(text) <= READ_CHARS:
        return text
    return f"{text[: READ_CHARS // 2]}\n{text[-READ_CHARS // 2 :]}"


def _decoded(text: str) -> Any:
    """The JSON object or array that a text is; None if it is neither."""
    if text.lstrip()[:1] not in {"{", "["}:
        return None
    try:
        return orjson.loads(text)
    except orjson.JSONDecodeError:
        return None


def _leaves(document: Any) -> Iterator[tuple[str, str]]:
    """Key and text of each leaf in order; keys that look like values are values of the key above them."""
    waiting: list[tuple[str, Any]] = [("", document)]
    for _ in range(MOST_LEAVES):
        if not waiting:
            return
        label, node = waiting.pop()
        if isinstance(node, dict):
            for key, below in reversed(node.items()):
                is_value = sum(map(str.isdigit, key)) >= KEY_DIGITS and worth_of(key) is not None
                waiting.append((label if is_value else key, below))
                if is_value:
                    waiting.append((label, key))
        elif isinstance(node, list):
            waiting.extend((label, below) for below in reversed(node))
        elif isinstance(node, str):
            yield label, node.strip()
        elif isinstance(node, int | float) and not isinstance(node, bool):
            yield label, orjson.dumps(node).decode()


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
