"""The merged list of models: names from configuration, then what each provider lists, with context windows."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from typing import Any

from app.errors import ModelNotFound, UpstreamUnavailable
from app.upstream.provider import ClientKey, Provider, bind_client_key, find_only_keyless
from app.upstream.routing.router import Router
from app.upstream.routing.windows import Windows

log = logging.getLogger(__name__)

OWNER = "concertina"


class Catalogue:
    """What clients may ask for.

    Args:
        names: model names from configuration, wildcards left out.
        created: Unix seconds given for names that no provider lists.
    """

    def __init__(
        self, *, router: Router, windows: Windows, providers: Sequence[Provider], names: Sequence[str], created: int
    ) -> None:
        self._router = router
        self._windows = windows
        self._providers = providers
        self._names = names
        self._created = created

    async def models(self, authorization: str | None) -> list[dict[str, Any]]:
        """All models, configured names first; a provider that does not answer is left out.

        Args:
            authorization: the client's own credential. It goes to the only provider without a key; where there are
                several, to those alone that say `pass_client_key`.
        """
        return await self._models(bind_client_key(authorization, find_only_keyless(self._providers)))

    async def model(self, name: str, authorization: str | None) -> dict[str, Any] | None:
        """One model by name; None where it cannot be asked for.

        Args:
            authorization: the client's own credential. It is meant for the model's first provider.
        """
        try:
            first = self._router.resolve(name).deployments[0].provider
        except ModelNotFound:
            return None
        listed = {entry["id"]: entry for entry in await self._models(bind_client_key(authorization, first))}
        return listed.get(name)

    async def _models(self, client_key: ClientKey | None) -> list[dict[str, Any]]:
        lists = await asyncio.gather(*(self._listed(provider, client_key) for provider in self._providers))
        found: dict[str, dict[str, Any]] = {name: self._entry(name) for name in self._names}
        for entry in (entry for entries in lists for entry in entries):
            name = entry.get("id")
            if isinstance(name, str) and name not in found and self._can_be_asked_for(name):
                found[name] = {"object": "model", "created": self._created, "owned_by": OWNER, **entry}
        return [await self._with_window(entry, client_key) for entry in found.values()]

    async def _listed(self, provider: Provider, client_key: ClientKey | None) -> list[dict[str, Any]]:
        try:
            return await provider.models(None if client_key is None else client_key.show_to(provider))
        except UpstreamUnavailable as error:
            log.warning("no model list from provider %r: %s", provider.name, error.message)
            return []

    def _can_be_asked_for(self, name: str) -> bool:
        try:
            self._router.resolve(name)
        except ModelNotFound:
            return False
        return True

    def _entry(self, name: str) -> dict[str, Any]:
        return {"id": name, "object": "model", "created": self._created, "owned_by": OWNER}

    async def _with_window(self, entry: dict[str, Any], client_key: ClientKey | None) -> dict[str, Any]:
        deployment = self._router.resolve(entry["id"]).deployments[0]
        window = await self._windows.of(deployment, client_key)
        return {**entry, "context_window": window.tokens}
