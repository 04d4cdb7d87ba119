"""Renders a part of a log for a summarizer: fenced, each entry with its speaker, long entries shortened. Pure.

The fence and each speaker line carry a mark that is a hash of the content. So no content can close the fence or forge a
speaker line. Reasoning is left out.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from app.context.quote.quotation_message import compute_fence_mark
from app.context.stages.truncation_caps import compute_equal_cap
from app.conversation.conversation_types import LogMessage, Summary
from app.conversation.item import TOOL_RESULT_ROLES, UNNAMED_TOOL, Item

CountTokens = Callable[[str], int]

HEAD_SHARE = 0.7
"""The share of a shortened entry that comes from its beginning; the rest comes from its end."""
MIN_ENTRY_TOKENS = 24
"""Entries are not cut below this. If that is not enough, entries in the middle are left out."""
MIN_FILL_SHARE = 0.9
"""A shortened transcript that takes this share of its limit is good enough."""
SHRINK_FACTOR = 0.98
FILL_ATTEMPTS = 4
"""How often to try to fill the limit better."""
MAX_FILL_ATTEMPTS = 24
"""How often to try if nothing fits yet."""
SPEAKER_LINE_TOKENS = 16
"""Tokens of the line that names a speaker, rounded up."""


@dataclass(frozen=True, slots=True)
class Transcript:
    """The fenced text, and the mark of its fence."""

    text: str
    mark: str


@dataclass(frozen=True, slots=True)
class TranscriptEntry:
    """The text of one speaker; `number` is the message's seq, or a summary's number."""

    number: int
    speaker: str
    text: str

    @property
    def spoken_text(self) -> str:
        """The text after the last word of the speaker: the name of the tool, of a call or its result."""
        return f"{self.speaker.rpartition(' ')[2]}\n{self.text}"


def build_transcript_entries(
    messages: Sequence[LogMessage], earlier_summaries: Sequence[Summary] = ()
) -> list[TranscriptEntry]:
    """Builds entries for earlier summaries, then for each message, tool call and result, in order."""
    summary_entries = [
        TranscriptEntry(number, "summary", summary.text) for number, summary in enumerate(earlier_summaries, 1)
    ]
    return [*summary_entries, *_iterate_message_entries(messages)]


def render_fenced_transcript(
    entries: Sequence[TranscriptEntry], limit_tokens: int, count_tokens: CountTokens
) -> Transcript:
    """Renders entries between fence lines. Cuts long entries to head and tail until all fit; short entries stay
    whole."""
    whole_transcript = _render_fenced_entries(entries)
    if count_tokens(whole_transcript.text) <= limit_tokens:
        return whole_transcript
    sizes = [count_tokens(entry.text) + SPEAKER_LINE_TOKENS for entry in entries]
    best, best_size, allowed = whole_transcript, 0, float(limit_tokens)
    for attempt in range(MAX_FILL_ATTEMPTS):
        shortened_transcript = _render_fenced_entries(_cut_to_common_size(entries, sizes, int(allowed)))
        size = count_tokens(shortened_transcript.text)
        if best_size < size <= limit_tokens:
            best, best_size = shortened_transcript, size
        if best_size >= limit_tokens * MIN_FILL_SHARE or (best_size and attempt >= FILL_ATTEMPTS):
            break
        # Sizes before rendering are estimates: the next try aims lower, or higher, by the ratio that this one was off.
        allowed *= SHRINK_FACTOR * limit_tokens / size
    return best if best_size else _render_fenced_entries([TranscriptEntry(entries[0].number, "note", "[left out]")])


def cut_entries(
    entries: Sequence[TranscriptEntry], limit_tokens: int, count_tokens: CountTokens
) -> list[TranscriptEntry]:
    """Cuts entries to about `limit_tokens` in all: long ones to head and tail, short ones stay whole."""
    sizes = [count_tokens(entry.text) + SPEAKER_LINE_TOKENS for entry in entries]
    return list(entries) if sum(sizes) <= limit_tokens else _cut_to_common_size(entries, sizes, limit_tokens)


def _iterate_message_entries(messages: Sequence[LogMessage]) -> Iterator[TranscriptEntry]:
    pending_calls: list[tuple[str | None, str]] = []
    for log_message in messages:
        message = log_message.message
        text = message.transcript_text
        if message.role in TOOL_RESULT_ROLES:
            yield TranscriptEntry(log_message.seq, f"tool result of {_find_tool_name(message, pending_calls)}", text)
            continue
        calls = message.calls
        if text or not calls:
            yield TranscriptEntry(log_message.seq, message.role or "user", text)
        pending_calls = [(call.id, call.name or UNNAMED_TOOL) for call in calls]
        for call in calls:
            speaker = f"{message.role} calls {_flatten_name(call.name or UNNAMED_TOOL)}"
            yield TranscriptEntry(log_message.seq, speaker, call.arguments)


def _find_tool_name(message: Item, pending_calls: list[tuple[str | None, str]]) -> str:
    """Finds the tool of a result: by id within its round, otherwise the first call without a result."""
    index = next((at for at, (call_id, _) in enumerate(pending_calls) if call_id == message.result_for), 0)
    return _flatten_name(pending_calls.pop(index)[1] if pending_calls else message.name or UNNAMED_TOOL)


def _flatten_name(text: str) -> str:
    return " ".join(text.split())[:80]


def _render_fenced_entries(entries: Sequence[TranscriptEntry]) -> Transcript:
    mark = compute_fence_mark([(entry.speaker, entry.text) for entry in entries])
    lines = [f"<transcript {mark}>"]
    for entry in entries:
        lines += (f"--- {mark} [{entry.number}] {entry.speaker}", entry.text)
    lines.append(f"</transcript {mark}>")
    return Transcript("\n".join(lines), mark)


def _cut_to_common_size(
    entries: Sequence[TranscriptEntry], sizes: Sequence[int], limit_tokens: int
) -> list[TranscriptEntry]:
    """Cuts long entries to a common size, so that all take about `limit_tokens`. If that size would be tiny, leaves out
    entries in the middle instead."""
    cap = compute_equal_cap(sizes, limit_tokens)
    if cap < MIN_ENTRY_TOKENS + SPEAKER_LINE_TOKENS and len(entries) > 2:
        return _drop_middle(entries, sizes, limit_tokens)
    return [_shorten_entry(entry, size, cap) for entry, size in zip(entries, sizes, strict=True)]


def _drop_middle(entries: Sequence[TranscriptEntry], sizes: Sequence[int], limit_tokens: int) -> list[TranscriptEntry]:
    """Keeps as many entries from both ends as fit at the smallest size, and a line for the entries between them."""
    cap = MIN_ENTRY_TOKENS + SPEAKER_LINE_TOKENS
    kept_entries = max(2, min(len(entries) - 1, limit_tokens // cap - 1))
    head = kept_entries // 2
    tail = len(entries) - (kept_entries - head)
    shortened_entries = [_shorten_entry(entry, size, cap) for entry, size in zip(entries, sizes, strict=True)]
    gap = TranscriptEntry(entries[head].number, "note", f"[{tail - head} entries left out]")
    return [*shortened_entries[:head], gap, *shortened_entries[tail:]]


def _shorten_entry(entry: TranscriptEntry, size: int, cap: int) -> TranscriptEntry:
    """Shortens an entry to head and tail if its `size` in tokens is above `cap`."""
    if size <= cap:
        return entry
    share = max(0, cap - 2 * SPEAKER_LINE_TOKENS) / max(1, size - SPEAKER_LINE_TOKENS)
    kept_chars = int(len(entry.text) * share)
    head = int(kept_chars * HEAD_SHARE)
    tail = kept_chars - head
    gap = f"\n[… {len(entry.text) - kept_chars} characters left out …]\n"
    return TranscriptEntry(entry.number, entry.speaker, entry.text[:head] + gap + (entry.text[-tail:] if tail else ""))
