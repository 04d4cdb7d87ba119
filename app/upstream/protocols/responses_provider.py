"""A provider that speaks the Responses API."""

from __future__ import annotations

from app.upstream.protocols.openai_provider import OpenAIProvider
from app.upstream.provider_contract import ProviderProtocol


class ResponsesProvider(OpenAIProvider):
    """A model server at `base_url` whose models are called by the Responses API."""

    protocol: ProviderProtocol = "responses"
