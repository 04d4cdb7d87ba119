"""Finds the values that a summary leaves out, and appends them with the words around them, as they stood. Pure.

Promise: a summary does not lose a value that a later tool call needs, because nobody can guess the value again. One
rule finds values: a word with a digit, or of the form of an identifier, a path or an address. No list of words says
what a value is or means; a short passage around the value does. A wrong guess costs the few tokens of a passage.
Ordinary words and names are left to the summarizer.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final

from app.compaction.summarizer.transcript import CountTokens
from app.conversation.conversation_types import LogMessage, Summary
from app.conversation.item import TOOL_RESULT_ROLES

HEADING: Final = "Values mentioned: "
PASSAGE_GAP: Final = " … "
MAX_READ_CHARS: Final = 100_000
"""The most characters of one text that are searched. A longer text is searched in its first and last 50,000."""
MAX_VALUE_CHARS: Final = 120
"""A longer word, such as base64, is no value."""
MIN_TELLING_CHARS: Final = 4
"""A shorter value, such as `$45`, may stand anywhere: it is never important. A shorter number stands only in the
passage of another value."""
WORDS_BEFORE: Final = 3
MAX_CHARS_BEFORE: Final = 40
MAX_JOINING_CHARS, MAX_PASSAGE_CHARS = 16, 100
"""Values with at most so many characters between them share a passage, up to its most characters."""
LONG_LIST: Final = 16
"""Values of a list that stand behind so many others come last: a long list must not push out everything else."""
MIN_APPENDIX_TOKENS: Final = 12
"""With less room there is no appendix: the heading leaves no room for a value."""
MAX_RENDERED_VALUES: Final = 512
"""No room holds more. It bounds the time of rendering."""

GAP_LINE: Final = re.compile(r"^\[(\d+) lines left out\]$", re.MULTILINE)
"""A line of a mechanical summary that stands for lines without room."""
_APPENDIX_LINE: Final = re.compile(r"^(?:Values mentioned|Also mentioned|Seen in results): (.*)$", re.MULTILINE)
"""The second and the third heading are of earlier versions; stored summaries still have them."""

_UNSPACED: Final = "\u3040-\u30ff\u3400-\u9fff\uf900-\ufaff\uac00-\ud7af"
"""Chinese, Japanese and Korean letters end a value: these languages write no space beside it."""
_WORD: Final = re.compile(
    r"(?:[a-z]+[,;]? )+|(?P<address>(?:[a-z][a-z0-9+.-]{1,15}://|www\.)[^\s\"'<>()`]+)"
    rf"|(?P<word>(?:[^\W{_UNSPACED}]|[./:@#%+~$€£¥\\-]|(?<=\d),(?=\d{{3}}))+)"
)
"""Ordinary words are matched many at a time and passed over."""
_VALUE_FORM: Final = re.compile(r"\d|[@_/\\]|\w\.\w|^[a-z]+[A-Z]")
_ORDINARY: Final = re.compile(
    r"[+-]?\d?|\d+(?:st|nd|rd|th)|[A-Za-z](?:\.[A-Za-z])+|[^\W\d_]+[/@][^\W\d_]*|[a-z]+\.[A-Z]\w*|[\W_]+"
)
"""Has the form of a value and is none: one digit, `7th`, `e.g`, `and/or`, two sentences without a space."""
_TRIMMED_LEFT, _TRIMMED_RIGHT = ":%-.", ".,;!?:-+~\\"
_NUMBER: Final = re.compile(r"[+-]?[$€£¥]?\d[\d.,]*%?")
_SEGMENT_END: Final = re.compile(r'\n|(?<=[.!?;])\s|(?<=[。！？])|[{}…]|,\s*(?=["{\[])')
"""Ends a line, a sentence, or a member of a JSON object. Words beyond it do not belong to a value."""
_UNIT: Final = re.compile(r" ?[^\W\d_]{1,20}+(?![\w=]|[.:]\S)")
_MARKUP: Final = re.compile(r'\\?["`*\[\]<>]')
_NAME_WORD: Final = re.compile(r"[A-Z]?[a-z]{3,}")
_KEY: Final = re.compile(r'[A-Za-z_]+(?="?:)')
_THOUSANDS: Final = re.compile(r"(?<=\d),(?=\d{3}(?!\d))")


@dataclass(slots=True)
class Value:
    """A value, and the passage in which it was mentioned first.

    Attributes:
        text: the value.
        before: the words before the passage.
        passage: the value as it stood, with values close to it.
        position: the place of the passage among all passages.
        list_index: how many values stand before it behind the same words in its message.
        is_stressed: whether the user said it, a tool took it, or the appendix of an earlier summary has it.
        is_parameter: whether a tool takes something that is called like the value: it may be passed on.
        message_keys: the messages that mention it: `seq`, or a negative number for a summary.
    """

    text: str
    before: str
    passage: str
    position: int
    list_index: int
    is_stressed: bool = False
    is_parameter: bool = False
    message_keys: set[int] = field(default_factory=set)

    @property
    def is_important(self) -> bool:
        return (self.is_stressed or len(self.message_keys) > 1) and len(self.text) >= MIN_TELLING_CHARS

    @property
    def rank(self) -> tuple[bool, bool, bool, int, int]:
        """Sorts values: those that are most likely to be needed come first, then the longest, which say most."""
        mentions = len(self.message_keys)
        return not self.is_important, not self.is_parameter, self.list_index >= LONG_LIST, -mentions, -len(self.text)


def collect_values(
    messages: Sequence[LogMessage], earlier_summaries: Sequence[Summary] = (), parameter_names: Iterable[str] = ()
) -> list[Value]:
    """Collects the values of log messages and of earlier summaries that are replaced together, most important first.

    Args:
        messages: the log messages.
        earlier_summaries: the summaries.
        parameter_names: what the conversation's tools take.
    """
    values: dict[str, Value] = {}
    parameter_words = _split_name(" ".join(parameter_names))
    for key, summary in enumerate(earlier_summaries, -len(earlier_summaries)):
        _add_text(values, "\n".join(_APPENDIX_LINE.findall(summary.text)), key, parameter_words, is_stressed=True)
        _add_text(values, GAP_LINE.sub("", strip_appendix(summary.text)), key, parameter_words)
    for log_message in messages:
        message, key = log_message.message, log_message.seq
        is_users = message.role != "assistant" and message.role not in TOOL_RESULT_ROLES
        _add_text(values, message.transcript_text, key, parameter_words, is_stressed=is_users)
        for call in message.calls:
            _add_text(values, call.arguments, key, parameter_words, is_stressed=True)
    return sorted(values.values(), key=lambda value: value.rank)


def _add_text(
    values: dict[str, Value], text: str, key: int, parameter_words: frozenset[str], *, is_stressed: bool = False
) -> None:
    """Adds the mentions of a text to `values`. A value is the same in upper and lower case."""
    if len(text) > MAX_READ_CHARS:
        text = f"{text[: MAX_READ_CHARS // 2]}\n{text[-MAX_READ_CHARS // 2 :]}"
    if text.lstrip()[:1] in {"{", "["}:
        text = text.replace("\\n", "\n")  # a line break in a JSON string
    list_lengths: Counter[str] = Counter()
    for segment in _SEGMENT_END.split(text):
        for spans in _find_passages(segment):
            before = _render_words_before(segment, spans[0][0])
            start, end = spans[-1]
            unit = _UNIT.match(segment, end) if _NUMBER.fullmatch(segment[start:end]) else None
            passage = _flatten(segment[spans[0][0] : unit.end() if unit else end])
            is_parameter = not parameter_words.isdisjoint(_split_name(before))
            position = len(values)
            for start, end in spans:
                word = segment[start:end]
                if len(word) < MIN_TELLING_CHARS and word.isdigit():
                    continue
                value = values.setdefault(word.casefold(), Value(word, before, passage, position, list_lengths[before]))
                list_lengths[before] += 1
                value.is_stressed |= is_stressed
                value.is_parameter |= is_parameter
                value.message_keys.add(key)


def _find_passages(segment: str) -> Iterator[list[tuple[int, int]]]:
    """Yields start and end of the values of a line or sentence, those of a passage together."""
    spans: list[tuple[int, int]] = []
    for match in _WORD.finditer(segment):
        if match.lastgroup is None:
            continue
        start = match.end() - len(match.group().lstrip(_TRIMMED_LEFT))
        word = segment[start : match.end()].rstrip(_TRIMMED_RIGHT)
        if len(word) > MAX_VALUE_CHARS or _VALUE_FORM.search(word) is None or _ORDINARY.fullmatch(word):
            continue
        # The key of a JSON object.
        if (key := _KEY.match(segment, start)) and key.end() == start + len(word):
            continue
        end = start + len(word)
        if spans and (start - spans[-1][1] > MAX_JOINING_CHARS or end - spans[0][0] > MAX_PASSAGE_CHARS):
            yield spans
            spans = []
        spans.append((start, end))
    if spans:
        yield spans


def _split_name(name: str) -> frozenset[str]:
    """Returns the words of names such as `orderId`, without plural endings."""
    return frozenset(word.lower().removesuffix("s") for word in _NAME_WORD.findall(name))


def _render_words_before(segment: str, start: int) -> str:
    words = _flatten(segment[max(0, start - MAX_CHARS_BEFORE) : start]).split(" ")
    if start > MAX_CHARS_BEFORE and len(words) > 1:
        # The first one may be cut off.
        del words[0]
    return " ".join(words[-WORDS_BEFORE:])


def _flatten(text: str) -> str:
    return " ".join(_MARKUP.sub("", text).split())


def strip_appendix(text: str) -> str:
    return _APPENDIX_LINE.sub("", text).rstrip()


def find_missing_values(values: Sequence[Value], text: str) -> list[Value]:
    """Returns the values that a text does not contain as whole words. Case and thousands separators do not matter."""
    normalized = _normalize_text(text)
    return [value for value in values if not _contains_word(normalized, _normalize_text(value.text))]


def compute_kept_share(values: Sequence[Value], text: str) -> float:
    """Returns the share of the important values that a text contains, 0 to 1; 1 if no value is important."""
    important = [value for value in values if value.is_important]
    return 1 - len(find_missing_values(important, text)) / len(important) if important else 1.0


def render_appendix(values: Sequence[Value], room_tokens: int, count_tokens: CountTokens) -> str:
    """Renders the first of the values, as many as fit into `room_tokens`, in one line; blank if none fits."""
    if room_tokens < MIN_APPENDIX_TOKENS:
        return ""
    counts = range(1, min(len(values), MAX_RENDERED_VALUES) + 1)
    fitting = bisect_right(counts, room_tokens, key=lambda count: count_tokens(_render_line(values[:count])))
    # Tokens do not grow strictly with the text: the last value may have to go.
    while fitting and count_tokens(_render_line(values[:fitting])) > room_tokens:
        fitting -= 1
    return _render_line(values[:fitting]) if fitting else ""


def _render_line(values: Sequence[Value]) -> str:
    """Renders passages in their order; those with the same words before them stand together."""
    groups: dict[str, dict[str, None]] = {}
    for value in sorted(values, key=lambda value: value.position):
        groups.setdefault(value.before, {})[value.passage] = None
    return HEADING + PASSAGE_GAP.join(f"{before} {', '.join(group)}".strip() for before, group in groups.items())


def _normalize_text(text: str) -> str:
    return " ".join(_THOUSANDS.sub("", text).casefold().split())


def _contains_word(text: str, value: str) -> bool:
    """Whether a text contains a value that is not part of a longer word: `$5` is in `US$5`, `5` is not in `15`."""
    before = r"(?<!\w)" if re.match(r"\w", value) else ""
    after = r"(?!\w)" if re.search(r"\w$", value) else ""
    return value in text and re.search(f"{before}{re.escape(value)}{after}", text) is not None
