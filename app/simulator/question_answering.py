"""Answers a question with the sentence of the prompt that shares most words with it. Pure.

A word elsewhere in the sentence's message counts half. Words are compared by their beginnings: of `weighs` and `weight`
the first five letters are the same.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Final

UNKNOWN_ANSWER = "I don't see that in my context."
GREETING = "Hello. I am a simulated model: I answer from what my context shows."
NOTED_PREFIX = "Noted:"
MAX_NOTE_CHARS = 160
MAX_SENTENCE_CHARS = 600
MAX_CACHED_CHARS: Final = 10_000
"""Longer texts are not cached: they would take gigabytes."""
SAME_MESSAGE_WORD_WEIGHT = 0.5
STEM_CHARS = 5

_SENTENCE_END = re.compile(r"(?<=[.!?\u3002\uff01\uff1f])(?<!\b[DM][rs]\.)(?:\s+|(?<=[\u3002\uff01\uff1f]))|\n+")
_QUESTION_START = re.compile(
    r"\W*(?:please\s+)?(?:who|whom|whose|what|which|when|where|why|how|remind me|tell me|recall|list|repeat|"
    r"name the|do you|did|does|can you tell|could you tell)\b",
    re.IGNORECASE,
)
_FACT = re.compile(
    r"\w*\d[\w.,-]*|\w[/_@]\w|\w\.[a-z]\w|`[^`]+`|\"[^\"]+\"|'[^']{2,}'|[a-z][A-Z]|\b[A-Z]{2,}\b"
    r"|(?<!^)(?<![.!?]\s)\b[A-Z][a-z]+|\b(?:uses?|decided|because|error|failed|fixed|must|never|always|prefer|called)\b"
)
_WORD = re.compile(r"[^\W_]+")
_WORD_ENDING = re.compile(r"(?<=\w{3})(?:ing|ed|es|[sey])$|(?<=o)es$")
_CAMEL_CASE_BOUNDARY = re.compile(r"(?<=[a-z])(?=[A-Z])")
_IDEOGRAPH = re.compile(r"[\u3040-\u30ff\u3400-\u9fff\uac00-\ud7af]")
_FRAME_LINE = re.compile(
    r"^(?:Summary of earlier conversation\. The sections|Quoted from earlier in this conversation:|"
    r"What I said earlier, word for word\.|</?(?:earlier_conversation|quoted|user_said)\b|\[\d+ )[^\n]*$\n*",
    re.MULTILINE,
)
_LABEL = re.compile(
    r"^\s*(?:[-*•]\s+|§?[0-9a-f]{0,8}(?:user|human|assistant|system|developer|summary|tool)(?: [\w.-]{1,60}){0,3}"
    rf"(?: \(\d{{4}}-\d\d-\d\d\))?:\s*|(?:{NOTED_PREFIX}|(?:Values|Also) mentioned:|Seen in results:)\s*)",
    re.IGNORECASE | re.MULTILINE,
)
_STOP_TEXT = """
a about again all also am an and any are as ask at be been but by can could did do does earlier for from get give had
has have he hello her here hey hi him his how i if in into is it its just know let like list many may me mean mention
mentioned more much my now of off ok on one or our out please recall remember remind said say she so some such tell
than thank thanks that the their them then there these they this those to told too up us use used using want was we
well were what when where which while who whom whose why will with would yes you your
"""
STOP_WORDS = frozenset(_STOP_TEXT.split())


@dataclass(frozen=True, slots=True)
class PromptText:
    """A text of the prompt, and its speaker."""

    role: str
    text: str


@dataclass(frozen=True, slots=True)
class Sentence:
    """A sentence and the stems of its words, without stop words."""

    text: str
    stems: frozenset[str]
    is_question: bool


def answer_user_message(texts: Sequence[PromptText]) -> str:
    """Returns an answer to the newest user message from the context, or a note of what it says.

    Only the last paragraph with a question is answered: a message may begin with a pasted text that has questions, too.
    """
    user_text = find_newest_user_text(texts)
    if not find_word_stems(user_text):
        return GREETING
    questions: list[str] = []
    for paragraph in user_text.split("\n\n"):
        questions = [one.text for one in split_sentences(paragraph) if one.is_question] or questions
    if not questions:
        best = max((sentence.text for sentence in split_sentences(user_text)), key=score_facts, default=user_text)
        note = " ".join((user_text if len(user_text) <= MAX_NOTE_CHARS else best).split())
        return f"{NOTED_PREFIX} {note if len(note) <= MAX_NOTE_CHARS else note[: MAX_NOTE_CHARS - 1] + '…'}"
    found = filter(None, (_find_answer_sentence(question, [one.text for one in texts]) for question in questions))
    return " ".join(dict.fromkeys(map(remove_labels, found))) or UNKNOWN_ANSWER


def find_newest_user_text(texts: Sequence[PromptText]) -> str:
    """Returns the text of the newest user message; empty if there is none."""
    return next((source.text for source in reversed(texts) if source.role == "user"), "")


def remove_frames(text: str) -> str:
    """Returns a text without what the gateway writes around summaries, quotations and user text."""
    return _FRAME_LINE.sub("", text).replace("[…]", "\n") if "earlier" in text else text


def remove_labels(text: str) -> str:
    """Returns a text without list dashes, speakers and `Noted:` at the beginnings of its lines."""
    previous = ""
    while text != previous:
        previous, text = text, _LABEL.sub("", text)
    return text


def is_question(text: str) -> bool:
    """Says whether a sentence asks for something: it ends in a question mark or begins like a question."""
    return text.rstrip(" \"')*_").endswith(("?", "\uff1f")) or _QUESTION_START.match(text) is not None


def score_facts(text: str) -> float:
    """Scores a sentence by its facts: identifiers, numbers, quotes, names, decisions. Questions count little, and of
    two sentences with the same facts the shorter one counts more.
    """
    facts = min(4, len(_FACT.findall(text))) * (0.3 if is_question(text) else 1.0)
    return facts / (1 + len(text) / 400)


def split_sentences(text: str) -> tuple[Sentence, ...]:
    """Splits a text into sentences. Line ends end sentences; an over-long sentence is cut into pieces."""
    return (_split_cached if len(text) <= MAX_CACHED_CHARS else _split)(text)


def find_word_stems(text: str) -> frozenset[str]:
    """Returns the stems of a text's words: parts of identifiers, beginnings of words, ideographs in pairs."""
    stems: set[str] = set()
    for word in _WORD.findall(_CAMEL_CASE_BOUNDARY.sub(" ", text).lower()):
        if _IDEOGRAPH.search(word):
            # Chinese and Japanese have no spaces between words: pairs of characters stand for words.
            stems.update(word[at : at + 2] for at in range(max(1, len(word) - 1)))
        elif word not in STOP_WORDS:
            stems.add(_WORD_ENDING.sub("", word)[:STEM_CHARS] if word.isalpha() else word)
    return frozenset(stems)


