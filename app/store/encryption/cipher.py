"""Encrypts texts with AES-256-GCM, bound to the place where they are stored. Knows nothing of conversations.

A stored text names its key: `enc1:<name of the key>:<base64 of nonce and ciphertext>`. Text in any other form is plain
text from before encryption was switched on, and is returned unchanged.
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
SEALED_PREFIX: Final = b"enc1:"
_SEALED_PREFIX_TEXT: Final = SEALED_PREFIX.decode()
_KEY_NAME_PATTERN: Final = re.compile(rb"enc1:([A-Za-z0-9._-]{1,128}):")


class Cipher:
    """Encrypts with the active key, decrypts with every configured key. Any thread may use it."""

    def __init__(
        self, keys: Mapping[str, bytes], active_key: str | None, *, random_bytes: Callable[[int], bytes] = os.urandom
    ) -> None:
        """
        Args:
            keys: 32 bytes each, by names of letters, digits, `.`, `_` and `-`.
            active_key: the name of the key for encryption; None: store plain text.

        Raises:
            ValueError: a key has another length, or the active one is not among them.
        """
        for name, key in keys.items():
            if len(key) != KEY_BYTES:
                raise ValueError(f"The key {name!r} has {len(key)} bytes, expected {KEY_BYTES}.")
        if active_key is not None and active_key not in keys:
            raise ValueError(f"There is no key {active_key!r}.")
        self._keys: dict[bytes, Any] = {}
        self._tamper_error: type[Exception] | tuple[()] = ()
        if keys:  # by name, since those without any need not load the library, which has 6 MB
            aesgcm = import_module("cryptography.hazmat.primitives.ciphers.aead").AESGCM
            self._tamper_error = import_module("cryptography.exceptions").InvalidTag
            self._keys = {name.encode(): aesgcm(key) for name, key in keys.items()}
        self._active_key = None if active_key is None else active_key.encode()
        self._random_bytes = random_bytes

    @property
    def active_key(self) -> str | None:
        return None if self._active_key is None else self._active_key.decode()

    def seal(self, plain: bytes, associated_data: bytes) -> bytes:
        """Returns a text in the form in which it is stored.

        Args:
            associated_data: names the place of the text; it can be decrypted for no other place.
        """
        if self._active_key is None:
            return plain
        nonce = self._random_bytes(NONCE_BYTES)
        sealed: bytes = nonce + self._keys[self._active_key].encrypt(nonce, plain, associated_data)
        return SEALED_PREFIX + self._active_key + b":" + b2a_base64(sealed, newline=False)

    def unseal(self, stored: bytes, associated_data: bytes) -> bytes:
        """Returns the text that was stored at a place.

        Raises:
            StoreUnreadable: its key is not configured; or the text was altered, or stored at another place.
        """
        parts = _parse_sealed(stored)
        # Plain text, or text that only looks sealed.
        if parts is None:
            return stored
        name, sealed = parts
        key = self._keys.get(name)
        if key is None:
            raise StoreUnreadable(
                f"Stored data is encrypted with the key {name.decode()!r}, which is not configured.",
                hint=f"Add it as `encryption.keys.{name.decode()}`; after `concertina reencrypt` it is not needed.",
            )
        try:
            plain: bytes = key.decrypt(sealed[:NONCE_BYTES], sealed[NONCE_BYTES:], associated_data)
        except self._tamper_error as error:
            raise StoreUnreadable(
                f"Stored data cannot be decrypted with the key {name.decode()!r}: it was altered or moved, "
                "or another key has this name now."
            ) from error
        return plain

    def is_in_current_form(self, stored: bytes) -> bool:
        """Whether a text is stored in the form in which it would be stored now: under the active key, or plain if there
        is none.
        """
        return read_key_name(stored) == self.active_key


def is_sealed(stored: bytes) -> bool:
    """Whether a stored text may be encrypted. Looks at the prefix only, so it is cheap."""
    return stored.startswith(SEALED_PREFIX)


def is_sealed_text(stored: str) -> bool:
    """As `is_sealed`, for a `str`."""
    return stored.startswith(_SEALED_PREFIX_TEXT)


def read_key_name(stored: bytes) -> str | None:
    """Returns the name of the key with which a stored text is encrypted; None for plain text."""
    parts = _parse_sealed(stored)
    return None if parts is None else parts[0].decode()


def _parse_sealed(stored: bytes) -> tuple[bytes, bytes] | None:
    """Returns the name of the key, and nonce with ciphertext; None for plain text."""
    named = _KEY_NAME_PATTERN.match(stored) if stored.startswith(SEALED_PREFIX) else None
    if named is None:
        return None
    try:
        # msgspec reads base64 four times as fast as the standard library.
        sealed = msgspec.convert(str(stored[named.end() :], "ascii"), bytes)
    except (UnicodeDecodeError, msgspec.ValidationError):
        return None
    # Shorter than any ciphertext: plain text that begins like one.
    return (named.group(1), sealed) if len(sealed) >= NONCE_BYTES + TAG_BYTES else None
