"""Key → `Caller`. In mode `open` each credential that a client presents is a tenant of its own."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping

from app.conversation.keys import Scope
from app.exchange.request import Caller

ANONYMOUS = "anonymous"


class Auth:
    """Says who asks, and whether they may."""

    async def caller(self, headers: Mapping[str, str], needs: Scope) -> Caller:
        """The caller behind a request.

        Args:
            headers: lower-case names.
            needs: what the caller wants to do.

        Raises:
            InvalidApiKey: there is no such key, or it is no longer valid.
            InsufficientPermissions: its key does not allow that.
        """
        return authenticate(headers)


def authenticate(headers: Mapping[str, str]) -> Caller:
    """The caller behind a request: the tenant is a digest of its credential, which is passed on but never stored.

    Args:
        headers: lower-case names.
    """
    authorization, api_key = headers.get("authorization"), headers.get("api-key")
    credential = authorization or api_key
    if not credential:
        return Caller(tenant=ANONYMOUS)
    digest = hashlib.sha256(b"concertina/tenant\0" + credential.encode("utf-8", "surrogateescape"))
    return Caller(tenant=digest.hexdigest()[:32], authorization=authorization or f"Bearer {api_key}")
