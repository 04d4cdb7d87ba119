"""Key → `Caller`. In mode `open` each credential that a client presents is a tenant of its own."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping

from app.exchange.request import Caller

ANONYMOUS = "anonymous"


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
