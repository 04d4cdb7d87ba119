"""A key to encrypt with, as operators write it: 32 bytes in base64 of either alphabet, or in hex."""

from __future__ import annotations

import re
from base64 import b64decode
from typing import Annotated

from pydantic import AfterValidator, SecretStr

KEY_BYTES = 32


def _in_hex(secret: SecretStr) -> SecretStr:
    text = secret.get_secret_value().strip()
    try:
        key = bytes.fromhex(text) if re.fullmatch(r"[0-9A-Fa-f]{64}", text) else b64decode(_padded(text), validate=True)
    except ValueError:
        key = b""
    if len(key) != KEY_BYTES:
        raise ValueError(
            f"expected a key of {KEY_BYTES} bytes in base64 or hex; make one with `openssl rand -base64 {KEY_BYTES}`"
        )
    return SecretStr(key.hex())


def _padded(text: str) -> str:
    bare = text.rstrip("=").replace("-", "+").replace("_", "/")
    return bare + "=" * (-len(bare) % 4)


EncryptionKey = Annotated[SecretStr, AfterValidator(_in_hex)]
"""In hex, however it was written."""
