"""Stores a turn: the new messages while the model works, and the answer before the client gets the last byte.

If another turn was appended to the conversation meanwhile, this turn is stored as a branch. With an answer, the
fingerprints of every form are stored in which its client may send it back.
"""

from __future__ import annotations

import asyncio
import functools
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import msgspec
from msgspec.structs import replace

from app.conversation.conversation_types import (
    NAMED,
    REWRITE_MARK,
    SHARED_THROUGH,
    AnswerAnchor,
    Conversation,
    IssuedAnswer,
    LogMessage,
)
from app.conversation.fingerprints import Fingerprint, list_digests
from app.conversation.identity import LinkPosition, compute_links_after_messages, make_conversation_id
from app.conversation.item import Item, may_precede_tool_result
from app.dialects.body.message import ChatMessage
from app.dialects.item_decoding import decode_item, may_be_answer, select_lasting_instructions
from app.errors import ConversationBusy, GatewayError, StoreUnavailable, drop_tracebacks
from app.observability.request_record import current_request_record
from app.observability.tracing import (
    CANCELLED_ERROR_TYPE,
    Span,
    error_type_name,
    fail_span,
    is_traced,
    start_child_span,
)
from app.pipeline.persist.kept_instructions import drop_instructions, keep_instructions
from app.pipeline.resolve.client_history import PrefixMemory, RememberedPrefix
from app.pipeline.resolve.client_log import join_prefill
from app.pipeline.resolve.history_resolution import build_hint_anchors
from app.pipeline.turn.background_tasks import BackgroundTasks, wait_until_done
from app.pipeline.turn.conversation_builders import advance_head, build_log_entries
from app.pipeline.turn.resolved_request import (
    BROKEN_OFF,
    OPEN_TOOL_CALLS,
    PINS,
    STORED_INSTRUCTIONS,
    TOOL_TRAFFIC,
    UNANSWERED_MESSAGES,
    PendingWrite,
    ResolvedRequest,
    build_branch_lineage,
    find_prefill,
    has_tool_messages,
)
from app.pipeline.turn.token_counting import MessageCounter
from app.store.contract.conversations import LogAppend, WriteConflict
from app.store.contract.leases import LeaseLost
from app.store.contract.summaries import ConversationAndSummaryStore
from app.store.leases import LeaseKeeper
from app.store.unwritten_fingerprints import UnwrittenFingerprints

log = logging.getLogger(__name__)

MAX_PIN_TRIES: Final = 5
"""How often to try to store pins while other requests change the same marks. After that the pins are dropped: they are
not worth a failed answer."""

QUESTION_SPAN, ANSWER_SPAN = "store question", "store answer"


class AnswerToStore(msgspec.Struct, frozen=True):
    """An answer to be stored.

    Attributes:
        message: the assistant message.
        incomplete: the answer broke off.
        meta: facts about the answer, stored with it.
        state: the members of the conversation's state that change with the answer.
        chunk_count: how many summaries the conversation has at least.
        is_streamed: the client has seen it already.
    """

    message: Item
    incomplete: bool = False
    meta: Mapping[str, Any] = msgspec.field(default_factory=dict)
    state: Mapping[str, Any] = msgspec.field(default_factory=dict)
    chunk_count: int = 0
    is_streamed: bool = False


