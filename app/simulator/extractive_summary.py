"""Summarizes a transcript by its most informative sentences, in order, each with its speaker. Pure.

No word is invented or changed, so tests can search a summary for the exact text that survived.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence, Set
from dataclasses import dataclass

from app.simulator.question_answering import NOTED_PREFIX, UNKNOWN_ANSWER, PromptText
from app.simulator.sentence_splitting import find_word_stems, split_sentences

DEFAULT_SUMMARY_TOKENS = 512
MAX_SHARE_OF_TRANSCRIPT = 0.75
"""A summary takes at most this share of what it summarizes."""
MIN_SUMMARY_TOKENS = 24
MIN_TRANSCRIPT_LABELS = 3
"""A text with at least this many lines that begin with a speaker is a transcript."""
MIN_SENTENCE_SCORE = 0.25
"""Sentences with a lower score are used only if there are no others."""
EMPTY_SUMMARY = "- Nothing of note was said."

_ASKS_FOR_SUMMARY = re.compile(
    r"\bsummar(?:y|ies|i[sz]e|i[sz]ing|i[sz]ation)\b|\bcondense\b|\bcheckpoint\b", re.IGNORECASE
)
_SUMMARY_COMMAND = re.compile(
    r"^\W*(?:please\s+|now\s+|can you\s+|could you\s+)?"
    r"(?:summari[sz]e|write (?:a|the) summary|give (?:me )?a summary)\b",
    re.IGNORECASE,
)
_LAST_MESSAGES_PHRASE = re.compile(r"\bthe last (\d+) messages before this one\b")
_FOLD_PHRASE = re.compile(r"\bthe \d+ summaries in the message before this one\b")
_SUMMARY_SECTION = re.compile(r"<earlier_conversation[^>]*>\n(.*?)\n</earlier_conversation>", re.DOTALL)
_QUOTATION_START = "Quoted from earlier in this conversation"
_FENCED_TRANSCRIPT = re.compile(r"<transcript ([0-9a-f]+)>\n(.*?)\n</transcript \1>", re.DOTALL)
_SPEAKER_LABEL = re.compile(
    r"^[\[(*#\s-]*(user|human|assistant|ai|system|developer|tool)\b[^:\n]{0,40}:[*\s]*", re.IGNORECASE | re.MULTILINE
)
_IDENTIFIER_OR_NUMBER = re.compile(
    r"\d|/\w|\w/\w|\w_\w|\w@\w|\w\.[a-z]\w|`[^`]+`|\"[^\"]+\"|'[^']{2,}'|[a-z][A-Z]|\b[A-Z]{2,}\b"
)
_NAME = re.compile(r"(?<!^)(?<![.!?]\s)\b[A-Z][a-z]+")
_DECISION_WORDS = re.compile(
    r"\b(?:decid\w+|decision|chose\w*|agreed|because|error|failed|failure|exception|fixed|resolved|open|must|never|always|"
    r"prefer\w*|deadline|called|named|is|are|uses?)\b",
    re.IGNORECASE,
)


@dataclass(frozen=True, slots=True)
class _ScoredSentence:
    message_index: int
    position: int
    text: str
    score: float
    stems: frozenset[str]


def find_transcript_to_summarize(messages: Sequence[PromptText]) -> list[PromptText] | None:
    """Returns what a prompt asks to be summarized; None if it asks for something else.

    The last user, system or developer message must ask for a summary, and have a fenced transcript or labelled lines,
    or follow a conversation.
    """
    if not messages or messages[-1].role not in {"user", "system", "developer"}:
        return None
    last_text = messages[-1].text
    fenced = list(_FENCED_TRANSCRIPT.finditer(last_text))
    # The request for a summary must be outside the transcript: a conversation may itself speak of summaries.
    if fenced and _ASKS_FOR_SUMMARY.search(
        _FENCED_TRANSCRIPT.sub("", last_text) + " ".join(m.text for m in messages[:-1] if m.role != "user")
    ):
        return [source for match in fenced for source in _parse_fenced_transcript(match.group(1), match.group(2))]
    if _FOLD_PHRASE.search(last_text) and len(messages) > 1:
        return [PromptText("summary", text) for text in _SUMMARY_SECTION.findall(messages[-2].text)] or None
    lines = [line for line in last_text.splitlines() if line.strip()]
    if not lines or not (_SUMMARY_COMMAND.match(lines[0]) or _SUMMARY_COMMAND.match(lines[-1])):
        return None
    labels = list(_SPEAKER_LABEL.finditer(last_text))
    if len(labels) >= MIN_TRANSCRIPT_LABELS:
        return _split_at_labels(last_text, labels)
    last_messages_match = _LAST_MESSAGES_PHRASE.search(last_text)
    before = messages[:-1][-int(last_messages_match.group(1)) :] if last_messages_match else messages[:-1]
    earlier = [message for message in before if message.role in {"user", "assistant", "tool"}]
    # Quotations repeat messages that earlier summaries stand for.
    earlier = [message for message in earlier if not message.text.startswith(_QUOTATION_START)]
    # "Summarize" after a single message is a question about that message.
    return earlier if last_messages_match or len(earlier) >= 2 else None


def summarize_by_extraction(
    transcript: Sequence[PromptText], max_tokens: int | None, count: Callable[[str], int]
) -> str:
    """Returns the sentences with the highest scores, in order, within `max_tokens` tokens and `MAX_SHARE_OF_TRANSCRIPT`
    of the transcript.
    """
    size = sum(count(source.text) for source in transcript)
    remaining_tokens = max(
        MIN_SUMMARY_TOKENS, min(max_tokens or DEFAULT_SUMMARY_TOKENS, int(size * MAX_SHARE_OF_TRANSCRIPT))
    )
    remaining_tokens = min(remaining_tokens, max_tokens) if max_tokens else remaining_tokens
    selected: list[_ScoredSentence] = []
    covered_stems: set[str] = set()
    candidates = _rank_sentences(transcript)
    for line in [line for line in candidates if line.score >= MIN_SENTENCE_SCORE] or candidates:
        if _adds_nothing_new(line, covered_stems):
            continue
        cost = count(line.text) + 1
        if cost > remaining_tokens:
            continue
        remaining_tokens -= cost
        covered_stems |= line.stems
        selected.append(line)
    selected.sort(key=lambda line: (line.message_index, line.position))
    if not selected and candidates:
        return _cut_to_size(candidates[0].text, remaining_tokens, count)
    return "\n".join(line.text for line in selected) or EMPTY_SUMMARY


def shorten_to_best_sentence(text: str, max_chars: int) -> str:
    """Returns a text of up to `max_chars` as it is; of a longer one the sentence with the highest score."""
    if len(text) <= max_chars:
        return text
    candidates = [found.text for found in split_sentences(text).sentences]
    return max(candidates, key=lambda sentence: _score_text(sentence, "user"), default=text)


def _cut_to_size(text: str, max_tokens: int, count: Callable[[str], int]) -> str:
    """Returns the beginning of a text, at most `max_tokens` tokens long."""
    while count(text) > max_tokens and len(text) > 1:
        text = text[: max(1, len(text) * 3 // 4)]
    return text.rstrip()


def _adds_nothing_new(sentence: _ScoredSentence, covered_stems: Set[str]) -> bool:
    """Says whether a sentence adds too little to the selected ones: less than a quarter of new words, and no new
    number.
    """
    fresh = sentence.stems - covered_stems
    return len(fresh) * 4 < len(sentence.stems) and not any(character.isdigit() for word in fresh for character in word)


def _rank_sentences(transcript: Sequence[PromptText]) -> list[_ScoredSentence]:
    """Ranks sentences: those with hard facts and the best one of each message first, then the second best of each, and
    so on.
    """
    ranked: list[tuple[int, _ScoredSentence]] = []
    for entry, source in enumerate(transcript):
        numbered_sentences = enumerate(split_sentences(source.text).sentences)
        lines = [_score_sentence(entry, position, source.role, found.text) for position, found in numbered_sentences]
        lines = sorted((line for line in lines if line.score > 0), key=lambda line: -line.score)
        # A score of 2 or more: the sentence has several identifiers or numbers, and does not wait for its message's
        # turn.
        ranked.extend((rank if line.score < 2 else 0, line) for rank, line in enumerate(lines))
    ranked.sort(key=lambda pair: (pair[0], -pair[1].score, pair[1].message_index, pair[1].position))
    return [line for _, line in ranked]


def _score_sentence(message_index: int, position: int, role: str, text: str) -> _ScoredSentence:
    bare = text.removeprefix("- ").strip()
    labelled = _SPEAKER_LABEL.match(bare) is not None
    labelled_text = f"- {bare}" if labelled else f"- {role}: {bare}"
    return _ScoredSentence(message_index, position, labelled_text, _score_text(bare, role), find_word_stems(bare))


def _score_text(text: str, role: str) -> float:
    """Scores a sentence: identifiers, numbers and quotes count most, then names and decisions; questions
    count little.
    """
    if UNKNOWN_ANSWER in text:
        return 0.0
    worth = min(4.0, 1.0 * len(_IDENTIFIER_OR_NUMBER.findall(text))) + min(2.0, 0.7 * len(_NAME.findall(text)))
    worth += 0.6 * min(2, len(_DECISION_WORDS.findall(text)))
    worth += 0.2 if len(find_word_stems(text)) > 2 else 0.0
    if text.rstrip().endswith("?"):
        worth *= 0.3
    if NOTED_PREFIX in text or role == "assistant":
        worth *= 0.7
    # Of two sentences with the same facts, the shorter one is worth more.
    return worth / (1 + len(text) / 400)


def _parse_fenced_transcript(mark: str, inner: str) -> list[PromptText]:
    """Parses the messages of a fenced transcript: each begins with a line `--- <mark> [12] user`."""
    head = re.compile(rf"^--- {re.escape(mark)} (?:\[\d+\] )?([^\n]*)\n?", re.MULTILINE)
    return _split_at_labels(inner, list(head.finditer(inner)))


def _split_at_labels(text: str, heads: Sequence[re.Match[str]]) -> list[PromptText]:
    ends = [head.start() for head in heads[1:]] + [len(text)]
    return [
        PromptText(head.group(1).strip().lower(), text[head.end() : end].strip())
        for head, end in zip(heads, ends, strict=True)
    ]
