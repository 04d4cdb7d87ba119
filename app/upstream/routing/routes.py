"""Requested model names → deployments: exact name, alias, wildcard, then the fallbacks. Pure."""

from __future__ import annotations

import difflib
import functools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from app.errors import ModelNotFound
from app.upstream.provider import UNPRICED, Deployment, Price, Provider, Quirks, Target

WILDCARD = "*"
WILDCARD_TARGETS = 1024
"""How many names that only the wildcard knows are remembered with what they stand for."""


@dataclass(frozen=True, slots=True)
class Place:
    """One deployment of a model as configured. `model` None: the provider is asked for the requested name."""

    provider: str
    model: str | None = None
    context_window: int | None = None
    max_output_tokens: int | None = None
    encoding: str | None = None
    quirks: Quirks = field(default_factory=Quirks)
    price: Price = UNPRICED


@dataclass(frozen=True, slots=True)
class ModelRoute:
    """What a model name stands for: places in the order in which they are tried, then other models."""

    places: tuple[Place, ...]
    fallbacks: tuple[str, ...] = ()
    aliases: tuple[str, ...] = ()


class Routes:
    """The table of model names.

    Raises:
        ValueError: a provider or a fallback is unknown, fallbacks go in a circle, or an alias is taken twice; the
            message names the path in the configuration.
    """

    def __init__(self, models: Mapping[str, ModelRoute], providers: Mapping[str, Provider]) -> None:
        self._models = dict(models)
        self._providers = providers
        self._aliases = _aliases(models)
        for name, route in models.items():
            for index, place in enumerate(route.places):
                if place.provider not in providers:
                    raise ValueError(f"models.{name}: place {index} names the unknown provider {place.provider!r}.")
            self._refuse_circles(name, ())
        self._wildcard_target = functools.lru_cache(WILDCARD_TARGETS)(self._target)
        self._targets = {name: self._target(name) for name in (*models, *self._aliases) if name != WILDCARD}

    @property
    def names(self) -> tuple[str, ...]:
        """Every name that can be asked for, wildcard left out."""
        return tuple(self._targets)

    def resolve(self, model: str) -> Target:
        """What a requested name stands for.

        Raises:
            ModelNotFound: nothing; the message names the nearest name.
        """
        target = self._targets.get(model)
        if target is not None:
            return target
        if WILDCARD in self._models and model and model != WILDCARD:
            return self._wildcard_target(model)
        near = difflib.get_close_matches(model, self._targets, n=1)
        raise ModelNotFound(
            f"The model {model!r} does not exist.",
            param="model",
            hint=f"Did you mean {near[0]!r}?" if near else None,
        )

    def _target(self, model: str) -> Target:
        found: dict[str, Deployment] = {}
        for deployment in self._deployments(model):
            found.setdefault(deployment.key, deployment)
        return Target(model, tuple(found.values()))

    def _deployments(self, model: str) -> Iterator[Deployment]:
        route = self._route(model)
        for place in route.places:
            upstream_model = place.model if place.model is not None else self._aliases.get(model, model)
            known = self._known(place, upstream_model) if upstream_model != model else place
            yield Deployment(
                provider=self._providers[place.provider],
                upstream_model=upstream_model,
                context_window=place.context_window or known.context_window,
                max_output_tokens=place.max_output_tokens or known.max_output_tokens,
                encoding=place.encoding or known.encoding,
                quirks=place.quirks if place.quirks != Quirks() else known.quirks,
                price=place.price if place.price != UNPRICED else known.price,
            )
        for fallback in route.fallbacks:
            yield from self._deployments(fallback)

    def _known(self, place: Place, upstream_model: str) -> Place:
        """The place of the same provider that is configured under the upstream's own name: what it says of the model
        holds for other names of it too."""
        route = self._models.get(upstream_model)
        places = route.places if route else ()
        same = (p for p in places if p.provider == place.provider and p.model in (None, upstream_model))
        return next(same, place)

    def _route(self, model: str) -> ModelRoute:
        name = self._aliases.get(model, model)
        return self._models.get(name) or self._models[WILDCARD]

    def _refuse_circles(self, name: str, path: tuple[str, ...]) -> None:
        name = self._aliases.get(name, name)
        if name in path:
            raise ValueError(f"models.{path[0]}.fallbacks: they go in a circle: {' → '.join((*path, name))}.")
        if name not in self._models and WILDCARD not in self._models:
            raise ValueError(f"models.{path[-1]}.fallbacks: the model {name!r} is not configured.")
        for fallback in self._route(name).fallbacks:
            self._refuse_circles(fallback, (*path, name))


def _aliases(models: Mapping[str, ModelRoute]) -> dict[str, str]:
    aliases: dict[str, str] = {}
    for name, route in models.items():
        for alias in route.aliases:
            if alias in models or alias in aliases or alias == WILDCARD:
                raise ValueError(f"models.{name}.aliases: {alias!r} is taken already.")
            aliases[alias] = name
    return aliases
