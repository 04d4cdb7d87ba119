"""A request's top-level fields, as a provider knows them. Pure."""

from __future__ import annotations

from app.upstream.provider import Quirks

_OUTPUT_FIELDS = ("max_tokens", "max_completion_tokens")


def fitting_fields(quirks: Quirks, fields: dict[str, bytes]) -> dict[str, bytes]:
    """Name → JSON text without what the provider refuses; the same object where nothing has to change."""
    unwanted = {name for name in quirks.strip_fields if name in fields}
    if not quirks.stream_usage and "stream_options" in fields:
        unwanted.add("stream_options")
    renamed: dict[str, str] = {}
    if (known := quirks.max_tokens_field) is not None:
        for other in (name for name in _OUTPUT_FIELDS if name != known and name in fields):
            if known in fields:
                unwanted.add(other)
            else:
                renamed[other] = known
    if not unwanted and not renamed:
        return fields
    return {renamed.get(name, name): raw for name, raw in fields.items() if name not in unwanted}