def _find_answer_sentence(question: str, texts: Sequence[str]) -> str | None:
    """Returns the sentence of `texts` that shares most words with `question`; None if none shares more than half.

    Of equal sentences the one with fewer other words is returned, and of those the last.
    """
    question_stems = find_word_stems(question)
    best_rank, best_text = (len(question_stems) / 2, 0), None
    for text in texts:
        sentences = split_sentences(text)
        near_stems = question_stems & frozenset().union(*(one.stems for one in sentences if not one.is_question))
        for sentence in sentences if near_stems else ():
            shared_stems = question_stems & sentence.stems
            new_stem_count = len(sentence.stems - question_stems)
            is_no_answer = sentence.is_question or sentence.text.startswith((UNKNOWN_ANSWER, "<"))
            # A sentence with only the question's own words repeats the question.
            if is_no_answer or not shared_stems or not new_stem_count:
                continue
            score = len(shared_stems) + SAME_MESSAGE_WORD_WEIGHT * len(near_stems - shared_stems)
            if score > len(question_stems) / 2 and (score, -new_stem_count) >= best_rank:
                best_rank, best_text = (score, -new_stem_count), sentence.text
    return best_text


def _split(text: str) -> tuple[Sentence, ...]:
    sentences = (raw.strip() for raw in _SENTENCE_END.split(text))
    pieces = (
        sentence[start : start + MAX_SENTENCE_CHARS].strip()
        for sentence in sentences
        for start in range(0, len(sentence), MAX_SENTENCE_CHARS)
    )
    return tuple(Sentence(piece, find_word_stems(piece), is_question(piece)) for piece in pieces if _WORD.search(piece))


_split_cached: Final = lru_cache(maxsize=4096)(_split)
