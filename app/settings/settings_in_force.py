"""Lists the settings as they are in force: each setting once, with its value and its source. Secrets are hidden."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

from pydantic import BaseModel, SecretStr

from app.settings.configuration_errors import SettingPath, find_setting_place, format_setting_path
from app.settings.sections import Settings
from app.settings.settings_source import SettingsSource
from app.settings.settings_tree import find_setting_type
from app.settings.value_types import SettingOrigin, SourceKind, strip_credentials

SECRET_TAIL_CHARS: Final = 2
"""How many characters of a secret are shown, so that an operator can tell two keys apart."""
MIN_CHARS_FOR_TAIL: Final = 16
"""A shorter secret shows nothing: two characters would be too large a part of it."""
URL_SETTINGS: Final = frozenset({"url", "proxy"})
"""The names of secret settings that are addresses. Their host is shown, their user, password and query are not."""


@dataclass(frozen=True, slots=True)
class SettingInForce:
    """One setting. `value` is a JSON value; of a secret it is `…` with two characters at most, or None if unset."""

    path: str
    value: Any
    source: SourceKind
    place: str | None
    secret: bool


BUILT_IN: Final = SettingOrigin("default")


def find_origins(sources: Sequence[tuple[SourceKind, SettingsSource]]) -> dict[SettingPath, SettingOrigin]:
    """Returns the origin of each value that the sources set; a source wins over the ones before it."""
    origins: dict[SettingPath, SettingOrigin] = {}
    for kind, source in sources:
        for path in list_value_paths(source()):
            place = find_setting_place(path, source.places) or ""
            # Behind the comma stands the text of a value with a reference, which may contain a part of a secret.
            origins[path] = SettingOrigin(kind, place.partition(", ")[0] or None, source.empty_variables.get(path))
    return origins


def list_value_paths(value: Any, path: SettingPath = ()) -> Iterator[SettingPath]:
    """Yields the paths at and below `path` whose value is not a section."""
    if isinstance(value, dict):
        for key, child_value in value.items():
            yield from list_value_paths(child_value, (*path, key))
    else:
        yield path


def list_settings_in_force(settings: Settings) -> list[SettingInForce]:
    """Returns every setting once, in the order of declaration. Maps of sections, such as `providers`, give the settings
    of each entry; a map of secrets, such as `headers`, gives one setting for each secret.
    """
    return [
        _describe_setting(path, value, settings.origins if is_set else {})
        for path, value, is_set in _walk_values(settings, (), is_set=True)
    ]


def _walk_values(node: Any, path: SettingPath, *, is_set: bool) -> Iterator[tuple[SettingPath, Any, bool]]:
    """Yields path and value of each setting, and whether some source set it or a section around it."""
    if isinstance(node, BaseModel):
        for name in type(node).model_fields:
            yield from _walk_values(getattr(node, name), (*path, name), is_set=is_set and name in node.model_fields_set)
    elif isinstance(node, dict) and any(isinstance(value, BaseModel | SecretStr) for value in node.values()):
        for key, value in node.items():
            yield from _walk_values(value, (*path, key), is_set=is_set)
    elif isinstance(node, tuple) and any(isinstance(value, BaseModel) for value in node):
        for index, value in enumerate(node):
            yield from _walk_values(value, (*path, index), is_set=is_set)
    else:
        yield path, node, is_set


def _describe_setting(path: SettingPath, value: Any, origins: dict[SettingPath, SettingOrigin]) -> SettingInForce:
    origin = _find_origin(path, origins)
    is_secret = find_setting_type(path) is SecretStr and path[-1] not in URL_SETTINGS
    return SettingInForce(format_setting_path(path), _show_value(path, value), origin.source, origin.place, is_secret)


def _show_value(path: SettingPath, value: Any) -> Any:
    """Returns a value for output: a secret's end, an address without its credentials, any other value as it is."""
    if isinstance(value, SecretStr):
        text = value.get_secret_value()
        if path[-1] in URL_SETTINGS:
            return strip_credentials(text)
        tail = text[-SECRET_TAIL_CHARS:] if len(text) >= MIN_CHARS_FOR_TAIL else ""
        return f"…{tail}" if text else None
    # A provider's or a collector's address may carry a key in its query.
    return strip_credentials(value) if isinstance(value, str) and "://" in value else value


def _find_origin(path: SettingPath, origins: dict[SettingPath, SettingOrigin]) -> SettingOrigin:
    """Returns the origin of the value at `path`: its own, else that of a list around it, else the last one of a value
    inside it, such as a key of `summarizer.parameters`.
    """
    inside = (origins[below] for below in reversed(origins) if below[: len(path)] == path)
    return find_setting_place(path, origins) or next(inside, BUILT_IN)
