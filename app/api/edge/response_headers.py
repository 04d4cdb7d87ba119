"""Encodes response headers as ASGI takes them, pairs of bytes, and caches what it can."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

RawHeader = tuple[bytes, bytes]

MAX_CACHED_NAMES: Final = 256
"""The most cached header names. It is bounded since providers choose some of the names."""


class _HeaderNameCache(dict[str, bytes]):
    """A cache of encoded header names."""

    def __missing__(self, name: str) -> bytes:
        encoded = name.encode("latin-1")
        if len(self) < MAX_CACHED_NAMES:
            self[name] = encoded
        return encoded


_encoded_names: Final = _HeaderNameCache()


class ResponseHeaders:
    """The headers that all answers of one kind share, encoded once.

    Args:
        headers: values by lower-case name. An answer's own header of the same name replaces the shared one.
    """

    __slots__ = ("_headers",)

    def __init__(self, headers: Mapping[str, str]) -> None:
        self._headers = [(name, raw) for (name, _), raw in zip(headers.items(), _encode_headers(headers), strict=True)]

    def merge_headers(self, own_headers: Mapping[str, str]) -> list[RawHeader]:
        """Returns all headers of an answer: its own and the shared ones.

        Args:
            own_headers: values by lower-case name.
        """
        headers = _encode_headers(own_headers)
        for name, raw in self._headers:
            if name not in own_headers:
                headers.append(raw)
        return headers


def _encode_headers(headers: Mapping[str, str]) -> list[RawHeader]:
    return [(_encoded_names[name], value.encode("latin-1", "replace")) for name, value in headers.items()]
