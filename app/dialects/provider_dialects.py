"""The dialect of each protocol that providers speak."""

from __future__ import annotations

from typing import Final

from app.dialects.answer_decoding import AnswerDecoder
from app.dialects.chat.provider_dialect import ChatProviderDialect
from app.dialects.messages.provider_dialect import MessagesProviderDialect
from app.dialects.provider_dialect import ProviderDialect
from app.dialects.responses.provider_dialect import ResponsesProviderDialect

_ALL: Final[tuple[ProviderDialect, ...]] = (
    ChatProviderDialect(),
    MessagesProviderDialect(),
    ResponsesProviderDialect(),
)
PROVIDER_DIALECTS: Final[dict[str, ProviderDialect]] = {dialect.protocol: dialect for dialect in _ALL}


def find_provider_dialect(protocol: str) -> ProviderDialect:
    """Returns the dialect of a protocol, as of `upstream.provider_contract.ProviderProtocol`."""
    return PROVIDER_DIALECTS[protocol]


def select_queries(client: str, query: str) -> dict[str, str]:
    """Returns the query of a client's request by the protocol of the providers that get it.

    Args:
        client: the protocol of the client.
        query: without the question mark.
    """
    return {
        one.protocol: query
        for one in PROVIDER_DIALECTS.values()
        if one.forwards_query and one.client_protocol == client
    }


def make_decoder(protocol: str, source_name: str = "upstream") -> AnswerDecoder:
    """Makes the decoder of one answer; arguments as of `ProviderDialect.make_decoder`."""
    return PROVIDER_DIALECTS[protocol].make_decoder(source_name)
