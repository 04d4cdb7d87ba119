"""What of a stretch survives in its summary, and the lines that carry what does not. Pure."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

import orjson

from app.compaction.acceptance.facts import Mention, Source, Values, values_in
from app.compaction.summarizer.transcript import Count
from app.conversation.messages import Chunk, LogMessage

HEADINGS: dict[Source, str] = {"kept": "Values mentioned: ", "result": "Seen in results: "}
"""Lines of an appendix: what is important, and what only tools have told, once."""
SECONDARY_SHARE, SECONDARY_PIECES = 0.25, 240
"""Values that were mentioned once and by a tool only may take this share of an appendix's room, or this much."""
SMALLEST_APPENDIX_PIECES = 12
HEADING_PIECES = 5
MOST_PASSED_OVER = 64
"""So many values in a row for which there is no room end the search for more."""

_LINE = re.compile(rf"^({'|'.join(map(re.escape, HEADINGS.values()))})(.*)$", re.MULTILINE)
_SOURCES: dict[str, Source] = {heading: source for source, heading in HEADINGS.items()}
_PIECE = re.compile(r'; |, |"(?:[^"\\]|\\.)*"|[^",;]+|[",;]')
_THOUSANDS = re.compile(r"(?<=\d),(?=\d{3}(?!\d))")


@dataclass(frozen=True, slots=True)
class Kept:
    """A value of an appendix; `crowd` is how many stand under its label, where that says how little each is worth."""

    label: str
    text: str
    source: Source
    crowd: int


def values_of(messages: Sequence[LogMessage], earlier: Sequence[Chunk] = ()) -> list[Mention]:
    """What must survive of log messages and of summaries that are replaced too, most worth first."""
    if not earlier:
        return values_in(messages)
    found = Values()
    for place, chunk in enumerate(earlier):
        for kept in kept_in(chunk.text):
            found.add_kept(kept.label, kept.text, kept.source, -1 - place, kept.crowd)
        found.add_text(without_appendix(chunk.text), "assistant", -1 - place)
    for logged in messages:
        found.add_message(logged)
    return found.sorted()


def kept_in(text: str) -> list[Kept]:
    """The values of the appendix that a summary carries."""
    found = []
    for heading, line in _LINE.findall(text):
        source = _SOURCES[heading]
        for first, *more in _groups(line):
            label, labelled, value = ("", "", first) if first.startswith('"') else first.partition(": ")
            values = [_unquoted(item) for item in (value if labelled else first, *more)]
            crowd = len(values) if source == "result" else 1
            found += [Kept(label if labelled else "", value, source, crowd) for value in values if value]
    return found


def _groups(line: str) -> list[list[str]]:
    """The items under each label, the label before the first; quoted ones may hold any sign."""
    groups = [[""]]
    for piece in _PIECE.findall(line):
        if piece == "; ":
            groups.append([""])
        elif piece == ", ":
            groups[-1].append("")
        else:
            groups[-1][-1] += piece
    return groups


def without_appendix(text: str) -> str:
    return _LINE.sub("", text).rstrip()


def missing(values: Sequence[Mention], text: str) -> list[Mention]:
    """Those of the values that a text does not contain as words of their own."""
    plain = _plain(text)
    return [value for value in values if not _contains(plain, _plain(value.text))]


def kept_share(values: Sequence[Mention], text: str) -> float:
    """How much of the important values' worth a text contains, 0 to 1; 1 where there is nothing to keep."""
    important = [value for value in values if value.is_important]
    return share_without(important, missing(important, text))


def share_without(values: Sequence[Mention], lost: Sequence[Mention]) -> float:
    """How much of the important values' worth is left where some of the values are lost, 0 to 1."""
    worth = sum(value.worth for value in values if value.is_important)
    lost_worth = sum(value.worth for value in lost if value.is_important)
    return 1 - lost_worth / worth if worth else 1.0


def appendix(values: Sequence[Mention], room_tokens: int, count: Count) -> str:
    """Values in a line or two, under the words that say what they are; what is worth most has the first claim on the
    room. Blank for none."""
    if room_tokens < SMALLEST_APPENDIX_PIECES:
        return ""
    chosen = _chosen(values, room_tokens, count)
    while chosen and count(_told(chosen)) > room_tokens:
        chosen = chosen[:-1]
    return _told(chosen)


def _chosen(values: Sequence[Mention], room_tokens: int, count: Count) -> list[Mention]:
    """As many values as fit, by estimate; those that nobody said take a share at most."""
    room = room_tokens
    secondary = max(SECONDARY_PIECES, int(room * SECONDARY_SHARE))
    groups: set[tuple[str, bool]] = set()
    headed: set[bool] = set()
    chosen: list[Mention] = []
    passed_over = 0
    for value in values:
        if passed_over >= MOST_PASSED_OVER:
            break
        group = value.label, value.is_important
        cost = count(f"{_quoted(value.text)}, ") + (0 if group in groups else count(f"{value.label}: ") + 1)
        cost += 0 if value.is_important in headed else HEADING_PIECES
        if cost > room or (not value.is_important and cost > secondary):
            passed_over += 1
            continue
        passed_over = 0
        room -= cost
        secondary -= 0 if value.is_important else cost
        groups.add(group)
        headed.add(value.is_important)
        chosen.append(value)
    return chosen


def _told(values: Sequence[Mention]) -> str:
    important = [value for value in values if value.is_important]
    others = [value for value in values if not value.is_important]
    lines: tuple[tuple[Source, list[Mention]], ...] = (("kept", important), ("result", others))
    return "\n".join(HEADINGS[source] + _grouped(told) for source, told in lines if told)


def _grouped(values: Sequence[Mention]) -> str:
    """Labels and values in order of first mention, so that what belongs together stands at the same place of each."""
    groups: dict[str, list[str]] = {}
    for value in sorted(values, key=lambda one: one.order):
        groups.setdefault(value.label, []).append(_quoted(value.text))
    bare = groups.pop("", [])
    told = [f"{_flat(label)}: {', '.join(items)}" for label, items in groups.items()]
    return "; ".join([*told, *([", ".join(bare)] if bare else [])])


def _flat(label: str) -> str:
    return " ".join(re.sub(r"[;:,]", " ", label).split())[:40]


def _quoted(text: str) -> str:
    return orjson.dumps(text).decode() if re.search(r'[,;"]|: ', text) else text


def _unquoted(item: str) -> str:
    item = item.strip()
    if not item.startswith('"'):
        return item
    try:
        return str(orjson.loads(item))
    except orjson.JSONDecodeError:
        return item.strip('"')


def _plain(text: str) -> str:
    return " ".join(_THOUSANDS.sub("", text).casefold().split())


def _contains(plain: str, value: str) -> bool:
    """Whether a value occurs, not as part of a longer word."""
    at = plain.find(value)
    while at >= 0:
        before, after = plain[at - 1 : at] if at else "", plain[at + len(value) : at + len(value) + 1]
        if not (_joins(before) and _joins(value[0])) and not (_joins(after) and _joins(value[-1])):
            return True
        at = plain.find(value, at + 1)
    return False


def _joins(character: str) -> bool:
    return character.isalnum() or character == "_"