@dataclass(eq=False, kw_only=True)
class TurnWriter:
    """Appends turns to conversations. The caller must not hold a database transaction or connection.

    The write of a question has two steps: the model works meanwhile. The second step can be repeated if its caller was
    cancelled.
    """

    store: ConversationAndSummaryStore
    leases: LeaseKeeper
    message_counter: MessageCounter
    prefix_memory: PrefixMemory
    unwritten_fingerprints: UnwrittenFingerprints
    random_bytes: Callable[[int], bytes]
    tasks: BackgroundTasks

    def start_question_write(self, resolved_request: ResolvedRequest) -> PendingWrite:
        """Starts the write of a request's new messages."""
        is_changed = bool(
            resolved_request.new_messages
            or resolved_request.creates_conversation
            or resolved_request.shown.new_versions
        )
        # A question with a shared answer is written with it: nothing of it is the turn's own yet.
        if not resolved_request.storage.is_stored or not is_changed or resolved_request.shared_answer is not None:
            return PendingWrite(resolved_request, QUESTION_SPAN)
        return self._start_question_append(resolved_request)

    def _start_question_append(
        self, resolved_request: ResolvedRequest, anchors: Sequence[AnswerAnchor] = ()
    ) -> PendingWrite:
        write = LogAppend(
            conversation=_build_conversation_after_question(resolved_request),
            after_seq=resolved_request.conversation.head_seq,
            messages=resolved_request.new_messages,
            creates_conversation=resolved_request.creates_conversation,
            fence=resolved_request.storage.lease,
            versions=resolved_request.shown.new_versions,
            anchors=anchors,
        )
        return PendingWrite(resolved_request, QUESTION_SPAN, write, self._start_append(write, QUESTION_SPAN))

    async def finish_question_write(self, question: PendingWrite) -> ResolvedRequest:
        """Waits until the question is stored; returns the turn with its conversation after the question.

        Raises:
            ConversationBusy: an append lost its lease to another request.
            StoreUnavailable: nothing was stored.
        """
        resolved_request = question.resolved_request
        if not resolved_request.storage.is_stored:
            return resolved_request
        changes_pins = resolved_request.changed_pins is not None
        if question.append is None:
            if changes_pins:
                await self._store_pins(resolved_request)
            return replace(resolved_request, changed_pins=None)
        stored_conversation = await self._wait_or_store_branch(question, question.append)
        # A new conversation or branch is written with its pins. An existing one has marks that others may change
        # meanwhile.
        if changes_pins and not resolved_request.creates_conversation and not question.is_on_branch:
            await self._store_pins(resolved_request)
        self._remember_client_history(resolved_request, stored_conversation)
        return _build_stored_request(resolved_request, stored_conversation)

    async def store_compacted_question(self, resolved_request: ResolvedRequest) -> ResolvedRequest:
        """Stores the new messages of a request that gets no answer, only a compaction, and its conversation's state.
        Returns the turn with its conversation after them.

        Raises:
            ConversationBusy, StoreUnavailable: as `finish_question_write`.
        """
        if not resolved_request.storage.is_stored:
            return resolved_request
        anchors = build_hint_anchors(resolved_request.storage.conversation_hints, resolved_request.conversation)
        question = self._start_question_append(resolved_request, anchors)
        stored = await self.finish_question_write(question)
        await self._assign_external_id(stored, stored.conversation)
        return stored

    async def write_answer(self, resolved_request: ResolvedRequest, answer: AnswerToStore) -> Conversation:
        """Stores an answer; returns the conversation that holds it. Of an answer that is not stored, the fingerprints
        are written. The caller shields it: a write that is cut off leaves its lease and anchors undone.

        Raises:
            ConversationBusy: an append lost its lease to another request.
            StoreUnavailable: the answer was not stored.
        """
        if not resolved_request.storage.is_stored:
            return await self._count_unstored_answer(resolved_request, answer)
        write = await self._build_answer_append(resolved_request, answer)
        pending_write = PendingWrite(resolved_request, ANSWER_SPAN, write, self._start_append(write, ANSWER_SPAN))
        try:
            conversation = await self._wait_or_store_branch(pending_write, write)
        except GatewayError:
            # The client has seen the answer, or gets it all the same.
            if write.issued is not None and (answer.is_streamed or not resolved_request.storage.needs_store):
                self.unwritten_fingerprints.add(replace(write.issued, conversation_id=None))
            raise
        if resolved_request.storage.lease is not None:
            self.leases.forget_released_lease(resolved_request.storage.lease)
        await self._assign_external_id(resolved_request, conversation)
        return conversation

    async def _build_answer_append(self, resolved_request: ResolvedRequest, answer: AnswerToStore) -> LogAppend:
        message, conversation = answer.message, resolved_request.conversation
        (entry,) = await build_log_entries(conversation, [message], self.message_counter)
        entry = replace(entry, incomplete=answer.incomplete, meta=answer.meta)
        entry, kept = keep_instructions(entry, resolved_request.instructions, conversation.state)
        state = {**conversation.state, **answer.state, **kept, OPEN_TOOL_CALLS: may_precede_tool_result(message)}
        state.pop(UNANSWERED_MESSAGES, None)
        state.pop(BROKEN_OFF, None)
        if answer.incomplete:
            state[BROKEN_OFF] = True
        if has_tool_messages([entry]):
            state[TOOL_TRAFFIC] = True
        if (record := current_request_record()) is not None:
            record.answer, record.answer_id = (entry.seq, entry.link.hex()), (answer.meta or {}).get("id")
        chunk_count = max(conversation.chunk_count, answer.chunk_count)
        hints = resolved_request.storage.conversation_hints
        write = LogAppend(
            conversation=replace(advance_head(conversation, [entry]), state=state, chunk_count=chunk_count),
            after_seq=conversation.head_seq,
            messages=[entry],
            creates_conversation=resolved_request.creates_conversation,
            fence=resolved_request.storage.lease,
            releases_lease=resolved_request.storage.lease is not None,
            issued=build_issued_answer(resolved_request, conversation, entry),
            anchors=build_hint_anchors(hints, conversation) if hints else (),
        )
        shared_answer = resolved_request.shared_answer
        if shared_answer is None or shared_answer.link != entry.link or answer.incomplete:
            return write
        # The lineage ends with the other conversation, whose next message is this answer.
        source_id = conversation.lineage[-1][0]
        lineage = (*conversation.lineage[:-1], (source_id, entry.seq))
        marks = {**conversation.marks, SHARED_THROUGH: entry.seq}
        return replace(write, conversation=replace(write.conversation, lineage=lineage, marks=marks), messages=[])

    async def _count_unstored_answer(self, resolved_request: ResolvedRequest, answer: AnswerToStore) -> Conversation:
        """Writes the fingerprints of an answer that is not stored, or keeps them for later."""
        conversation, new_messages = resolved_request.conversation, resolved_request.new_messages
        before_answer = resolved_request
        if new_messages:
            before_answer = replace(resolved_request, prefill=find_prefill(conversation, new_messages))
            conversation = advance_head(conversation, new_messages)
        (entry,) = await build_log_entries(conversation, [answer.message], self.message_counter)
        issued = build_issued_answer(before_answer, conversation, replace(entry, meta=answer.meta), is_kept=False)
        try:
            await self.store.issue_answer(issued)
        except StoreUnavailable as error:
            drop_tracebacks(error)
            self.unwritten_fingerprints.add(issued)
        return resolved_request.conversation

    async def _assign_external_id(self, resolved_request: ResolvedRequest, conversation: Conversation) -> None:
        """Lets the client's own id point to a conversation that is stored now."""
        if resolved_request.storage.assigns_external_id and resolved_request.storage.external_id is not None:
            await self.store.assign_external_id(
                tenant=conversation.tenant, external_id=resolved_request.storage.external_id, conversation=conversation
            )

    def _remember_client_history(self, resolved_request: ResolvedRequest, conversation: Conversation) -> None:
        """Remembers a stored client history, so that the next request's history is recognised by its bytes."""
        # If the client changes messages, its history is aligned each time.
        if (
            resolved_request.history_digest is None
            or resolved_request.shown.log_seqs is not None
            or resolved_request.shown.client_versions
        ):
            return
        position = LinkPosition(conversation.head_link, conversation.head_skeleton, False)
        self.prefix_memory.put(
            resolved_request.history_digest, RememberedPrefix(position, resolved_request.has_missing_results)
        )

    def _start_append(self, write: LogAppend, step: str) -> asyncio.Future[None]:
        """Starts a write, and a span named `step` and a step of the timeline that end with it."""
        is_new = write.creates_conversation and not write.conversation.lineage
        may_be_stale = write.fence is None and not is_new and bool(write.conversation.state.get(STORED_INSTRUCTIONS))
        append = self._append_without_erased_instructions(write) if may_be_stale else self.store.append(write)
        work = append if isinstance(append, asyncio.Future) else self.tasks.spawn(append)
        if (record := current_request_record()) is not None:
            timeline_step = record.begin_step("store", {"what": step.removeprefix("store ")})
            work.add_done_callback(lambda _: record.end_step(timeline_step))
        if is_traced():
            end_span = functools.partial(_end_span, start_child_span(step))
            # A store may be done at once. A callback would run after the request has gone on.
            end_span(work) if work.done() else work.add_done_callback(end_span)
        return work

    async def _append_without_erased_instructions(self, write: LogAppend) -> None:
        """Appends without a lease, and leaves out instructions that were erased since the conversation was read.

        A lease would keep the instructions from being erased meanwhile. Without it, writing the state as it was read
        would bring them back.
        """
        conversation = write.conversation
        source_id = conversation.id
        if write.creates_conversation and conversation.lineage:
            # A new branch is not stored yet; its instructions come from its parent.
            source_id = conversation.lineage[-1][0]
        stored = await self.store.find_conversation(tenant=conversation.tenant, conversation_id=source_id)
        if stored is not None:
            stored_instructions = stored.state.get(STORED_INSTRUCTIONS, ())
            instructions = [raw for raw in conversation.state[STORED_INSTRUCTIONS] if raw in stored_instructions]
            erased = {raw for raw in conversation.state[STORED_INSTRUCTIONS] if raw not in stored_instructions}
            write = replace(
                write,
                conversation=replace(conversation, state={**conversation.state, STORED_INSTRUCTIONS: instructions}),
                messages=[drop_instructions(entry, erased) for entry in write.messages],
            )
        await self.store.append(write)

    async def _wait_or_store_branch(self, pending_write: PendingWrite, write: LogAppend) -> Conversation:
        """Waits for a write. If another request moved the head first, stores the messages as a branch and waits for
        that.

        If another request has taken the client's id for a new conversation, the messages become a conversation beside
        it.
        """
        assert pending_write.write_future is not None
        await wait_until_done(pending_write.write_future)
        try:
            pending_write.write_future.result()
        except WriteConflict as moved:
            # The client named this conversation, so a branch would hide the turn from it.
            if pending_write.resolved_request.is_append:
                raise _build_lease_lost_error() from moved
            # The branch has a new id that no other request can have moved: its parent must be gone.
            if pending_write.is_on_branch:
                raise StoreUnavailable(
                    "The conversation was erased while it was being answered.", retry_after_seconds=1
                ) from moved
            branch = self._build_branch_conversation(pending_write.resolved_request.conversation, write.conversation)
            moved_to = {"conversation_id": branch.id, "owner_lineage": branch.owner_lineage}
            write = replace(
                write,
                conversation=branch,
                creates_conversation=True,
                fence=None,
                releases_lease=False,
                issued=None if write.issued is None else replace(write.issued, **moved_to),
                anchors=[replace(one, conversation_id=branch.id) for one in write.anchors],
            )
            pending_write.append, pending_write.is_on_branch = write, True
            pending_write.write_future = self._start_append(write, pending_write.span_name)
            return await self._wait_or_store_branch(pending_write, write)
        except LeaseLost as lost:
            raise _build_lease_lost_error() from lost
        return write.conversation

    async def _store_pins(self, resolved_request: ResolvedRequest) -> None:
        """Stores the pins of a request, and keeps other marks that were set meanwhile."""
        for _ in range(MAX_PIN_TRIES):
            conversation = resolved_request.conversation
            stored = await self.store.find_conversation(tenant=conversation.tenant, conversation_id=conversation.id)
            if stored is None:
                return
            try:
                await self.store.replace_marks(stored, {**stored.marks, PINS: resolved_request.changed_pins})
            except WriteConflict:
                continue
            return

    async def erase_unanswered_question(self, question: PendingWrite) -> None:
        """Erases the conversation of a question whose turn has failed, if it began with that question."""
        try:
            await self.erase_unanswered_conversation(await self.finish_question_write(question))
        except GatewayError as error:
            # Logged, not raised: the client must see why its turn has failed. The conversation that stays is recognised
            # when the client retries.
            drop_tracebacks(error)
            log.warning("could not store or erase the question of a request that failed: %s", error.message)

    async def erase_unanswered_conversation(self, resolved_request: ResolvedRequest) -> None:
        """Erases a conversation that began with an unanswered question, if its client does not know its id.

        The retry would begin another conversation. A conversation that has summaries stays, so that the retry finds
        them.
        """
        conversation = resolved_request.conversation
        if (
            not resolved_request.storage.is_stored
            or not resolved_request.is_first_request
            or conversation.external_id is not None
        ):
            return
        summaries = await self.store.find_summaries(
            tenant=conversation.tenant, root=conversation.root, path=conversation.lineage_with_self
        )
        if all(summary.conversation_id != conversation.id for summary in summaries):
            await self.store.erase_conversation(tenant=conversation.tenant, conversation_id=conversation.id)

    def _build_branch_conversation(self, base: Conversation, conversation: Conversation) -> Conversation:
        """Moves `conversation` to a new branch of `base` at its head; to a new conversation if `base` has no
        messages."""
        return replace(
            conversation,
            id=make_conversation_id(base.root, self.random_bytes),
            lineage=build_branch_lineage(base, base.head_seq) if base.head_seq >= 0 else (),
            external_id=None,
        )


