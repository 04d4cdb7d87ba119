"""What a protocol is to the gateway's upstream side: how requests are written for its providers, and how their answers
are read. Each protocol that providers speak has one implementation, named in `provider_dialects`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from typing import Literal, Protocol

import msgspec

from app.conversation.item import Item
from app.dialects.answer_decoding import AnswerDecoder
from app.dialects.cache_marks import NO_CACHE_MARKS, CacheMarks, has_breakpoints


class SelectedFields(msgspec.Struct, frozen=True):
    """The fields of a client's request for a provider, as they came or translated, without the messages where these
    must be rendered."""

    fields: dict[str, bytes]
    """JSON text by name."""
    keeps_messages: bool = False
    """Whether the client's messages stand among the fields, and may be sent as they came."""
    warnings: Sequence[str] = ()
    """Sentences about what was left out."""


class RenderedMessages(msgspec.Struct, frozen=True):
    """The messages of a view in the provider's protocol."""

    messages: Sequence[bytes]
    """The JSON text of each element of `ProviderDialect.messages_field`."""
    fields: Mapping[str, bytes | None] = {}
    """Further fields that hold messages, such as `instructions`; None: the request must not have the field."""
    warnings: Sequence[str] = ()

    def put_into(self, fields: Mapping[str, bytes]) -> dict[str, bytes]:
        """Returns the fields of a request with the further fields."""
        return {name: raw for name, raw in {**fields, **self.fields}.items() if raw is not None}


class ProviderDialect(Protocol):
    """Speaks one protocol with providers. Pure.

    Attributes:
        protocol: as of `upstream.provider_contract.ProviderProtocol`.
        client_protocol: the name of the protocol among those of clients.
        messages_field: the field of a request that has the messages.
        make_decoder: makes the decoder of one answer; takes the provider's name, for error messages.
        forwards_query: whether providers get the query of a client that speaks the same protocol.
    """

    protocol: str
    client_protocol: str
    messages_field: str
    forwards_query: bool = False
    make_decoder: type[AnswerDecoder]

    def find_answer_start(self, data: bytes, name: bytes = b"") -> bytes | Literal[True] | None:
        """Tells what the first event of a stream is.

        Returns:
            True if it begins an answer; None if it does not tell yet; otherwise the body of an error, or of something
            else.
        """

    def select_fields(self, client: str, fields: Mapping[str, bytes], *, keeps_metadata: bool = True) -> SelectedFields:
        """Selects or translates the fields of a client's request. Those of the gateway are left out.

        Args:
            client: the protocol of the fields: the provider's own, or `chat`, to which fields of every other protocol
                are translated before (`ClientDialect.translate_to_chat`).
            fields: JSON text by name; `model` is the provider's name of the model.
            keeps_metadata: whether the provider gets the request's `metadata`.

        Raises:
            InvalidRequest: a field cannot be decoded, or the protocol cannot express what the answer depends on.
        """

    def render_messages(
        self,
        raws: Sequence[bytes],
        own_contents: Set[str] | None,
        fields: Mapping[str, bytes] | None = None,
        *,
        is_edited: bool = False,
        cache_marks: CacheMarks = NO_CACHE_MARKS,
    ) -> RenderedMessages:
        """Renders the messages of a view, of any protocol.

        Args:
            own_contents: the encrypted contents that go to the provider, because they come from there; None: all.
            fields: the selected fields of the request, as far as the messages depend on them.
            is_edited: whether other messages than the client's stand before an answer.
            cache_marks: where the provider's cache is told to keep the prompt.

        Raises:
            InvalidRequest: a message is not valid JSON.
        """

    def has_cache_marks(self, fields: Mapping[str, bytes], raws: Sequence[bytes]) -> bool:
        """Says whether the client itself tells the provider's cache what to keep: its marks win. Those of OpenAI's
        protocols are known to every dialect.

        Args:
            fields: the selected fields of the request.
            raws: the messages of the view, of any protocol.
        """
        return has_breakpoints(fields, raws)

    def find_bare_answer(self, client: str, raws: Sequence[bytes]) -> int | None:
        """Returns the index of the first answer that may lack what providers of this protocol need and clients cannot
        send back, such as encrypted reasoning; None if there is none.

        Args:
            client: the protocol of the client.
            raws: the messages of a request.
        """
        return None

    def restore_answers(self, raws: Sequence[bytes], stored: Sequence[Item]) -> list[bytes]:
        """Returns the messages with what bare answers lack, as far as the log has it.

        Args:
            stored: answers of the log, oldest first.
        """
        return [*raws]

    def ask_for_usage(self, fields: Mapping[str, bytes]) -> dict[str, bytes]:
        """Builds the field by which a stream ends with its usage; nothing if every stream does."""
        return {}

    def lower_output_limit(self, fields: Mapping[str, bytes], limit: int) -> dict[str, bytes]:
        """Builds the fields of the answer's limit that must change for it to be at most `limit` tokens."""
