"""The token tables of OpenAI's encodings, shipped so that nothing is fetched at run time, and the encoding of each
model.

Tables and patterns are those of tiktoken (MIT, see LICENSE here). `tools/update_vocabulary.py` updates them.
"""

from __future__ import annotations

import binascii
import gzip
import hashlib
from dataclasses import dataclass
from functools import cache, lru_cache
from importlib.resources import files
from typing import Any, Final

import orjson


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """A byte-pair encoding: the pattern that cuts text into words, and the table by which words are merged."""

    name: str
    sha256: str
    """Digest of the unpacked table, as `tiktoken_ext.openai_public` pins it."""
    pattern: str

    def read_ranks(self) -> dict[bytes, int]:
        """Returns ranks by token bytes, from the table beside this file: some 200,000 entries, a few hundred
        milliseconds.

        Raises:
            ValueError: the table's digest is not the pinned one.
        """
        table = gzip.decompress(files(__name__).joinpath(f"{self.name}.tiktoken.gz").read_bytes())
        if hashlib.sha256(table).hexdigest() != self.sha256:
            raise ValueError(f"The token table of {self.name!r} is damaged; expected sha256 {self.sha256}.")
        lines = (line.split() for line in table.splitlines())
        return {binascii.a2b_base64(token): int(rank) for token, rank in lines}


_UPPER: Final = r"\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}"
_LOWER: Final = r"\p{Ll}\p{Lm}\p{Lo}\p{M}"
_CONTRACTION: Final = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)?"

VOCABULARIES: Final = {
    vocabulary.name: vocabulary
    for vocabulary in (
        Vocabulary(
            name="o200k_base",
            sha256="446a9538cb6c348e3516120d7c08b09f57c36495e2acfffe59a5bf8b0cfb1a2d",
            pattern="|".join(
                [
                    rf"[^\r\n\p{{L}}\p{{N}}]?[{_UPPER}]*[{_LOWER}]+{_CONTRACTION}",
                    rf"[^\r\n\p{{L}}\p{{N}}]?[{_UPPER}]+[{_LOWER}]*{_CONTRACTION}",
                    r"\p{N}{1,3}",
                    r" ?[^\s\p{L}\p{N}]+[\r\n/]*",
                    r"\s*[\r\n]+",
                    r"\s+(?!\S)",
                    r"\s+",
                ]
            ),
        ),
        Vocabulary(
            name="cl100k_base",
            sha256="223921b76ee99bde995b7ff738513eef100fb51d18c93597a113bcffe865b2a7",
            pattern="|".join(  # noqa: FLY002 - one alternative a line
                [
                    r"'(?i:[sdmt]|ll|ve|re)",
                    r"[^\r\n\p{L}\p{N}]?+\p{L}++",
                    r"\p{N}{1,3}+",
                    r" ?[^\s\p{L}\p{N}]++[\r\n]*+",
                    r"\s++$",
                    r"\s*[\r\n]",
                    r"\s+(?!\S)",
                    r"\s",
                ]
            ),
        ),
    )
}


@cache
def _load_model_encodings() -> dict[str, Any]:
    loaded: dict[str, Any] = orjson.loads(files(__name__).joinpath("models.json").read_bytes())
    return loaded


@lru_cache(maxsize=512)
def find_encoding_name(model: str) -> str:
    """Returns the name of a model's encoding; `o200k_base` for an unknown model.

    `provider/model`, fine-tunes (`ft:gpt-4o-mini:acme::id`) and dated versions (`gpt-4o-2024-08-06`) have the encoding
    of the model that they name: the longest prefix in models.json that ends at a word's end decides.
    """
    name = model.lower().rsplit("/", 1)[-1].removeprefix("ft:")
    known: dict[str, str] = _load_model_encodings()["prefixes"]
    prefixes = [one for one in known if name.startswith(one) and not name[len(one) : len(one) + 1].isalnum()]
    return known[max(prefixes, key=len)] if prefixes else str(_load_model_encodings()["default"])
