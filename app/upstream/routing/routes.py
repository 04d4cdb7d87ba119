"""Maps requested model names to deployments: exact name, wildcard, then the fallbacks. Pure."""

from __future__ import annotations

import difflib
import functools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from app.errors import ModelNotFound
from app.upstream.provider_contract import (
    NO_QUIRKS,
    UNKNOWN_PRICE,
    CacheRule,
    ModelDeployment,
    ProviderQuirks,
    RouteTarget,
    TokenPrice,
    UpstreamProvider,
)
from app.upstream.routing.prices import find_cache_rule, find_list_price

WILDCARD = "*"
WILDCARD_CACHE_SIZE = 1024
"""How many names that only the wildcard matches are cached with their deployments."""


@dataclass(frozen=True, slots=True)
class ConfiguredDeployment:
    """One deployment of a model as configured. If `model` is None, the provider gets the requested name."""

    provider: str
    model: str | None = None
    context_window: int | None = None
    max_output_tokens: int | None = None
    encoding: str | None = None
    quirks: ProviderQuirks = NO_QUIRKS
    price: TokenPrice = UNKNOWN_PRICE
    cache: CacheRule | None = None
    """None: by the model's name."""
    is_openai: bool = False
    """Whether the provider is OpenAI itself, which takes its own fields for the cache."""


@dataclass(frozen=True, slots=True)
class ModelRoute:
    """The deployments for a model name, in the order in which they are tried, then other models."""

    deployments: tuple[ConfiguredDeployment, ...]
    fallbacks: tuple[str, ...] = ()
    name_prefix: str = ""
    """Of the wildcard: it serves only names that begin so."""
    hint: str | None = None
    """Of the wildcard with a prefix: the hint of the error for other names."""


class Routes:
    """The table of model names. The settings' own checks have found every provider and every fallback, and no cycle."""

    def __init__(self, models: Mapping[str, ModelRoute], providers: Mapping[str, UpstreamProvider]) -> None:
        self._models = dict(models)
        self._providers = providers
        self._cached_wildcard_target = functools.lru_cache(WILDCARD_CACHE_SIZE)(self._build_target)
        self._targets = {name: self._build_target(name) for name in models if name != WILDCARD}

    def resolve(self, model: str) -> RouteTarget:
        """Returns the deployments for a requested name.

        Raises:
            ModelNotFound: the name is unknown; the message suggests the most similar name.
        """
        target = self._targets.get(model)
        if target is not None:
            return target
        wildcard = self._models.get(WILDCARD)
        if wildcard is not None and model and model != WILDCARD and model.startswith(wildcard.name_prefix):
            return self._cached_wildcard_target(model)
        similar_names = difflib.get_close_matches(model, self._targets, n=1)
        raise ModelNotFound(
            f"The model {model!r} does not exist.",
            param="model",
            hint=f"Did you mean {similar_names[0]!r}?" if similar_names else wildcard.hint if wildcard else None,
        )

    def _build_target(self, model: str) -> RouteTarget:
        deployments: dict[str, ModelDeployment] = {}
        for deployment in self._list_deployments(model):
            # A fallback may lead to a deployment that was listed before: it is tried once.
            deployments.setdefault(deployment.key, deployment)
        return RouteTarget(model, tuple(deployments.values()))

    def _list_deployments(self, model: str) -> Iterator[ModelDeployment]:
        route = self._models.get(model) or self._models[WILDCARD]
        for configured in route.deployments:
            upstream_model = configured.model or model
            defaults = (
                self._find_upstream_defaults(configured, upstream_model) if upstream_model != model else configured
            )
            yield ModelDeployment(
                provider=self._providers[configured.provider],
                upstream_model=upstream_model,
                context_window=configured.context_window or defaults.context_window,
                max_output_tokens=configured.max_output_tokens or defaults.max_output_tokens,
                encoding=configured.encoding or defaults.encoding,
                quirks=configured.quirks if configured.quirks != NO_QUIRKS else defaults.quirks,
                price=next(
                    (one.price for one in (configured, defaults) if one.price != UNKNOWN_PRICE),
                    find_list_price(upstream_model),
                ),
                cache=configured.cache
                or defaults.cache
                or find_cache_rule(
                    self._providers[configured.provider].protocol, upstream_model, is_openai=configured.is_openai
                ),
            )
        for fallback in route.fallbacks:
            yield from self._list_deployments(fallback)

    def _find_upstream_defaults(self, configured: ConfiguredDeployment, upstream_model: str) -> ConfiguredDeployment:
        """Returns the deployment of the same provider that is configured under the upstream's own name: its window and
        price hold for other names of the model, too.
        """
        route = self._models.get(upstream_model)
        candidates = route.deployments if route else ()
        matching = (p for p in candidates if p.provider == configured.provider and p.model in (None, upstream_model))
        return next(matching, configured)
