"""Texts under a key: AES-256-GCM, bound to the place they belong to. Knows nothing of conversations.

What is written says by itself how: `enc1:<name of the key>:<base64 of nonce and ciphertext>`. Whatever does not look
like that is plain text from before encryption was switched on, and is read as it is.
"""

from __future__ import annotations

import os
import re
from binascii import b2a_base64
from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any, Final

import msgspec

from app.errors import StoreUnreadable

KEY_BYTES: Final = 32
NONCE_BYTES: Final = 12
"""Random, as NIST SP 800-38D 8.2.2 allows for up to 2^32 texts under one key."""
TAG_BYTES: Final = 16
PREFIX: Final = b"enc1:"
_PREFIX_TEXT: Final = PREFIX.decode()
_NAME: Final = re.compile(rb"enc1:([A-Za-z0-9._-]{1,128}):")


class Cipher:
    """Writes under the active key, reads under every key it has. Any thread may use it."""

    def __init__(
        self, keys: Mapping[str, bytes], active: str | None, *, random_bytes: Callable[[int], bytes] = os.urandom
    ) -> None:
        """
        Args:
            keys: 32 bytes each, by names of letters, digits, `.`, `_` and `-`.
            active: the one to write with; None: write plain text.

        Raises:
            ValueError: a key has another length, or the active one is not among them.
        """
        for name, key in keys.items():
            if len(key) != KEY_BYTES:
                raise ValueError(f"The key {name!r} has {len(key)} bytes, expected {KEY_BYTES}.")
        if active is not None and active not in keys:
            raise ValueError(f"There is no key {active!r}.")
        self._keys: dict[bytes, Any] = {}
        self._altered: type[Exception] | tuple[()] = ()
        if keys:  # by name, since those without any need not load the library, which has 6 MB
            aesgcm = import_module("cryptography.hazmat.primitives.ciphers.aead").AESGCM
            self._altered = import_module("cryptography.exceptions").InvalidTag
            self._keys = {name.encode(): aesgcm(key) for name, key in keys.items()}
        self._active = None if active is None else active.encode()
        self._random_bytes = random_bytes

    @property
    def active(self) -> str | None:
        return None if self._active is None else self._active.decode()

    def seal(self, plain: bytes, place: bytes) -> bytes:
        """A text as it is to be stored.

        Args:
            place: where it belongs (associated data): it can be read nowhere else.
        """
        if self._active is None:
            return plain
        nonce = self._random_bytes(NONCE_BYTES)
        sealed: bytes = nonce + self._keys[self._active].encrypt(nonce, plain, place)
        return PREFIX + self._active + b":" + b2a_base64(sealed, newline=False)

    def open(self, stored: bytes, place: bytes) -> bytes:
        """The text that was stored at a place.

        Raises:
            StoreUnreadable: its key is not among ours; or it was altered, or stored at another place.
        """
        parts = _parts(stored)
        if parts is None:
            return stored
        name, sealed = parts
        key = self._keys.get(name)
        if key is None:
            raise StoreUnreadable(
                f"What is stored is encrypted with the key {name.decode()!r}, which is not configured.",
                hint=f"Add it as `encryption.keys.{name.decode()}`; after `concertina reencrypt` it is not needed.",
            )
        try:
            plain: bytes = key.decrypt(sealed[:NONCE_BYTES], sealed[NONCE_BYTES:], place)
        except self._altered as error:
            raise StoreUnreadable(
                f"What is stored cannot be decrypted with the key {name.decode()!r}: it was altered or moved, "
                "or another key has this name now."
            ) from error
        return plain

    def is_current(self, stored: bytes) -> bool:
        """Whether a text is stored as it would be written now: under the active key, or plain while there is none."""
        return key_name_of(stored) == self.active


def is_sealed(stored: bytes) -> bool:
    """Whether a stored text may be under a key. Cheap."""
    return stored.startswith(PREFIX)


def is_sealed_text(stored: str) -> bool:
    """The same of a text that was read as such."""
    return stored.startswith(_PREFIX_TEXT)


def key_name_of(stored: bytes) -> str | None:
    """The name of the key that a stored text is under; None of a plain one."""
    parts = _parts(stored)
    return None if parts is None else parts[0].decode()


def _parts(stored: bytes) -> tuple[bytes, bytes] | None:
    """The key's name, and nonce with ciphertext; None of plain text."""
    named = _NAME.match(stored) if stored.startswith(PREFIX) else None
    if named is None:
        return None
    try:
        # msgspec reads base64 four times as fast as the standard library.
        sealed = msgspec.convert(str(stored[named.end() :], "ascii"), bytes)
    except (UnicodeDecodeError, msgspec.ValidationError):
        return None
    return (named.group(1), sealed) if len(sealed) >= NONCE_BYTES + TAG_BYTES else None
