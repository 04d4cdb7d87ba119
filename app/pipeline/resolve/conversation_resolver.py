"""Finds a request's conversation and what of the request is new, and decides whether the request continues the
conversation, branches from it, or begins a new one.

A resend brings its history (`history_resolution`). An append names a conversation and brings new messages only. A chat
UI's title call, which uses the id of a known chat, is answered without the store.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass

from msgspec.structs import replace

from app.compaction.capsule import CapsuleSealer
from app.context.view.client_versions import ClientVersions
from app.conversation.conversation_types import ClientVersion, Conversation, LogMessage
from app.conversation.identity import compute_family_root, extract_family_root
from app.conversation.item import Item
from app.dialects.item_decoding import decode_item, is_instructions_field
from app.errors import ConversationNotFound, StoreUnavailable
from app.observability.request_record import timed_step
from app.pipeline.resolve.answer_replay import StoredAnswers, compute_retry_digest
from app.pipeline.resolve.capsule_resolution import CapsuleHistory, CapsuleResolver, check_capsule_conversation
from app.pipeline.resolve.client_history import (
    ClientHistory,
    PrefixMemory,
    build_client_history,
    check_new_messages,
    is_append_request,
    may_append,
)
from app.pipeline.resolve.client_log import HistoryAligner
from app.pipeline.resolve.conversation_proof import ConversationProver, list_scopes
from app.pipeline.resolve.history_resolution import HistoryResolver, PlacedHistory
from app.pipeline.resolve.item_references import expand_item_references
from app.pipeline.resolve.new_conversation import FOREIGN_ANSWERS_FROM_SEQ, NewConversations
from app.pipeline.resolve.previous_response import (
    PreviousResponseResolver,
    continues_stored_conversation,
    describe_forgotten_response,
    merge_instructions,
)
from app.pipeline.resolve.retry_detection import RetryDetector
from app.pipeline.resolve.tool_outputs import check_outputs_against_log, put_early_outputs_first
from app.pipeline.turn.chat_request import ChatRequest
from app.pipeline.turn.conversation_builders import build_log_entries
from app.pipeline.turn.resolved_request import (
    OPEN_TOOL_CALLS,
    REDACTED,
    STORED_INSTRUCTIONS,
    ResolvedRequest,
    ShownLog,
    TurnStorage,
    change_storage,
    has_gateway_id,
    has_other_end_user,
    mark_unstored,
    must_assign_external_id,
)
from app.pipeline.turn.token_counting import MessageCounter
from app.pipeline.turn.turn import Turn
from app.store.contract.conversations import ConversationStore
from app.store.leases import LeaseKeeper
from app.store.unwritten_fingerprints import UnwrittenFingerprints


@dataclass(eq=False, kw_only=True)
class ConversationResolver:
    """Finds a request's conversation. A resend costs one indexed query; an append costs a lease and one read."""

    store: ConversationStore
    stored_answers: StoredAnswers
    leases: LeaseKeeper
    message_counter: MessageCounter
    prefix_memory: PrefixMemory
    unwritten_fingerprints: UnwrittenFingerprints
    capsule_sealer: CapsuleSealer
    random_bytes: Callable[[int], bytes]
    lease_wait_seconds: float
    serves_degraded: bool

    def __post_init__(self) -> None:
        self._history_aligner = HistoryAligner(self.store, self.message_counter)
        self._histories = HistoryResolver(
            store=self.store,
            stored_answers=self.stored_answers,
            history_aligner=self._history_aligner,
            prover=ConversationProver(self.store, self._history_aligner),
            random_bytes=self.random_bytes,
        )
        self._retry_detector = RetryDetector(self.store, self.stored_answers)
        self._previous_responses = PreviousResponseResolver(
            store=self.store,
            stored_answers=self.stored_answers,
            retry_detector=self._retry_detector,
            history_aligner=self._history_aligner,
            message_counter=self.message_counter,
            random_bytes=self.random_bytes,
        )
        self._capsules = CapsuleResolver(self.store, self.capsule_sealer)
        self._new_conversations = NewConversations(
            self.store, self.message_counter, self.random_bytes, self.serves_degraded
        )

    @timed_step("recall", span="recall")
    async def resolve(self, request: ChatRequest, encoding: str, held_leases: AsyncExitStack) -> ResolvedRequest:
        """Finds the conversation of a request, and what of the request is new.

        Args:
            encoding: the tokenizer's name for a new conversation.
            held_leases: takes the lease of an append, and holds it until the turn is over.

        Raises:
            InvalidRequest: a new message is malformed, or the request refers to a response or item that does not exist.
            ConversationNotFound: the request names an id of ours that does not exist.
            ConversationBusy: the conversation's lease was not free in time.
            StoreUnavailable: the store is unavailable, and the request needs it.
        """
        expanded_request = request
        if request.protocol == "responses":
            may_begin_with_result = (
                request.continuation.conversation_id is not None
                or request.continuation.previous_response_id is not None
            )
            expanded_request = await expand_item_references(
                self.store, request, may_begin_with_result=may_begin_with_result
            )
        capsule_history = await self._capsules.read_history(expanded_request)
        if capsule_history is not None:
            expanded_request = capsule_history.request
        resolved_request = await self._resolve_expanded(expanded_request, encoding, held_leases, capsule_history)
        if capsule_history is not None:
            resolved_request = replace(
                resolved_request,
                capsule=capsule_history.capsule,
                users_before_capsule=capsule_history.users_before,
                warnings=(*resolved_request.warnings, *capsule_history.warnings),
            )
        if expanded_request is request:
            return resolved_request
        return replace(resolved_request, expanded_messages=expanded_request.raw_messages)

    async def _resolve_expanded(
        self,
        request: ChatRequest,
        encoding: str,
        held_leases: AsyncExitStack,
        capsule_history: CapsuleHistory | None,
    ) -> ResolvedRequest:
        """Resolves a request whose messages have no references to items, and no capsules."""
        client_history = build_client_history(request, self.prefix_memory)
        if request.context.mode == "stateless" and request.continuation.previous_response_id is None:
            return await self._resolve_unstored(request, client_history, encoding)
        try:
            # What was served without the store is counted first: until then an equal answer proves too much.
            await self.unwritten_fingerprints.write()
            if request.storing.keeps_context_only and await continues_stored_conversation(self.store, request):
                request = replace(request, storing=replace(request.storing, keeps_context_only=False))
            resolved_request = await self._resolve_with_store(
                request, client_history, encoding, held_leases, capsule_history
            )
            storage = replace(
                resolved_request.storage,
                request_digest=await compute_retry_digest(request) if resolved_request.storage.is_stored else None,
                fingerprint_scopes=list_scopes(request),
            )
            is_forgotten = request.protocol == "responses" and not request.storing.store
            warnings = (describe_forgotten_response(request),) if is_forgotten else ()
            return replace(resolved_request, storage=storage, warnings=warnings)
        except StoreUnavailable:
            # A request that may be an append does not bring its history: without the store, the model would answer
            # without the conversation.
            is_placed = capsule_history is not None and capsule_history.place is not None
            may_be_append = is_placed or request.context.mode == "append" or may_append(request, client_history)
            if not self.serves_degraded or may_be_append:
                raise
            return await self.resolve_without_store(request, encoding)

    async def resolve_without_store(self, request: ChatRequest, encoding: str) -> ResolvedRequest:
        """Resolves a request from its own history, while the store is unavailable."""
        client_history = build_client_history(request)
        return mark_unstored(await self._resolve_unstored(request, client_history, encoding))

    async def resolve_turn_without_store(self, turn: Turn) -> Turn:
        """Resolves a turn again from the client's messages alone, after the store went away."""
        resolved_request = await self.resolve_without_store(
            turn.request, turn.resolved_request.conversation.token_counter_name
        )
        return replace(turn, resolved_request=replace(resolved_request, capsule=turn.resolved_request.capsule))

    async def _resolve_with_store(
        self,
        request: ChatRequest,
        client_history: ClientHistory,
        encoding: str,
        held_leases: AsyncExitStack,
        capsule_history: CapsuleHistory | None,
    ) -> ResolvedRequest:
        if request.continuation.previous_response_id is not None:
            continued = await self._previous_responses.resolve(request, client_history)
            check_capsule_conversation(capsule_history, continued.conversation)
            return continued
        named_conversation = (
            None
            if request.continuation.conversation_id is None
            else await self._find_named_conversation(request.log_tenant, request.continuation.conversation_id)
        )
        if capsule_history is not None and capsule_history.place is not None:
            if has_gateway_id(request):
                check_capsule_conversation(capsule_history, named_conversation)
            # What is appended to a named conversation follows its end, wherever the range of the capsule ends.
            if named_conversation is None or request.context.mode != "append":
                return await self._resolve_after_capsule(request, capsule_history, capsule_history.place)
        # First of all: no later case may show one end user's conversation to another.
        if named_conversation is not None and has_other_end_user(request, named_conversation):
            return await self._resolve_for_other_end_user(request, named_conversation, client_history, encoding)
        if request.context.mode == "append" or is_append_request(request, named_conversation, client_history):
            return await self._resolve_append(request, named_conversation, client_history, encoding, held_leases)
        # Before the search for a resend: the tail of an agent's run contains answers and looks like a resent history.
        if named_conversation is not None and await self._retry_detector.is_resent_tail(
            request, named_conversation, client_history
        ):
            return await self._resolve_append(request, named_conversation, client_history, encoding, held_leases)
        resolved_request = await self._resolve_history(request, named_conversation, client_history)
        if resolved_request is not None:
            return resolved_request
        # The history matches nothing and has no answer. With an id of ours this is an append. With a client's own id it
        # may be an unrelated call of a chat UI, which must not go into the chat's log.
        if named_conversation is not None and request.context.mode == "auto" and not client_history.may_contain_answer:
            if has_gateway_id(request):
                return await self._resolve_append(request, named_conversation, client_history, encoding, held_leases)
            if named_conversation.answered:  # a chat UI asks for a title under its chat's id
                return await self._resolve_unstored(request, client_history, encoding)
        return await self._new_conversations.begin_conversation(
            request, client_history, encoding, named_conversation, may_share=True
        )

    async def _resolve_after_capsule(
        self, request: ChatRequest, capsule_history: CapsuleHistory, place: tuple[Conversation, LogMessage]
    ) -> ResolvedRequest:
        """Resolves a request whose messages follow the range of a capsule."""
        raws, count = request.raw_messages, capsule_history.instruction_count
        own = tuple(decode_item(bytes(raw)) for raw in raws[:count])
        first = decode_item(bytes(raws[count])) if len(raws) > count else None
        client_history = ClientHistory(request.log_tenant, raws[count:], first, own)
        instructions = own
        if all(is_instructions_field(message.raw) for message in own):
            instructions = merge_instructions(request, own, place[0].state.get(STORED_INSTRUCTIONS, ()))
        resolved_request = await self._previous_responses.continue_after(
            request, client_history, place, client_history.messages, instructions
        )
        return change_storage(
            resolved_request,
            is_stored=request.storing.is_kept,
            assigns_external_id=must_assign_external_id(request, resolved_request.conversation),
            external_id=request.continuation.conversation_id,
        )

    async def _resolve_for_other_end_user(
        self,
        request: ChatRequest,
        named_conversation: Conversation,
        client_history: ClientHistory,
        encoding: str,
    ) -> ResolvedRequest:
        """Resolves a request whose id belongs to another end user's conversation. The request continues a conversation
        of its own end user or begins one, and the client's id moves to that conversation.

        Raises:
            ConversationNotFound: the id is one of ours. Such an id cannot move.
        """
        if has_gateway_id(request):
            raise ConversationNotFound(
                f"Conversation with id {named_conversation.id!r} not found.", param="conversation_id"
            )
        resolved_request = await self._resolve_history(request, None, client_history)
        return resolved_request or await self._new_conversations.begin_conversation(
            request, client_history, encoding, named_conversation
        )

    async def _find_named_conversation(self, tenant: str, conversation_id: str) -> Conversation | None:
        """Returns the conversation of an id, or None if a client's own id points to none yet."""
        found = await self.store.find_conversation(tenant=tenant, conversation_id=conversation_id)
        if found is None and extract_family_root(conversation_id) is not None:
            raise ConversationNotFound(f"Conversation with id {conversation_id!r} not found.", param="conversation_id")
        return found

    async def _resolve_history(
        self, request: ChatRequest, named_conversation: Conversation | None, client_history: ClientHistory
    ) -> ResolvedRequest | None:
        """Returns the request with the conversation that its history continues or branches from, or None if there is no
        such conversation."""
        if named_conversation is None:
            placed = await self._histories.place_unnamed_history(request, client_history)
        else:
            placed = await self._histories.place_named_history(request, named_conversation, client_history)
        if placed is None:
            return None
        resolved_request = await self._build_resolved_request(request, placed, client_history)
        return replace(resolved_request, is_named=named_conversation is not None)

    async def _build_resolved_request(
        self, request: ChatRequest, placed: PlacedHistory, client_history: ClientHistory
    ) -> ResolvedRequest:
        """Builds the result for a request at the end of a conversation, or of a branch that is to be created."""
        target, shown = placed.target, placed.shown
        new_messages = client_history.decode_messages(placed.new_from_index)
        await check_new_messages(
            new_messages,
            first_index=len(request.raw_messages) - len(new_messages),
            has_open_calls=placed.has_open_calls,
        )
        # An agent that appends also sends its run again with each tool result, so tool results alone do not prove
        # that the client resends its history.
        is_results = bool(new_messages) and all(message.role == "tool" for message in new_messages)
        mode = target.mode if is_results else "resend"
        conversation = target if target.mode == mode else replace(target, mode=mode)
        entries = await build_log_entries(
            conversation,
            [*placed.moved_messages, *new_messages],
            self.message_counter,
            answers_from_seq=FOREIGN_ANSWERS_FROM_SEQ,
        )
        versions, new_versions = shown.client_versions, shown.new_versions
        if placed.moved_messages:
            tokens = {entry.seq: entry.tokens for entry in entries[: len(placed.moved_messages)]}
            new_versions = tuple(
                replace(one, tokens_delta=-tokens[one.seq]) if one.seq in tokens else one for one in new_versions
            )
            versions = versions.with_later_versions(new_versions)
        log_seqs = shown.log_seqs
        if log_seqs is not None:
            log_seqs = (*log_seqs, *(entry.seq for entry in entries[len(placed.moved_messages) :]))
        return ResolvedRequest(
            conversation=conversation,
            creates_conversation=target.created_at is None,
            new_messages=entries,
            instructions=client_history.instructions,
            instructions_tokens=await self.message_counter.count_instruction_tokens(
                client_history.instructions, request, conversation.token_counter_name
            ),
            client_messages=None if conversation.marks.get(REDACTED) else client_history.raw_messages,
            has_missing_results=await client_history.has_missing_results(request),
            shown=replace(shown, log_seqs=log_seqs, client_versions=versions, new_versions=new_versions),
            storage=TurnStorage(
                is_stored=request.storing.is_kept,
                needs_store=request.storing.is_kept and not self.serves_degraded,
                assigns_external_id=must_assign_external_id(request, conversation),
                external_id=request.continuation.conversation_id,
                conversation_hints=request.continuation.hints,
            ),
            history_digest=client_history.history_digest,
            stored_answer=placed.stored_answer,
        )

    async def _resolve_append(
        self,
        request: ChatRequest,
        named_conversation: Conversation | None,
        client_history: ClientHistory,
        encoding: str,
        held_leases: AsyncExitStack,
    ) -> ResolvedRequest:
        """Appends new messages. The lease comes before the read, so that two appends see each other's messages."""
        tenant = request.log_tenant
        if named_conversation is None and request.continuation.conversation_id is not None:
            # The client's own id points to nothing yet. The lease on the id makes two first requests take turns, and
            # the second look finds the conversation that the other one began.
            root = compute_family_root(tenant, request.continuation.conversation_id.encode())
            await held_leases.enter_async_context(
                self.leases.hold_lease(root, request.continuation.conversation_id, self.lease_wait_seconds)
            )
            named_conversation = await self._find_named_conversation(tenant, request.continuation.conversation_id)
        if named_conversation is None:
            return await self._begin_conversation_for_append(request, client_history, encoding, held_leases)
        lease = await held_leases.enter_async_context(
            self.leases.hold_lease(named_conversation.root, named_conversation.id, self.lease_wait_seconds)
        )
        # Read again under the lease: another request may have appended while this one waited.
        conversation = await self.store.find_conversation(tenant=tenant, conversation_id=named_conversation.id)
        if conversation is None:
            raise ConversationNotFound(
                f"Conversation with id {named_conversation.id!r} not found.", param="conversation_id"
            )
        versions = await self._history_aligner.read_client_versions(conversation)
        stored_answer = await self.stored_answers.find_retry_answer(conversation, request)
        messages: Sequence[Item] = []
        left_out: Sequence[LogMessage] = ()
        if stored_answer is None:
            messages, left_out = await self._select_appended_messages(request, conversation, client_history, versions)
        # The log keeps what is left out; the model is asked as if it had not been said.
        new_versions = tuple(
            ClientVersion(one.seq, conversation.head_seq + 1, one.seq + 1, (), -one.tokens) for one in left_out
        )
        versions = versions.with_later_versions(new_versions) if new_versions else versions
        # The calls of an attempt that is left out are open again.
        has_open_calls = bool(conversation.state.get(OPEN_TOOL_CALLS) or left_out)
        await check_outputs_against_log(self.store, request, conversation, messages)
        await check_new_messages(messages, first_index=len(client_history.instructions), has_open_calls=has_open_calls)
        instructions = merge_instructions(
            request, client_history.instructions, conversation.state.get(STORED_INSTRUCTIONS, ())
        )
        if conversation.mode == "unknown":
            conversation = replace(conversation, mode="append")
        return ResolvedRequest(
            conversation=conversation,
            creates_conversation=False,
            new_messages=await build_log_entries(
                conversation, messages, self.message_counter, answers_from_seq=FOREIGN_ANSWERS_FROM_SEQ
            ),
            instructions=instructions,
            instructions_tokens=await self.message_counter.count_instruction_tokens(
                instructions, request, conversation.token_counter_name
            ),
            client_messages=None,
            shown=ShownLog(client_versions=versions, new_versions=new_versions),
            storage=TurnStorage(
                is_stored=request.storing.is_kept,
                needs_store=request.storing.is_kept,
                lease=lease,
                conversation_hints=request.continuation.hints,
            ),
            is_named=True,
            is_append=True,
            stored_answer=stored_answer,
        )

    async def _select_appended_messages(
        self,
        request: ChatRequest,
        conversation: Conversation,
        client_history: ClientHistory,
        versions: ClientVersions,
    ) -> tuple[Sequence[Item], Sequence[LogMessage]]:
        """Returns the messages of an append that the log does not have, and what the model is not shown of the log: the
        stored answer to them that its client did not get, or what they replace of an attempt."""
        messages: Sequence[Item] = client_history.messages
        # In mode `append` a chat client has declared that all messages are new. In mode `auto`, and with `conversation`
        # in the Responses API, an agent may send its run again.
        if request.context.mode == "auto" or request.protocol == "responses":
            messages = messages[await self._retry_detector.count_repeated_messages(request, conversation, messages) :]
        messages = put_early_outputs_first(request, messages)
        lost_answer = await self._retry_detector.find_lost_answer(request, conversation, messages, versions)
        if lost_answer is not None:
            return [], [lost_answer]
        if await self._retry_detector.is_unanswered_retry(conversation, messages):
            return [], ()
        return messages, await self._retry_detector.find_replaced_messages(conversation, messages, versions)

    async def _begin_conversation_for_append(
        self,
        request: ChatRequest,
        client_history: ClientHistory,
        encoding: str,
        held_leases: AsyncExitStack,
    ) -> ResolvedRequest:
        """Begins a conversation whose client will append, and holds the lease of the new conversation."""
        new_request = await self._new_conversations.begin_conversation(request, client_history, encoding)
        is_stored = new_request.storage.is_stored
        resolved_request = change_storage(replace(new_request, is_append=True), needs_store=is_stored)
        if not is_stored:
            return resolved_request
        # The next append finds the conversation as soon as its question is stored, and must wait for the answer.
        new_conversation = resolved_request.conversation
        lease = await held_leases.enter_async_context(
            self.leases.hold_lease(new_conversation.root, new_conversation.id, self.lease_wait_seconds)
        )
        return change_storage(resolved_request, lease=lease)

    async def _resolve_unstored(
        self, request: ChatRequest, client_history: ClientHistory, encoding: str
    ) -> ResolvedRequest:
        """Resolves a request that is answered without the store."""
        resolved_request = await self._new_conversations.begin_conversation(request, client_history, encoding)
        storage = TurnStorage(
            is_stored=False,
            external_id=request.continuation.conversation_id,
            conversation_hints=request.continuation.hints,
            fingerprint_scopes=list_scopes(request),
            keeps_instructions=resolved_request.storage.keeps_instructions,
        )
        return replace(resolved_request, storage=storage, history_digest=None)
