"""The body that goes upstream: the client's own bytes wherever nothing has to change. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

import orjson

from app.exchange.request import ChatRequest, decode_field
from app.upstream.base import NO_QUIRKS, Deployment
from app.upstream.quirks import apply_quirks

OWN_FIELDS: Final = frozenset({"conversation_id", "conversation", "context", "store"})
OUTPUT_FIELDS: Final = ("max_completion_tokens", "max_tokens")


def upstream_body(
    request: ChatRequest,
    messages: Sequence[bytes] | None,
    deployment: Deployment,
    max_output_tokens: int | None = None,
) -> bytes:
    """The request as a provider is to see it.

    Args:
        messages: JSON text of each message of the view; None for the client's own, untouched.
        max_output_tokens: a lower bound for the answer than the client asked for.

    Raises:
        InvalidRequest: a field that has to be changed cannot be read (`decode_field`).
    """
    fields = _changed_fields(request, deployment, max_output_tokens)
    quirks = deployment.quirks
    if quirks is not NO_QUIRKS and quirks != NO_QUIRKS:
        asked = [bytes(raw) for raw in (request.raws if messages is None else messages)]
        shown, fields = apply_quirks(quirks, asked, fields)
        messages = messages if shown is asked else shown
    if messages is None and fields == request.fields:
        return request.body
    if messages is not None:
        fields["messages"] = b"[" + b",".join(messages) + b"]"
    return rebuilt(fields)


def rebuilt(fields: Mapping[str, bytes]) -> bytes:
    """A JSON object of these fields, each once."""
    return b"{" + b",".join([b"%b:%b" % (orjson.dumps(name), raw) for name, raw in fields.items()]) + b"}"


def _changed_fields(request: ChatRequest, deployment: Deployment, max_output_tokens: int | None) -> dict[str, bytes]:
    fields = dict(request.fields)
    if not OWN_FIELDS.isdisjoint(fields):
        fields = {name: raw for name, raw in fields.items() if name not in OWN_FIELDS}
    if deployment.upstream_model != request.model:
        fields["model"] = orjson.dumps(deployment.upstream_model)
    if request.keeps_completion:
        # They are the stored completion's, and OpenAI refuses them without `store`.
        fields.pop("metadata", None)
    elif "metadata" in fields:
        _strip_metadata(fields)
    if request.stream and not request.include_usage and deployment.quirks.stream_usage:
        options = request.value("stream_options") or {}
        fields["stream_options"] = orjson.dumps({**options, "include_usage": True})
    if max_output_tokens is not None:
        names = [name for name in OUTPUT_FIELDS if name in fields] or ["max_tokens"]
        for name in names:
            fields[name] = b"%d" % max_output_tokens
    return fields


def _strip_metadata(fields: dict[str, bytes]) -> None:
    """Take our conversation id out of `metadata`."""
    metadata = decode_field(fields, "metadata")
    if isinstance(metadata, dict) and "conversation_id" in metadata:
        del metadata["conversation_id"]
        if metadata:
            fields["metadata"] = orjson.dumps(metadata)
        else:
            del fields["metadata"]
