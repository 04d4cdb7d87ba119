"""Finds the values that a summary leaves out, and renders them as its appendix: lines at its end. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import orjson

from app.compaction.acceptance.value_finding import MentionCollector, MentionSource, ValueMention
from app.compaction.summarizer.transcript import CountTokens
from app.conversation.conversation_types import LogMessage, Summary

HEADINGS: dict[MentionSource, str] = {
    "kept": "Values mentioned: ",
    "assistant": "Also mentioned: ",
    "result": "Seen in results: ",
}
"""The headings of an appendix's lines: important values, other values of messages and of arguments, and values that
only tool results mention."""
SECONDARY_SHARE, MIN_SECONDARY_TOKENS = 0.25, 240
"""Values that are not important may take this share of an appendix's room, or this many tokens if that is more."""
MIN_APPENDIX_TOKENS = 12
"""With less room there is no appendix: heading and label leave no room for a value."""
HEADING_TOKENS = 5
"""The estimate for a heading and its line break."""
MAX_SKIPPED_VALUES = 64
"""The choice of values ends after this many in a row that do not fit. It bounds the time for thousands of values."""

GAP_LINE = re.compile(r"^\[(\d+) lines left out\]$", re.MULTILINE)
"""A line of a mechanical summary that stands for lines without room."""
_APPENDIX_LINE = re.compile(rf"^({'|'.join(map(re.escape, HEADINGS.values()))})(.*)$", re.MULTILINE)
_SOURCES_BY_HEADING: dict[str, MentionSource] = {heading: source for source, heading in HEADINGS.items()}
_APPENDIX_TOKEN = re.compile(r'; |, |"(?:[^"\\]|\\.)*"|[^",;]+|[",;]')
_THOUSANDS = re.compile(r"(?<=\d),(?=\d{3}(?!\d))")


@dataclass(frozen=True, slots=True)
class AppendixValue:
    """A value of a stored summary's appendix.

    Attributes:
        label: the label in front of the value; blank if there is none.
        text: the value.
        source: the key of its heading in `HEADINGS`.
        crowd_size: for `result`, the number of values under its label: the more there are, the less each is worth.
            Otherwise 1.
    """

    label: str
    text: str
    source: MentionSource
    crowd_size: int


def collect_values(
    messages: Sequence[LogMessage], earlier_summaries: Sequence[Summary] = (), parameter_names: Iterable[str] = ()
) -> list[ValueMention]:
    """Collects the values of log messages and of earlier summaries that are replaced together, in descending order of
    worth.

    Args:
        messages: the log messages.
        earlier_summaries: the summaries.
        parameter_names: what the conversation's tools take. A value under such a name may be passed on to a tool.
    """
    collector = MentionCollector(parameter_names)
    # Negative keys tell summaries apart from messages, whose key is their `seq`. The appendix is read apart from the
    # text, because its lines say which values were important.
    for number, summary in enumerate(earlier_summaries):
        for appendix_value in parse_appendix(summary.text):
            collector.add_appendix_value(
                appendix_value.label, appendix_value.text, appendix_value.source, -1 - number, appendix_value.crowd_size
            )
        collector.add_text(GAP_LINE.sub("", strip_appendix(summary.text)), "assistant", -1 - number)
    for log_message in messages:
        collector.add_message(log_message)
    return collector.list_by_worth()


def parse_appendix(text: str) -> list[AppendixValue]:
    """Parses the appendix of a summary; the result is empty if there is none. The inverse of `render_appendix`."""
    appendix_values = []
    for heading, line in _APPENDIX_LINE.findall(text):
        source = _SOURCES_BY_HEADING[heading]
        for first, *more in _split_label_groups(line):
            # A quoted value may contain ": ", so it is not searched for a label.
            label, separator, value = ("", "", first) if first.startswith('"') else first.partition(": ")
            values = [_unquote_value(item) for item in (value if separator else first, *more)]
            crowd_size = len(values) if source == "result" else 1
            appendix_values += [
                AppendixValue(label if separator else "", value, source, crowd_size) for value in values if value
            ]
    return appendix_values


def _split_label_groups(line: str) -> list[list[str]]:
    """Splits a line of an appendix into groups of values; the first item of a group begins with the group's label.

    A quoted value may contain the separators.
    """
    groups = [[""]]
    for piece in _APPENDIX_TOKEN.findall(line):
        if piece == "; ":
            groups.append([""])
        elif piece == ", ":
            groups[-1].append("")
        else:
            groups[-1][-1] += piece
    return groups


def strip_appendix(text: str) -> str:
    return _APPENDIX_LINE.sub("", text).rstrip()


def find_missing_values(values: Sequence[ValueMention], text: str) -> list[ValueMention]:
    """Returns the values that a text does not contain as whole words. Case and thousands separators do not matter."""
    normalized = _normalize_text(text)
    return [value for value in values if not _contains_word(normalized, _normalize_text(value.text))]


def compute_kept_share(values: Sequence[ValueMention], text: str) -> float:
    """Returns the share of the important values' worth that a text contains, 0 to 1; 1 if no value is important."""
    important = [value for value in values if value.is_important]
    return compute_remaining_worth_share(important, find_missing_values(important, text))


