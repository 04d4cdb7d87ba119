"""Builds the body of the upstream request, in the protocol of the deployment's provider. What needs no change keeps the
client's bytes. Pure."""

from __future__ import annotations

from collections.abc import Sequence, Set

import msgspec
import orjson

from app.context.view.cache_boundaries import MARKED_SECTIONS, find_cache_marks
from app.dialects.cache_marks import NO_CACHE_MARKS
from app.dialects.client_dialects import CLIENT_DIALECTS
from app.dialects.provider_dialects import PROVIDER_DIALECTS
from app.dialects.request_body import encode_fields
from app.pipeline.turn.chat_request import ChatRequest
from app.upstream.provider_contract import ModelDeployment
from app.upstream.quirks import fit_to_quirks


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
    is_edited: bool = False,
    cache_key: str | None = None,
) -> UpstreamBody:
    """Builds the body for a deployment.

    Args:
        request: the client's request.
        messages: JSON text of each message of the view; None for the client's messages, unchanged.
        deployment: the deployment that gets the body.
        max_output_tokens: the answer's limit if the client's is too high; otherwise None.
        own_contents: the encrypted contents in the messages that go to the deployment, because they come from there;
            None: all.
        is_edited: whether other messages stand before an answer than when it was written.
        cache_key: names the conversation's family to the provider's prompt cache, if the client names nothing; None:
            nothing is named.

    Raises:
        InvalidRequest: a field that has to be changed cannot be decoded (`decode_field`), or the provider's protocol
            cannot express what the answer depends on.
    """
    dialect = PROVIDER_DIALECTS[deployment.provider.protocol]
    fields = dict(request.raw_fields)
    if deployment.upstream_model != request.model:
        fields["model"] = orjson.dumps(deployment.upstream_model)
    # `metadata` belongs to the stored completion, which we keep. OpenAI refuses it without `store`, which we remove.
    keeps_metadata = request.protocol != "chat" or not request.storing.stores_completion
    warnings: list[str] = []
    client = request.protocol
    if client != dialect.client_protocol:
        translated = CLIENT_DIALECTS[client].translate_to_chat(fields)
        client, fields, warnings = "chat", translated.fields, [*translated.warnings]
    selected = dialect.select_fields(client, fields, keeps_metadata=keeps_metadata)
    fields = selected.fields
    warnings += selected.warnings
    if messages is None and not selected.keeps_messages:
        messages = request.raw_messages
    marks = NO_CACHE_MARKS
    if cache_key is not None:
        fields = {"prompt_cache_key": orjson.dumps(cache_key), **fields}
    if deployment.cache in MARKED_SECTIONS:
        shown = [bytes(raw) for raw in (request.raw_messages if messages is None else messages)]
        if not dialect.has_cache_marks(fields, shown) and (marks := find_cache_marks(shown, deployment.cache)):
            messages = shown
    if messages is not None:
        rendered = dialect.render_messages(messages, own_contents, fields, is_edited=is_edited, cache_marks=marks)
        messages, fields = rendered.messages, rendered.put_into(fields)
        warnings += rendered.warnings
    # Usage is what calibration and metrics learn from. The relay hides it from a client that did not ask for it.
    if request.delivery.stream and not request.delivery.wants_usage and deployment.quirks.stream_usage:
        fields |= dialect.ask_for_usage(fields)
    if max_output_tokens is not None:
        fields |= dialect.lower_output_limit(fields, max_output_tokens)
    original = request.raw_messages if messages is None else messages
    adapted, fields = fit_to_quirks(dialect.protocol, deployment.quirks, original, fields)
    # Nothing changed: the client's body passes through, whatever its spacing and order of fields.
    if messages is None and adapted is original:
        if fields == request.raw_fields:
            return UpstreamBody(request.body)
    else:
        fields[dialect.messages_field] = b"[" + b",".join(adapted) + b"]"
    return UpstreamBody(encode_fields(fields), tuple(dict.fromkeys(warnings)))
