"""What of a stretch survives in its summary, and the lines that carry what does not. Pure."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

import orjson

from app.compaction.acceptance.value_mentions import MentionCollector, MentionSource, ValueMention, find_values
from app.compaction.summarizer.transcript import CountTokens
from app.conversation.messages import LogMessage, Summary

HEADINGS: dict[MentionSource, str] = {"kept": "Values mentioned: ", "result": "Seen in results: "}
"""Lines of an appendix: what is important, and what only tools have told, once."""
SECONDARY_SHARE, MIN_SECONDARY_TOKENS = 0.25, 240
"""Values that were mentioned once and by a tool only may take this share of an appendix's room, or this much."""
MIN_APPENDIX_TOKENS = 12
HEADING_TOKENS = 5
MAX_SKIPPED_VALUES = 64
"""So many values in a row for which there is no room end the search for more."""

_APPENDIX_LINE = re.compile(rf"^({'|'.join(map(re.escape, HEADINGS.values()))})(.*)$", re.MULTILINE)
_SOURCES_BY_HEADING: dict[str, MentionSource] = {heading: source for source, heading in HEADINGS.items()}
_APPENDIX_TOKEN = re.compile(r'; |, |"(?:[^"\\]|\\.)*"|[^",;]+|[",;]')
_THOUSANDS = re.compile(r"(?<=\d),(?=\d{3}(?!\d))")


@dataclass(frozen=True, slots=True)
class AppendixValue:
    """A value of an appendix; `crowd_size` is how many stand under its label, where that says how little each is
    worth."""

    label: str
    text: str
    source: MentionSource
    crowd_size: int


def collect_values(messages: Sequence[LogMessage], earlier_summaries: Sequence[Summary] = ()) -> list[ValueMention]:
    """What must survive of log messages and of summaries that are replaced too, most worth first."""
    if not earlier_summaries:
        return find_values(messages)
    collector = MentionCollector()
    for number, summary in enumerate(earlier_summaries):
        for appendix_value in parse_appendix(summary.text):
            collector.add_appendix_value(
                appendix_value.label, appendix_value.text, appendix_value.source, -1 - number, appendix_value.crowd_size
            )
        collector.add_text(strip_appendix(summary.text), "assistant", -1 - number)
    for log_message in messages:
        collector.add_message(log_message)
    return collector.list_by_worth()


def parse_appendix(text: str) -> list[AppendixValue]:
    """The values of the appendix that a summary carries."""
    appendix_values = []
    for heading, line in _APPENDIX_LINE.findall(text):
        source = _SOURCES_BY_HEADING[heading]
        for first, *more in _split_groups(line):
            label, separator, value = ("", "", first) if first.startswith('"') else first.partition(": ")
            values = [_unquote_value(item) for item in (value if separator else first, *more)]
            crowd_size = len(values) if source == "result" else 1
            appendix_values += [
                AppendixValue(label if separator else "", value, source, crowd_size) for value in values if value
            ]
    return appendix_values


def _split_groups(line: str) -> list[list[str]]:
    """The items under each label, the label before the first; quoted ones may hold any sign."""
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
    """Those of the values that a text does not contain as words of their own."""
    normalized = _normalize_text(text)
    return [value for value in values if not _contains_word(normalized, _normalize_text(value.text))]


def compute_kept_share(values: Sequence[ValueMention], text: str) -> float:
    """How much of the important values' worth a text contains, 0 to 1; 1 where there is nothing to keep."""
    important = [value for value in values if value.is_important]
    return compute_share_without(important, find_missing_values(important, text))


def compute_share_without(values: Sequence[ValueMention], missing_values: Sequence[ValueMention]) -> float:
    """How much of the important values' worth is left where some of the values are lost, 0 to 1."""
    worth = sum(value.worth for value in values if value.is_important)
    missing_worth = sum(value.worth for value in missing_values if value.is_important)
    return 1 - missing_worth / worth if worth else 1.0


def render_appendix(values: Sequence[ValueMention], room_tokens: int, count_tokens: CountTokens) -> str:
    """Values in a line or two, under the words that say what they are; what is worth most has the first claim on the
    room. Blank for none."""
    if room_tokens < MIN_APPENDIX_TOKENS:
        return ""
    chosen = _choose_values(values, room_tokens, count_tokens)
    while chosen and count_tokens(_render_lines(chosen)) > room_tokens:
        chosen = chosen[:-1]
    return _render_lines(chosen)


def _choose_values(values: Sequence[ValueMention], room_tokens: int, count_tokens: CountTokens) -> list[ValueMention]:
    """As many values as fit, by estimate; those that nobody said take a share at most."""
    remaining_tokens = room_tokens
    secondary = max(MIN_SECONDARY_TOKENS, int(remaining_tokens * SECONDARY_SHARE))
    groups: set[tuple[str, bool]] = set()
    headings: set[bool] = set()
    chosen: list[ValueMention] = []
    skipped = 0
    for value in values:
        if skipped >= MAX_SKIPPED_VALUES:
            break
        group = value.label, value.is_important
        cost = count_tokens(f"{_quote_value(value.text)}, ") + (
            0 if group in groups else count_tokens(f"{value.label}: ") + 1
        )
        cost += 0 if value.is_important in headings else HEADING_TOKENS
        if cost > remaining_tokens or (not value.is_important and cost > secondary):
            skipped += 1
            continue
        skipped = 0
        remaining_tokens -= cost
        secondary -= 0 if value.is_important else cost
        groups.add(group)
        headings.add(value.is_important)
        chosen.append(value)
    return chosen


def _render_lines(values: Sequence[ValueMention]) -> str:
    important = [value for value in values if value.is_important]
    others = [value for value in values if not value.is_important]
    lines: tuple[tuple[MentionSource, list[ValueMention]], ...] = (("kept", important), ("result", others))
    return "\n".join(HEADINGS[source] + _render_groups(line_values) for source, line_values in lines if line_values)


def _render_groups(values: Sequence[ValueMention]) -> str:
    """Labels and values in order of first mention, so that what belongs together stands at the same place of each."""
    groups: dict[str, list[str]] = {}
    for value in sorted(values, key=lambda one: one.first_position):
        groups.setdefault(value.label, []).append(_quote_value(value.text))
    unlabelled = groups.pop("", [])
    rendered = [f"{_flatten_label(label)}: {', '.join(items)}" for label, items in groups.items()]
    return "; ".join([*rendered, *([", ".join(unlabelled)] if unlabelled else [])])


def _flatten_label(label: str) -> str:
    return " ".join(re.sub(r"[;:,]", " ", label).split())[:40]


def _quote_value(text: str) -> str:
    return orjson.dumps(text).decode() if re.search(r'[,;"]|: ', text) else text


def _unquote_value(item: str) -> str:
    item = item.strip()
    if not item.startswith('"'):
        return item
    try:
        return str(orjson.loads(item))
    except orjson.JSONDecodeError:
        return item.strip('"')


def _normalize_text(text: str) -> str:
    return " ".join(_THOUSANDS.sub("", text).casefold().split())


def _contains_word(text: str, value: str) -> bool:
    """Whether a value occurs, not as part of a longer word."""
    position = text.find(value)
    while position >= 0:
        character_before, character_after = (
            text[position - 1 : position] if position else "",
            text[position + len(value) : position + len(value) + 1],
        )
        if not (_is_word_character(character_before) and _is_word_character(value[0])) and not (
            _is_word_character(character_after) and _is_word_character(value[-1])
        ):
            return True
        position = text.find(value, position + 1)
    return False


def _is_word_character(character: str) -> bool:
    return character.isalnum() or character == "_"