def _end_span(span: Span, work: asyncio.Future[None]) -> None:
    if work.cancelled():
        fail_span(span, CANCELLED_ERROR_TYPE)
    elif (error := work.exception()) is not None:
        fail_span(span, error_type_name(error))
    span.end()


def _build_stored_request(resolved_request: ResolvedRequest, stored_conversation: Conversation) -> ResolvedRequest:
    """Returns the turn with its question in the log of `stored_conversation`."""
    shown = resolved_request.shown
    if shown.new_versions:
        shown = replace(shown, new_versions=(), rewritten_seq=min(version.seq for version in shown.new_versions))
    return replace(
        resolved_request,
        conversation=stored_conversation,
        creates_conversation=False,
        new_messages=(),
        shown=shown,
        changed_pins=None,
        new_messages_tokens=sum([entry.tokens for entry in resolved_request.new_messages]),
        prefill=find_prefill(resolved_request.conversation, resolved_request.new_messages),
    )


def _build_conversation_after_question(resolved_request: ResolvedRequest) -> Conversation:
    conversation = resolved_request.conversation
    # Of a chain of responses, each answer names the next request's place (`previous_response_id`): that is no name of
    # the whole.
    names_whole = resolved_request.is_append or resolved_request.storage.external_id is not None
    if resolved_request.is_named and names_whole and not conversation.is_named:
        conversation = replace(conversation, state={**conversation.state, NAMED: True})
    if has_tool_messages(resolved_request.new_messages):
        conversation = replace(conversation, state={**conversation.state, TOOL_TRAFFIC: True})
    if resolved_request.shown.new_versions:
        state = {**conversation.state, REWRITE_MARK: conversation.head_seq + 2}
        conversation = replace(conversation, state=state)
    if not resolved_request.new_messages:
        return conversation
    pending = int(conversation.state.get(UNANSWERED_MESSAGES, 0)) + len(resolved_request.new_messages)
    is_open = may_precede_tool_result(resolved_request.new_messages[-1].message)
    state = {**conversation.state, UNANSWERED_MESSAGES: pending, OPEN_TOOL_CALLS: is_open}
    state.pop(BROKEN_OFF, None)
    if (resolved_request.is_append or resolved_request.storage.keeps_instructions) and resolved_request.instructions:
        state[STORED_INSTRUCTIONS] = select_lasting_instructions(
            [message.raw.decode() for message in resolved_request.instructions]
        )
    return advance_head(replace(conversation, state=state), resolved_request.new_messages)


