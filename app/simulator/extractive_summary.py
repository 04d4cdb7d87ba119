"""Summarizes a transcript by its sentences with most facts, in order, each with its speaker. Pure.

No word is invented or changed, so tests can search a summary for the exact text that survived.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

from app.simulator.question_answering import (
    NOTED_PREFIX,
    UNKNOWN_ANSWER,
    PromptText,
    remove_labels,
    score_facts,
    split_sentences,
)

DEFAULT_SUMMARY_TOKENS = 512
MAX_SHARE_OF_TRANSCRIPT = 0.75
"""A summary takes at most this share of what it summarizes."""
MIN_SUMMARY_TOKENS = 24
QUOTATION_ROLE = "quotation"
"""The role of quotations: they repeat messages that earlier summaries stand for."""
EMPTY_SUMMARY = "- Nothing of note was said."

_SUMMARY_COMMAND = re.compile(
    r"^\W*(?:please\s+|now\s+|can you\s+|could you\s+|end of the material\.\s+)*"
    r"(?:summari[sz]e|write (?:a|the) summary|give (?:me )?a summary)\b",
    re.IGNORECASE,
)
_RANGE_PHRASE = re.compile(r"\bthe (?:last (\d+) messages|\d+ summaries in the message) before this one\b")
_FENCED_TRANSCRIPT = re.compile(r"<transcript ([0-9a-f]+)>\n(.*?)\n</transcript \1>", re.DOTALL)
_FENCED_SPEAKER = re.compile(r"^--- [0-9a-f]+ (?:\[\d+\] )?([^\n]*)\n?", re.MULTILINE)
_SPEAKER_LABEL = re.compile(r"^(?:user|assistant|system|developer|tool)\b[^:\n]{0,40}:", re.IGNORECASE)


def find_transcript_to_summarize(messages: Sequence[PromptText]) -> list[PromptText] | None:
    """Returns what a prompt asks to be summarized; None if it asks for something else.

    The first or last line of the last message must ask for a summary. The message has a transcript, or follows one.
    """
    last_text = messages[-1].text
    # The request for a summary must be outside the transcript: a conversation may itself speak of summaries.
    fenced = _FENCED_TRANSCRIPT.search(last_text)
    lines = [line for line in _FENCED_TRANSCRIPT.sub("", last_text).splitlines() if line.strip()]
    is_command = any(_SUMMARY_COMMAND.match(line) for line in (*lines[:1], *lines[-1:]))
    if messages[-1].role not in {"user", "system", "developer"} or not is_command:
        return None
    if fenced is not None:
        _, *parts = _FENCED_SPEAKER.split(fenced[2])
        return [PromptText(who.strip().lower(), text) for who, text in zip(parts[::2], parts[1::2], strict=True)]
    range_match = _RANGE_PHRASE.search(last_text)
    before = messages[:-1][-int(range_match[1] or 1) :] if range_match else messages[:-1]
    earlier = [message for message in before if message.role in {"user", "assistant", "tool"}]
    # "Summarize" after a single message is a question about that message.
    return earlier if range_match or len(earlier) >= 2 else None


def summarize_by_extraction(
    transcript: Sequence[PromptText], max_tokens: int | None, count: Callable[[str], int]
) -> str:
    """Returns the sentences with most facts, in order, within `max_tokens` tokens and `MAX_SHARE_OF_TRANSCRIPT` of the
    transcript.
    """
    size = sum(count(source.text) for source in transcript)
    limit = max(MIN_SUMMARY_TOKENS, min(max_tokens or DEFAULT_SUMMARY_TOKENS, int(size * MAX_SHARE_OF_TRANSCRIPT)))
    remaining_tokens = min(limit, max_tokens or limit)
    lines = _label_sentences(transcript)
    selected: list[int] = []
    covered_stems: set[str] = set()
    for position in sorted(range(len(lines)), key=lambda position: -lines[position][0]):
        _, line, stems = lines[position]
        if stems <= covered_stems or (tokens := count(line) + 1) > remaining_tokens:
            continue
        remaining_tokens -= tokens
        covered_stems |= stems
        selected.append(position)
    if not selected and lines:
        return cut_to_tokens(max(lines)[1], remaining_tokens, count)
    return "\n".join(lines[position][1] for position in sorted(selected)) or EMPTY_SUMMARY


def cut_to_tokens(text: str, max_tokens: int, count: Callable[[str], int]) -> str:
    """Returns the longest beginning of a text that has at most `max_tokens` tokens."""
    low, high = 0, len(text)
    if count(text) <= max_tokens:
        return text
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if count(text[:middle]) <= max_tokens else (low, middle - 1)
    return text[:low]


def _label_sentences(transcript: Sequence[PromptText]) -> list[tuple[float, str, frozenset[str]]]:
    """Returns score, labelled text and stems of each sentence with a fact; of all sentences if none has one."""
    lines = []
    for source in transcript:
        for sentence in split_sentences(source.text):
            bare = sentence.text.removeprefix("- ")
            label = "" if _SPEAKER_LABEL.match(bare) else f"{source.role}: "
            weight = 0.7 if source.role == "assistant" or NOTED_PREFIX in bare else 1.0
            score = weight * score_facts(remove_labels(bare))
            if UNKNOWN_ANSWER not in bare and (score > 0 or len(sentence.stems) > 2):
                lines.append((score, f"- {label}{bare}", sentence.stems))
    return [line for line in lines if line[0] > 0] or lines
