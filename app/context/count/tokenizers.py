"""Counts tokens of a text: with tiktoken on the shipped tables, or with toktok-rs (same counts, faster) if it is
installed.

Loading a table takes a third of a second and 50 MB. It is loaded with the first count; a process that serves counts a
word before it serves.

Text that looks like a special token is text. Long texts are counted in pieces. This limits the cost of a text without a
single space, and avoids a panic of tiktoken (openai/tiktoken, pull request 587).
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from functools import cache, cached_property
from importlib import import_module
from typing import Any, Final

from app.context.count.vocabulary import VOCABULARIES

MAX_PIECE_CHARS: Final = 50_000
CUT_WINDOW_CHARS: Final = 2_000

try:  # the optional extra `fast`
    _toktok: Any = import_module("toktok")
except ImportError:
    _toktok = None

_WORD_END: Final = re.compile(
    r"""(?<=[^\W_])(?=[\s.,;:!?/(){}<>="_\[\]\-。，、！？；：「」])"""
    r"""|(?<=[A-Za-z])(?=[0-9])|(?<=[0-9])(?=[A-Za-z])"""
)
"""Matches where a word ends in both encodings, whatever surrounds it: after a letter or digit and before punctuation
(no apostrophe) or white space, and between a letter and a digit."""


class Tokenizer(ABC):
    """Counts tokens of one encoding; safe to use from several threads."""

    def __init__(self, name: str) -> None:
        self.name = name

    @abstractmethod
    def _load(self) -> Callable[[str], int]:
        """Returns what counts a text that is not too long, or raises `UnicodeEncodeError` for lone surrogates."""

    @cached_property
    def _count(self) -> Callable[[str], int]:
        return self._load()

    def count(self, text: str) -> int:
        """Returns the tokens of a text.

        Exact, with one exception: if a text of more than `MAX_PIECE_CHARS` has no word end within `CUT_WINDOW_CHARS` (a
        megabyte of one letter), it is cut inside a word, and each cut may add a few tokens. Characters that are not
        valid Unicode count as U+FFFD.
        """
        if len(text) > MAX_PIECE_CHARS:
            return sum(self._count(piece) for piece in split_at_word_ends(_replace_surrogates(text)))
        try:
            return self._count(text)
        # Lone surrogates are rare: they are looked for only if encoding fails.
        except UnicodeEncodeError:
            return self._count(_replace_surrogates(text))


class TiktokenTokenizer(Tokenizer):
    """Counts with tiktoken, the reference."""

    def _load(self) -> Callable[[str], int]:
        vocabulary = VOCABULARIES[self.name]
        tiktoken = import_module("tiktoken")  # when it is used: where toktok-rs is installed, it never is
        encoding = tiktoken.Encoding(
            self.name, pat_str=vocabulary.pattern, mergeable_ranks=vocabulary.read_ranks(), special_tokens={}
        )
        encoding._mergeable_ranks = {}  # 27 MB that only pickling needs: the encoder has a table of its own
        return lambda text: len(encoding.encode_ordinary(text))


class ToktokTokenizer(Tokenizer):
    """Counts with toktok-rs, which does not build a list of tokens."""

    def _load(self) -> Callable[[str], int]:
        # Its public batch_count takes 30 µs for a text of any length; the loaded encoding under 1 µs.
        count: Callable[[str], int] = _toktok._encoding(self.name).count
        return count


@cache
def load_tokenizer(encoding: str) -> Tokenizer:
    """Returns the fastest available tokenizer for an encoding.

    Raises:
        ValueError: the encoding is not one of `VOCABULARIES`.
    """
    if encoding not in VOCABULARIES:
        raise ValueError(f"Unknown encoding {encoding!r}; expected one of {', '.join(VOCABULARIES)}.")
    return TiktokenTokenizer(encoding) if _toktok is None else ToktokTokenizer(encoding)


def split_at_word_ends(text: str) -> Iterator[str]:
    """Yields a text in pieces of at most `MAX_PIECE_CHARS`, cut at word ends if there are any."""
    start = 0
    while len(text) - start > MAX_PIECE_CHARS:
        end = start + MAX_PIECE_CHARS
        cuts = [cut.start() for cut in _WORD_END.finditer(text, end - CUT_WINDOW_CHARS, end)]
        yield text[start : (end := cuts[-1] if cuts else end)]
        start = end
    yield text[start:]


def _replace_surrogates(text: str) -> str:
    """Returns the text with surrogate pairs joined and lone surrogates replaced."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    return text
