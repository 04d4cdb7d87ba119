"""Who summarizes: a sane stand-in, one that writes nonsense of the right size, and one that always fails."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from functools import cache
from typing import Any, Final

from app.context.count.tokenizers import load_tokenizer
from tests.benchmarks.quality.texts import Prose, text_of
from tests.support.chat_counter import ChatCounter

Summaries = Callable[[Mapping[str, Any]], str | None]
"""From the body of a summary call to its answer; None for an error 500."""

COUNTER: Final = ChatCounter(load_tokenizer("o200k_base"))
DEFAULT_TOKENS: Final = 512
FILL: Final = 0.9
"""Of the allowance that a summary uses: a model that is cut off ends with `length`."""
LOREM: Final = (
    "lorem ipsum dolor sit amet consectetur adipiscing elit sed do eiusmod tempor incididunt ut labore et dolore magna "
    "aliqua ut enim ad minim veniam quis nostrud exercitation ullamco laboris nisi ut aliquip ex ea commodo consequat "
)
ORDINARY_WORDS: Final = 120

_SENTENCE_END: Final = re.compile(r"(?<=[.!?])\s+|\n+")
_FENCE: Final = re.compile(r"^<(\w+) [0-9a-f]{8}>$", re.MULTILINE)
_MARK_LINE: Final = re.compile(r"^(?:--- |</?\w+ )[0-9a-f]{8}\b.*$", re.MULTILINE)
"""Which names a speaker, or closes the fence."""
_TELLING: Final = re.compile(r"\d[\d.,:]*|(?<=[a-z,;] )[A-Z][\w-]+|[\w-]+[_/@][\w/.@-]+|\"[^\"]+\"")


def extractive(body: Mapping[str, Any]) -> str:
    """The sentences that hold most numbers and names for their length, in their order, within the allowance."""
    sentences = list(dict.fromkeys(one.strip() for one in _SENTENCE_END.split(_material(body)) if one.strip()))
    ranked = sorted(range(len(sentences)), key=lambda at: -_worth(sentences[at]))
    left = allowance(body) * FILL
    chosen: list[int] = []
    for at in ranked:
        tokens = COUNTER.count(sentences[at]) + 1
        if tokens <= left:
            chosen.append(at)
            left -= tokens
        if left < 8:
            break
    return " ".join(sentences[at] for at in sorted(chosen)) or "Nothing of note was said."


def nonsense(body: Mapping[str, Any]) -> str:
    """Words without meaning that fill the allowance, after a word of the material: without one it would be refused."""
    return f"{_longest_word(body)} {_lorem(int(allowance(body) * FILL))}"


def failing(body: Mapping[str, Any]) -> None:
    """No summary, ever."""
    return


def ordinary(body: Mapping[str, Any]) -> str:
    """About 120 words, the same for the same call."""
    words = Prose(len(_material(body))).of(ORDINARY_WORDS * 7).split()
    return " ".join([_longest_word(body), *words[: ORDINARY_WORDS - 1]])


SUMMARIES: Final[Mapping[str, Summaries]] = {"extractive": extractive, "nonsense": nonsense, "failing": failing}


def allowance(body: Mapping[str, Any]) -> int:
    """How many tokens the answer to a call may have."""
    return int(body.get("max_tokens") or body.get("max_completion_tokens") or DEFAULT_TOKENS)


@cache
def _lorem(tokens: int) -> str:
    words = (LOREM * (1 + tokens // COUNTER.count(LOREM))).split()
    while COUNTER.count(" ".join(words)) > tokens:
        words.pop()
    return " ".join(words)


def _material(body: Mapping[str, Any]) -> str:
    """What is to be summarized: a fenced transcript, or the conversation before the instruction."""
    spoken = [text_of(message.get("content")) for message in body["messages"] if message.get("role") != "system"]
    if len(spoken) > 1:
        return "\n".join(spoken[:-1])
    fence = _FENCE.search(spoken[0])
    return _MARK_LINE.sub("", spoken[0][fence.end() :]) if fence else spoken[0]


def _longest_word(body: Mapping[str, Any]) -> str:
    return max(dict.fromkeys(re.findall(r"[a-z]{4,20}", _material(body)[-2_000:])), key=len, default="")


def _worth(sentence: str) -> float:
    return len(_TELLING.findall(sentence)) / (len(sentence) + 20)
