"""Which conversation does a request mean, and what of it is new? Decides between continuing, branching and beginning.

A resend carries its history and is recognised by its chain of links, or, where its client has rewritten it, by the
answers in it and an alignment with the log. An append names a conversation and carries new messages only. A chat UI's
title call under a known id is answered without the store.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack
from typing import Final

from msgspec.structs import replace

from app.context.view.missing_results import has_missing_results
from app.conversation.alignment import Alignment, confirms_conversation_hint, covers_whole_log, proves_same_conversation
from app.conversation.identity import (
    LinkPosition,
    PrefixCache,
    compute_family_root,
    extract_family_root,
    make_conversation_id,
)
from app.conversation.message_checks import check_messages, may_precede_tool_result
from app.conversation.messages import Conversation, LogMessage, Message, count_message_bytes
from app.errors import ConversationNotFound, StoreUnavailable
from app.observability.tracing import trace_span
from app.pipeline.admission.answer_replay import StoredAnswers
from app.pipeline.admission.request_digest import digest_request
from app.pipeline.chat_request import ChatRequest
from app.pipeline.persist.log_entries import build_branch, build_empty_conversation, build_log_entries
from app.pipeline.resolve.answer_anchors import AnswerAnchors, digest_conversation_hints
from app.pipeline.resolve.history_alignment import ALIGNED_MARKS, AlignedHistory, HistoryAligner, find_new_index
from app.pipeline.resolve.resent_history import (
    LONG_HISTORY_BYTES,
    ClientHistory,
    PrefixMatch,
    PrefixSearch,
    RememberedPrefix,
    compute_log_root,
    split_instructions,
)
from app.pipeline.resolve.resolved_request import (
    FIRST_REQUEST_MESSAGES,
    OPEN_TOOL_CALLS,
    REDACTED,
    STORED_INSTRUCTIONS,
    ResolvedRequest,
    build_end_user_state,
    has_client_versions,
    has_other_end_user,
)
from app.pipeline.resolve.retry_detection import RetryDetector
from app.pipeline.token_counting import MessageCounter
from app.store.contract import Store
from app.store.leases import LeaseKeeper

MAX_CANDIDATES: Final = 6
"""Conversations that one rewritten history is aligned with at most."""
FOREIGN_ANSWERS_FROM_SEQ: Final = 7
"""From here on an assistant's message that is no answer of ours makes a log recognisable too: a client that reshapes
each answer would otherwise begin a conversation with every turn. Greetings that everyone shares are over by then."""


class ConversationResolver:
    """Finds a request's conversation. One indexed query for a resend; the lease and one read for an append."""

    def __init__(
        self,
        *,
        store: Store,
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
        self._answer_anchors = answer_anchors
        self._retry_detector = RetryDetector(store)
        self._stored_answers = stored_answers
        self._leases = leases
        self._message_counter = message_counter
        self._prefix_memory = prefix_memory
        self._random_bytes = random_bytes
        self._lease_wait_seconds = lease_wait_seconds
        self._serves_degraded = serves_degraded

    @trace_span("recall")
    async def resolve(self, request: ChatRequest, encoding: str, held_leases: AsyncExitStack) -> ResolvedRequest:
        """Place a request.

        Args:
            encoding: of token counts, if a conversation is to begin.
            held_leases: holds an append's lease until the turn is over.

        Raises:
            InvalidRequest: a new message is malformed.
            ConversationNotFound: an id of ours that does not exist.
            ConversationBusy: the conversation's lease was not to be had in time.
            StoreUnavailable: and the request needs the store.
        """
        instructions, client_history = split_instructions(request)
        if request.context_mode == "stateless":
            return await self._resolve_unstored(request, instructions, client_history, encoding)
        try:
            resolved_request = await self._resolve_with_store(
                request, instructions, client_history, encoding, held_leases
            )
            return (
                replace(resolved_request, request_digest=await digest_request(request, client_history))
                if resolved_request.is_stored
                else resolved_request
            )
        except StoreUnavailable:
            if not self._serves_degraded or request.context_mode == "append" or _may_append(request, client_history):
                raise
            return await self.resolve_without_store(request, encoding)

    async def resolve_without_store(self, request: ChatRequest, encoding: str) -> ResolvedRequest:
        """A request that brings its history, to be answered while the store is away."""
        instructions, client_history = split_instructions(request)
        return replace(await self._resolve_unstored(request, instructions, client_history, encoding), degraded=True)

    async def _resolve_with_store(
        self,
        request: ChatRequest,
        instructions: tuple[Message, ...],
        client_history: ClientHistory,
        encoding: str,
        held_leases: AsyncExitStack,
    ) -> ResolvedRequest:
        named_conversation = (
            None
            if request.conversation_id is None
            else await self._find_named_conversation(request.caller.tenant, request.conversation_id)
        )
        if named_conversation is not None and has_other_end_user(request, named_conversation):
            return await self._resolve_for_other_end_user(
                request, named_conversation, instructions, client_history, encoding
            )
        if request.context_mode == "append" or _is_append_request(request, named_conversation, client_history):
            return await self._resolve_append(
                request, named_conversation, instructions, client_history, encoding, held_leases
            )
        if named_conversation is not None and await self._is_resent_tail(request, named_conversation, client_history):
            return await self._resolve_append(
                request, named_conversation, instructions, client_history, encoding, held_leases
            )
        if (
            named_conversation is not None
            or client_history.raw_prefix_digests
            or client_history.has_answer
            or request.conversation_hints
        ):
            resolved_request = await self._resolve_resend(request, named_conversation, instructions, client_history)
            if resolved_request is not None:
                return resolved_request
        if named_conversation is not None and request.context_mode == "auto" and not client_history.has_answer:
            if _has_gateway_id(request):
                return await self._resolve_append(
                    request, named_conversation, instructions, client_history, encoding, held_leases
                )
            if named_conversation.answered:  # a chat UI that wants a title sends its chat's id
                return await self._resolve_unstored(request, instructions, client_history, encoding)
        return await self._begin_conversation(request, instructions, client_history, encoding, named_conversation)

    async def _resolve_for_other_end_user(
        self,
        request: ChatRequest,
        named_conversation: Conversation,
        instructions: tuple[Message, ...],
        client_history: ClientHistory,
        encoding: str,
    ) -> ResolvedRequest:
        """A request whose id means a conversation of another end user: it goes on in one of its own, or begins one, and
        the client's id moves there.

        Raises:
            ConversationNotFound: the id is one of ours, which cannot move.
        """
        if _has_gateway_id(request):
            raise ConversationNotFound(
                f"Conversation with id {named_conversation.id!r} not found.", param="conversation_id"
            )
        resolved_request = (
            await self._resolve_resend(request, None, instructions, client_history)
            if client_history.has_answer
            else None
        )
        return resolved_request or await self._begin_conversation(
            request, instructions, client_history, encoding, named_conversation
        )

    async def _is_resent_tail(
        self, request: ChatRequest, named_conversation: Conversation, client_history: ClientHistory
    ) -> bool:
        """Whether an appending client brings the newest part of the log again: an agent after a call of a tool.

        A history that is all of the log is a resend.
        """
        if (
            request.context_mode != "auto"
            or request.is_chat_ui
            or named_conversation.mode == "resend"
            or not client_history.has_answer
        ):
            return False
        count = await self._retry_detector.count_repeated_messages(named_conversation, client_history.messages)
        if count:
            return count <= named_conversation.head_seq and count < len(client_history.messages)
        return await self._stored_answers.find_answer(named_conversation, request, client_history) is not None

    async def _find_named_conversation(self, tenant: str, conversation_id: str) -> Conversation | None:
        """The conversation of an id; None where a client's own id means none yet."""
        found = await self._store.find_conversation(tenant=tenant, conversation_id=conversation_id)
        if found is None and extract_family_root(conversation_id) is not None:
            raise ConversationNotFound(f"Conversation with id {conversation_id!r} not found.", param="conversation_id")
        return found

    async def _resolve_resend(
        self,
        request: ChatRequest,
        named_conversation: Conversation | None,
        instructions: tuple[Message, ...],
        client_history: ClientHistory,
    ) -> ResolvedRequest | None:
        """The conversation that this history continues or branches from; None if there is none.

        The client's bytes are looked for first, which costs no decoding; then the exact chain; then answers of ours,
        and ids that came with them, wherever in the history they stand.
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
                if named_conversation is None and await self._is_ambiguous_match(prefix_match, client_history):
                    return None
                if prefix_match.is_head or client_history.is_rest_new(
                    prefix_match.index, is_named=named_conversation is not None
                ):
                    return await self._continue_after_match(
                        request, prefix_match, instructions, client_history, remembered_prefix
                    )
                branch_candidate = (
                    prefix_match,
                    remembered_prefix,
                )  # unless the answer behind it came back in another version
        if named_conversation is None and not client_history.has_answer and not request.conversation_hints:
            return None
        client_history.aligned_prefix = self._history_aligner.find_aligned_prefix(client_history)
        prefix_match = await self._prefix_search.search_history(request, named_conversation, client_history)
        is_end = prefix_match is not None and client_history.is_rest_new(
            prefix_match.index, is_named=named_conversation is not None
        )
        if prefix_match is None or not (is_end or (prefix_match.is_head and named_conversation is not None)):
            # Behind the head of a conversation, answers may follow that another has.
            conversation_and_alignment = await self._find_rewritten_conversation(
                request, named_conversation, prefix_match, client_history
            )
            if conversation_and_alignment is not None:
                return await self._continue_after_alignment(
                    request, *conversation_and_alignment, instructions, client_history
                )
        if prefix_match is not None and (is_end or prefix_match.is_head):
            is_doubtful = prefix_match.is_shared_message and not is_end
            if named_conversation is None and (
                is_doubtful or await self._is_ambiguous_match(prefix_match, client_history)
            ):
                return None
            if prefix_match.is_aligned and not has_client_versions(prefix_match.stored_match.conversation):
                return await self._continue_after_match(request, prefix_match, instructions, client_history, None)
            found = prefix_match.stored_match.conversation
            alignment = await self._history_aligner.align_history(found, client_history, is_named=True)
            return await self._continue_after_alignment(request, found, alignment, instructions, client_history)
        if branch_candidate is None:
            return None
        prefix_match, remembered_prefix = branch_candidate
        return await self._continue_after_match(request, prefix_match, instructions, client_history, remembered_prefix)

    async def _is_ambiguous_match(self, prefix_match: PrefixMatch, client_history: ClientHistory) -> bool:
        """Whether a matched place says nothing of whose conversation it is: more than one ends there, or no answer was
        given here before it (examples that an application puts before all its conversations). A history that tells the
        answer to the only first question of this kind otherwise belongs to it."""
        if prefix_match.stored_match.message.seq >= await self._count_first_request_messages(prefix_match):
            return prefix_match.is_shared_head
        messages_after = client_history.messages[prefix_match.index + 1 : -1]
        return prefix_match.is_shared_message or not messages_after or messages_after[0].role != "assistant"

    async def _count_first_request_messages(self, prefix_match: PrefixMatch) -> int:
        """How many messages the first request of a matched conversation brought, as far as the matched place tells.

        Former code did not keep that number: then it is told from the log, whose answers of ours have ids.
        """
        conversation, seq = prefix_match.stored_match.conversation, prefix_match.stored_match.message.seq
        stored_count: int | None = conversation.state.get(FIRST_REQUEST_MESSAGES)
        if stored_count is not None or prefix_match.is_head:
            return stored_count or 0
        entries = await self._store.read_log(conversation, 0, seq + 1)
        return next((entry.seq for entry in entries if "id" in (entry.meta or {})), seq + 1)

    async def _find_rewritten_conversation(
        self,
        request: ChatRequest,
        named_conversation: Conversation | None,
        prefix_match: PrefixMatch | None,
        client_history: ClientHistory,
    ) -> tuple[Conversation, Alignment] | None:
        """The conversation of a history that its client has rewritten, and how the two are aligned.

        Where several have as much in common with it, none is taken: a wrong one would be a leak.
        """
        if named_conversation is not None:
            alignment = await self._history_aligner.align_history(named_conversation, client_history, is_named=True)
            is_match = (
                alignment.same_user_message_count or alignment.returned_answer_count or alignment.returned_call_id_count
            )
            return (named_conversation, alignment) if is_match else None
        candidates: list[tuple[int, Conversation, Alignment]] = []
        async for conversation, is_hinted in self._find_candidates(request, prefix_match, client_history):
            alignment = await self._history_aligner.align_history(conversation, client_history, is_named=is_hinted)
            if alignment.last_seq < conversation.state.get(FIRST_REQUEST_MESSAGES, 0):
                continue  # nothing that was answered here has come back
            is_match = proves_same_conversation(alignment) or covers_whole_log(alignment)
            if is_match or (is_hinted and confirms_conversation_hint(alignment)):
                same_count = sum(one.kind == "same" for one in alignment.message_alignments)
                candidates.append((same_count, conversation, alignment))
        candidates.sort(key=lambda one: one[0], reverse=True)
        if not candidates or (len(candidates) > 1 and candidates[0][0] == candidates[1][0]):
            return None
        return candidates[0][1:]

    async def _find_candidates(
        self, request: ChatRequest, prefix_match: PrefixMatch | None, client_history: ClientHistory
    ) -> AsyncIterator[tuple[Conversation, bool]]:
        """Conversations that a history may belong to, and whether a client's own id for something names them."""
        tenant, seen_ids = request.caller.tenant, set()
        hint_digests = set(digest_conversation_hints(tenant, request.conversation_hints))
        anchors = await self._answer_anchors.find_anchors([*await client_history.build_anchor_digests(), *hint_digests])
        hinted_ids = {anchor.conversation_id for anchor in anchors if anchor.digest in hint_digests}
        if prefix_match is not None:
            seen_ids.add(prefix_match.stored_match.conversation.id)
            yield prefix_match.stored_match.conversation, prefix_match.stored_match.conversation.id in hinted_ids
        anchored_ids = [
            anchor.conversation_id for anchor in sorted(anchors, key=lambda one: one.digest in hint_digests)
        ]
        for conversation_id in [
            *([client_history.aligned_prefix.conversation_id] if client_history.aligned_prefix else []),
            *anchored_ids,
        ]:
            if conversation_id in seen_ids or len(seen_ids) >= MAX_CANDIDATES:
                continue
            seen_ids.add(conversation_id)
            conversation = await self._store.find_conversation(tenant=tenant, conversation_id=conversation_id)
            if conversation is not None and not has_other_end_user(request, conversation):
                yield conversation, conversation.id in hinted_ids

    async def _continue_after_alignment(
        self,
        request: ChatRequest,
        conversation: Conversation,
        alignment: Alignment,
        instructions: tuple[Message, ...],
        client_history: ClientHistory,
    ) -> ResolvedRequest:
        """Go on behind the last aligned message with what the client has added, and note what it has changed."""
        target = conversation
        has_no_new_messages = find_new_index(alignment) == len(client_history.raw_messages)
        stored_answer = (
            await self._stored_answers.find_answer(conversation, request, client_history)
            if has_no_new_messages
            else None
        )
        if not alignment.continues_log and stored_answer is None:
            (last,) = await self._store.read_log(conversation, alignment.last_seq, alignment.last_seq + 1)
            target = build_branch(conversation, last, make_conversation_id(conversation.root, self._random_bytes))
        aligned_history = await self._history_aligner.build_aligned_history(
            conversation, target, client_history.raw_messages, alignment
        )
        last_aligned_index = next(
            (
                at
                for at in reversed(range(aligned_history.new_from_index))
                if alignment.message_alignments[at].kind in ALIGNED_MARKS
            ),
            None,
        )
        has_open_calls = last_aligned_index is not None and may_precede_tool_result(
            Message(bytes(client_history.raw_messages[last_aligned_index]))
        )
        return await self._build_resolved_request(
            request,
            target,
            aligned_history,
            instructions,
            client_history,
            has_open_calls=has_open_calls,
            stored_answer=stored_answer,
        )

    async def _build_resolved_request(
        self,
        request: ChatRequest,
        target: Conversation,
        aligned_history: AlignedHistory,
        instructions: tuple[Message, ...],
        client_history: ClientHistory,
        *,
        has_open_calls: bool,
        stored_answer: LogMessage | None = None,
        remembered_prefix: tuple[int, RememberedPrefix] | None = None,
    ) -> ResolvedRequest:
        """A request in its place at the end of a conversation, or of a branch that is to be created.

        Args:
            has_open_calls: whether the message before the new ones may be followed by tool results.
            stored_answer: what answered the request before, where this is its repetition.
            remembered_prefix: as `_continue` takes it.
        """
        new_messages = client_history.decode_messages(aligned_history.new_from_index)
        await _check_new_messages(
            new_messages, first_index=len(request.raw_messages) - len(new_messages), has_open_calls=has_open_calls
        )
        log_seqs = aligned_history.log_seqs
        if log_seqs is not None:
            log_seqs = (*log_seqs, *range(target.head_seq + 1, target.head_seq + 1 + len(new_messages)))
        mode = (
            target.mode if _has_only_tool_results(new_messages) else "resend"
        )  # an agent that appends brings its run along, too
        conversation = target if target.mode == mode else replace(target, mode=mode)
        return ResolvedRequest(
            conversation=conversation,
            creates_conversation=target.created_at is None,
            new_messages=await self._build_log_messages(conversation, new_messages),
            instructions=instructions,
            instructions_tokens=await self._message_counter.count_instructions(
                instructions, request, conversation.counter_name
            ),
            client_messages=None if conversation.marks.get(REDACTED) else client_history.raw_messages,
            has_missing_results=await _check_missing_results(request, client_history, remembered_prefix),
            log_seqs=log_seqs,
            client_versions=aligned_history.client_versions,
            new_versions=aligned_history.new_versions,
            is_stored=request.store,
            needs_store=request.store and not self._serves_degraded,
            assigns_external_id=_must_assign_external_id(request, conversation),
            external_id=request.conversation_id,
            conversation_hints=request.conversation_hints,
            history_digest=client_history.history_digest,
            stored_answer=stored_answer,
        )

    async def _continue_after_match(
        self,
        request: ChatRequest,
        prefix_match: PrefixMatch,
        instructions: tuple[Message, ...],
        client_history: ClientHistory,
        remembered_prefix: tuple[int, RememberedPrefix] | None,
    ) -> ResolvedRequest:
        """Go on after the matched message: on its conversation if that ends there, else on a branch. Where messages
        were erased the stored log is shown, and not the client's copy of it.

        Args:
            remembered_prefix: so many messages of the history came byte for byte before.
        """
        conversation, last_message, new_from_index = (
            prefix_match.stored_match.conversation,
            prefix_match.stored_match.message,
            prefix_match.index + 1,
        )
        has_no_new_messages = new_from_index == len(client_history.raw_messages)
        stored_answer = (
            await self._stored_answers.find_answer(conversation, request, client_history)
            if has_no_new_messages
            else None
        )
        needs_branch = stored_answer is None and conversation.head_seq != last_message.seq
        target = (
            build_branch(conversation, last_message, make_conversation_id(conversation.root, self._random_bytes))
            if needs_branch
            else conversation
        )
        versions = await self._history_aligner.read_versions(target)
        log_seqs = None if remembered_prefix is None else remembered_prefix[1].log_seqs
        if log_seqs is not None:
            log_seqs = (
                *log_seqs[:new_from_index],
                *range(last_message.seq + 1 - (new_from_index - len(log_seqs)), last_message.seq + 1),
            )
        aligned_history = AlignedHistory(new_from_index, log_seqs, versions, ())
        has_open_calls = may_precede_tool_result(Message(bytes(client_history.raw_messages[prefix_match.index])))
        return await self._build_resolved_request(
            request,
            target,
            aligned_history,
            instructions,
            client_history,
            has_open_calls=has_open_calls,
            stored_answer=stored_answer,
            remembered_prefix=remembered_prefix,
        )

    async def _resolve_append(
        self,
        request: ChatRequest,
        named_conversation: Conversation | None,
        instructions: tuple[Message, ...],
        client_history: ClientHistory,
        encoding: str,
        held_leases: AsyncExitStack,
    ) -> ResolvedRequest:
        tenant = request.caller.tenant
        if named_conversation is None and request.conversation_id is not None:
            root = compute_family_root(tenant, request.conversation_id.encode())
            await held_leases.enter_async_context(
                self._leases.hold_lease(root, request.conversation_id, self._lease_wait_seconds)
            )
            named_conversation = await self._find_named_conversation(tenant, request.conversation_id)
        if named_conversation is None:
            new_request = await self._begin_conversation(request, instructions, client_history, encoding)
            resolved_request = replace(new_request, is_append=True, needs_store=new_request.is_stored)
            if not resolved_request.is_stored:
                return resolved_request
            # Its ids lead to it as soon as its question is stored: who appends next has to wait for the answer.
            new_conversation = resolved_request.conversation
            lease = await held_leases.enter_async_context(
                self._leases.hold_lease(new_conversation.root, new_conversation.id, self._lease_wait_seconds)
            )
            return replace(resolved_request, lease=lease)
        lease = await held_leases.enter_async_context(
            self._leases.hold_lease(named_conversation.root, named_conversation.id, self._lease_wait_seconds)
        )
        conversation = await self._store.find_conversation(tenant=tenant, conversation_id=named_conversation.id)
        if conversation is None:
            raise ConversationNotFound(
                f"Conversation with id {named_conversation.id!r} not found.", param="conversation_id"
            )
        messages: Sequence[Message] = client_history.messages
        stored_answer = await self._stored_answers.find_answer(conversation, request, client_history)
        versions = await self._history_aligner.read_versions(conversation)
        if request.context_mode == "auto":
            messages = messages[await self._retry_detector.count_repeated_messages(conversation, messages) :]
        if stored_answer is not None or await self._retry_detector.is_unanswered_retry(conversation, messages):
            messages = []
        has_open_calls = bool(conversation.state.get(OPEN_TOOL_CALLS))
        await _check_new_messages(messages, first_index=len(instructions), has_open_calls=has_open_calls)
        if not instructions:
            instructions = tuple(Message(raw.encode()) for raw in conversation.state.get(STORED_INSTRUCTIONS, ()))
        if conversation.mode == "unknown":
            conversation = replace(conversation, mode="append")
        return ResolvedRequest(
            conversation=conversation,
            creates_conversation=False,
            new_messages=await self._build_log_messages(conversation, messages),
            instructions=instructions,
            instructions_tokens=await self._message_counter.count_instructions(
                instructions, request, conversation.counter_name
            ),
            client_messages=None,
            client_versions=versions,
            is_stored=request.store,
            needs_store=request.store,
            is_append=True,
            lease=lease,
            conversation_hints=request.conversation_hints,
            stored_answer=stored_answer,
        )

    async def _begin_conversation(
        self,
        request: ChatRequest,
        instructions: tuple[Message, ...],
        client_history: ClientHistory,
        encoding: str,
        named_conversation: Conversation | None = None,
    ) -> ResolvedRequest:
        """A new conversation whose log is all that the client sent; it takes over the id of the one
        `named_conversation`."""
        tenant = request.caller.tenant
        positions, messages = await client_history.compute_positions(), client_history.messages
        await _check_new_messages(messages, first_index=len(instructions), has_open_calls=False)
        root = compute_log_root(tenant, client_history.start_position, positions)
        conversation = build_empty_conversation(
            tenant,
            encoding,
            conversation_id=make_conversation_id(root, self._random_bytes),
            root=root,
            state={**build_end_user_state(request), FIRST_REQUEST_MESSAGES: len(messages)},
            external_id=request.conversation_id if named_conversation is None else None,
            mode="append" if request.context_mode == "append" else "resend" if client_history.has_answer else "unknown",
        )
        return ResolvedRequest(
            conversation=conversation,
            creates_conversation=True,
            new_messages=await self._build_log_messages(conversation, messages, positions),
            instructions=instructions,
            instructions_tokens=await self._message_counter.count_instructions(instructions, request, encoding),
            client_messages=client_history.raw_messages,
            has_missing_results=await _check_missing_results(request, client_history),
            is_stored=request.store,
            needs_store=request.store and not self._serves_degraded,
            assigns_external_id=named_conversation is not None,
            external_id=request.conversation_id,
            conversation_hints=request.conversation_hints,
            is_first_request=True,
            history_digest=client_history.history_digest,
        )

    async def _resolve_unstored(
        self, request: ChatRequest, instructions: tuple[Message, ...], client_history: ClientHistory, encoding: str
    ) -> ResolvedRequest:
        """A request that is answered without the store."""
        resolved_request = await self._begin_conversation(request, instructions, client_history, encoding)
        return replace(
            resolved_request, is_stored=False, needs_store=False, assigns_external_id=False, history_digest=None
        )

    async def _build_log_messages(
        self, conversation: Conversation, messages: Sequence[Message], positions: Sequence[LinkPosition] | None = None
    ) -> tuple[LogMessage, ...]:
        """New messages in their places after the conversation's head."""
        entries = await build_log_entries(
            conversation,
            messages,
            self._message_counter,
            positions=positions,
            answers_from_seq=FOREIGN_ANSWERS_FROM_SEQ,
        )
        return tuple(entries)


async def _check_new_messages(messages: Sequence[Message], *, first_index: int, has_open_calls: bool) -> None:
    """Check new messages (`check_messages`); off the event loop where there are many."""
    if count_message_bytes(messages) > LONG_HISTORY_BYTES:
        await asyncio.to_thread(check_messages, messages, first_index=first_index, may_begin_with_result=has_open_calls)
    else:
        check_messages(messages, first_index=first_index, may_begin_with_result=has_open_calls)


async def _check_missing_results(
    request: ChatRequest, client_history: ClientHistory, remembered_prefix: tuple[int, RememberedPrefix] | None = None
) -> bool:
    """Whether tool calls of a history have no result.

    Args:
        remembered_prefix: so many of its messages came byte for byte before.
    """
    if remembered_prefix is not None:
        count, remembered = remembered_prefix
        return remembered.has_missing_results or has_missing_results(client_history.raw_messages[count - 1 :])
    if b'"tool_calls"' not in request.body:
        return False
    if client_history.is_long:
        return await asyncio.to_thread(has_missing_results, client_history.raw_messages)
    return has_missing_results(client_history.raw_messages)


def _may_append(request: ChatRequest, client_history: ClientHistory) -> bool:
    """A conversation is named and no history comes along. Chat UIs name it in unrelated calls too."""
    return request.conversation_id is not None and not request.is_chat_ui and not client_history.has_answer


def _is_append_request(
    request: ChatRequest, named_conversation: Conversation | None, client_history: ClientHistory
) -> bool:
    """Without a mode header: an id whose client has not been seen to resend, and no history in the request."""
    if request.conversation_id is None or request.context_mode != "auto" or not _may_append(request, client_history):
        return False
    return named_conversation is None or named_conversation.mode != "resend"


def _has_only_tool_results(messages: Sequence[Message]) -> bool:
    return bool(messages) and all(message.role == "tool" for message in messages)


def _has_gateway_id(request: ChatRequest) -> bool:
    """Whether the id is one of ours, which no chat UI sends along with unrelated calls."""
    return request.conversation_id is not None and extract_family_root(request.conversation_id) is not None


def _must_assign_external_id(request: ChatRequest, conversation: Conversation) -> bool:
    """Whether a client's own id has to be made to mean this conversation."""
    requested_id = request.conversation_id
    return (
        requested_id is not None
        and extract_family_root(requested_id) is None
        and conversation.external_id != requested_id
    )