def _build_lease_lost_error() -> ConversationBusy:
    return ConversationBusy(
        "Another request took the lease of this conversation while this request was being answered.",
        retry_after_seconds=1,
    )


def build_issued_answer(
    resolved_request: ResolvedRequest, conversation: Conversation, answer: LogMessage, *, is_kept: bool = True
) -> IssuedAnswer:
    """Returns what is counted of an answer, of its other choices, and of the answer joined with its prefill.

    Args:
        conversation: the conversation before the answer.
        is_kept: whether the answer is stored. One that is not proves nothing.
    """
    before = LinkPosition(conversation.head_link, conversation.head_skeleton, False)
    other_choices = map(ChatMessage.from_body, (answer.meta or {}).get("alternatives", ()))
    own_position = LinkPosition(answer.link, answer.skeleton, answer.in_skeleton)
    forms: list[tuple[LinkPosition, Item]] = [(own_position, answer.message)]
    forms += [(_advance(before, choice), choice) for choice in other_choices]
    if resolved_request.prefill is not None:
        before_prefill, prefill = resolved_request.prefill
        joined = join_prefill(prefill, answer.message)
        forms += [] if joined is None else [(_advance(before_prefill, joined), joined)]
    fingerprints: list[Fingerprint] = []
    has_tool_traffic = resolved_request.has_tool_traffic
    for position, form in forms:
        for scope in resolved_request.storage.fingerprint_scopes:
            fingerprints += scope.list_fingerprints(
                position,
                form,
                _iterate_earlier_answers(resolved_request),
                has_tool_traffic=has_tool_traffic,
            )
    return IssuedAnswer(
        list_digests(fingerprints),
        conversation.root,
        conversation.id if is_kept else None,
        answer.seq,
        conversation.owner_lineage,
    )


def _advance(before: LinkPosition, message: Item) -> LinkPosition:
    (position,) = compute_links_after_messages([message], before)
    return position


def _iterate_earlier_answers(resolved_request: ResolvedRequest) -> Iterator[Item]:
    """Yields the answers that the client sent, the newest first. A client that appends sends none."""
    for raw in reversed(resolved_request.client_messages or ()):
        if may_be_answer(bytes(raw)):
            message = decode_item(bytes(raw))
            if message.role == "assistant":
                yield message
