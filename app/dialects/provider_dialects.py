"""The dialect of each protocol that providers speak."""

from __future__ import annotations

from typing import Final

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
"""By the protocol, as of `upstream.provider_contract.ProviderProtocol`."""


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
