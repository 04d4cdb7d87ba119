"""Counts the first texts of a process exactly, from a table that costs nothing to load.

A tokenizer's own table takes a third of a second to load and more than 60 MB. A process that counts hardly anything
does not need it. This counter merges byte pairs in Python, a thousand times slower than a tokenizer, and stops when
there is more to count than that is good for.
"""

from __future__ import annotations

import re
from typing import Final

from app.context.count.vocabulary import VOCABULARIES
from app.context.count.vocabulary.character_classes import replace_characters_by_class

MAX_TEXT_CHARS: Final = 8_192
"""The longest text that is counted here: some milliseconds."""
MAX_WORD_BYTES: Final = 200
"""The longest word: merging takes the square of a word's length."""
MAX_PROCESS_CHARS: Final = 65_536
"""The most characters that are counted here in a process."""
NO_TOKEN_RANK: Final = 1 << 24
"""Above every rank: this pair of bytes is no token."""


class StartupTokenCounter:
    """Counts short texts until `MAX_PROCESS_CHARS` are counted. Safe to use from several threads."""

    def __init__(self, encoding: str) -> None:
        vocabulary = VOCABULARIES[encoding]
        self._word_pattern = re.compile(vocabulary.class_pattern)
        self._find_rank = vocabulary.read_rank_lookup().find_rank
        self._cached_word_tokens: dict[str, int] = {}
        self._remaining_chars = MAX_PROCESS_CHARS

    def count(self, text: str) -> int | None:
        """Returns the tokens of a text; None if the text, or the process by now, needs the real table."""
        length = len(text)
        if (
            length > MAX_TEXT_CHARS
            or length > self._remaining_chars
            or (classes := replace_characters_by_class(text)) is None
        ):
            return None
        self._remaining_chars -= length
        known, tokens = self._cached_word_tokens, 0
        for found in self._word_pattern.finditer(classes):
            word = text[found.start() : found.end()]
            count = known.get(word)
            if count is None:
                written = word.encode()
                if len(written) > MAX_WORD_BYTES:
                    return None
                count = known[word] = self._count_word_tokens(written)
            tokens += count
        return tokens

    def _count_word_tokens(self, word: bytes) -> int:
        """Returns the tokens of a word. The adjacent pair with the lowest rank is merged until no pair is a token."""
        if self._find_rank(word) is not None:
            return 1
        starts = list(range(len(word) + 1))
        ranks = [self._find_pair_rank(word[index : index + 2]) for index in range(len(word) - 1)]
        while ranks and (lowest := min(ranks)) < NO_TOKEN_RANK:
            index = ranks.index(lowest)
            del starts[index + 1], ranks[index]
            for pair in (index - 1, index):
                if 0 <= pair < len(ranks):
                    ranks[pair] = self._find_pair_rank(word[starts[pair] : starts[pair + 2]])
        return len(starts) - 1

    def _find_pair_rank(self, pair: bytes) -> int:
        rank = self._find_rank(pair)
        return NO_TOKEN_RANK if rank is None else rank
