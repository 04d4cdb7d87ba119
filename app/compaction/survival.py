"""What of a stretch survives in its summary, and the lines that carry what does not. Pure."""

from __future__ import annotations

import re
from collections.abc import Sequence

import orjson

from app.compaction.transcript import Count
from app.compaction.values import Mention, Values, values_in
from app.conversation.messages import Chunk, LogMessage

HEADING = "Values mentioned: "
SECONDARY_SHARE, SECONDARY_TOKENS = 0.25, 240
"""Values that were mentioned once and by a tool only may take this share of an appendix's room, or this much."""
SMALLEST_APPENDIX_TOKENS = 12

_HEADING_LINE = re.compile(rf"^{re.escape(HEADING)}(.*)$", re.MULTILINE)
_ITEM = re.compile(r'"(?:[^"\\]|\\.)*"|[^,;]+?(?=, |; |$)')
_THOUSANDS = re.compile(r"(?<=\d),(?=\d{3}(?!\d))")


def values_of(messages: Sequence[LogMessage], earlier: Sequence[Chunk] = ()) -> list[Mention]:
    """What must survive of log messages and of summaries that are replaced too, most worth first."""
    if not earlier:
        return values_in(messages)
    found = Values()
    for place, chunk in enumerate(earlier):
        for label, value in kept_in(chunk.text):
            found.add(value, label, 2.0, "kept", -1 - place)
        found.add_text(without_appendix(chunk.text), "assistant", -1 - place)
    for logged in messages:
        found.add_message(logged)
    return found.sorted()


def kept_in(text: str) -> list[tuple[str, str]]:
    """Labels and values of the appendix that a summary carries."""
    found = []
    for line in _HEADING_LINE.findall(text):
        for group in line.split("; "):
            label, labelled, items = group.partition(": ")
            items = items if labelled else group
            found += [(label if labelled else "", _unquoted(item)) for item in _ITEM.findall(items)]
    return [(label, value) for label, value in found if value]


def without_appendix(text: str) -> str:
    return _HEADING_LINE.sub("", text).rstrip()


def missing(values: Sequence[Mention], text: str) -> list[Mention]:
    """Those of the values that a text does not contain as words of their own."""
    plain = _plain(text)
    return [value for value in values if not _contains(plain, _plain(value.text))]


def kept_share(values: Sequence[Mention], text: str) -> float:
    """How much of the important values' worth a text contains, 0 to 1; 1 where there is nothing to keep."""
    important = [value for value in values if value.is_important]
    worth = sum(value.worth for value in important)
    lost = sum(value.worth for value in missing(important, text))
    return 1 - lost / worth if worth else 1.0


def appendix(values: Sequence[Mention], room_tokens: int, count: Count) -> str:
    """Values in a line, under the words that say what they are, the most worth first to be taken; "" for none."""
    if room_tokens < SMALLEST_APPENDIX_TOKENS:
        return ""
    chosen = _chosen(values, room_tokens, count)
    while chosen and count(_line(chosen)) > room_tokens:
        chosen = chosen[:-1]
    return _line(chosen) if chosen else ""


def _chosen(values: Sequence[Mention], room_tokens: int, count: Count) -> list[Mention]:
    """As many values as fit, by estimate; those that nobody said take a share at most."""
    room = room_tokens - count(HEADING)
    secondary = max(SECONDARY_TOKENS, int(room * SECONDARY_SHARE))
    labels: set[str] = set()
    chosen = []
    for value in values:
        cost = count(f"{_quoted(value.text)}, ") + (0 if value.label in labels else count(f"{value.label}: ") + 1)
        if cost > room or (not value.is_important and cost > secondary):
            continue
        room -= cost
        secondary -= 0 if value.is_important else cost
        labels.add(value.label)
        chosen.append(value)
        if room < 3:
            break
    return chosen


def _line(values: Sequence[Mention]) -> str:
    """Labels and values in order of first mention, so that what belongs together stands at the same place of each."""
    groups: dict[str, list[str]] = {}
    for value in sorted(values, key=lambda one: one.order):
        groups.setdefault(value.label, []).append(_quoted(value.text))
    bare = groups.pop("", [])
    told = [f"{_flat(label)}: {', '.join(items)}" for label, items in groups.items()]
    return HEADING + "; ".join([*told, *([", ".join(bare)] if bare else [])])


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
