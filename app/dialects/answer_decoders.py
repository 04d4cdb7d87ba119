"""The decoder of each protocol that providers speak."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final, Literal

from app.dialects.answer_decoding import AnswerDecoder
from app.dialects.chat.stream_decoder import ChatStreamDecoder, starts_chat_answer
from app.dialects.responses.stream_decoder import ResponsesStreamDecoder, starts_response

_DECODERS: Final[Mapping[str, Callable[[str], AnswerDecoder]]] = {
    "openai": ChatStreamDecoder,
    "responses": ResponsesStreamDecoder,
}
_ANSWER_STARTS: Final[Mapping[str, Callable[[bytes, bytes], bytes | Literal[True] | None]]] = {
    "openai": starts_chat_answer,
    "responses": starts_response,
}


def make_decoder(protocol: str, source_name: str = "upstream") -> AnswerDecoder:
    """Makes the decoder of one answer.

    Args:
        protocol: as of `upstream.provider_contract.ProviderProtocol`.
        source_name: the provider's name, for error messages.
    """
    return _DECODERS[protocol](source_name)


def find_answer_start(protocol: str, data: bytes, name: bytes = b"") -> bytes | Literal[True] | None:
    """Tells what the first event of a stream is.

    Returns:
        True if it begins an answer; None if it does not tell yet; otherwise the body of an error, or of something else.
    """
    return _ANSWER_STARTS[protocol](data, name)
