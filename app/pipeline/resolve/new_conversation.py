"""Begins a conversation whose log is everything that the client sent.

Conversations that say the same cannot be proven apart: evaluations, load tests, greetings. Each has an id of its own.
If a stored log has the whole beginning of the history, the new conversation shares its rows; the two are no relatives.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from app.conversation.conversation_types import Conversation, LogMessage
from app.conversation.identity import LinkPosition, make_conversation_id
from app.pipeline.resolve.client_history import (
    ClientHistory,
    check_new_messages,
    compute_log_root,
)
from app.pipeline.resolve.tool_outputs import check_outputs_have_calls, put_early_outputs_first
from app.pipeline.turn.chat_request import ChatRequest
from app.pipeline.turn.conversation_builders import build_empty_conversation, build_log_entries, share_log
from app.pipeline.turn.resolved_request import (
    ResolvedRequest,
    TurnStorage,
    build_end_user_state,
    has_other_end_user,
)
from app.pipeline.turn.token_counting import MessageCounter
from app.store.contract.conversations import ConversationStore, LinkMatch

FOREIGN_ANSWERS_FROM_SEQ: Final = 7
"""From this seq on, an assistant message that is not our answer makes a log recognisable, too. Otherwise a client that
reshapes each answer would begin a new conversation with every turn. Greetings that all users share are over by then
(docs/decisions/0006)."""


@dataclass(frozen=True, slots=True)
class NewConversations:
    """Begins conversations.

    Args:
        random_bytes: returns that many random bytes.
    """

    store: ConversationStore
    message_counter: MessageCounter
    random_bytes: Callable[[int], bytes]
    serves_degraded: bool

    async def begin_conversation(
        self,
        request: ChatRequest,
        client_history: ClientHistory,
        encoding: str,
        named_conversation: Conversation | None = None,
        *,
        may_share: bool = False,
    ) -> ResolvedRequest:
        """Begins a conversation whose log is everything that the client sent. The new conversation takes over the
        client's id from `named_conversation`.

        Args:
            may_share: whether the new conversation may share rows of a stored log. The store is read.
        """
        tenant = request.log_tenant
        positions, messages = await client_history.compute_link_positions(), client_history.messages
        # With an id, the parser leaves it open whether outputs have their calls.
        if request.continuation.conversation_id is not None:
            check_outputs_have_calls(request, put_early_outputs_first(request, messages), ())
        await check_new_messages(messages, first_index=len(client_history.instructions), has_open_calls=False)
        root = compute_log_root(tenant, client_history.start_position, positions)
        conversation = build_empty_conversation(
            tenant,
            encoding,
            conversation_id=make_conversation_id(root, self.random_bytes),
            root=root,
            state=build_end_user_state(request),
            external_id=request.continuation.conversation_id if named_conversation is None else None,
            mode="append"
            if request.context.mode == "append"
            else "resend"
            if client_history.may_contain_answer
            else "unknown",
        )
        shared_answer: LogMessage | None = None
        if may_share and client_history.may_contain_answer:
            match = await self._find_shared_log(request, root, positions)
            if match is not None:
                conversation = share_log(conversation, match.conversation, match.message)
                # The items and the id of a stored completion are found by its own answer.
                if match.message.seq == len(messages) - 1 and not request.storing.stores_completion:
                    following = match.message.seq + 1
                    entries = await self.store.read_log(match.conversation, following, following + 1)
                    shared_answer = next(iter(entries), None)
                messages, positions = messages[match.message.seq + 1 :], positions[match.message.seq + 1 :]
        return ResolvedRequest(
            conversation=conversation,
            creates_conversation=True,
            new_messages=await build_log_entries(
                conversation,
                messages,
                self.message_counter,
                positions=positions,
                answers_from_seq=FOREIGN_ANSWERS_FROM_SEQ,
            ),
            instructions=client_history.instructions,
            instructions_tokens=await self.message_counter.count_instruction_tokens(
                client_history.instructions, request, encoding
            ),
            client_messages=client_history.raw_messages,
            has_missing_results=await client_history.has_missing_results(request),
            shared_answer=shared_answer,
            storage=TurnStorage(
                is_stored=request.storing.is_kept,
                needs_store=request.storing.is_kept and not self.serves_degraded,
                assigns_external_id=named_conversation is not None,
                external_id=request.continuation.conversation_id,
                conversation_hints=request.continuation.hints,
                keeps_instructions=request.protocol == "responses" and request.storing.store,
            ),
            is_named=request.continuation.conversation_id is not None,
            is_first_request=True,
            history_digest=client_history.history_digest,
        )

    async def _find_shared_log(
        self, request: ChatRequest, root: str, positions: Sequence[LinkPosition]
    ) -> LinkMatch | None:
        """Returns the stored message up to which a log is the beginning of the history, message by message; None if no
        log is. A log that its client changed, or that was redacted, is not shared."""
        links = [position.link for position in positions]
        matches = await self.store.find_link_matches(tenant=request.log_tenant, root=root, links=links)
        for match in matches:
            conversation, seq = match.conversation, match.message.seq
            is_same_place = seq < len(links) and links[seq] == match.message.link
            # A message that the chain skips has the link of the one before it.
            is_whole = is_same_place and len(set(links[: seq + 1])) == seq + 1
            if (
                is_whole
                and not conversation.has_client_versions
                and not conversation.redacted_seqs
                and not has_other_end_user(request, conversation)
            ):
                return match
        return None
