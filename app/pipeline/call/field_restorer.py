"""Restores what a client leaves out of the answers in its history and the provider needs: fields that its quirks name,
and encrypted reasoning."""

from __future__ import annotations

from collections.abc import Sequence, Set
from dataclasses import dataclass

from app.conversation.conversation_types import LogMessage
from app.dialects.provider_dialect import ProviderDialect
from app.dialects.sealed_parts import list_sealed_parts
from app.errors import StoreUnavailable
from app.pipeline.turn.resolved_request import OPAQUE_ORIGIN, ResolvedRequest
from app.store.contract.conversations import ConversationStore
from app.upstream.provider_contract import ProviderQuirks
from app.upstream.quirks.field_restoration import find_messages_missing_fields, restore_missing_fields

_READ_BACK_FACTOR = 2
"""How many log messages to read for each message of a client history that leaves out some of the log."""


@dataclass(frozen=True, slots=True)
class FieldRestorer:
    """Reads stored answers to fill in what is missing. If nothing is missing, it reads nothing."""

    store: ConversationStore

    async def restore_fields(
        self,
        quirks: ProviderQuirks,
        resolved_request: ResolvedRequest,
        view_messages: Sequence[bytes] | None,
        client_messages: Sequence[bytes],
    ) -> Sequence[bytes] | None:
        """Adds the fields that the provider requires to the messages of a view, as far as they are stored.

        Args:
            quirks: the quirks of the deployment that gets the messages.
            resolved_request: the request whose conversation holds the stored answers.
            view_messages: JSON text of each message of the view; None for the client's messages, unchanged.
            client_messages: JSON text of each of the client's messages.

        Returns:
            `view_messages` itself if no field is missing or none is found. If the store is away, none is found, and the
            provider decides whether the messages will do.
        """
        # A view from the store has all fields. Without a log there is nothing to restore from.
        if not quirks.restore_fields or resolved_request.client_messages is None or resolved_request.is_log_unstored:
            return view_messages
        messages = [bytes(raw) for raw in (client_messages if view_messages is None else view_messages)]
        missing = find_messages_missing_fields(messages, quirks.restore_fields, quirks.restore_scope)
        if not missing:
            return view_messages
        stored_answers = await self._read_stored_answers(resolved_request, len(messages) - missing[0])
        raw_answers = [entry.message.raw for entry in stored_answers]
        filled = restore_missing_fields(messages, raw_answers, quirks.restore_fields, quirks.restore_scope)
        return view_messages if filled == messages else filled

    async def restore_answers(
        self,
        dialect: ProviderDialect,
        client: str,
        resolved_request: ResolvedRequest,
        view_messages: Sequence[bytes] | None,
        client_messages: Sequence[bytes],
    ) -> Sequence[bytes] | None:
        """Adds what providers of a protocol need of stored answers and the client could not send back, such as
        encrypted reasoning. Other arguments and result as of `restore_fields`.

        Args:
            client: the protocol of the client.
        """
        if resolved_request.client_messages is None:
            return view_messages
        messages = [bytes(raw) for raw in (client_messages if view_messages is None else view_messages)]
        first_bare = dialect.find_bare_answer(client, messages)
        if first_bare is None:
            return view_messages
        stored_answers = await self._read_stored_answers(resolved_request, len(messages) - first_bare)
        restored = dialect.restore_answers(messages, [entry.message for entry in stored_answers])
        return view_messages if restored == messages else restored

    async def read_own_contents(
        self, resolved_request: ResolvedRequest, deployment_key: str, message_count: int
    ) -> Set[str]:
        """Returns the encrypted contents of stored answers of one deployment.

        Args:
            message_count: how many messages to cover, counted from the end of the log.
        """
        answers = await self._read_stored_answers(resolved_request, message_count)
        own_answers = [entry for entry in answers if (entry.meta or {}).get(OPAQUE_ORIGIN) == deployment_key]
        return {content for entry in own_answers for content in list_sealed_parts(entry.message.raw)}

    async def _read_stored_answers(self, resolved_request: ResolvedRequest, message_count: int) -> list[LogMessage]:
        """Reads the stored answers among the last messages of the log.

        Args:
            message_count: how many messages of the client history to cover, counted from its end.
        """
        end = resolved_request.conversation.head_seq + 1
        read_back_count = message_count if resolved_request.is_aligned_by_index else message_count * _READ_BACK_FACTOR
        try:
            entries = await self.store.read_log(
                resolved_request.conversation, max(0, resolved_request.next_seq - read_back_count), end
            )
        except StoreUnavailable:
            return []
        return [entry for entry in entries if entry.message.role == "assistant"]
