"""Store what a turn adds to a conversation: the user's messages while the model is asked, its answer before the last
byte reaches the client. Whoever comes second finds the head moved and goes on as a branch."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Callable, Mapping
from typing import Any, Final

import msgspec
from msgspec.structs import replace

from app.context.count.token_counter import is_long
from app.conversation.alignment import element_from
from app.conversation.identity import Position, PrefixMemory, new_conversation_id, walk
from app.conversation.message_checks import leaves_calls_open
from app.conversation.messages import Conversation, Message
from app.errors import ConversationBusy, StoreUnavailable
from app.observability.tracing import CANCELLED, Span, current_span, error_type_of
from app.pipeline.background_tasks import Tasks, ended
from app.pipeline.persist.log_entries import ending_with, entries_behind
from app.pipeline.resolve.answer_anchors import Anchors
from app.pipeline.resolve.client_history import ClientHistories, join_prefill
from app.pipeline.resolve.resent_history import Remembered
from app.pipeline.resolve.resolved_request import (
    CALLS_OPEN,
    INSTRUCTIONS,
    PENDING,
    PINS,
    REWRITTEN,
    Recollection,
    Writing,
    lineage_through,
)
from app.pipeline.token_counting import Counting
from app.store.contract import Append, HeadMoved, LeaseLost, Store
from app.store.leases import LeaseKeeper

PIN_TRIES: Final = 5
"""Others may mark messages of the same conversation at the same time; pins are not worth an answer's failing."""

KEPT_BACK_SECONDS: Final = 0.01
"""Models take longer to answer as a rule; simulated ones and caches do not."""

QUESTION, ANSWER = "store question", "store answer"


class Given(msgspec.Struct, frozen=True):
    """An answer to be stored: the assistant message, whether it is whole, facts about it, and state that changes."""

    message: Message
    incomplete: bool = False
    meta: Mapping[str, Any] = msgspec.field(default_factory=dict)
    state: Mapping[str, Any] = msgspec.field(default_factory=dict)
    chunk_count: int = 0


