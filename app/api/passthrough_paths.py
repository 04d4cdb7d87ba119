"""Decides which paths are passed through to a provider. Paths are compared in one form, whatever way they are written:
a provider may take `/v1/./CHAT/completions` for its own `/v1/chat/completions`. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Final
from urllib.parse import unquote

from app.errors import InsufficientPermissions, InvalidRequest
from app.pipeline.turn.chat_request import Caller

OWN_PATHS: Final = (
    *("admin", "chat/completions", "context", "conversations", "costs", "lookup", "models", "responses", "search"),
    *("v1/chat/completions", "v1/responses"),  # of clients whose base URL has `/v1` twice
)
"""Paths below `/v1` that the gateway answers itself. They are never passed through: a request could otherwise avoid the
gateway's own handling, for instance by another method."""
EXACT_OWN_PATHS: Final = ("messages", "messages/count_tokens", "v1/messages")
"""Paths that the gateway answers itself, unlike others below them, such as `messages/batches`."""
EVERY_PATH: Final = "*"
PARENT: Final = ".."
_MODEL_PREFIX = re.compile(r"(?:engines|deployments)/[^/]+/")


def normalize_path(path: str) -> str:
    """Returns the form in which a path below `/v1` is compared: unescaped once more than the server did, in lower case,
    without empty and `.` segments and parameters (`;x`)."""
    segments = (segment.partition(";")[0].strip() for segment in re.split(r"[/\\]", unquote(path).lower()))
    return "/".join(segment for segment in segments if segment not in ("", "."))


def strip_model_prefix(normalized_path: str) -> str:
    """Returns a path without its model: OpenAI's older form is `engines/m/…`, Azure's `deployments/m/…`."""
    return _MODEL_PREFIX.sub("", normalized_path, count=1)


def is_own_path(normalized_path: str) -> bool:
    """Returns whether the gateway answers a path itself.

    Raises:
        InvalidRequest: the path leads upwards, so it may lead to any path.
    """
    if PARENT in normalized_path.split("/"):
        raise InvalidRequest("The path must not contain '..'.", code="invalid_path")
    return normalized_path in EXACT_OWN_PATHS or is_listed(normalized_path, OWN_PATHS)


def is_listed(normalized_path: str, paths: Sequence[str]) -> bool:
    """Returns whether a path is one of `paths` or below one of them."""
    return any(normalized_path == path or normalized_path.startswith(f"{path}/") for path in paths)


def check_path_allowed(
    caller: Caller, provider: str, normalized_path: str, paths_by_provider: Mapping[str, Sequence[str]]
) -> None:
    """Refuses a path that is not passed through to a provider for this caller.

    Args:
        paths_by_provider: what `providers.<name>.pass_through` allows.

    Raises:
        InsufficientPermissions: neither the key's list nor the provider's has the path.
    """
    allowed = paths_by_provider.get(provider, ()) if caller.pass_through is None else caller.pass_through
    paths = [normalize_path(path) for path in allowed]
    if EVERY_PATH in paths or is_listed(strip_model_prefix(normalized_path), paths):
        return
    setting = (
        f"`providers.{provider}.pass_through`" if caller.pass_through is None else "`pass_through` of this API key"
    )
    raise InsufficientPermissions(
        f"The path '/v1/{normalized_path}' is not passed through: {setting} allows {', '.join(allowed) or 'none'}.",
        hint="The operator of this gateway can add it there.",
    )
