"""Finds the values that log messages mention: identifiers, numbers, addresses, dates, names. Pure.

A value that is lost in a summary cannot be guessed again. Values are found in plain text by their shape; in tool
arguments and JSON results also by their keys.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import orjson

from app.conversation.conversation_types import LogMessage
from app.conversation.item import TOOL_RESULT_ROLES

MentionSource = Literal["user", "argument", "assistant", "result", "kept"]

MAX_READ_CHARS = 100_000
"""The most characters of one text that are searched. A longer text is searched in its first and last 50,000."""
MAX_PHRASE_CHARS = 80
"""A longer JSON string is searched for values; a shorter one is a value as a whole."""
MIN_VALUE_KEY_DIGITS = 3
"""A JSON key with at least this many digits may be a value itself, such as the id of a record."""
MAX_JSON_NODES = 5_000
"""The most nodes (leaves, objects, arrays) of one JSON document that are visited."""

SOURCE_WORTH: dict[MentionSource, float] = {"kept": 4.0, "argument": 3.0, "user": 3.0, "assistant": 1.5, "result": 1.0}
"""The worth of a value by where it was mentioned. `kept` is the list of important values in the appendix of an earlier
summary."""
REPEAT_WORTH = 0.35
"""Each further message that mentions a value adds this share of its worth, for at most `MAX_REPEATS` messages."""
MAX_REPEATS = 4
CROWD_EXPONENT = 0.35
"""The worth of a value is divided by n to this power if one result has n values under the same label."""
NAMING_LABEL_FACTOR = 1.3
"""A value is worth this many times as much if its label says that it identifies something (`_NAMING_LABEL`)."""

_NAMING_LABEL = re.compile(r"(?:^|_|\b)(?:ids?|numbers?|no|keys?|codes?|tokens?|email|phone|account)$", re.IGNORECASE)
MIN_DISTINCTIVE_WORTH = 1.0
"""Values of shapes that are worth less are not searched for in tool results, and are never important: short numbers,
times, codes of capital letters."""
INTRODUCED_NAME_WORTH, NAME_WORTH, QUOTED_TEXT_WORTH, PHRASE_WORTH = 2.0, 1.0, 1.5, 0.7


@dataclass(slots=True)
class ValueMention:
    """A value with all its mentions.

    Attributes:
        text: the value, as it was written first.
        label: the word or JSON key that says what the value is; blank if there is none.
        shape_worth: the highest worth of its shape, its label included.
        crowd_size: the number of values under the same label in one result; the smallest if there were several results.
        first_position: the place of its first mention among the first mentions of all values.
        sources: where it was mentioned.
        message_keys: the messages that mention it: `seq`, or a negative number for a summary.
    """

    text: str
    label: str
    shape_worth: float
    crowd_size: int
    first_position: int
    sources: set[MentionSource] = field(default_factory=set)
    message_keys: set[int] = field(default_factory=set)

    @property
    def is_important(self) -> bool:
        """Whether the value was said by the user, passed to a tool, important in an earlier summary, or mentioned in
        several messages."""
        is_stressed = bool(self.sources & {"user", "argument", "kept"}) or len(self.message_keys) > 1
        return is_stressed and self.shape_worth >= MIN_DISTINCTIVE_WORTH

    @property
    def worth(self) -> float:
        # The best source counts in full, each further one by half.
        worths = sorted((SOURCE_WORTH[source] for source in self.sources), reverse=True)
        repeat_factor = 1 + REPEAT_WORTH * min(MAX_REPEATS, len(self.message_keys) - 1)
        crowd_divisor: float = self.crowd_size**CROWD_EXPONENT
        return self.shape_worth * (worths[0] + sum(worths[1:]) / 2) * repeat_factor / crowd_divisor


class MentionCollector:
    """Collects mentions of values. A value is the same value in upper and lower case."""

    def __init__(self) -> None:
        self._mentions: dict[str, ValueMention] = {}

    def list_by_worth(self) -> list[ValueMention]:
        """Lists the values in descending order of worth; equal ones by length, then by first mention."""
        return sorted(self._mentions.values(), key=lambda one: (-one.worth, -len(one.text)))

    def add_message(self, log_message: LogMessage) -> None:
        message = log_message.message
        if message.role in TOOL_RESULT_ROLES:
            self._add_result(message.transcript_text, log_message.seq)
            return
        self.add_text(message.transcript_text, "assistant" if message.role == "assistant" else "user", log_message.seq)
        for call in message.calls:
            self._add_arguments(call.arguments, log_message.seq)

    def add_text(self, text: str, source: MentionSource, message_key: int) -> None:
        """Adds the values of a text, with names and quoted texts.

        Args:
            text: the text of a message, or of an earlier summary.
            source: where the text comes from.
            message_key: identifies the message, so that mentions in several messages can be counted.
        """
        text = _cut_to_ends(text)
        for label, word in find_labelled_words(text):
            self._add_word(label, word, source, message_key)
        for quoted in find_quoted_texts(text):
            # A quoted text with a shape was added by the loop above, with its label.
            if rate_word(quoted) is None:
                self.add_value(quoted, "", QUOTED_TEXT_WORTH, source, message_key)
        for name in find_introduced_names(text):
            self.add_value(name, "name", INTRODUCED_NAME_WORTH, source, message_key)
        for name in find_proper_names(text):
            self.add_value(name, "", NAME_WORTH, source, message_key)

    def add_value(
        self, text: str, label: str, shape_worth: float, source: MentionSource, message_key: int, crowd_size: int = 1
    ) -> None:
        """Adds a mention of a value. A known value keeps its first label and gets the higher worth."""
        mention = self._mentions.get(text.casefold())
        if mention is None:
            mention = self._mentions[text.casefold()] = ValueMention(text, label, 0.0, crowd_size, len(self._mentions))
        mention.label = mention.label or label
        mention.shape_worth = max(
            mention.shape_worth, shape_worth * (NAMING_LABEL_FACTOR if _NAMING_LABEL.search(label) else 1)
        )
        mention.crowd_size = min(mention.crowd_size, crowd_size)
        mention.sources.add(source)
        mention.message_keys.add(message_key)

    def add_appendix_value(
        self, label: str, value: str, source: MentionSource, message_key: int, crowd_size: int
    ) -> None:
        """Adds a value from the appendix of an earlier summary."""
        self.add_value(value, label, rate_word(value) or PHRASE_WORTH, source, message_key, crowd_size)

    def _add_word(self, label: str, word: str, source: MentionSource, message_key: int, crowd_size: int = 1) -> None:
        worth = rate_word(word)
        if worth is not None and (worth >= MIN_DISTINCTIVE_WORTH or source != "result"):
            self.add_value(word, label, worth, source, message_key, crowd_size)

    def _add_arguments(self, arguments: str, message_key: int) -> None:
        decoded = _decode_json(arguments)
        # Not every tool takes JSON, and a model may write JSON that does not parse.
        if decoded is None:
            self._add_plain_text(arguments, "argument", message_key)
            return
        for label, leaf in _iterate_leaves(decoded):
            self._add_leaf(label, leaf, "argument", message_key)

    def _add_result(self, text: str, message_key: int) -> None:
        decoded = _decode_json(text)
        if decoded is None:
            self._add_plain_text(text, "result", message_key)
            return
        leaves = list(_iterate_leaves(decoded))
        crowd_sizes: dict[str, int] = {}
        for label, _ in leaves:
            crowd_sizes[label] = crowd_sizes.get(label, 0) + 1
        for label, leaf in leaves:
            self._add_leaf(label, leaf, "result", message_key, crowd_sizes[label])

    def _add_plain_text(self, text: str, source: MentionSource, message_key: int) -> None:
        words = list(find_labelled_words(_cut_to_ends(text)))
        # Words of a plain text have no key to count by, so the crowd is estimated as a sixteenth of the words. In
        # arguments it is 1: the model chose each of them.
        for label, word in words:
            self._add_word(label, word, source, message_key, 1 if source == "argument" else 1 + len(words) // 16)

    def _add_leaf(self, label: str, leaf: str, source: MentionSource, message_key: int, crowd_size: int = 1) -> None:
        """Adds a leaf of a JSON document: as one value if it is short, otherwise the values in its text."""
        if rate_word(leaf) is not None:
            self._add_word(label, leaf, source, message_key, crowd_size)
        elif "\n" in leaf or len(leaf) > MAX_PHRASE_CHARS:
            self._add_plain_text(leaf, source, message_key)
        elif len(leaf) > 2:
            self.add_value(" ".join(leaf.split()), label, PHRASE_WORTH, source, message_key, crowd_size)


def find_values(messages: Sequence[LogMessage]) -> list[ValueMention]:
    """Finds the values that log messages mention, in descending order of worth."""
    collector = MentionCollector()
    for log_message in messages:
        collector.add_message(log_message)
    return collector.list_by_worth()


def _cut_to_ends(text: str) -> str:
    if len(text) <= MAX_READ_CHARS:
        return text
    return f"{text[: MAX_READ_CHARS // 2]}\n{text[-MAX_READ_CHARS // 2 :]}"


def _decode_json(text: str) -> Any:
    """Decodes a text that is a JSON object or array; returns None for any other text."""
    # A number or a quoted string is valid JSON, too, but has no keys: it is read as plain text.
    if text.lstrip()[:1] not in {"{", "["}:
        return None
    try:
        return orjson.loads(text)
    except orjson.JSONDecodeError:
        return None


def _iterate_leaves(document: Any) -> Iterator[tuple[str, str]]:
    """Yields key and text of each leaf, in the order of the document.

    A key that looks like a value, such as an id, is yielded as a value of the key above it.
    """
    # A stack, not recursion: a document may be nested deeper than Python's stack. Children are pushed in reverse order.
    pending: list[tuple[str, Any]] = [("", document)]
    for _ in range(MAX_JSON_NODES):
        if not pending:
            return
        label, node = pending.pop()
        if isinstance(node, dict):
            for key, child in reversed(node.items()):
                is_value = sum(map(str.isdigit, key)) >= MIN_VALUE_KEY_DIGITS and rate_word(key) is not None
                pending.append((label if is_value else key, child))
                if is_value:
                    pending.append((label, key))
        elif isinstance(node, list):
            pending.extend((label, child) for child in reversed(node))
        elif isinstance(node, str):
            yield label, node.strip()
        # `bool` is a subclass of `int`; true and false are no values to keep.
        elif isinstance(node, int | float) and not isinstance(node, bool):
            yield label, orjson.dumps(node).decode()


MAX_VALUE_CHARS = 200
"""A longer word is no value. The limit also bounds the time of the shapes' patterns, which may be quadratic in a word's
length."""

_UNSPACED_SCRIPTS = "\u3040-\u30ff\u3400-\u9fff\uf900-\ufaff\uac00-\ud7af"
"""Characters of scripts that are written without spaces or attach endings to foreign words (Chinese, Japanese, Korean).
They end a word, so that an identifier between them is found."""
_WORD = re.compile(rf"[$€£¥]?\d{{1,3}}(?:,\d{{3}})+(?:\.\d+)?%?|(?:[^\W{_UNSPACED_SCRIPTS}]|[./:@#%+~$€£¥&?=\\-])+")
_QUOTED_TEXT = re.compile(r'"([^"\n]{2,80})"|“([^”\n]{2,80})”|「([^」\n]{2,80})」|`([^`\n]{2,80})`')
_INTRODUCED_NAME = re.compile(
    r"\b(?:my name is|i am called|call me|named|called|nickname is)\s+((?:[^\W\d_][\w'’-]*)(?:\s[A-Z][\w'’-]*){0,2})",
    re.IGNORECASE,
)
_VALUE_SHAPES: tuple[tuple[str, re.Pattern[str], float], ...] = (
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
"""Shapes of values: kind, pattern, worth. The first pattern that matches the whole word decides."""
_COMMON_WORD = re.compile(
    r"(?:a|about|all|also|am|an|and|any|are|as|at|be|been|but|by|can|could|did|do|does|for|from|had|has|have|"
    r"he|her|here|him|his|how|i|if|in|into|is|it|its|just|like|me|more|my|no|not|now|of|on|one|or|our|out|"
    r"over|please|she|so|some|than|that|the|their|them|then|there|these|they|this|to|today|up|us|very|was|we|"
    r"were|what|when|where|which|who|will|with|would|yes|yet|you|your)",
    re.IGNORECASE,
)
_LEFT_TRIM_CHARS, _RIGHT_TRIM_CHARS = ":?=&%", ".:?=&-+~\\"


def find_labelled_words(text: str) -> Iterator[tuple[str, str]]:
    """Yields each word that may be a value, trimmed, with its label: the key of `key=value`, or the last ordinary word
    before it."""
    label_before = ""
    for match in _WORD.finditer(text):
        word = match.group().lstrip(_LEFT_TRIM_CHARS).rstrip(_RIGHT_TRIM_CHARS)
        if not word or len(word) > MAX_VALUE_CHARS:
            label_before = ""
            continue
        label, word = _split_assignment(word)
        # Common words are passed over: in "my order number is 88123" the label is "number", not "is".
        if word.isalpha() and not _COMMON_WORD.fullmatch(word) and rate_word(word) is None:
            label_before = word.casefold() if len(word) > 2 else label_before
            continue
        yield label or label_before, word


def find_proper_names(text: str) -> Iterator[str]:
    """Yields proper names: capitalised words inside a sentence, or several capitalised words in a row."""
    run: list[str] = []
    run_starts_sentence = starts_sentence = True
    end = 0
    for match in _WORD.finditer(text):
        gap = text[end : match.start()]
        word = match.group()
        bare = word.rstrip(".:?-").lstrip(":")
        # Any sign between two words but these may end a sentence, line breaks included.
        starts_sentence = starts_sentence or end == 0 or gap.strip(" \t*_([\"'“,;—–") != ""
        is_name = _is_proper_name(bare)
        if run and not (is_name and gap == " "):
            yield from _join_name_words(run, run_starts_sentence)
            run = []
        if is_name:
            run_starts_sentence = starts_sentence if not run else run_starts_sentence
            run.append(bare)
        # `_WORD` takes these signs as parts of words (URLs, times), so a full stop is the last character of a word.
        starts_sentence = word != bare and word[-1] in ".:?"
        if starts_sentence and run:
            yield from _join_name_words(run, run_starts_sentence)
            run = []
        end = match.end()
    if run:
        yield from _join_name_words(run, run_starts_sentence)


def _is_proper_name(word: str) -> bool:
    return 2 < len(word) <= 40 and word[:1].isupper() and not word.isupper() and word.replace("-", "").isalpha()


def _join_name_words(run: Sequence[str], starts_sentence: bool) -> Iterator[str]:
    """Yields the name that a run of capitalised words is, without a first word that may only begin a sentence."""
    if _COMMON_WORD.fullmatch(run[0]) or (starts_sentence and len(run) == 1):
        run = run[1:]
    if run:
        yield " ".join(run[:4])


def _split_assignment(word: str) -> tuple[str, str]:
    """Splits `key=value` and `key:value` into key and value; the key is blank for any other word."""
    # The colon of a URL separates no key.
    if "://" in word:
        return "", word
    for sign in "=:":
        key, separator, value = word.partition(sign)
        if separator and value and key.replace("_", "").replace("-", "").isalpha() and len(key) > 1:
            return key, value.lstrip(_LEFT_TRIM_CHARS)
    return "", word


def rate_word(word: str) -> float | None:
    """Returns the worth of a word by its shape; None for an ordinary word."""
    if len(word) < 2 or len(word) > MAX_VALUE_CHARS or " " in word or (word.isalpha() and word.islower()):
        return None
    for _, shape, worth in _VALUE_SHAPES:
        if shape.fullmatch(word):
            return worth
    return None


def find_quoted_texts(text: str) -> Iterator[str]:
    """Yields the texts between quotation marks or backticks that have 2 to 80 characters."""
    for match in _QUOTED_TEXT.finditer(text):
        quoted = " ".join(next(filter(None, match.groups())).split())
        if quoted:
            yield quoted


def find_introduced_names(text: str) -> Iterator[str]:
    """Yields the names after phrases such as "my name is" or "called"."""
    for match in _INTRODUCED_NAME.finditer(text):
        yield match.group(1)