class Remember:
    """Appends turns. Never called while a database transaction or connection is held.

    A write begins at once, so that other things can be done meanwhile; what came of it is asked for in a second step,
    which can be repeated by whoever comes after one that was cancelled.

    A question that nobody is told about before its answer has come whole may be kept back for `KEPT_BACK_SECONDS`, at
    most twice that: an answer that is as quick takes it along, and a turn is one write. Until then a crash forgets it,
    as it would a request that had come a moment later.
    """

    def __init__(
        self,
        *,
        store: Store,
        leases: LeaseKeeper,
        counting: Counting,
        prefixes: PrefixMemory[Remembered],
        histories: ClientHistories,
        anchors: Anchors,
        random_bytes: Callable[[int], bytes],
        tasks: Tasks,
    ) -> None:
        self._store = store
        self._leases = leases
        self._counting = counting
        self._prefixes = prefixes
        self._histories = histories
        self._anchors = anchors
        self._random_bytes = random_bytes
        self._tasks = tasks
        self._kept_back: list[Writing] = []
        self._due: list[Writing] = []
        """Kept back for longer than those."""
        self._sweep: asyncio.TimerHandle | None = None

    def question(self, turn: Recollection, *, may_be_kept_back: bool = False) -> Writing:
        """Begin to store the new messages of a request, at once or soon."""
        if not turn.keeps or not (turn.new or turn.creates or turn.changes):
            return Writing(turn, QUESTION)
        write = Append(
            conversation=_after_question(turn),
            after_seq=turn.conversation.head_seq,
            messages=turn.new,
            creates=turn.creates,
            fence=turn.lease,
            versions=turn.changes,
        )
        # A trace shows when each of the two was stored.
        if may_be_kept_back and turn.new and turn.pins is None and not current_span().is_recording:
            return self._keep_back(Writing(turn, QUESTION, write, is_kept_back=True))
        return Writing(turn, QUESTION, write, self._begun(write, QUESTION))

    def to_be_taken_along(self, question: Writing) -> Recollection | None:
        """The turn as `asked` would give it, whose answer is stored together with its question; None where that is
        under way or done."""
        if not question.is_kept_back:
            return None
        assert question.write is not None
        return replace(_stored(question.turn, question.write.conversation), unwritten=question)

    async def asked(self, question: Writing) -> Recollection:
        """The turn with its conversation as it stands once the question is stored.

        Raises:
            ConversationBusy: an append's lease was lost to another request.
            StoreUnavailable: nothing was stored.
        """
        turn = question.turn
        if not turn.keeps:
            return turn
        if question.write is None:
            await self._pin(turn)
            return replace(turn, pins=None) if turn.pins is not None else turn
        self._begin(question)
        after = await self._written(question, question.write)
        if not turn.creates and not question.is_elsewhere:
            await self._pin(turn)
        self._recognise(turn, after)
        return _stored(turn, after)

    async def answer(self, turn: Recollection, given: Given) -> Writing:
        """Begin to store an answer after its question, or together with it."""
        if not turn.keeps:
            return Writing(turn, ANSWER)
        message = given.message
        (entry,) = await entries_behind(turn.conversation, [message], self._counting)
        question = turn.unwritten
        if question is not None and not question.is_kept_back:  # its time was up meanwhile
            turn, question = await self.asked(question), None
        # Nothing is awaited from here on: a question's time may be up whenever other tasks run.
        conversation = turn.conversation
        entry = replace(entry, incomplete=given.incomplete, meta=given.meta)
        state = {**conversation.state, **given.state, CALLS_OPEN: leaves_calls_open(message)}
        state.pop(PENDING, None)
        chunk_count = max(conversation.chunk_count, given.chunk_count)
        write = Append(
            conversation=replace(ending_with(conversation, [entry]), state=state, chunk_count=chunk_count),
            after_seq=conversation.head_seq,
            messages=[entry],
            fence=turn.lease,
            releases=turn.lease is not None,
        )
        alternatives = list(map(Message.of, given.meta.get("alternatives", ())))
        before = Position(conversation.head_link, conversation.head_skeleton, False)
        others = tuple(next(walk([alternative], before)) for alternative in alternatives)
        choices = [message, *alternatives]
        if (joined := join_prefill(turn.asked, message)) is not None:
            choices.append(joined)
        asked = None if turn.asked is None or is_long(len(turn.asked.raw)) else element_from(turn.asked)
        if question is not None:
            turn, write = question.turn, _together(question, write)
        forms = tuple(map(element_from, choices))
        work = self._begun(write, ANSWER)
        return Writing(turn, ANSWER, write, work, choices=forms, others=others, asked=asked)

    async def answered(self, answer: Writing) -> Conversation:
        """The conversation that holds an answer, once it is stored.

        Raises:
            ConversationBusy: an append's lease was lost meanwhile.
            StoreUnavailable: the answer was not stored.
        """
        turn = answer.turn
        if answer.write is None:
            return turn.conversation
        after = await self._written(answer, answer.write)
        if turn.new and turn.remembers is not None:
            self._recognise(turn, ending_with(after, turn.new))
        if turn.lease is not None:
            self._leases.released(turn.lease)
        if not turn.appends:  # who appends names the conversation, and sends no history to be recognised
            self._anchors.note(after, answer.choices, turn.hints, answer.others, answer.asked)
        if turn.points and turn.external_id is not None:
            await self._store.point(tenant=after.tenant, external_id=turn.external_id, conversation=after)
        return after

    def _keep_back(self, question: Writing) -> Writing:
        self._kept_back.append(question)
        if self._sweep is None:
            self._sweep = asyncio.get_running_loop().call_later(KEPT_BACK_SECONDS, self._begin_due)
        return question

    def _begin_due(self) -> None:
        """Begin those that have been kept back for long enough. One timer looks after all of them."""
        due, self._due, self._kept_back = self._due, self._kept_back, []
        self._sweep = None
        if self._due:
            self._sweep = asyncio.get_running_loop().call_later(KEPT_BACK_SECONDS, self._begin_due)
        for question in due:
            self._begin(question)

    def _begin(self, writing: Writing) -> None:
        if not writing.is_kept_back:
            return
        assert writing.write is not None
        writing.is_kept_back = False
        try:
            writing.work = self._begun(writing.write, writing.step)
        except StoreUnavailable as error:
            # It is closed; told to whoever asks what came of this.
            writing.work = asyncio.get_running_loop().create_future()
            writing.work.set_exception(error)

    def _recognise(self, turn: Recollection, after_question: Conversation) -> None:
        """Remember a client's log that is stored now, so that it is recognised by its bytes, and what it shows."""
        if turn.versions:
            self._histories.note_versions(after_question, turn.versions)
        if turn.remembers is None or (turn.seqs is not None and turn.seqs[-1] != after_question.head_seq):
            return
        position = Position(after_question.head_link, after_question.head_skeleton, False)
        rewritten = int(after_question.state.get(REWRITTEN, 0))
        remembered = Remembered(after_question.root, position, turn.seqs, rewritten, turn.lacks_results)
        self._prefixes.remember(turn.remembers, remembered)

    def _begun(self, write: Append, step: str) -> asyncio.Future[None]:
        """The write under way, and its time as a span of this name."""
        may_be_stale = write.fence is None and bool(write.conversation.state.get(INSTRUCTIONS))
        appended = self._append_without_erased(write) if may_be_stale else self._store.append(write)
        work = self._tasks.begun(appended)
        if (span := current_span()).is_recording:
            work.add_done_callback(functools.partial(_end_span, span.child(step)))
        return work

    async def _append_without_erased(self, write: Append) -> None:
        """Append without a lease, which would keep instructions from being erased: those that were erased since the
        conversation was read must not be written back."""
        after = write.conversation
        source = after.id
        if write.creates and after.lineage:
            source = after.lineage[-1][0]
        stored = await self._store.get(tenant=after.tenant, conversation_id=source)
        if stored is not None:
            known = stored.state.get(INSTRUCTIONS, ())
            kept = [raw for raw in after.state[INSTRUCTIONS] if raw in known]
            write = replace(write, conversation=replace(after, state={**after.state, INSTRUCTIONS: kept}))
        await self._store.append(write)

    async def _written(self, writing: Writing, write: Append) -> Conversation:
        """Wait for a write; where somebody else was first, for that of a branch, or of a conversation beside one that
        took the client's id."""
        assert writing.work is not None
        await ended(writing.work)
        try:
            writing.work.result()
        except HeadMoved as moved:
            if writing.turn.appends:
                raise _lost() from moved
            if writing.is_elsewhere:
                raise StoreUnavailable(
                    "The conversation was erased while it was being answered.", retry_after_seconds=1
                ) from moved
            branch = self._branch(writing.turn.conversation, write.conversation)
            write = replace(write, conversation=branch, creates=True, fence=None, releases=False)
            writing.write, writing.is_elsewhere = write, True
            writing.work = self._begun(write, writing.step)
            return await self._written(writing, write)
        except LeaseLost as lost:
            raise _lost() from lost
        return write.conversation

    async def _pin(self, turn: Recollection) -> None:
        """Store what a request pins, beside what others have marked meanwhile."""
        for _ in range(PIN_TRIES if turn.pins is not None else 0):
            conversation = turn.conversation
            stored = await self._store.get(tenant=conversation.tenant, conversation_id=conversation.id)
            if stored is None:
                return
            try:
                await self._store.mark(stored, {**stored.marks, PINS: turn.pins})
            except HeadMoved:
                continue
            return

    async def nothing(self, turn: Recollection) -> None:
        """A question got no answer. A conversation that began with it, and whose id its client does not know, is
        taken back: the retry would begin another. One that has summaries stays, so that the retry finds them."""
        if turn.unwritten is not None:
            turn = await self.asked(turn.unwritten)
        conversation = turn.conversation
        if not turn.keeps or not turn.is_first_attempt or conversation.external_id is not None:
            return
        chunks = await self._store.chunks(tenant=conversation.tenant, root=conversation.root, path=conversation.path)
        if all(chunk.conversation_id != conversation.id for chunk in chunks):
            await self._store.delete(tenant=conversation.tenant, conversation_id=conversation.id)

    def _branch(self, base: Conversation, after: Conversation) -> Conversation:
        """`after` in a branch off the place where `base` was seen to end; in another beginning where it was still to
        begin."""
        return replace(
            after,
            id=new_conversation_id(base.root, self._random_bytes),
            lineage=lineage_through(base, base.head_seq) if base.head_seq >= 0 else (),
            external_id=None,
        )


