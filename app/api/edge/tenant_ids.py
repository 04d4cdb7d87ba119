"""Which tenant a credential or an end user is: digests with the server's pepper. Pure.

What is derived here is kept with every conversation: another pepper, or another form, and nobody finds theirs again.
"""

from __future__ import annotations

import hashlib
import hmac
from typing import Final

from app.conversation.api_keys import END_USER_MARK

TENANT_HEX: Final = 32
_CREDENTIAL: Final = b"concertina/tenant\0"
_END_USER: Final = b"concertina/end-user\0"


def tenant_of(credential: str, pepper: str) -> str:
    """The tenant that a client's credential stands for: 32 hex digits.

    Args:
        pepper: known to the server alone, so that a copy of the database does not tell who used which credential.
            Empty: the plain digest, as databases have it that are older than peppers.
    """
    named = _CREDENTIAL + credential.encode("utf-8", "surrogateescape")
    if not pepper:
        return hashlib.sha256(named).hexdigest()[:TENANT_HEX]
    return hmac.digest(pepper.encode(), named, "sha256").hex()[:TENANT_HEX]


def tenant_of_end_user(tenant: str, end_user: bytes, pepper: str) -> str:
    """The tenant of one end user of an application: the application's own and 32 hex digits, so that what concerns
    the application can still be found."""
    named = _END_USER + tenant.encode("utf-8", "surrogatepass") + b"\0" + end_user
    return f"{tenant}{END_USER_MARK}{hmac.digest(pepper.encode(), named, 'sha256').hex()[:TENANT_HEX]}"
