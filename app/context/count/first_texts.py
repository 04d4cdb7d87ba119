"""Exact counts for the first texts of a process, from a table that costs nothing to load.

A tokenizer's own table takes a third of a second to load and more than 60 MB. A process that has hardly anything to
count does without: this one merges byte pairs in Python, a thousand times slower than they do, and gives up when there
is more to count than that is good for.
"""

from __future__ import annotations

import re
from typing import Final

from app.context.count.vocabulary import VOCABULARIES
from app.context.count.vocabulary.character_classes import classified

TEXT_CHARS: Final = 8_192
"""Of one text, at most: some milliseconds."""
WORD_BYTES: Final = 200
"""Merging takes the square of a word's length."""
ALL_CHARS: Final = 65_536
"""Of a process, at most."""
NO_TOKEN: Final = 1 << 24
"""Above every rank."""


class FirstTexts:
    """Counts short texts until it has counted enough; safe to use from several threads."""

    def __init__(self, encoding: str) -> None:
        vocabulary = VOCABULARIES[encoding]
        self._words = re.compile(vocabulary.class_pattern)
        self._rank = vocabulary.lookup().rank
        self._known: dict[str, int] = {}
        self._left_chars = ALL_CHARS

    def count(self, text: str) -> int | None:
        """Tokens of a text; None: this text, or this process by now, deserves the real table."""
        length = len(text)
        if length > TEXT_CHARS or length > self._left_chars or (classes := classified(text)) is None:
            return None
        self._left_chars -= length
        known, tokens = self._known, 0
        for found in self._words.finditer(classes):
            word = text[found.start() : found.end()]
            count = known.get(word)
            if count is None:
                written = word.encode()
                if len(written) > WORD_BYTES:
                    return None
                count = known[word] = self._tokens(written)
            tokens += count
        return tokens

    def _tokens(self, word: bytes) -> int:
        """Tokens of a word: the adjacent pair that is the earliest token is joined until no pair is one."""
        if self._rank(word) is not None:
            return 1
        starts = list(range(len(word) + 1))
        ranks = [self._joined(word[at : at + 2]) for at in range(len(word) - 1)]
        while ranks and (lowest := min(ranks)) < NO_TOKEN:
            at = ranks.index(lowest)
            del starts[at + 1], ranks[at]
            for pair in (at - 1, at):
                if 0 <= pair < len(ranks):
                    ranks[pair] = self._joined(word[starts[pair] : starts[pair + 2]])
        return len(starts) - 1

    def _joined(self, pair: bytes) -> int:
        rank = self._rank(pair)
        return NO_TOKEN if rank is None else rank
