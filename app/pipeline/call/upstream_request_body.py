"""Builds the body of the upstream request, in the protocol of the deployment's provider. What needs no change keeps the
client's bytes. Pure."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence, Set
from typing import Final

import msgspec
import orjson

from app.dialects.chat.request import decode_field
from app.dialects.chat.request_fields import ask_for_usage, lower_output_limit
from app.dialects.responses.message_rendering import (
    needs_rendering_for_responses,
    render_messages_for_chat,
    render_messages_for_responses,
)
from app.dialects.responses.request_fields import (
    select_fields_for_responses,
    translate_fields_to_chat,
    translate_fields_to_responses,
)
from app.pipeline.chat_request import ChatRequest
from app.upstream.provider_contract import NO_QUIRKS, ModelDeployment
from app.upstream.quirks import apply_quirks
from app.upstream.quirks.message_and_request_fields import fit_request_fields

GATEWAY_FIELDS: Final = frozenset({"conversation_id", "conversation", "context", "store"})

MIN_RESPONSES_OUTPUT_TOKENS: Final = 16
"""OpenAI refuses a lower `max_output_tokens`."""


class UpstreamBody(msgspec.Struct, frozen=True):
    """The body of an upstream request."""

    body: bytes
    warnings: tuple[str, ...] = ()
    """Sentences about what the provider's protocol cannot express, and was left out."""


def build_upstream_body(
    request: ChatRequest,
    messages: Sequence[bytes] | None,
    deployment: ModelDeployment,
    max_output_tokens: int | None = None,
    *,
    own_contents: Set[str] | None = None,
) -> UpstreamBody:
    """Builds the body for a deployment.

    Args:
        request: the client's request.
        messages: JSON text of each message of the view; None for the client's messages, unchanged.
        deployment: the deployment that gets the body.
        max_output_tokens: the answer's limit if the client's is too high; otherwise None.
        own_contents: the encrypted contents in the messages that go to the deployment, because they come from there;
            None: all.

    Raises:
        InvalidRequest: a field that has to be changed cannot be decoded (`decode_field`), or the provider's protocol
            cannot express what the answer depends on.
    """
    fields = dict(request.raw_fields)
    if deployment.upstream_model != request.model:
        fields["model"] = orjson.dumps(deployment.upstream_model)
    if deployment.provider.protocol == "responses":
        return _build_responses_body(request, fields, messages, deployment, max_output_tokens, own_contents)
    if request.protocol == "responses":
        translated = translate_fields_to_chat(fields)
        fields, warnings = translated.fields, translated.warnings
        messages = request.raw_messages if messages is None else messages
    else:
        warnings = []
        if not GATEWAY_FIELDS.isdisjoint(fields):
            fields = {name: raw for name, raw in fields.items() if name not in GATEWAY_FIELDS}
        _remove_own_metadata(request, fields)
    # The log may have messages of the Responses API.
    if messages is not None:
        messages, left_out = render_messages_for_chat(messages)
        warnings = [*warnings, *left_out]
    return UpstreamBody(
        _build_chat_body(request, fields, messages, deployment, max_output_tokens), tuple(dict.fromkeys(warnings))
    )


def encode_fields(fields: Mapping[str, bytes]) -> bytes:
    """Encodes fields, JSON text by name, as a JSON object."""
    return b"{" + b",".join([b"%b:%b" % (orjson.dumps(name), raw) for name, raw in fields.items()]) + b"}"


def _build_chat_body(
    request: ChatRequest,
    fields: dict[str, bytes],
    messages: Sequence[bytes] | None,
    deployment: ModelDeployment,
    max_output_tokens: int | None,
) -> bytes:
    quirks = deployment.quirks
    read_field = functools.partial(decode_field, fields)
    # Usage is what calibration and metrics learn from. The relay hides it from a client that did not ask for it.
    if request.stream and not request.wants_usage and quirks.stream_usage:
        fields |= ask_for_usage(read_field)
    if max_output_tokens is not None:
        fields |= lower_output_limit(read_field, max_output_tokens)
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


def _build_responses_body(
    request: ChatRequest,
    fields: dict[str, bytes],
    messages: Sequence[bytes] | None,
    deployment: ModelDeployment,
    max_output_tokens: int | None,
    own_contents: Set[str] | None,
) -> UpstreamBody:
    warnings: Sequence[str] = ()
    input_json, instructions = fields.get("input"), fields.get("instructions")
    if request.protocol == "responses":
        selected = select_fields_for_responses(fields)
    else:
        _remove_own_metadata(request, fields)
        translated = translate_fields_to_responses(fields)
        selected, warnings = translated.fields, translated.warnings
    if messages is not None or input_json is None or needs_rendering_for_responses(bytes(input_json)):
        rendered = render_messages_for_responses(
            request.raw_messages if messages is None else messages, own_contents=own_contents
        )
        input_json, instructions = b"[" + b",".join(rendered.raw_items) + b"]", rendered.instructions
        warnings = [*warnings, *rendered.warnings]
    if instructions is not None:
        selected["instructions"] = bytes(instructions)
    selected["input"] = bytes(input_json)
    if max_output_tokens is not None:
        limit, lowered = (
            decode_field(selected, "max_output_tokens"),
            max(max_output_tokens, MIN_RESPONSES_OUTPUT_TOKENS),
        )
        if limit is None or limit > lowered:
            selected["max_output_tokens"] = b"%d" % lowered
    body = encode_fields(fit_request_fields(deployment.quirks, selected))
    return UpstreamBody(body, tuple(dict.fromkeys(warnings)))


def _remove_own_metadata(request: ChatRequest, fields: dict[str, bytes]) -> None:
    """Removes what of a chat request's `metadata` is the gateway's."""
    if request.stores_completion:
        # `metadata` belongs to the stored completion, which we keep. OpenAI refuses it without `store`, which we
        # remove.
        fields.pop("metadata", None)
        return
    metadata = decode_field(fields, "metadata") if "metadata" in fields else None
    if isinstance(metadata, dict) and "conversation_id" in metadata:
        del metadata["conversation_id"]
        if metadata:
            fields["metadata"] = orjson.dumps(metadata)
        else:
            del fields["metadata"]
