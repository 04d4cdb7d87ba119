"""Chooses the tenant of an operator's request: of the holder of the operator's token, and of an API key with scope
`admin`, who may act for every tenant."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

from msgspec.structs import replace

from app.conversation.api_keys import SCOPES, is_context_tenant
from app.errors import InvalidRequest
from app.pipeline.turn.chat_request import Caller

TENANT_HEADER: Final = "x-concertina-tenant"
"""The header in which an operator names the tenant that a request is about."""
ALL_TENANTS: Final = "*"
_TENANT_PATTERN: Final = re.compile(r"[\x21-\x7e]{1,200}")


def choose_tenant(caller: Caller, headers: Mapping[str, str]) -> Caller:
    """Returns an operator with every scope, in the tenant that the header names.

    Raises:
        InvalidRequest: the header names no tenant.
    """
    named = headers.get(TENANT_HEADER)
    if named is None or named == ALL_TENANTS:
        sees_all = named is not None
        return replace(caller, scopes=SCOPES, sees_all_tenants=sees_all, may_see_all_tenants=not sees_all)
    if not _TENANT_PATTERN.fullmatch(named) or is_context_tenant(named):
        raise InvalidRequest(
            "The header `X-Concertina-Tenant` names no tenant.",
            hint="Send a tenant as `GET /v1/conversations` shows it to an operator, or `*` for all tenants.",
        )
    return replace(caller, tenant=named, scopes=SCOPES, may_see_all_tenants=True)
