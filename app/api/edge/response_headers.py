"""Headers of an answer as a server takes them: pairs of bytes, made as seldom as can be."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

RawHeader = tuple[bytes, bytes]

MAX_CACHED_NAMES: Final = 256
"""Of headers whose bytes are remembered: providers name some of them."""


class _EncodedNames(dict[str, bytes]):
    """Names of headers, encoded once."""

    def __missing__(self, name: str) -> bytes:
        encoded = name.encode("latin-1")
        if len(self) < MAX_CACHED_NAMES:
            self[name] = encoded
        return encoded


_encoded_names: Final = _EncodedNames()


class ResponseHeaders:
    """The headers that all answers of a kind have.

    Args:
        headers: lower-case names. An answer's own header of that name stands in its place.
    """

    __slots__ = ("_headers",)

    def __init__(self, headers: Mapping[str, str]) -> None:
        self._headers = [(name, raw) for (name, _), raw in zip(headers.items(), _encode_headers(headers), strict=True)]

    def merge_headers(self, own_headers: Mapping[str, str]) -> list[RawHeader]:
        """All headers of an answer that has these of its own."""
        headers = _encode_headers(own_headers)
        for name, raw in self._headers:
            if name not in own_headers:
                headers.append(raw)
        return headers


def _encode_headers(headers: Mapping[str, str]) -> list[RawHeader]:
    return [(_encoded_names[name], value.encode("latin-1", "replace")) for name, value in headers.items()]
