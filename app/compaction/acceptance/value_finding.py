"""Finds the values that log messages mention: identifiers, numbers, addresses, dates, names. Pure.

A value that is lost in a summary cannot be guessed again. Values are found in plain text by their shape; in tool
arguments and JSON results also by their keys.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, Literal

import orjson

from app.compaction.acceptance.text_values import (
    LOWER_WORD,
    MIN_DISTINCTIVE_WORTH,
    TextValue,
    find_introduced_names,
    find_proper_names,
    find_quoted_texts,
    find_text_values,
    is_unexplained_number,
    rate_word,
    split_unit,
)
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
CHARS_PER_CROWD_MEMBER = 256
"""A plain text of a tool counts as a crowd of one value for each so many characters."""
NAMING_LABEL_FACTOR = 1.3
"""A value is worth this many times as much if its label says that it identifies something (`_NAMING_LABEL`)."""

PARAMETER_FACTOR = 2.0
"""A value in a result is worth this many times as much if a tool takes something of that name, such as `order_id` for
the key `orders`: it may be passed on. Without a factor, ids that no tool takes fill the room."""
_GENERIC = "id no number name key code value type list data item method new old source first last from to text"
_GENERIC_KEY_WORDS = frozenset(_GENERIC.split())
"""Words, without plural endings, that many keys have: they do not say that two keys name the same thing."""
_KEY_WORD = re.compile(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])")

_NAMING_LABEL = re.compile(r"(?:^|_|\b)(?:ids?|numbers?|no|keys?|codes?|tokens?|email|phone|account)$", re.IGNORECASE)
INTRODUCED_NAME_WORTH, NAME_WORTH, QUOTED_TEXT_WORTH, PHRASE_WORTH = 2.0, 1.0, 1.5, 0.7


@dataclass(slots=True)
class ValueMention:
    """A value with all its mentions.

    Attributes:
        text: the value, as it was written first.
        label: the words or JSON key that say what the value is; blank if there are none.
        unit: what a number counts; blank if no word says it.
        shape_worth: the highest worth of its shape, its label included.
        is_parameter: whether a tool takes something that is called like the value.
        crowd_size: the number of values under the same label in one result; the smallest if there were several results.
        first_position: the place of its first mention among the first mentions of all values.
        sources: where it was mentioned.
        message_keys: the messages that mention it: `seq`, or a negative number for a summary.
    """

    text: str
    label: str
    unit: str
    shape_worth: float
    crowd_size: int
    first_position: int
    is_parameter: bool = False
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
        worths = sorted((self._rate_source(source) for source in self.sources), reverse=True)
        repeat_factor = 1 + REPEAT_WORTH * min(MAX_REPEATS, len(self.message_keys) - 1)
        crowd_divisor: float = self.crowd_size**CROWD_EXPONENT
        return self.shape_worth * (worths[0] + sum(worths[1:]) / 2) * repeat_factor / crowd_divisor

    def _rate_source(self, source: MentionSource) -> float:
        return SOURCE_WORTH[source] * (PARAMETER_FACTOR if source == "result" and self.is_parameter else 1)


class MentionCollector:
    """Collects mentions of values. A value is the same value in upper and lower case.

    Args:
        parameter_names: what the conversation's tools take. The keys of the calls among the messages are added.
    """

    def __init__(self, parameter_names: Iterable[str] = ()) -> None:
        self._mentions: dict[str, ValueMention] = {}
        self._name_keys: set[str] = set()
        self._lower_words: set[str] = set()
        self._parameter_words: set[str] = set()
        for name in parameter_names:
            self._parameter_words |= _split_key(name)

    def list_by_worth(self) -> list[ValueMention]:
        """Lists the values in descending order of worth; equal ones by length, then by first mention."""
        mentions = [mention for key, mention in self._mentions.items() if not self._is_ordinary(key)]
        for mention in mentions:
            mention.is_parameter = not self._parameter_words.isdisjoint(_split_key(mention.label))
        return sorted(mentions, key=lambda one: (-one.worth, -len(one.text)))

    def _is_ordinary(self, key: str) -> bool:
        """Whether a value is no name, because its words are also written in lower case: "First Name", "Flight"."""
        return key in self._name_keys and self._lower_words.issuperset(LOWER_WORD.findall(key))

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
        for value in find_text_values(text):
            self._add_text_value(value, source, message_key)
        for quoted in find_quoted_texts(text):
            # A quoted text with a shape was added by the loop above, with its label.
            if rate_word(quoted) is None:
                self._add_value(TextValue("", quoted, "", QUOTED_TEXT_WORTH), source, message_key)
        for name in find_introduced_names(text):
            self._add_value(TextValue("name", name, "", INTRODUCED_NAME_WORTH), source, message_key)
        self._lower_words.update(LOWER_WORD.findall(text))
        for name in find_proper_names(text):
            if name.casefold() not in self._mentions:
                self._name_keys.add(name.casefold())
            self._record_mention(TextValue("", name, "", NAME_WORTH), source, message_key)

    def _add_value(self, value: TextValue, source: MentionSource, message_key: int, crowd_size: int = 1) -> None:
        """Adds a mention of a value. A known value keeps its first label and gets the higher worth."""
        self._name_keys.discard(value.text.casefold())
        self._record_mention(value, source, message_key, crowd_size)

    def _record_mention(self, value: TextValue, source: MentionSource, message_key: int, crowd_size: int = 1) -> None:
        key = value.text.casefold()
        mention = self._mentions.get(key)
        if mention is None:
            mention = self._mentions[key] = ValueMention(
                value.text, value.label, value.unit, 0.0, crowd_size, len(self._mentions)
            )
        mention.label = mention.label or value.label
        mention.unit = mention.unit or value.unit
        factor = NAMING_LABEL_FACTOR if _NAMING_LABEL.search(value.label) else 1
        mention.shape_worth = max(mention.shape_worth, value.worth * factor)
        mention.crowd_size = min(mention.crowd_size, crowd_size)
        mention.sources.add(source)
        mention.message_keys.add(message_key)

    def add_appendix_value(
        self, label: str, value: str, source: MentionSource, message_key: int, crowd_size: int
    ) -> None:
        """Adds a value from the appendix of an earlier summary."""
        text, unit = split_unit(value)
        worth = rate_word(text) or PHRASE_WORTH
        # Important values stay important, names and phrases included, which have no shape.
        worth = max(worth, MIN_DISTINCTIVE_WORTH) if source == "kept" else worth
        self._record_mention(TextValue(label, text, unit, worth), source, message_key, crowd_size)

    def _add_text_value(self, value: TextValue, source: MentionSource, message_key: int, crowd_size: int = 1) -> None:
        if value.worth >= MIN_DISTINCTIVE_WORTH or source != "result":
            self._record_mention(value, source, message_key, crowd_size)

    def _add_arguments(self, arguments: str, message_key: int) -> None:
        decoded = _decode_json(arguments)
        # Not every tool takes JSON, and a model may write JSON that does not parse.
        if decoded is None:
            self._add_plain_text(arguments, "argument", message_key)
            return
        for label, leaf in _iterate_leaves(decoded):
            self._parameter_words |= _split_key(label)
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
        text = _cut_to_ends(text)
        # Values of a plain text have no key to count by, so the crowd is estimated from the length of the text. In
        # arguments it is 1: the model chose each of them.
        crowd_size = 1 if source == "argument" else 1 + len(text) // CHARS_PER_CROWD_MEMBER
        for value in find_text_values(text):
            if source == "argument" or not is_unexplained_number(value):
                self._add_text_value(value, source, message_key, crowd_size)

    def _add_leaf(self, label: str, leaf: str, source: MentionSource, message_key: int, crowd_size: int = 1) -> None:
        """Adds a leaf of a JSON document: as one value if it is short, otherwise the values in its text."""
        worth = rate_word(leaf)
        if worth is not None:
            self._add_text_value(TextValue(label, leaf, "", worth), source, message_key, crowd_size)
        elif "\n" in leaf or len(leaf) > MAX_PHRASE_CHARS:
            self._add_plain_text(leaf, source, message_key)
        elif len(leaf) > 2:
            phrase = TextValue(label, " ".join(leaf.split()), "", PHRASE_WORTH)
            self._add_value(phrase, source, message_key, crowd_size)


def _split_key(key: str) -> frozenset[str]:
    """Splits a key into its words, without plural endings and words that do not tell keys apart."""
    if not key:
        return frozenset()
    words = {word.casefold().removesuffix("s") for word in _KEY_WORD.findall(key)}
    return frozenset(words - _GENERIC_KEY_WORDS) or frozenset({key.casefold()})


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
