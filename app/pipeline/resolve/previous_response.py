"""Continues a conversation after an earlier response (`previous_response_id`), and checks what such a request needs of
the log.

If the response is the end of its conversation, the new messages are appended, else a branch begins after it. A request
that repeats answers after the response continues after the last of these instead. No lease is taken: of two requests
that continue the same response at once, the store accepts the first write, and the turn writer stores the other turn as
a branch.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from msgspec.structs import replace

from app.conversation.conversation_types import RESPONSE_ID_PREFIX, Conversation, LogMessage, StoredCompletion
from app.conversation.identity import LinkPosition, compute_links_after_messages, make_conversation_id
from app.conversation.item import Item, may_precede_tool_result
from app.dialects.item_decoding import decode_item, is_instructions_field, select_lasting_instructions
from app.errors import PreviousResponseNotFound
from app.pipeline.resolve.answer_replay import StoredAnswers
from app.pipeline.resolve.client_history import ClientHistory, check_new_messages
from app.pipeline.resolve.client_log import HistoryAligner
from app.pipeline.resolve.retry_detection import RetryDetector
from app.pipeline.resolve.tool_outputs import check_outputs_have_calls, list_call_ids, put_early_outputs_first
from app.pipeline.turn.chat_request import ChatRequest
from app.pipeline.turn.conversation_builders import build_branch, build_log_entries
from app.pipeline.turn.resolved_request import ResolvedRequest, ShownLog, TurnStorage, has_other_end_user
from app.pipeline.turn.token_counting import MessageCounter
from app.store.contract.conversations import ConversationStore, LinkMatch

CONTEXT_ONLY_WARNING: Final = (
    "`store: false`: this turn is kept for continuing its conversation only, and erased after "
    "`retention.context_hours`."
)
NOTHING_KEPT_WARNING: Final = "`store: false`: nothing of this turn is kept."
NUL: Final = "\0"
"""No stored id contains it, because PostgreSQL cannot store it. A query with it would fail."""


@dataclass(eq=False, kw_only=True)
class PreviousResponseResolver:
    """Resolves requests that continue after an earlier response."""

    store: ConversationStore
    stored_answers: StoredAnswers
    retry_detector: RetryDetector
    history_aligner: HistoryAligner
    message_counter: MessageCounter
    random_bytes: Callable[[int], bytes]

    async def resolve(self, request: ChatRequest, client_history: ClientHistory) -> ResolvedRequest:
        """Resolves a request that continues after the response that it names, or after a later answer that it repeats.

        Raises:
            PreviousResponseNotFound: the tenant has no such response, or its conversation is gone.
            InvalidRequest: a message is malformed, or an output has no call.
            StoreUnavailable: the store is unavailable.
        """
        response, conversation, answer = await self._find_response(request)
        messages: Sequence[Item] = client_history.messages
        repeated_count = await self.retry_detector.count_repeated_messages(
            request, conversation, messages, last_seq=response.seq
        )
        instructions = merge_instructions(request, client_history.instructions, response.instructions)
        return await self.continue_after(
            request, client_history, (conversation, answer), messages[repeated_count:], instructions
        )

    async def continue_after(
        self,
        request: ChatRequest,
        client_history: ClientHistory,
        place: tuple[Conversation, LogMessage],
        messages: Sequence[Item],
        instructions: tuple[Item, ...],
    ) -> ResolvedRequest:
        """Resolves a request whose messages follow a place in a log: a conversation, and a message of it. They may
        begin with messages that follow it there.

        Raises:
            InvalidRequest, StoreUnavailable: as `resolve`.
        """
        conversation, last_message, messages = await self._find_resent_answer(*place, messages)
        messages = put_early_outputs_first(request, messages)
        stored_answer: LogMessage | None = None
        target = conversation
        if conversation.head_seq != last_message.seq:
            conversation, stored_answer = await self._find_retried_turn(request, conversation, last_message, messages)
            target = conversation
            is_unanswered = conversation.head_seq == last_message.seq + len(
                messages
            ) and await self.retry_detector.is_unanswered_retry(conversation, messages)
            if stored_answer is not None or is_unanswered:
                messages = []
            else:
                branch_id = make_conversation_id(conversation.root, self.random_bytes)
                target = build_branch(conversation, last_message, branch_id)
        check_outputs_have_calls(request, messages, [last_message.message])
        await check_new_messages(
            messages,
            first_index=len(client_history.instructions),
            has_open_calls=may_precede_tool_result(last_message.message),
        )
        if target.mode == "unknown":
            target = replace(target, mode="append")
        return ResolvedRequest(
            conversation=target,
            creates_conversation=target.created_at is None,
            new_messages=await build_log_entries(target, messages, self.message_counter),
            instructions=instructions,
            instructions_tokens=await self.message_counter.count_instruction_tokens(
                instructions, request, target.token_counter_name
            ),
            client_messages=None,
            shown=ShownLog(client_versions=await self.history_aligner.read_client_versions(target)),
            storage=TurnStorage(
                # What the request does not ask to store must not become a part of a conversation that can be read.
                is_stored=request.storing.store and request.context.mode != "stateless",
                needs_store=True,
                conversation_hints=request.continuation.hints,
            ),
            is_named=True,
            stored_answer=stored_answer,
        )

    async def _find_response(self, request: ChatRequest) -> tuple[StoredCompletion, Conversation, LogMessage]:
        """Returns the response that a request continues, its conversation, and its answer."""
        tenant, response_id = request.caller.tenant, request.continuation.previous_response_id or ""
        if response_id.startswith(RESPONSE_ID_PREFIX) and NUL not in response_id:
            response = await self.store.find_completion(tenant=tenant, completion_id=response_id)
            conversation = (
                None
                if response is None
                else await self.store.find_conversation(tenant=tenant, conversation_id=response.conversation_id)
            )
            if response is not None and conversation is not None and not has_other_end_user(request, conversation):
                answers = await self.store.read_log(conversation, response.seq, response.seq + 1)
                if answers:
                    return response, conversation, answers[0]
        raise PreviousResponseNotFound(
            f"Previous response with id '{response_id}' not found.", param="previous_response_id"
        )

    async def _find_resent_answer(
        self, conversation: Conversation, answer: LogMessage, messages: Sequence[Item]
    ) -> tuple[Conversation, LogMessage, Sequence[Item]]:
        """Returns the newest answer after which a request continues, its conversation, and the messages after it.

        The AI SDK names the same response in each step of a run, and sends the earlier steps again. Their answers
        follow the response in the log, or in a branch of it.
        """
        positions = compute_links_after_messages(messages, _get_position(answer))
        indexes_by_link = {
            position.link: index
            for index, (message, position) in enumerate(zip(messages, positions, strict=True))
            if message.role == "assistant" and message.canonical_form is not None
        }
        for match in await self._find_family_matches(conversation, list(indexes_by_link)):
            index = indexes_by_link[match.message.link]
            # Two branches may have the same calls. Only the ids tell which of them the outputs belong to.
            has_same_calls = list_call_ids(match.message.message) == list_call_ids(messages[index])
            if match.message.seq > answer.seq and has_same_calls:
                return match.conversation, match.message, messages[index + 1 :]
        return conversation, answer, messages

    async def _find_retried_turn(
        self,
        request: ChatRequest,
        conversation: Conversation,
        last_message: LogMessage,
        messages: Sequence[Item],
    ) -> tuple[Conversation, LogMessage | None]:
        """Returns the stored answer to a retried request, and its conversation: this one, or a branch that the first
        attempt began. Without such an answer, returns this conversation and None."""
        stored_answer = await self.stored_answers.find_retry_answer(conversation, request)
        if stored_answer is not None or not (request.retry.is_retry or request.retry.idempotency_key is not None):
            return conversation, stored_answer
        positions = [*compute_links_after_messages(messages, _get_position(last_message))]
        for match in await self._find_family_matches(conversation, [position.link for position in positions[-1:]]):
            stored_answer = await self.stored_answers.find_retry_answer(match.conversation, request)
            if stored_answer is not None:
                return match.conversation, stored_answer
        return conversation, None

    async def _find_family_matches(self, conversation: Conversation, links: Sequence[bytes]) -> list[LinkMatch]:
        """Returns the stored messages with these links in a conversation, its branches, and what it branches from."""
        if not links:
            return []
        matches = await self.store.find_link_matches(
            tenant=conversation.tenant,
            root=conversation.root,
            links=links,
            named_conversation_id=conversation.id,
        )
        return [match for match in matches if match.conversation.family_id == conversation.family_id]


def _get_position(message: LogMessage) -> LinkPosition:
    """Returns the position of the chains after a log message."""
    return LinkPosition(message.link, message.skeleton, message.in_skeleton)


async def continues_stored_conversation(store: ConversationStore, request: ChatRequest) -> bool:
    """Returns whether a request with `store: false` names a conversation that its tenant can read. What is kept of the
    turn would become readable there, so nothing is kept."""
    if request.continuation.previous_response_id is not None or request.continuation.conversation_id is None:
        return request.continuation.previous_response_id is not None
    tenant, conversation_id = request.caller.tenant, request.continuation.conversation_id
    return await store.find_conversation(tenant=tenant, conversation_id=conversation_id) is not None


def describe_forgotten_response(request: ChatRequest) -> str:
    """Returns the warning that says what is kept of a response with `store: false`."""
    return CONTEXT_ONLY_WARNING if request.storing.keeps_context_only else NOTHING_KEPT_WARNING


def merge_instructions(request: ChatRequest, own: tuple[Item, ...], stored: Sequence[str]) -> tuple[Item, ...]:
    """Returns the instructions of a request that brings new messages only.

    In the Responses API, system and developer messages of earlier requests stay, and the field `instructions` holds for
    its own request. In Chat Completions, the instructions of a request replace the stored ones.

    Args:
        own: the request's own instructions.
        stored: the raw texts of earlier ones.
    """
    if request.protocol != "responses":
        return own or tuple(decode_item(raw.encode()) for raw in stored)
    lasting = [decode_item(raw.encode()) for raw in select_lasting_instructions(stored)]
    # By the canonical form, because the same message may have come as a chat message before.
    known = {message.canonical_note for message in lasting}
    field = [message for message in own if is_instructions_field(message.raw)]
    new = [message for message in own if not is_instructions_field(message.raw) and message.canonical_note not in known]
    return (*field, *lasting, *new)
