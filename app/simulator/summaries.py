"""An honest summary: the most telling sentences of a transcript, in order, each with its speaker. Pure.

Nothing is invented or reworded, so what survives is exactly what a reader can look for.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence, Set
from dataclasses import dataclass

from app.simulator.answers import NOTED, UNKNOWN, Source
from app.simulator.text import passage, stems

DEFAULT_SUMMARY_TOKENS = 512
LARGEST_SHARE = 0.75
"""A summary takes at most this share of what it summarizes."""
SMALLEST_TOKENS = 24
FEWEST_LABELS = 3
"""So many lines that begin with a speaker make a transcript."""
CHATTER_SCORE = 0.25
"""Sentences below are told only when there is nothing else."""
NOTHING_TO_SAY = "- Nothing of note was said."

_ASKS = re.compile(r"\bsummar(?:y|ies|i[sz]e|i[sz]ing|i[sz]ation)\b|\bcondense\b|\bcheckpoint\b", re.IGNORECASE)
_IMPERATIVE = re.compile(
    r"^\W*(?:please\s+|now\s+|can you\s+|could you\s+)?"
    r"(?:summari[sz]e|write (?:a|the) summary|give (?:me )?a summary)\b",
    re.IGNORECASE,
)
_MEANT = re.compile(r"\bthe last (\d+) messages before this one\b")
_MERGES = re.compile(r"\bthe \d+ summaries in the message before this one\b")
_SECTION = re.compile(r"<earlier_conversation[^>]*>\n(.*?)\n</earlier_conversation>", re.DOTALL)
_QUOTATION = "Quoted from earlier in this conversation"
_FENCE = re.compile(r"<transcript ([0-9a-f]+)>\n(.*?)\n</transcript \1>", re.DOTALL)
_LABEL = re.compile(
    r"^[\[(*#\s-]*(user|human|assistant|ai|system|developer|tool)\b[^:\n]{0,40}:[*\s]*", re.IGNORECASE | re.MULTILINE
)
_HARD_FACT = re.compile(r"\d|/\w|\w/\w|\w_\w|\w@\w|\w\.[a-z]\w|`[^`]+`|\"[^\"]+\"|'[^']{2,}'|[a-z][A-Z]|\b[A-Z]{2,}\b")
_NAME = re.compile(r"(?<!^)(?<![.!?]\s)\b[A-Z][a-z]+")
_WEIGHTY = re.compile(
    r"\b(?:decid\w+|decision|chose\w*|agreed|because|error|failed|failure|exception|fixed|resolved|open|must|never|always|"
    r"prefer\w*|deadline|called|named|is|are|uses?)\b",
    re.IGNORECASE,
)


@dataclass(frozen=True, slots=True)
class _Line:
    entry: int
    position: int
    text: str
    score: float
    said: frozenset[str]


def transcript_in(messages: Sequence[Source]) -> list[Source] | None:
    """What a prompt asks to be summarized, or None when it asks for something else.

    The last user or system message must ask for a summary, and bring a fenced transcript, or labelled lines, or stand
    after a conversation.
    """
    if not messages or messages[-1].role not in {"user", "system", "developer"}:
        return None
    asked = messages[-1].text
    fenced = list(_FENCE.finditer(asked))
    if fenced and _ASKS.search(_FENCE.sub("", asked) + " ".join(m.text for m in messages[:-1] if m.role != "user")):
        return [source for match in fenced for source in _fenced(match.group(1), match.group(2))]
    if _MERGES.search(asked) and len(messages) > 1:
        return [Source("summary", text) for text in _SECTION.findall(messages[-2].text)] or None
    lines = [line for line in asked.splitlines() if line.strip()]
    if not lines or not (_IMPERATIVE.match(lines[0]) or _IMPERATIVE.match(lines[-1])):
        return None
    labels = list(_LABEL.finditer(asked))
    if len(labels) >= FEWEST_LABELS:
        return _entries(asked, labels)
    meant = _MEANT.search(asked)
    before = messages[:-1][-int(meant.group(1)) :] if meant else messages[:-1]
    earlier = [message for message in before if message.role in {"user", "assistant", "tool"}]
    earlier = [message for message in earlier if not message.text.startswith(_QUOTATION)]
    return earlier if meant or len(earlier) >= 2 else None


def summarize(transcript: Sequence[Source], max_tokens: int | None, count: Callable[[str], int]) -> str:
    """The sentences worth most, in order, within `max_tokens` tokens and `LARGEST_SHARE` of the transcript."""
    size = sum(count(source.text) for source in transcript)
    room = max(SMALLEST_TOKENS, min(max_tokens or DEFAULT_SUMMARY_TOKENS, int(size * LARGEST_SHARE)))
    room = min(room, max_tokens) if max_tokens else room
    chosen: list[_Line] = []
    heard: set[str] = set()
    told = _by_worth(transcript)
    for line in [line for line in told if line.score >= CHATTER_SCORE] or told:
        if _is_stale(line, heard):
            continue
        cost = count(line.text) + 1
        if cost > room:
            continue
        room -= cost
        heard |= line.said
        chosen.append(line)
    chosen.sort(key=lambda line: (line.entry, line.position))
    return "\n".join(line.text for line in chosen) or NOTHING_TO_SAY


def most_telling(text: str, longest_chars: int) -> str:
    """A text of up to `longest_chars` as it is; of a longer one the sentence that tells most."""
    if len(text) <= longest_chars:
        return text
    told = [found.text for found in passage(text).sentences]
    return max(told, key=lambda sentence: _worth(sentence, "user"), default=text)


def _is_stale(line: _Line, heard: Set[str]) -> bool:
    """Whether a sentence adds too little to what is told already: hardly a new word, and no number."""
    fresh = line.said - heard
    return len(fresh) * 4 < len(line.said) and not any(character.isdigit() for word in fresh for character in word)


def _by_worth(transcript: Sequence[Source]) -> list[_Line]:
    """Sentences worth telling: hard facts and the best of each entry, then the second best of any, and so on."""
    ranked: list[tuple[int, _Line]] = []
    for entry, source in enumerate(transcript):
        told = enumerate(passage(source.text).sentences)
        lines = [_line(entry, position, source.role, found.text) for position, found in told]
        lines = sorted((line for line in lines if line.score > 0), key=lambda line: -line.score)
        ranked.extend((rank if line.score < 2 else 0, line) for rank, line in enumerate(lines))
    ranked.sort(key=lambda pair: (pair[0], -pair[1].score, pair[1].entry, pair[1].position))
    return [line for _, line in ranked]


def _line(entry: int, position: int, role: str, text: str) -> _Line:
    bare = text.removeprefix("- ").strip()
    labelled = _LABEL.match(bare) is not None
    told = f"- {bare}" if labelled else f"- {role}: {bare}"
    return _Line(entry, position, told, _worth(bare, role), stems(bare))


def _worth(text: str, role: str) -> float:
    """How much a sentence tells: identifiers, numbers and quotes most, then names and decisions; questions little."""
    if UNKNOWN in text:
        return 0.0
    worth = min(4.0, 1.0 * len(_HARD_FACT.findall(text))) + min(2.0, 0.7 * len(_NAME.findall(text)))
    worth += 0.6 * min(2, len(_WEIGHTY.findall(text)))
    worth += 0.2 if len(stems(text)) > 2 else 0.0
    if text.rstrip().endswith("?"):
        worth *= 0.3
    if NOTED in text or role == "assistant":
        worth *= 0.7
    return worth / (1 + len(text) / 400)


def _fenced(mark: str, inner: str) -> list[Source]:
    """Entries of a fenced transcript: a line `--- <mark> [12] user` begins each."""
    head = re.compile(rf"^--- {re.escape(mark)} (?:\[\d+\] )?([^\n]*)\n?", re.MULTILINE)
    return _entries(inner, list(head.finditer(inner)))


def _entries(text: str, heads: Sequence[re.Match[str]]) -> list[Source]:
    ends = [head.start() for head in heads[1:]] + [len(text)]
    return [
        Source(head.group(1).strip().lower(), text[head.end() : end].strip())
        for head, end in zip(heads, ends, strict=True)
    ]
