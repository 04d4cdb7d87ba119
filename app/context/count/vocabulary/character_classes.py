r"""Maps characters to the classes that the encodings' patterns distinguish. `re` knows no `\p{L}`: each character
beyond ASCII is replaced by one that stands for its class, and the patterns use those.
"""

from __future__ import annotations

import unicodedata
from typing import Final

_UPPER, _LOWER, _LETTER, _MARK, _NUMBER, _SPACE, _OTHER, _UNSURE = "\ue000\ue001\ue002\ue003\ue004\ue005\ue006\ue007"
_LONG_S: Final = "\u017f"
"""A small letter that equals `s` where case is ignored, so it is not replaced."""

UPPER: Final = f"A-Z{_UPPER}{_LETTER}{_MARK}"
LOWER: Final = f"a-z{_LONG_S}{_LOWER}{_LETTER}{_MARK}"
LETTER: Final = f"A-Za-z{_LONG_S}{_UPPER}{_LOWER}{_LETTER}"
NUMBER: Final = f"0-9{_NUMBER}"
SPACE: Final = f"\\t-\\r {_SPACE}"
"""The content of a bracketed class. `UPPER` and `LOWER` share marks and the letters without case."""

_CLASS_BY_CATEGORY: Final = {"Lu": _UPPER, "Lt": _UPPER, "Ll": _LOWER, "Lm": _LETTER, "Lo": _LETTER}
_WHITE_SPACE: Final = frozenset("\x85\xa0\u1680\u2028\u2029\u202f\u205f\u3000").union(map(chr, range(0x2000, 0x200B)))
_LAST_ASCII: Final = 0x7F
_LAST_OF_PLANE: Final = 0xFFFF


def replace_characters_by_class(text: str) -> str | None:
    """Returns a text of the same length in which the patterns for `re` find the same words; None if the text has
    characters that versions of Unicode classify differently.
    """
    if text.isascii():
        return text
    put = text.translate(_CHARACTER_CLASSES)
    return None if _UNSURE in put else put


class _CharacterClasses(dict[int, str]):
    """Maps a character to its class; computed when the character first occurs."""

    def __missing__(self, code: int) -> str:
        found = self[code] = _find_character_class(chr(code))
        return found


def _find_character_class(character: str) -> str:
    if ord(character) <= _LAST_ASCII or character == _LONG_S:
        return character
    if character in _WHITE_SPACE:
        return _SPACE
    category = unicodedata.category(character)
    if category in ("Cn", "Cs") or (category[0] in "LMN" and ord(character) > _LAST_OF_PLANE):
        return _UNSURE
    if category[0] in "MN":
        return _MARK if category[0] == "M" else _NUMBER
    return _CLASS_BY_CATEGORY.get(category, _OTHER)


_CHARACTER_CLASSES: Final = _CharacterClasses()
