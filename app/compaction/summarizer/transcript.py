"""A stretch of a log as a summarizer reads it: fenced, each entry with its speaker, fairly shortened. Pure.

The fence and each speaker line carry a mark that is a hash of the content, so no content can close the one or forge the
other. Reasoning is left out.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from app.context.quote.quote_message import mark_of
from app.context.stages.round_lines import call_of, id_of
from app.conversation.canonical_form import REASONING_PARTS
from app.conversation.messages import Chunk, LogMessage, Message

Count = Callable[[str], int]

HEAD_SHARE = 0.7
"""Of what is kept of a shortened entry, its beginning; the rest is its end."""
SHORTEST_ENTRY_TOKENS = 24
"""Entries are not cut below this; rather some in the middle are left out."""
WELL_FILLED = 0.9
"""A shortened transcript that takes this share of its limit is good enough."""
CAUTION = 0.98
ATTEMPTS = 4
"""How often to try for a better fill …"""
MOST_ATTEMPTS = 24
"""… when nothing fits yet."""
SPEAKER_LINE_TOKENS = 16
"""What the line that names a speaker costs, generously."""

_THOUGHT = re.compile(r"<(think|thinking|reasoning)>.*?(?:</\1>|\Z)", re.DOTALL | re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Transcript:
    """The fenced text and the mark of its fence."""

    text: str
    mark: str
    shortened: bool


@dataclass(frozen=True, slots=True)
class Entry:
    """What one speaker said; `place` is the message's seq or a summary's number."""

    place: int
    speaker: str
    text: str


def transcript(messages: Sequence[LogMessage], limit_tokens: int, count: Count) -> Transcript:
    """A stretch of the log, tool calls and results included, within `limit_tokens` by `count`."""
    return fenced(entries_of(messages), limit_tokens, count)


def entries_of(messages: Sequence[LogMessage], earlier: Sequence[Chunk] = ()) -> list[Entry]:
    """What summaries of the time before say, then each message, tool call and result, in order."""
    told = [Entry(place, "summary", chunk.text) for place, chunk in enumerate(earlier, 1)]
    return [*told, *_entries(messages)]


def fenced(entries: Sequence[Entry], limit_tokens: int, count: Count) -> Transcript:
    """Entries between fence lines, long ones cut to head and tail so that all fit: short entries stay whole."""
    whole = _framed(entries)
    if count(whole.text) <= limit_tokens:
        return whole
    sizes = [count(entry.text) + SPEAKER_LINE_TOKENS for entry in entries]
    best, best_size, allowed = whole, 0, float(limit_tokens)
    for attempt in range(MOST_ATTEMPTS):
        framed = _framed(_cut(entries, sizes, int(allowed)), shortened=True)
        size = count(framed.text)
        if best_size < size <= limit_tokens:
            best, best_size = framed, size
        if best_size >= limit_tokens * WELL_FILLED or (best_size and attempt >= ATTEMPTS):
            break
        allowed *= CAUTION * limit_tokens / size
    return best if best_size else _framed([Entry(entries[0].place, "note", "[left out]")], shortened=True)


def cut_to(entries: Sequence[Entry], limit_tokens: int, count: Count) -> list[Entry]:
    """Entries of about `limit_tokens` in all: long ones cut to head and tail, short ones whole."""
    sizes = [count(entry.text) + SPEAKER_LINE_TOKENS for entry in entries]
    return list(entries) if sum(sizes) <= limit_tokens else _cut(entries, sizes, limit_tokens)


def without_thoughts(text: str) -> str:
    """A text without the `<think>` blocks that some models write into their answers."""
    return _THOUGHT.sub("", text).strip()


def spoken(message: Message) -> str:
    """What a message says, as text: reasoning left out, parts of other kinds named."""
    content = message.body.get("content")
    if isinstance(content, str):
        return without_thoughts(content)
    if not isinstance(content, list):
        refusal = message.body.get("refusal")
        return refusal if isinstance(refusal, str) else ""
    return without_thoughts("\n".join(filter(None, map(_part, content))))


def _entries(messages: Sequence[LogMessage]) -> Iterator[Entry]:
    called: list[tuple[object, str]] = []
    for logged in messages:
        message = logged.message
        text = spoken(message)
        if message.role in {"tool", "function"}:
            yield Entry(logged.seq, f"tool result of {_caller(message, called)}", text)
            continue
        calls = message.tool_calls
        if text or not calls:
            yield Entry(logged.seq, message.role or "user", text)
        called = [(id_of(call), call_of(call)[0]) for call in calls]
        for call in calls:
            name, arguments = call_of(call)
            yield Entry(logged.seq, f"{message.role} calls {_flat(name)}", arguments)


def _caller(message: Message, called: list[tuple[object, str]]) -> str:
    """Which tool a result is of: by id within its round, otherwise the first call that has none yet."""
    wanted = message.body.get("tool_call_id")
    at = next((at for at, (call_id, _) in enumerate(called) if call_id == wanted), 0)
    return _flat(called.pop(at)[1] if called else str(message.body.get("name") or "tool"))


def _flat(text: str) -> str:
    return " ".join(text.split())[:80]


def _part(part: Any) -> str:
    if isinstance(part, str):
        return part
    if not isinstance(part, dict) or part.get("type") in REASONING_PARTS:
        return ""
    text = part.get("text") or part.get("refusal")
    return text if isinstance(text, str) else f"[{part.get('type', 'attachment')}]"


def _framed(entries: Sequence[Entry], *, shortened: bool = False) -> Transcript:
    mark = mark_of([(entry.speaker, entry.text) for entry in entries])
    lines = [f"<transcript {mark}>"]
    for entry in entries:
        lines += (f"--- {mark} [{entry.place}] {entry.speaker}", entry.text)
    lines.append(f"</transcript {mark}>")
    return Transcript("\n".join(lines), mark, shortened)


def _cut(entries: Sequence[Entry], sizes: Sequence[int], limit_tokens: int) -> list[Entry]:
    """The entries within about `limit_tokens`: long ones cut to one size, the middle left out where that is tiny."""
    cap = _level(sizes, limit_tokens)
    if cap < SHORTEST_ENTRY_TOKENS + SPEAKER_LINE_TOKENS and len(entries) > 2:
        return _without_middle(entries, sizes, limit_tokens)
    return [_shortened(entry, size, cap) for entry, size in zip(entries, sizes, strict=True)]


def _level(sizes: Sequence[int], limit_tokens: int) -> int:
    """The largest cap under which the sizes sum to at most `limit_tokens`."""
    left = limit_tokens
    ordered = sorted(sizes)
    for at, size in enumerate(ordered):
        share = left // (len(ordered) - at)
        if size > share:
            return max(share, 0)
        left -= size
    return ordered[-1] if ordered else 0


def _without_middle(entries: Sequence[Entry], sizes: Sequence[int], limit_tokens: int) -> list[Entry]:
    """As many entries from both ends as fit at the shortest length, and a line for those between them."""
    cap = SHORTEST_ENTRY_TOKENS + SPEAKER_LINE_TOKENS
    kept = max(2, min(len(entries) - 1, limit_tokens // cap - 1))
    head = kept // 2
    tail = len(entries) - (kept - head)
    short = [_shortened(entry, size, cap) for entry, size in zip(entries, sizes, strict=True)]
    gap = Entry(entries[head].place, "note", f"[{tail - head} entries left out]")
    return [*short[:head], gap, *short[tail:]]


def _shortened(entry: Entry, size: int, cap: int) -> Entry:
    """Head and tail of an entry whose `size` tokens are above `cap`."""
    if size <= cap:
        return entry
    share = max(0, cap - 2 * SPEAKER_LINE_TOKENS) / max(1, size - SPEAKER_LINE_TOKENS)
    kept = int(len(entry.text) * share)
    head = int(kept * HEAD_SHARE)
    tail = kept - head
    gap = f"\n[… {len(entry.text) - kept} characters left out …]\n"
    return Entry(entry.place, entry.speaker, entry.text[:head] + gap + (entry.text[-tail:] if tail else ""))
