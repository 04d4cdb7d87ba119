"""Simulated prompt caches: what providers read of a prompt from their cache and write to it, by three rules. Pure.

`prefix`: the longest beginning of an earlier prompt, in steps of 128 tokens. `breakpoints`: what ended at a breakpoint,
and does again. `anthropic`: what ended at a mark, up to 20 blocks before a mark. Sources: OpenAI's and Anthropic's
guides "Prompt caching".
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import accumulate
from typing import Any, Final, Literal, NamedTuple

import orjson

from app.errors import InvalidRequest

CacheRule = Literal["none", "prefix", "breakpoints", "anthropic"]
MIN_CACHED_TOKENS: Final = 1024
STEP_TOKENS: Final = 128
STEP_CHARS: Final = 4 * STEP_TOKENS
PREFIX_SECONDS: Final = 600
LOOKED_BACK_BLOCKS: Final = 20
MAX_WRITES: Final = 4
BREAKPOINT_SECONDS: Final = {"30m": 1800, "12h": 43_200}
ANTHROPIC_SECONDS: Final = {"5m": 300, "1h": 3600}
MARK_FIELDS: Final = ("prompt_cache_breakpoint", "cache_control")


class PromptPiece(NamedTuple):
    """A part of a prompt after which a mark may stand."""

    text: str
    seconds: int | None = None
    """For how long the mark after the piece keeps the prompt; None: there is no mark."""


class CacheUse(NamedTuple):
    """Tokens of a prompt."""

    read: int = 0
    written: int = 0
    long_written: int = 0
    """Those of `written` that are kept for the longer of two lifetimes."""


NO_CACHE_USE: Final = CacheUse()


class PromptCache:
    """Remembers beginnings of prompts until they were not read for their lifetime.

    Args:
        rule: what is found again.
        clock: seconds.
    """

    def __init__(self, rule: CacheRule, clock: Callable[[], float]) -> None:
        self._rule = rule
        self._clock = clock
        self._entries: dict[bytes, tuple[float, int, int]] = {}
        """By the digest of the beginning: when it ends, its lifetime, its tokens."""

    def read_and_write(self, pieces: Sequence[PromptPiece], prompt_tokens: int) -> CacheUse:
        """Returns what a prompt reads and writes, and remembers it."""
        if self._rule == "none" or not pieces:
            return NO_CACHE_USE
        if self._rule == "prefix":
            text = "".join(piece.text for piece in pieces)
            steps = range(STEP_CHARS, len(text) + 1, STEP_CHARS)
            pieces = [PromptPiece(text[at - STEP_CHARS : at], PREFIX_SECONDS) for at in steps]
            ends = [prompt_tokens * at // len(text) // STEP_TOKENS * STEP_TOKENS for at in steps]
        else:
            chars = list(accumulate(len(piece.text) for piece in pieces))
            ends = [prompt_tokens * at // chars[-1] for at in chars]
        digests = list(_digest_beginnings(pieces))
        marks = [at for at, piece in enumerate(pieces) if piece.seconds is not None and ends[at] >= MIN_CACHED_TOKENS]
        now = self._clock()
        looked_back = LOOKED_BACK_BLOCKS if self._rule == "anthropic" else 0
        places = {at for mark in marks for at in range(max(0, mark - looked_back), mark + 1)}
        found = [at for at in sorted(places) if self._entries.get(digests[at], (0.0, 0, 0))[0] > now]
        read = min(prompt_tokens, self._entries[digests[found[-1]]][2]) if found else 0
        for at in found:
            _, seconds, tokens = self._entries[digests[at]]
            self._entries[digests[at]] = (now + seconds, seconds, tokens)
        new = [at for at in marks if not found or at > found[-1]]
        for at in new if self._rule == "prefix" else new[-MAX_WRITES:]:
            seconds = pieces[at].seconds or 0
            self._entries[digests[at]] = (now + seconds, seconds, ends[at])
        written = max(0, ends[new[-1]] - read) if new and self._rule != "prefix" else 0
        is_long = bool(new) and pieces[new[-1]].seconds == ANTHROPIC_SECONDS["1h"]
        return CacheUse(read, written, written if is_long and self._rule == "anthropic" else 0)


def list_chat_pieces(body: Mapping[str, Any]) -> list[PromptPiece]:
    """Returns tools and parts of messages in the order of the prompt. An implicit breakpoint stands at the end.

    Raises:
        InvalidRequest: a breakpoint or an option that OpenAI refuses.
    """
    options = body.get("prompt_cache_options") or {}
    usual: str = options.get("ttl", "30m")
    pieces = [PromptPiece(_encode(tool)) for tool in body.get("tools") or ()]
    for message in body["messages"]:
        content = message.get("content") or ()
        pieces.append(PromptPiece(_encode({**message, "content": None})))
        parts: Sequence[Any] = [{"type": "text", "text": content}] if isinstance(content, str) else content
        for part in parts:
            mark = part.get("prompt_cache_breakpoint")
            seconds = None if mark is None else BREAKPOINT_SECONDS.get(mark.get("ttl", usual))
            if mark is not None and (mark.get("mode") != "explicit" or seconds is None):
                raise InvalidRequest("Invalid value for `prompt_cache_breakpoint`.", code="invalid_value")
            pieces.append(PromptPiece(_encode(part), seconds))
    if pieces and pieces[-1].seconds is None and options.get("mode") != "explicit":
        pieces[-1] = pieces[-1]._replace(seconds=BREAKPOINT_SECONDS[usual])
    return pieces


def refuse_breakpoints(body: Mapping[str, Any]) -> None:
    """Refuses what only models from gpt-5.6 on take, in OpenAI's words.

    Raises:
        InvalidRequest: the request sets breakpoints.
    """
    for field in ("prompt_cache_options", "prompt_cache_breakpoint"):
        if f'"{field}"'.encode() in orjson.dumps([body.get("messages"), *body]):
            raise InvalidRequest(f"Unknown parameter: '{field}'.", code="unknown_parameter", param=field)


def list_messages_pieces(blocks: Iterator[Mapping[str, Any]]) -> list[PromptPiece]:
    """Returns the tools and blocks of a Messages request."""
    marks = ((block, block.get("cache_control")) for block in blocks)
    return [PromptPiece(_encode(block), mark and ANTHROPIC_SECONDS[mark.get("ttl", "5m")]) for block, mark in marks]


def _digest_beginnings(pieces: Sequence[PromptPiece]) -> Iterator[bytes]:
    digest = hashlib.sha256()
    for piece in pieces:
        digest.update(piece.text.encode())
        yield digest.digest()


def _encode(value: Mapping[str, Any]) -> str:
    unmarked = {name: inner for name, inner in value.items() if name not in MARK_FIELDS}
    return orjson.dumps(unmarked, option=orjson.OPT_SORT_KEYS).decode()
