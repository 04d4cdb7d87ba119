"""Collects what a protocol cannot express, for the warnings of a request. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Final

MAX_KINDS: Final = 20
"""How many kinds are named. Clients choose the names of fields and types."""
MAX_NAME_CHARS: Final = 100


class LeftOutKinds:
    """The kinds of things that were left out, each once.

    Args:
        protocol: the name of the protocol that cannot express them.
    """

    def __init__(self, protocol: str) -> None:
        self._protocol = protocol
        self._kinds: dict[str, None] = {}

    def add(self, kind: str) -> None:
        """Adds a kind, in words that name it, such as `the field 'name' of messages`."""
        if len(self._kinds) < MAX_KINDS:
            self._kinds[kind[:MAX_NAME_CHARS]] = None

    def add_all(self, kinds: Iterable[str]) -> None:
        """Adds kinds."""
        for kind in kinds:
            self.add(kind)

    def add_fields(self, fields: Mapping[str, object], expressed: Collection[str], things: str) -> None:
        """Adds the fields that say something and are not expressed.

        Args:
            things: what has these fields, in the plural.
        """
        for name, value in fields.items():
            if value and name not in expressed:
                self.add(f"the field {name!r} of {things}")

    def add_type(self, type_name: object, things: str) -> None:
        """Adds a kind that is known by its `type`.

        Args:
            things: what has this type, in the plural: items, parts.
        """
        self.add(f"{things} of type {type_name!r}" if isinstance(type_name, str) else f"{things} without a type")

    def render_warnings(self) -> list[str]:
        """Returns a sentence for each kind."""
        return [f"Not sent, because {self._protocol} has no place for it: {kind}." for kind in self._kinds]
