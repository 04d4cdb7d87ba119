"""Builds the body of the upstream request. Fields that need no change keep the client's bytes. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

import orjson

from app.dialects.chat.request import decode_field
from app.dialects.chat.request_fields import ask_for_usage, lower_output_limit
from app.pipeline.chat_request import ChatRequest
from app.upstream.provider_contract import NO_QUIRKS, ModelDeployment
from app.upstream.quirks import apply_quirks

GATEWAY_FIELDS: Final = frozenset({"conversation_id", "conversation", "context", "store"})


def build_upstream_body(
    request: ChatRequest,
    messages: Sequence[bytes] | None,
    deployment: ModelDeployment,
    max_output_tokens: int | None = None,
) -> bytes:
    """Builds the body for a deployment.

    Args:
        request: the client's request.
        messages: JSON text of each message of the view; None for the client's messages, unchanged.
        deployment: the deployment that gets the body.
        max_output_tokens: the answer's limit if the client's is too high; otherwise None.

    Raises:
        InvalidRequest: a field that has to be changed cannot be decoded (`decode_field`).
    """
    fields = dict(request.raw_fields)
    if not GATEWAY_FIELDS.isdisjoint(fields):
        fields = {name: raw for name, raw in fields.items() if name not in GATEWAY_FIELDS}
    if deployment.upstream_model != request.model:
        fields["model"] = orjson.dumps(deployment.upstream_model)
    if request.stores_completion:
        # `metadata` belongs to the stored completion, which we keep. OpenAI refuses it without `store`, which we
        # remove.
        fields.pop("metadata", None)
    elif "metadata" in fields:
        _strip_conversation_id(fields)
    # Usage is what calibration and metrics learn from. The relay hides it from a client that did not ask for it.
    if request.stream and not request.wants_usage and deployment.quirks.stream_usage:
        fields |= ask_for_usage(request.decode_field)
    if max_output_tokens is not None:
        fields |= lower_output_limit(request.decode_field, max_output_tokens)
    quirks = deployment.quirks
    # The test for identity comes first: nearly all providers have no quirks, and `!=` compares each field.
    if quirks is not NO_QUIRKS and quirks != NO_QUIRKS:
        original_messages = [bytes(raw) for raw in (request.raw_messages if messages is None else messages)]
        adapted_messages, fields = apply_quirks(quirks, original_messages, fields)
        messages = messages if adapted_messages is original_messages else adapted_messages
    # Nothing changed: the client's body passes through, whatever its spacing and order of fields.
    if messages is None and fields == request.raw_fields:
        return request.body
    if messages is not None:
        fields["messages"] = b"[" + b",".join(messages) + b"]"
    return encode_fields(fields)


def encode_fields(fields: Mapping[str, bytes]) -> bytes:
    """Encodes fields, JSON text by name, as a JSON object."""
    return b"{" + b",".join([b"%b:%b" % (orjson.dumps(name), raw) for name, raw in fields.items()]) + b"}"


def _strip_conversation_id(fields: dict[str, bytes]) -> None:
    """Removes the gateway's conversation id from `metadata`."""
    metadata = decode_field(fields, "metadata")
    if isinstance(metadata, dict) and "conversation_id" in metadata:
        del metadata["conversation_id"]
        if metadata:
            fields["metadata"] = orjson.dumps(metadata)
        else:
            del fields["metadata"]
