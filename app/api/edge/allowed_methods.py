"""Which methods a path has: what a 405 says in `Allow`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from starlette.routing import BaseRoute, Match
from starlette.types import Scope

METHODS: Final = ("DELETE", "GET", "HEAD", "PATCH", "POST", "PUT")


def methods_of(routes: Sequence[BaseRoute], scope: Scope) -> list[str]:
    """The methods of a request's path, in order; those of the pass-through where the gateway has none of its own."""
    return own_methods(routes, scope) or _methods(routes[-1:], scope)


def own_methods(routes: Sequence[BaseRoute], scope: Scope) -> list[str]:
    """The methods that the gateway itself has for a path.

    Args:
        routes: of the application, the pass-through being the last.
    """
    return _methods(routes[:-1], scope)


def _methods(routes: Sequence[BaseRoute], scope: Scope) -> list[str]:
    def is_served(method: str) -> bool:
        return any(route.matches({**scope, "method": method})[0] is Match.FULL for route in routes)

    return [method for method in METHODS if is_served(method)]
