"""The merged list of models: names from configuration, then what each provider lists, with context windows."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from typing import Any

from app.errors import ModelNotFound, UpstreamUnavailable
from app.upstream.base import Provider
from app.upstream.router import Router
from app.upstream.windows import Windows

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
        """All models, configured names first; a provider that does not answer is left out."""
        lists = await asyncio.gather(*(self._listed(provider, authorization) for provider in self._providers))
        found: dict[str, dict[str, Any]] = {name: self._entry(name) for name in self._names}
        for entry in (entry for entries in lists for entry in entries):
            name = entry.get("id")
            if isinstance(name, str) and name not in found and self._can_be_asked_for(name):
                found[name] = {"object": "model", "created": self._created, "owned_by": OWNER, **entry}
        return [await self._with_window(entry, authorization) for entry in found.values()]

    async def model(self, name: str, authorization: str | None) -> dict[str, Any] | None:
        """One model by name; None where it cannot be asked for."""
        listed = {entry["id"]: entry for entry in await self.models(authorization)}
        if name in listed:
            return listed[name]
        return None

    async def _listed(self, provider: Provider, authorization: str | None) -> list[dict[str, Any]]:
        try:
            return await provider.models(authorization)
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

    async def _with_window(self, entry: dict[str, Any], authorization: str | None) -> dict[str, Any]:
        deployment = self._router.resolve(entry["id"]).deployments[0]
        window = await self._windows.of(deployment, authorization)
        return {**entry, "context_window": window.tokens}
