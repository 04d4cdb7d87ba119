"""Translates a whole chat completion request into a request of the Responses API. Pure."""

from __future__ import annotations

from typing import Final

import msgspec

from app.dialects.responses.message_rendering import render_messages_for_responses
from app.dialects.responses.request_fields import translate_fields_to_responses

_decode_fields: Final = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode
_decode_messages: Final = msgspec.json.Decoder(list[msgspec.Raw]).decode


def translate_chat_body(body: bytes) -> bytes:
    """Translates a request body that the gateway has built, such as that of a summarizer call. Its `messages` may also
    hold messages of the Responses API as the log has them, as arrays. Encrypted content is left out: another provider
    may have written it.

    Raises:
        InvalidRequest: a field has no counterpart, and without it the answer would be another one.
    """
    fields = {name: bytes(raw) for name, raw in _decode_fields(body).items()}
    raw_messages = [bytes(raw) for raw in _decode_messages(fields.pop("messages"))]
    rendered = render_messages_for_responses(raw_messages, own_contents=frozenset())
    translated = translate_fields_to_responses(fields).fields
    if rendered.instructions is not None:
        translated["instructions"] = rendered.instructions
    translated["input"] = b"[" + b",".join(rendered.raw_items) + b"]"
    return b"{" + b",".join([b'"%b":%b' % (name.encode(), raw) for name, raw in translated.items()]) + b"}"
