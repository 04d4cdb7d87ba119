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
import orjson

from app.errors import StoreUnreadable

NONCE_BYTES: Final = 12
"""Random, as NIST SP 800-38D 8.2.2 allows for up to 2^32 texts under one key."""
TAG_BYTES: Final = 16
SEALED_PREFIX: Final = b"enc1:"
Place = tuple[str, ...]
"""Names where a text is stored: the kind of text, the tenant, then what distinguishes texts of this kind."""
_KEY_NAME_PATTERN: Final = re.compile(rb"enc1:([A-Za-z0-9._-]{1,128}):")


class Cipher:
    """Encrypts with the active key, decrypts with every key. Any thread may use it.

    Args:
        keys: 32 bytes each, by names of letters, digits, `.`, `_` and `-`.
        active_key: the name of the key for encryption; None: store plain text.
    """

    def __init__(
        self, keys: Mapping[str, bytes], active_key: str | None, *, random_bytes: Callable[[int], bytes] = os.urandom
    ) -> None:
        self.active_key = active_key
        self._random_bytes = random_bytes
        self._keys: dict[str, Any] = {}
        self._tamper_error: type[Exception] | tuple[()] = ()
        if keys:  # by name, since those without any need not load the library, which has 6 MB
            aesgcm = import_module("cryptography.hazmat.primitives.ciphers.aead").AESGCM
            self._tamper_error = import_module("cryptography.exceptions").InvalidTag
            self._keys = {name: aesgcm(key) for name, key in keys.items()}

    def seal(self, plain: bytes, place: Place) -> bytes:
        """Returns a text in the form in which it is stored.

        Args:
            place: where the text is stored. It can be decrypted for no other place.
        """
        if self.active_key is None:
            return plain
        nonce = self._random_bytes(NONCE_BYTES)
        sealed = nonce + self._keys[self.active_key].encrypt(nonce, plain, _encode_place(place))
        return b"%b%b:%b" % (SEALED_PREFIX, self.active_key.encode(), b2a_base64(sealed, newline=False))

    def unseal(self, stored: bytes, place: Place) -> bytes:
        """Returns the text that was stored at a place. Plain text, also if it only looks sealed, is returned itself.

        Raises:
            StoreUnreadable: its key is not configured; or the text was altered, or stored at another place.
        """
        named = _KEY_NAME_PATTERN.match(stored)
        if named is None:
            return stored
        try:
            # msgspec reads base64 four times as fast as the standard library.
            sealed = msgspec.convert(str(stored[named.end() :], "ascii"), bytes)
        except (UnicodeDecodeError, msgspec.ValidationError):
            return stored
        if len(sealed) < NONCE_BYTES + TAG_BYTES:
            return stored
        name = named[1].decode()
        key = self._keys.get(name)
        if key is None:
            raise StoreUnreadable(
                f"Stored data is encrypted with the key {name!r}, which is not configured.",
                hint=f"Add it as `encryption.keys.{name}`; after `concertina reencrypt` it is not needed.",
            )
        try:
            plain: bytes = key.decrypt(sealed[:NONCE_BYTES], sealed[NONCE_BYTES:], _encode_place(place))
        except self._tamper_error as error:
            raise StoreUnreadable(
                f"Stored data cannot be decrypted with the key {name!r}: it was altered or moved, "
                "or another key has this name now."
            ) from error
        return plain


def _encode_place(place: Place) -> bytes:
    """Returns a place as AES-GCM takes it: the associated data."""
    return orjson.dumps(("concertina", *place))
