"""Texts and messages that weigh exactly as many tokens as a scenario says, and mention nothing that must survive."""

from __future__ import annotations

from functools import cache
from itertools import cycle, islice
from typing import Any, Final

from app.context.count.tokenizers import load_tokenizer
from tests.support.chat_counter import ChatCounter

COUNTER: Final = ChatCounter(load_tokenizer("o200k_base"))
_WORDS: Final = (
    " garden",
    " river",
    " window",
    " table",
    " letter",
    " morning",
    " paper",
    " music",
    " winter",
    " bread",
)
"""One token each."""


@cache
def text(tokens: int, opening: str) -> str:
    """A text of exactly `tokens` tokens that begins with `opening`."""
    missing = tokens - COUNTER.count(opening)
    while missing >= 0:
        made = opening + "".join(islice(cycle(_WORDS), missing))
        off = tokens - COUNTER.count(made)
        if not off:
            return made
        missing += off
    raise ValueError(f"{opening!r} alone takes more than {tokens} tokens")


def message(role: str, tokens: int, opening: str, **fields: Any) -> dict[str, Any]:
    """A message of exactly `tokens` tokens, its overhead included."""
    bare = {"role": role, "content": "", **fields}
    return {**bare, "content": text(tokens - COUNTER.count_message(bare), opening)}


def weight(messages: list[dict[str, Any]], tools: list[dict[str, Any]] | None = None) -> int:
    """What a prompt of these messages takes."""
    return COUNTER.count_request(messages, tools=tools)