def compute_remaining_worth_share(values: Sequence[ValueMention], missing_values: Sequence[ValueMention]) -> float:
    """Returns the share of the important values' worth that is left without the missing ones, 0 to 1."""
    worth = sum(value.worth for value in values if value.is_important)
    missing_worth = sum(value.worth for value in missing_values if value.is_important)
    return 1 - missing_worth / worth if worth else 1.0


def render_appendix(values: Sequence[ValueMention], room_tokens: int, count_tokens: CountTokens) -> str:
    """Renders values in up to three lines, grouped by label; blank if none fits.

    Args:
        values: the values in descending order of worth; the first ones get the room.
        room_tokens: the most tokens of the appendix.
        count_tokens: counts the tokens of a text.
    """
    if room_tokens < MIN_APPENDIX_TOKENS:
        return ""
    chosen = _choose_values(values, room_tokens, count_tokens)
    # The choice adds up counts of pieces, which may differ from the count of the whole. The least worthy values go.
    while chosen and count_tokens(_render_appendix_lines(chosen)) > room_tokens:
        chosen = chosen[:-1]
    return _render_appendix_lines(chosen)


def _choose_values(values: Sequence[ValueMention], room_tokens: int, count_tokens: CountTokens) -> list[ValueMention]:
    """Chooses the values that fit, by estimate; values that are not important take at most a share of the room."""
    remaining_tokens = room_tokens
    secondary_tokens = max(MIN_SECONDARY_TOKENS, int(remaining_tokens * SECONDARY_SHARE))
    groups: set[tuple[str, MentionSource]] = set()
    headings: set[MentionSource] = set()
    chosen: list[ValueMention] = []
    skipped = 0
    for value in values:
        if skipped >= MAX_SKIPPED_VALUES:
            break
        # The file's name beside its path says nothing more.
        if not value.label and any(_contains_word(one.text, value.text) for one in chosen):
            continue
        heading = _choose_heading(value)
        group = value.label, heading
        cost = count_tokens(f"{_render_value(value)}, ") + (
            0 if group in groups else count_tokens(f"{value.label}: ") + 1
        )
        cost += 0 if heading in headings else HEADING_TOKENS
        if cost > remaining_tokens or (heading != "kept" and cost > secondary_tokens):
            # A shorter value further down may still fit.
            skipped += 1
            continue
        skipped = 0
        remaining_tokens -= cost
        secondary_tokens -= 0 if heading == "kept" else cost
        groups.add(group)
        headings.add(heading)
        chosen.append(value)
    return chosen


def _choose_heading(value: ValueMention) -> MentionSource:
    """Chooses the key in `HEADINGS` of the line in which a value stands."""
    if value.is_important:
        return "kept"
    return "result" if value.sources == {"result"} else "assistant"


def _render_appendix_lines(values: Sequence[ValueMention]) -> str:
    lines: dict[MentionSource, list[ValueMention]] = {source: [] for source in HEADINGS}
    for value in values:
        lines[_choose_heading(value)].append(value)
    return "\n".join(
        HEADINGS[source] + _render_label_groups(line_values) for source, line_values in lines.items() if line_values
    )


def _render_label_groups(values: Sequence[ValueMention]) -> str:
    """Renders the groups of one line, in order of first mention.

    Values that belong together, such as an order's number and its date, so have the same place in their groups.
    """
    groups: dict[str, list[str]] = {}
    for value in sorted(values, key=lambda one: one.first_position):
        groups.setdefault(value.label, []).append(_render_value(value))
    unlabelled = groups.pop("", [])
    rendered = [f"{_flatten_label(label)}: {', '.join(items)}" for label, items in groups.items()]
    return "; ".join([*rendered, *([", ".join(unlabelled)] if unlabelled else [])])


def _render_value(value: ValueMention) -> str:
    return _quote_value(f"{value.text} {value.unit}" if value.unit and not value.label else value.text)


def _flatten_label(label: str) -> str:
    # A label may be any JSON key. It must not contain the signs that separate groups, values and labels, nor the one
    # that quotes them.
    return " ".join(re.sub(r'[;:,"]', " ", label).split())[:40]


def _quote_value(text: str) -> str:
    return orjson.dumps(text).decode() if re.search(r'[,;:] |"', text) else text


def _unquote_value(item: str) -> str:
    item = item.strip()
    if not item.startswith('"'):
        return item
    try:
        return str(orjson.loads(item))
    # A person or a model may have edited the line.
    except orjson.JSONDecodeError:
        return item.strip('"')


def _normalize_text(text: str) -> str:
    return " ".join(_THOUSANDS.sub("", text).casefold().split())


def _contains_word(text: str, value: str) -> bool:
    """Whether a text contains a value that is not part of a longer word."""
    position = text.find(value)
    while position >= 0:
        end = position + len(value)
        character_before, character_after = text[max(0, position - 1) : position], text[end : end + 1]
        # The neighbour matters only beside a letter or digit: "$5" is found in "US$5", but "5" not in "15".
        if not (_is_word_character(character_before) and _is_word_character(value[0])) and not (
            _is_word_character(character_after) and _is_word_character(value[-1])
        ):
            return True
        position = text.find(value, position + 1)
    return False


def _is_word_character(character: str) -> bool:
    return character.isalnum() or character == "_"
