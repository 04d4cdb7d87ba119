"""Context windows of well-known models, from a table that `tools/refresh_model_windows.py` generates."""

from __future__ import annotations

import functools
import re
from pathlib import Path

import msgspec

WINDOW_TABLE_PATH = Path(__file__).with_name("model_windows.json")

_PROVIDER_PREFIX = re.compile(r"^.*/|^(?:(?:us|eu|apac|au|jp|ca|global)\.)?(?:[a-z0-9]+)\.(?=[a-z])")
"""Matches `openai/`, `accounts/x/models/`, and the region and maker of a Bedrock id (`us.anthropic.claude-…`)."""
_VERSION_SUFFIX = re.compile(
    r"(?:[-@:]20\d\d-?[01]\d-?[0-3]\d|-[01]\d-?[0-3]\d|-\d{2}-20\d\d|-\d{3,4}|@\d+|-v\d+(?::\d+)?|:\w[\w.-]*|-latest|-preview|-exp|-beta)$"
)
"""Matches a date, version, tag or stage at the end of a name."""


def find_known_window(model: str) -> tuple[int, int | None, int | None] | None:
    """Returns (context window, longest prompt, longest answer) of a model in tokens; None if it is not known.

    The name is looked up as it is, then without provider prefix, then without date, version or tag; case does not
    matter.
    """
    windows = _load_window_table()
    return next((windows[name] for name in list_model_name_variants(model) if name in windows), None)


def is_well_known_model(model: str) -> bool:
    """Returns whether the table has a model under exactly this name."""
    return model in _load_window_table()


def strip_provider_prefix(model: str) -> str:
    """Returns a model's name in lower case without the prefix of its provider: `openai/GPT-4o` is `gpt-4o`."""
    return _PROVIDER_PREFIX.sub("", model.lower())


def strip_version_suffix(name: str) -> str:
    """Returns a name without one date, version, tag or stage at its end."""
    return _VERSION_SUFFIX.sub("", name) or name


@functools.lru_cache(maxsize=512)
def list_model_name_variants(model: str) -> tuple[str, ...]:
    """Returns the names under which a model may be listed, nearest first."""
    # Names come from clients: only a part of a huge one is matched and cached.
    names = [model.lower()[:256], strip_provider_prefix(model[:256])]
    while (shorter := strip_version_suffix(names[-1])) != names[-1]:
        names.append(shorter)
    return tuple(dict.fromkeys(names))


@functools.cache
def _load_window_table() -> dict[str, tuple[int, int | None, int | None]]:
    return msgspec.json.decode(WINDOW_TABLE_PATH.read_bytes(), type=dict[str, tuple[int, int | None, int | None]])
