"""A provider that speaks Anthropic's Messages API."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from app.upstream.protocols.openai_provider import OpenAIProvider
from app.upstream.provider_contract import ProviderProtocol, UpstreamRequest

API_VERSION: Final = "2023-06-01"
"""The version that is asked for if the client names none: docs.anthropic.com, "Versions"."""
KEY_HEADER: Final = "x-api-key"
LOGIN_PREFIX: Final = "Bearer sk-ant-oat"
"""How the credential of somebody who is logged in begins. It is sent as a bearer token."""
BINDING_BETA: Final = "thinking-binding-controls-2026-08-01"
"""The beta of the field with which thinking behind an edited prefix is dropped."""
BINDING_FIELD: Final = b'"block_binding"'


class AnthropicProvider(OpenAIProvider):
    """A model server at `base_url` whose models are called by the Messages API."""

    protocol: ProviderProtocol = "anthropic"
    models_query = "limit=1000"

    def _build_headers(self, request: UpstreamRequest, trace_headers: Mapping[str, str]) -> dict[str, str]:
        headers = super()._build_headers(request, trace_headers)
        headers.setdefault("anthropic-version", API_VERSION)
        betas = headers.get("anthropic-beta", "")
        if BINDING_FIELD in request.body and BINDING_BETA not in betas:
            headers["anthropic-beta"] = ",".join(filter(None, (betas, BINDING_BETA)))
        credential = headers.get("authorization", "")
        is_key = credential.startswith("Bearer ") and not credential.startswith(LOGIN_PREFIX)
        if is_key and self._auth_header == "authorization":
            del headers["authorization"]
            headers[KEY_HEADER] = credential.removeprefix("Bearer ")
        return headers
