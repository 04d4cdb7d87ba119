"""Finds a request's conversation and what of the request is new, and decides whether the request continues the
conversation, branches from it, or begins a new one.

A resend brings its history. It is recognised by the chain of links or, if the client rewrites its history, by our
answers in it and an alignment with the log. An append names a conversation and brings new messages only. A chat UI's
title call, which uses the id of a known chat, is answered without the store.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack

from msgspec.structs import replace

from app.conversation.alignment import Alignment
from app.conversation.conversation_types import Conversation, LogMessage
from app.conversation.identity import (
    PrefixCache,
    compute_family_root,
    extract_family_root,
    make_conversation_id,
)
from app.conversation.item import Item, may_precede_tool_result
from app.dialects.item_decoding import decode_item
from app.errors import ConversationNotFound, StoreUnavailable
from app.observability.request_record import timed_step
from app.observability.tracing import trace_span
from app.pipeline.admission.answer_replay import StoredAnswers
from app.pipeline.admission.request_digest import compute_retry_digest
from app.pipeline.chat_request import ChatRequest
from app.pipeline.persist.conversation_builders import build_branch
from app.pipeline.resolve.answer_anchors import AnswerAnchors
from app.pipeline.resolve.client_history_matching import (
    ClientHistory,
    PrefixMatch,
    PrefixSearch,
    RememberedPrefix,
    build_client_history,
    check_new_messages,
    detect_missing_results,
    is_append_request,
    may_append,
)
from app.pipeline.resolve.history_alignment import ALIGNED_MARKS, AlignedHistory, HistoryAligner, find_first_new_index
from app.pipeline.resolve.item_references import expand_item_references
from app.pipeline.resolve.new_conversation import NewConversations
from app.pipeline.resolve.previous_response import (
    PreviousResponseResolver,
    continues_stored_conversation,
    describe_unstored_turn,
    merge_instructions,
)
from app.pipeline.resolve.resolved_request import (
    OPEN_TOOL_CALLS,
    REDACTED,
    STORED_INSTRUCTIONS,
    ResolvedRequest,
    has_client_versions,
    has_gateway_id,
    has_other_end_user,
    must_assign_external_id,
)
from app.pipeline.resolve.retry_detection import RetryDetector
from app.pipeline.resolve.rewritten_history_search import RewrittenHistorySearch
from app.pipeline.resolve.tool_outputs import check_outputs_against_log, put_early_outputs_first
from app.pipeline.token_counting import MessageCounter
from app.store.contract.conversations import ConversationStore
from app.store.leases import LeaseKeeper


class ConversationResolver:
    """Finds a request's conversation. A resend costs one indexed query; an append costs a lease and one read."""

    def __init__(
        self,
        *,
        store: ConversationStore,
        stored_answers: StoredAnswers,
        leases: LeaseKeeper,
        message_counter: MessageCounter,
        prefix_memory: PrefixCache[RememberedPrefix],
        history_aligner: HistoryAligner,
        answer_anchors: AnswerAnchors,
        random_bytes: Callable[[int], bytes],
        lease_wait_seconds: float,
        serves_degraded: bool,
    ) -> None:
        self._store = store
        self._prefix_search = PrefixSearch(store)
        self._history_aligner = history_aligner
        self._rewritten_history_search = RewrittenHistorySearch(store, history_aligner, answer_anchors)
        self._retry_detector = RetryDetector(store, stored_answers)
        self._previous_responses = PreviousResponseResolver(
            store=store,
            stored_answers=stored_answers,
            retry_detector=self._retry_detector,
            history_aligner=history_aligner,
            message_counter=message_counter,
            random_bytes=random_bytes,
        )
        self._stored_answers = stored_answers
        self._leases = leases
        self._message_counter = message_counter
        self._prefix_memory = prefix_memory
        self._random_bytes = random_bytes
        self._new_conversations = NewConversations(message_counter, random_bytes, serves_degraded=serves_degraded)
        self._lease_wait_seconds = lease_wait_seconds
        self._serves_degraded = serves_degraded

    @trace_span("recall")
    @timed_step("recall")
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
        expanded_request = await expand_item_references(
            self._store,
            request,
            may_begin_with_result=request.conversation_id is not None or request.previous_response_id is not None,
        )
        if expanded_request is not request:
            resolved_request = await self._resolve_expanded(expanded_request, encoding, held_leases)
            return replace(resolved_request, expanded_messages=expanded_request.raw_messages)
        return await self._resolve_expanded(request, encoding, held_leases)

    async def _resolve_expanded(
        self, request: ChatRequest, encoding: str, held_leases: AsyncExitStack
    ) -> ResolvedRequest:
        """Resolves a request whose messages have no references to items."""
        client_history = build_client_history(request)
        if request.context_mode == "stateless" and request.previous_response_id is None:
            return await self._resolve_unstored(request, client_history, encoding)
        try:
            if request.keeps_context_only and await continues_stored_conversation(self._store, request):
                request = replace(request, keeps_context_only=False)
            resolved_request = await self._resolve_with_store(request, client_history, encoding, held_leases)
            return replace(
                resolved_request,
                request_digest=(
                    await compute_retry_digest(request, client_history) if resolved_request.is_stored else None
                ),
                warnings=describe_unstored_turn(request),
                is_named=_names_conversation(request, resolved_request.conversation),
            )
        except StoreUnavailable:
            # A request that may be an append does not bring its history: without the store, the model would answer
            # without the conversation.
            if not self._serves_degraded or request.context_mode == "append" or may_append(request, client_history):
                raise
            return await self.resolve_without_store(request, encoding)

    async def resolve_without_store(self, request: ChatRequest, encoding: str) -> ResolvedRequest:
        """Resolves a request from its own history, while the store is unavailable."""
        client_history = build_client_history(request)
        return replace(await self._resolve_unstored(request, client_history, encoding), is_degraded=True)

    async def _resolve_with_store(
        self,
        request: ChatRequest,
        client_history: ClientHistory,
        encoding: str,
        held_leases: AsyncExitStack,
    ) -> ResolvedRequest:
        if request.previous_response_id is not None:
            return await self._previous_responses.resolve(request, client_history)
        named_conversation = (
            None
            if request.conversation_id is None
            else await self._find_named_conversation(request.log_tenant, request.conversation_id)
        )
        # First of all: no later case may show one end user's conversation to another.
        if named_conversation is not None and has_other_end_user(request, named_conversation):
            return await self._resolve_for_other_end_user(request, named_conversation, client_history, encoding)
        if request.context_mode == "append" or is_append_request(request, named_conversation, client_history):
            return await self._resolve_append(request, named_conversation, client_history, encoding, held_leases)
        # Before the search for a resend: the tail of an agent's run contains answers and looks like a resent history.
        # A request without an id, an answer, a hint or a known prefix is a first question. It needs no query.
        if named_conversation is not None and await self._retry_detector.is_resent_tail(
            request, named_conversation, client_history
        ):
            return await self._resolve_append(request, named_conversation, client_history, encoding, held_leases)
        if (
            named_conversation is not None
            or client_history.raw_prefix_digests
            or client_history.may_contain_answer
            or request.conversation_hints
        ):
            resolved_request = await self._resolve_resend(request, named_conversation, client_history)
            if resolved_request is not None:
                return resolved_request
        # The history matches nothing and has no answer. With an id of ours this is an append. With a client's own id it
        # may be an unrelated call of a chat UI, which must not go into the chat's log.
        if named_conversation is not None and request.context_mode == "auto" and not client_history.may_contain_answer:
            if has_gateway_id(request):
                return await self._resolve_append(request, named_conversation, client_history, encoding, held_leases)
            if named_conversation.answered:  # a chat UI asks for a title under its chat's id
                return await self._resolve_unstored(request, client_history, encoding)
        return await self._new_conversations.begin_conversation(request, client_history, encoding, named_conversation)

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
        resolved_request = (
            await self._resolve_resend(request, None, client_history) if client_history.may_contain_answer else None
        )
        return resolved_request or await self._new_conversations.begin_conversation(
            request, client_history, encoding, named_conversation
        )

    async def _find_named_conversation(self, tenant: str, conversation_id: str) -> Conversation | None:
        """Returns the conversation of an id, or None if a client's own id points to none yet."""
        found = await self._store.find_conversation(tenant=tenant, conversation_id=conversation_id)
        if found is None and extract_family_root(conversation_id) is not None:
            raise ConversationNotFound(f"Conversation with id {conversation_id!r} not found.", param="conversation_id")
        return found

    async def _resolve_resend(
        self,
        request: ChatRequest,
        named_conversation: Conversation | None,
        client_history: ClientHistory,
    ) -> ResolvedRequest | None:
        """Returns the request with the conversation that its history continues or branches from, or None if there is no
        such conversation.

        The cheapest search comes first: the client's bytes (no decoding), then the exact chain, then our answers and
        the client's hints anywhere in the history.
        """
        remembered_prefix = self._prefix_memory.find_longest_prefix(client_history.raw_prefix_digests)
        branch_candidate: tuple[PrefixMatch, tuple[int, RememberedPrefix]] | None = None
        if remembered_prefix is not None:
            count, remembered = remembered_prefix
            rest = client_history.decode_messages(count)
            prefix_match = await self._prefix_search.search_after_prefix(
                request, named_conversation, remembered, rest, count
            )
            if prefix_match is not None:
                hinted = await self._rewritten_history_search.find_hinted_conversation(
                    request, named_conversation, prefix_match, client_history
                )
                if hinted is not None:
                    return await self._resolve_aligned_history(request, *hinted, client_history)
                # An ambiguous place may belong to several people's conversations: a new conversation is safe, a wrong
                # one is a leak.
                if named_conversation is None and await self._rewritten_history_search.is_ambiguous_match(
                    prefix_match, client_history
                ):
                    return None
                if prefix_match.is_head or client_history.can_rest_be_new(
                    prefix_match.index, is_named=named_conversation is not None
                ):
                    return await self._resolve_prefix_match(request, prefix_match, client_history, remembered_prefix)
                # A branch is the last resort: the answer after this place may have come back in other words, and
                # then the history continues its conversation.
                branch_candidate = (
                    prefix_match,
                    remembered_prefix,
                )
        if named_conversation is None and not client_history.may_contain_answer and not request.conversation_hints:
            return None
        client_history.aligned_prefix = self._history_aligner.find_aligned_prefix(client_history)
        prefix_match = await self._prefix_search.search_history(request, named_conversation, client_history)
        if prefix_match is not None:
            hinted = await self._rewritten_history_search.find_hinted_conversation(
                request, named_conversation, prefix_match, client_history
            )
            if hinted is not None:
                return await self._resolve_aligned_history(request, *hinted, client_history)
        is_end = prefix_match is not None and client_history.can_rest_be_new(
            prefix_match.index, is_named=named_conversation is not None
        )
        if prefix_match is None or not (is_end or (prefix_match.is_head and named_conversation is not None)):
            # After the head of the matched conversation, the history may have answers of another conversation. So an
            # unnamed match at a head is final only if everything after it is new.
            conversation_and_alignment = await self._rewritten_history_search.find_conversation(
                request, named_conversation, prefix_match, client_history
            )
            if conversation_and_alignment is not None:
                return await self._resolve_aligned_history(request, *conversation_and_alignment, client_history)
        if prefix_match is not None and (is_end or prefix_match.is_head):
            return await self._resolve_history_match(
                request, named_conversation, prefix_match, client_history, is_end=is_end
            )
        if branch_candidate is None:
            return None
        prefix_match, remembered_prefix = branch_candidate
        return await self._resolve_prefix_match(request, prefix_match, client_history, remembered_prefix)

    async def _resolve_history_match(
        self,
        request: ChatRequest,
        named_conversation: Conversation | None,
        prefix_match: PrefixMatch,
        client_history: ClientHistory,
        *,
        is_end: bool,
    ) -> ResolvedRequest | None:
        """Continues after a match that the exact chain has found, or returns None if its conversation is not certain.

        Args:
            is_end: everything after the match is new.
        """
        # Several families have stored this message, and the history goes on with old messages: no family is
        # certain.
        is_doubtful = prefix_match.is_shared_message and not is_end
        if named_conversation is None and (
            is_doubtful or await self._rewritten_history_search.is_ambiguous_match(prefix_match, client_history)
        ):
            return None
        # Without rewritten messages, index and seq are the same and no alignment is needed. Otherwise the alignment
        # finds what the client shows in the place of log messages.
        if prefix_match.is_aligned_by_index and not has_client_versions(prefix_match.stored_match.conversation):
            return await self._resolve_prefix_match(request, prefix_match, client_history, None)
        found = prefix_match.stored_match.conversation
        alignment = await self._history_aligner.align_history(found, client_history, is_named=True)
        return await self._resolve_aligned_history(request, found, alignment, client_history)

    async def _resolve_aligned_history(
        self,
        request: ChatRequest,
        conversation: Conversation,
        alignment: Alignment,
        client_history: ClientHistory,
    ) -> ResolvedRequest:
        """Continues after the last aligned message with the client's new messages, and records which messages the
        client changed."""
        target = conversation
        has_no_new_messages = find_first_new_index(alignment) == len(client_history.raw_messages)
        stored_answer = (
            await self._stored_answers.find_retry_answer(conversation, request, client_history)
            if has_no_new_messages
            else None
        )
        # The history ends before the log's head, so a branch begins there. A retry whose stored answer is the head gets
        # no branch.
        if not alignment.continues_log and stored_answer is None:
            (last,) = await self._store.read_log(conversation, alignment.last_seq, alignment.last_seq + 1)
            target = build_branch(conversation, last, make_conversation_id(conversation.root, self._random_bytes))
        aligned_history = await self._history_aligner.build_aligned_history(
            conversation, target, client_history.raw_messages, alignment
        )
        last_aligned_index = next(
            (
                index
                for index in reversed(range(aligned_history.new_from_index))
                if alignment.message_alignments[index].kind in ALIGNED_MARKS
            ),
            None,
        )
        has_open_calls = last_aligned_index is not None and may_precede_tool_result(
            decode_item(bytes(client_history.raw_messages[last_aligned_index]))
        )
        return await self._build_resolved_request(
            request,
            target,
            aligned_history,
            client_history,
            has_open_calls=has_open_calls,
            stored_answer=stored_answer,
        )

    async def _build_resolved_request(
        self,
        request: ChatRequest,
        target: Conversation,
        aligned_history: AlignedHistory,
        client_history: ClientHistory,
        *,
        has_open_calls: bool,
        stored_answer: LogMessage | None = None,
        remembered_prefix: tuple[int, RememberedPrefix] | None = None,
    ) -> ResolvedRequest:
        """Builds the result for a request at the end of a conversation, or of a branch that is to be created.

        Args:
            has_open_calls: whether the message before the new ones may be followed by tool results.
            stored_answer: the stored answer, if this request is a retry.
            remembered_prefix: as for `_resolve_prefix_match`.
        """
        new_messages = client_history.decode_messages(aligned_history.new_from_index)
        await check_new_messages(
            new_messages, first_index=len(request.raw_messages) - len(new_messages), has_open_calls=has_open_calls
        )
        log_seqs = aligned_history.log_seqs
        if log_seqs is not None:
            log_seqs = (*log_seqs, *range(target.head_seq + 1, target.head_seq + 1 + len(new_messages)))
        # An agent that appends also sends its run again with each tool result, so tool results alone do not prove
        # that the client resends its history.
        mode = target.mode if _has_only_tool_results(new_messages) else "resend"
        conversation = target if target.mode == mode else replace(target, mode=mode)
        return ResolvedRequest(
            conversation=conversation,
            creates_conversation=target.created_at is None,
            new_messages=await self._new_conversations.build_log_messages(conversation, new_messages),
            instructions=client_history.instructions,
            instructions_tokens=await self._message_counter.count_instruction_tokens(
                client_history.instructions, request, conversation.token_counter_name
            ),
            client_messages=None if conversation.marks.get(REDACTED) else client_history.raw_messages,
            has_missing_results=await detect_missing_results(request, client_history, remembered_prefix),
            log_seqs=log_seqs,
            client_versions=aligned_history.client_versions,
            new_versions=aligned_history.new_versions,
            is_stored=request.is_kept,
            needs_store=request.is_kept and not self._serves_degraded,
            assigns_external_id=must_assign_external_id(request, conversation),
            external_id=request.conversation_id,
            conversation_hints=request.conversation_hints,
            history_digest=client_history.history_digest,
            stored_answer=stored_answer,
        )

    async def _resolve_prefix_match(
        self,
        request: ChatRequest,
        prefix_match: PrefixMatch,
        client_history: ClientHistory,
        remembered_prefix: tuple[int, RememberedPrefix] | None,
    ) -> ResolvedRequest:
        """Continues after the matched message: on its conversation if that ends there, else on a branch. If messages
        were erased, the stored log is shown and not the client's copy of it.

        Args:
            remembered_prefix: how many messages of the history came before, byte for byte, and what is known of them.
        """
        conversation, last_message, new_from_index = (
            prefix_match.stored_match.conversation,
            prefix_match.stored_match.message,
            prefix_match.index + 1,
        )
        has_no_new_messages = new_from_index == len(client_history.raw_messages)
        stored_answer = (
            await self._stored_answers.find_retry_answer(conversation, request, client_history)
            if has_no_new_messages
            else None
        )
        # A retry whose answer is stored matches one message before the head, and must not begin a branch.
        needs_branch = stored_answer is None and conversation.head_seq != last_message.seq
        target = (
            build_branch(conversation, last_message, make_conversation_id(conversation.root, self._random_bytes))
            if needs_branch
            else conversation
        )
        versions = await self._history_aligner.read_client_versions(target)
        log_seqs = None if remembered_prefix is None else remembered_prefix[1].log_seqs
        if log_seqs is not None:
            log_seqs = (
                *log_seqs[:new_from_index],
                *range(last_message.seq + 1 - (new_from_index - len(log_seqs)), last_message.seq + 1),
            )
        aligned_history = AlignedHistory(new_from_index, log_seqs, versions, ())
        has_open_calls = may_precede_tool_result(decode_item(bytes(client_history.raw_messages[prefix_match.index])))
        return await self._build_resolved_request(
            request,
            target,
            aligned_history,
            client_history,
            has_open_calls=has_open_calls,
            stored_answer=stored_answer,
            remembered_prefix=remembered_prefix,
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
        if named_conversation is None and request.conversation_id is not None:
            # The client's own id points to nothing yet. The lease on the id makes two first requests take turns, and
            # the second look finds the conversation that the other one began.
            root = compute_family_root(tenant, request.conversation_id.encode())
            await held_leases.enter_async_context(
                self._leases.hold_lease(root, request.conversation_id, self._lease_wait_seconds)
            )
            named_conversation = await self._find_named_conversation(tenant, request.conversation_id)
        if named_conversation is None:
            return await self._begin_conversation_for_append(request, client_history, encoding, held_leases)
        lease = await held_leases.enter_async_context(
            self._leases.hold_lease(named_conversation.root, named_conversation.id, self._lease_wait_seconds)
        )
        # Read again under the lease: another request may have appended while this one waited.
        conversation = await self._store.find_conversation(tenant=tenant, conversation_id=named_conversation.id)
        if conversation is None:
            raise ConversationNotFound(
                f"Conversation with id {named_conversation.id!r} not found.", param="conversation_id"
            )
        messages: Sequence[Item] = client_history.messages
        stored_answer = await self._stored_answers.find_retry_answer(conversation, request, client_history)
        versions = await self._history_aligner.read_client_versions(conversation)
        # In mode `append` a chat client has declared that all messages are new. In mode `auto`, and with `conversation`
        # in the Responses API, an agent may send its run again.
        if request.context_mode == "auto" or request.protocol == "responses":
            messages = messages[await self._retry_detector.count_repeated_messages(request, conversation, messages) :]
        messages = put_early_outputs_first(request, messages)
        if stored_answer is not None or await self._retry_detector.is_unanswered_retry(conversation, messages):
            messages = []
        has_open_calls = bool(conversation.state.get(OPEN_TOOL_CALLS))
        await check_outputs_against_log(self._store, request, conversation, messages)
        await check_new_messages(messages, first_index=len(client_history.instructions), has_open_calls=has_open_calls)
        instructions = merge_instructions(
            request, client_history.instructions, conversation.state.get(STORED_INSTRUCTIONS, ())
        )
        if conversation.mode == "unknown":
            conversation = replace(conversation, mode="append")
        return ResolvedRequest(
            conversation=conversation,
            creates_conversation=False,
            new_messages=await self._new_conversations.build_log_messages(conversation, messages),
            instructions=instructions,
            instructions_tokens=await self._message_counter.count_instruction_tokens(
                instructions, request, conversation.token_counter_name
            ),
            client_messages=None,
            client_versions=versions,
            is_stored=request.is_kept,
            needs_store=request.is_kept,
            is_append=True,
            lease=lease,
            conversation_hints=request.conversation_hints,
            stored_answer=stored_answer,
        )

    async def _begin_conversation_for_append(
        self,
        request: ChatRequest,
        client_history: ClientHistory,
        encoding: str,
        held_leases: AsyncExitStack,
    ) -> ResolvedRequest:
        """Begins a conversation whose client will append, and holds the lease of the new conversation."""
        new_request = await self._new_conversations.begin_conversation(request, client_history, encoding)
        resolved_request = replace(new_request, is_append=True, needs_store=new_request.is_stored)
        if not resolved_request.is_stored:
            return resolved_request
        # The next append finds the conversation as soon as its question is stored, and must wait for the answer.
        new_conversation = resolved_request.conversation
        lease = await held_leases.enter_async_context(
            self._leases.hold_lease(new_conversation.root, new_conversation.id, self._lease_wait_seconds)
        )
        return replace(resolved_request, lease=lease)

    async def _resolve_unstored(
        self, request: ChatRequest, client_history: ClientHistory, encoding: str
    ) -> ResolvedRequest:
        """Resolves a request that is answered without the store."""
        resolved_request = await self._new_conversations.begin_conversation(request, client_history, encoding)
        return replace(
            resolved_request, is_stored=False, needs_store=False, assigns_external_id=False, history_digest=None
        )


def _names_conversation(request: ChatRequest, conversation: Conversation) -> bool:
    """Returns whether a request names its conversation, or the one that its conversation branches from."""
    if request.previous_response_id is not None:
        return True
    names = {conversation.external_id, *(id_ for id_, _ in conversation.lineage_with_self)}
    return request.conversation_id is not None and request.conversation_id in names


def _has_only_tool_results(messages: Sequence[Item]) -> bool:
    return bool(messages) and all(message.role == "tool" for message in messages)