def _end_span(span: Span, work: asyncio.Future[None]) -> None:
    if work.cancelled():
        span.fail(CANCELLED)
    elif (error := work.exception()) is not None:
        span.fail(error_type_of(error))
    span.end()


def _stored(turn: Recollection, after: Conversation) -> Recollection:
    """A turn whose question is in the log."""
    asked_tokens = sum([entry.tokens for entry in turn.new])
    return replace(
        turn,
        conversation=after,
        creates=False,
        new=(),
        changes=(),
        pins=None,
        asked_tokens=asked_tokens,
        asked=turn.new[-1].message if turn.new else None,
    )


def _together(question: Writing, answer: Append) -> Append:
    """A question that is still kept back, and its answer. It need not begin by itself any more."""
    asked = question.write
    assert asked is not None
    question.is_kept_back = False
    return Append(
        conversation=answer.conversation,
        after_seq=asked.after_seq,
        messages=[*asked.messages, *answer.messages],
        creates=asked.creates,
        fence=answer.fence,
        releases=answer.releases,
        versions=asked.versions,
    )


def _after_question(turn: Recollection) -> Conversation:
    conversation = turn.conversation
    if turn.changes:
        state = {**conversation.state, REWRITTEN: conversation.head_seq + 2}
        conversation = replace(conversation, state=state)
    if not turn.new:
        return conversation
    pending = int(conversation.state.get(PENDING, 0)) + len(turn.new)
    state = {
        **conversation.state,
        PENDING: pending,
        CALLS_OPEN: leaves_calls_open(turn.new[-1].message),
    }
    if turn.appends and turn.instructions:
        state[INSTRUCTIONS] = [message.raw.decode() for message in turn.instructions]
    return ending_with(replace(conversation, state=state), turn.new)


def _lost() -> ConversationBusy:
    return ConversationBusy(
        "Another request took over this conversation while this one was being answered.", retry_after_seconds=1
    )
