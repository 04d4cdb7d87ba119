"""Merges the list of models: names from configuration, then what each provider lists, with context windows."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from typing import Any

from app.conversation.names import is_valid_name
from app.errors import ModelNotFound, UpstreamUnavailable
from app.upstream.provider_contract import ClientKey, UpstreamProvider, bind_client_key, find_only_keyless_provider
from app.upstream.routing.context_windows import ContextWindows
from app.upstream.routing.router import Router

log = logging.getLogger(__name__)

DEFAULT_OWNER = "concertina"
WINDOW_FIELDS = "context_window", "context_length", "max_model_len", "max_input_tokens"
"""Clients read one of these."""


class ModelCatalogue:
    """The models that clients may ask for.

    Args:
        router: decides which names can be routed.
        windows: context windows.
        providers: whose lists are merged.
        names: model names from configuration, without wildcards.
        created: Unix seconds for names that no provider lists.
    """

    def __init__(
        self,
        *,
        router: Router,
        windows: ContextWindows,
        providers: Sequence[UpstreamProvider],
        names: Sequence[str],
        created: int,
    ) -> None:
        self._router = router
        self._windows = windows
        self._providers = providers
        self._names = names
        self._created = created

    async def list_models(self, authorization: str | None) -> list[dict[str, Any]]:
        """Returns all models, configured names first. A provider that does not answer is left out.

        Args:
            authorization: the client's own credential. It goes to the only provider without a key; if there are
                several, only to those with `pass_client_key` (decision 31).
        """
        return await self._merge_models(bind_client_key(authorization, find_only_keyless_provider(self._providers)))

    async def find_model(self, name: str, authorization: str | None) -> dict[str, Any] | None:
        """Returns one model by name, with what is known of it; None if it cannot be asked for.

        Args:
            name: as a client would request it.
            authorization: the client's own credential. It is meant for the model's first provider.
        """
        try:
            first_provider = self._router.resolve(name).deployments[0].provider
        except ModelNotFound:
            return None
        client_key = bind_client_key(authorization, first_provider)
        entries = await self._merge_models(client_key)
        listed = next((entry for entry in entries if entry["id"] == name), None)
        # A name that only a pattern such as `*` covers is on no list.
        return listed or await self._add_context_window(self._describe_by_default(name), client_key)

    async def _merge_models(self, client_key: ClientKey | None) -> list[dict[str, Any]]:
        lists = await asyncio.gather(
            *(self._fetch_provider_models(provider, client_key) for provider in self._providers)
        )
        entries_by_name = {name: self._describe_by_default(name) for name in self._names}
        for entry in (entry for entries in lists for entry in entries):
            name = entry.get("id")
            if isinstance(name, str) and name not in entries_by_name and self._may_be_requested(name):
                entries_by_name[name] = {**self._describe_by_default(name), **entry}
        return [await self._add_context_window(entry, client_key) for entry in entries_by_name.values()]

    def _describe_by_default(self, name: str) -> dict[str, Any]:
        return {"id": name, "object": "model", "created": self._created, "owned_by": DEFAULT_OWNER}

    async def _fetch_provider_models(
        self, provider: UpstreamProvider, client_key: ClientKey | None
    ) -> list[dict[str, Any]]:
        try:
            return await provider.list_models(None if client_key is None else client_key.disclose_to_provider(provider))
        except UpstreamUnavailable as error:
            # One provider that is down must not hide the models of the others.
            log.warning("could not read the model list of provider %r: %s", provider.name, error.message)
            return []

    def _may_be_requested(self, name: str) -> bool:
        if not is_valid_name(name):
            return False
        try:
            self._router.resolve(name)
        except ModelNotFound:
            return False
        return True

    async def _add_context_window(self, entry: dict[str, Any], client_key: ClientKey | None) -> dict[str, Any]:
        deployment = self._router.resolve(entry["id"]).deployments[0]
        window = await self._windows.find_window(deployment, client_key)
        return {**entry, **dict.fromkeys(WINDOW_FIELDS, window.tokens)}
