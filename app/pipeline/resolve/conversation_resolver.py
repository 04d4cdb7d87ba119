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
from app.conversation.alignment import Alignment, confirms_hint, is_evidence, is_whole_log
from app.conversation.identity import (
    Position,
    PrefixMemory,
    new_conversation_id,
    root_of,
    root_of_conversation,
)
from app.conversation.message_checks import check_messages, leaves_calls_open
from app.conversation.messages import Conversation, LogMessage, Message, size_of
from app.errors import ConversationNotFound, StoreUnavailable
from app.observability.tracing import traced
from app.pipeline.admission.answer_replay import StoredAnswers
from app.pipeline.admission.request_digest import digest_request
from app.pipeline.chat_request import ChatRequest
from app.pipeline.persist.log_entries import branch_of, empty_log, entries_behind
from app.pipeline.resolve.answer_anchors import Anchors, hint_digests
from app.pipeline.resolve.client_history import ALIGNED, AlignedHistory, ClientHistories, new_index
from app.pipeline.resolve.resent_history import (
    LONG_WALK_BYTES,
    History,
    Reach,
    Remembered,
    Search,
    root_of_log,
    split_messages,
)
from app.pipeline.resolve.resolved_request import (
    BROUGHT,
    CALLS_OPEN,
    INSTRUCTIONS,
    REDACTED,
    Recollection,
    has_versions,
    is_anothers,
    state_of_end_user,
)
from app.pipeline.resolve.retry_detection import Repeating
from app.pipeline.token_counting import Counting
from app.store.contract import Store
from app.store.leases import LeaseKeeper

MOST_CANDIDATES: Final = 6
"""Conversations that one rewritten history is aligned with at most."""
FOREIGN_ANSWERS_FROM_SEQ: Final = 7
"""From here on an assistant's message that is no answer of ours makes a log recognisable too: a client that reshapes
each answer would otherwise begin a conversation with every turn. Greetings that everyone shares are over by then."""


class Recall:
    """Finds a request's conversation. One indexed query for a resend; the lease and one read for an append."""

    def __init__(
        self,
        *,
        store: Store,
        answers: StoredAnswers,
        leases: LeaseKeeper,
        counting: Counting,
        prefixes: PrefixMemory[Remembered],
        histories: ClientHistories,
        anchors: Anchors,
        random_bytes: Callable[[int], bytes],
        wait_seconds: float,
        serves_degraded: bool,
    ) -> None:
        self._store = store
        self._search = Search(store)
        self._histories = histories
        self._anchors = anchors
        self._repeating = Repeating(store)
        self._answers = answers
        self._leases = leases
        self._counting = counting
        self._prefixes = prefixes
        self._random_bytes = random_bytes
        self._wait_seconds = wait_seconds
        self._serves_degraded = serves_degraded

    @traced("recall")
    async def of(self, request: ChatRequest, encoding: str, stack: AsyncExitStack) -> Recollection:
        """Place a request.

        Args:
            encoding: of token counts, if a conversation is to begin.
            stack: holds an append's lease until the turn is over.

        Raises:
            InvalidRequest: a new message is malformed.
            ConversationNotFound: an id of ours that does not exist.
            ConversationBusy: the conversation's lease was not to be had in time.
            StoreUnavailable: and the request needs the store.
        """
        instructions, log = split_messages(request)
        if request.mode == "stateless":
            return await self._aside(request, instructions, log, encoding)
        try:
            placed = await self._placed(request, instructions, log, encoding, stack)
            return replace(placed, request_digest=await digest_request(request, log)) if placed.keeps else placed
        except StoreUnavailable:
            if not self._serves_degraded or request.mode == "append" or _may_append(request, log):
                raise
            return await self.without_store(request, encoding)

    async def without_store(self, request: ChatRequest, encoding: str) -> Recollection:
        """A request that brings its history, to be answered while the store is away."""
        instructions, log = split_messages(request)
        return replace(await self._aside(request, instructions, log, encoding), degraded=True)

    async def _placed(
        self,
        request: ChatRequest,
        instructions: tuple[Message, ...],
        log: History,
        encoding: str,
        stack: AsyncExitStack,
    ) -> Recollection:
        named = (
            None
            if request.conversation_id is None
            else await self._named(request.caller.tenant, request.conversation_id)
        )
        if named is not None and is_anothers(request, named):
            return await self._placed_apart(request, named, instructions, log, encoding)
        if request.mode == "append" or _is_append(request, named, log):
            return await self._append(request, named, instructions, log, encoding, stack)
        if named is not None and await self._is_run(request, named, log):
            return await self._append(request, named, instructions, log, encoding, stack)
        if named is not None or log.digests or log.holds_answer or request.hints:
            resent = await self._resend(request, named, instructions, log)
            if resent is not None:
                return resent
        if named is not None and request.mode == "auto" and not log.holds_answer:
            if _names_ours(request):
                return await self._append(request, named, instructions, log, encoding, stack)
            if named.answered:  # a chat UI that wants a title sends its chat's id
                return await self._aside(request, instructions, log, encoding)
        return await self._begin(request, instructions, log, encoding, named)

    async def _placed_apart(
        self,
        request: ChatRequest,
        named: Conversation,
        instructions: tuple[Message, ...],
        log: History,
        encoding: str,
    ) -> Recollection:
        """A request whose id means a conversation of another end user: it goes on in one of its own, or begins one, and
        the client's id moves there.

        Raises:
            ConversationNotFound: the id is one of ours, which cannot move.
        """
        if _names_ours(request):
            raise ConversationNotFound(f"Conversation with id {named.id!r} not found.", param="conversation_id")
        resent = await self._resend(request, None, instructions, log) if log.holds_answer else None
        return resent or await self._begin(request, instructions, log, encoding, named)

    async def _is_run(self, request: ChatRequest, named: Conversation, log: History) -> bool:
        """Whether an appending client brings the newest part of the log again: an agent after a call of a tool.

        A history that is all of the log is a resend.
        """
        if request.mode != "auto" or request.chat_ui or named.mode == "resend" or not log.holds_answer:
            return False
        count = await self._repeating.said_before(named, log.messages)
        if count:
            return count <= named.head_seq and count < len(log.messages)
        return await self._answers.find(named, request, log) is not None

    async def _named(self, tenant: str, conversation_id: str) -> Conversation | None:
        """The conversation of an id; None where a client's own id means none yet."""
        found = await self._store.get(tenant=tenant, conversation_id=conversation_id)
        if found is None and root_of_conversation(conversation_id) is not None:
            raise ConversationNotFound(f"Conversation with id {conversation_id!r} not found.", param="conversation_id")
        return found

    async def _resend(
        self,
        request: ChatRequest,
        named: Conversation | None,
        instructions: tuple[Message, ...],
        log: History,
    ) -> Recollection | None:
        """The conversation that this history continues or branches from; None if there is none.

        The client's bytes are looked for first, which costs no decoding; then the exact chain; then answers of ours,
        and ids that came with them, wherever in the history they stand.
        """
        known = self._prefixes.recall(log.digests)
        branch: tuple[Reach, tuple[int, Remembered]] | None = None
        if known is not None:
            count, remembered = known
            rest = log.messages_from(count)
            reach = await self._search.behind(request, named, remembered, rest, count)
            if reach is not None:
                if named is None and await self._is_anybodys(reach, log):
                    return None
                if reach.is_head or log.ends_after(reach.index, named=named is not None):
                    return await self._continue(request, reach, instructions, log, known)
                branch = reach, known  # unless the answer behind it came back in another version
        if named is None and not log.holds_answer and not request.hints:
            return None
        log.checkpoint = self._histories.recall(log)
        reach = await self._search.whole(request, named, log)
        is_end = reach is not None and log.ends_after(reach.index, named=named is not None)
        if reach is None or not (is_end or (reach.is_head and named is not None)):
            # Behind the head of a conversation, answers may follow that another has.
            aligned = await self._find_rewritten(request, named, reach, log)
            if aligned is not None:
                return await self._continue_aligned(request, *aligned, instructions, log)
        if reach is not None and (is_end or reach.is_head):
            is_doubtful = reach.is_kept_again and not is_end
            if named is None and (is_doubtful or await self._is_anybodys(reach, log)):
                return None
            if reach.is_aligned and not has_versions(reach.match.conversation):
                return await self._continue(request, reach, instructions, log, None)
            found = reach.match.conversation
            alignment = await self._histories.align(found, log, named=True)
            return await self._continue_aligned(request, found, alignment, instructions, log)
        if branch is None:
            return None
        reach, known = branch
        return await self._continue(request, reach, instructions, log, known)

    async def _is_anybodys(self, reach: Reach, log: History) -> bool:
        """Whether a matched place says nothing of whose conversation it is: more than one ends there, or no answer was
        given here before it (examples that an application puts before all its conversations). A history that tells the
        answer to the only first question of this kind otherwise belongs to it."""
        if reach.match.message.seq >= await self._count_brought(reach):
            return reach.is_shared
        following = log.messages[reach.index + 1 : -1]
        return reach.is_kept_again or not following or following[0].role != "assistant"

    async def _count_brought(self, reach: Reach) -> int:
        """How many messages the first request of a matched conversation brought, as far as the matched place tells.

        Former code did not keep that number: then it is told from the log, whose answers of ours have ids.
        """
        conversation, seq = reach.match.conversation, reach.match.message.seq
        brought: int | None = conversation.state.get(BROUGHT)
        if brought is not None or reach.is_head:
            return brought or 0
        entries = await self._store.read(conversation, 0, seq + 1)
        return next((entry.seq for entry in entries if "id" in (entry.meta or {})), seq + 1)

    async def _find_rewritten(
        self, request: ChatRequest, named: Conversation | None, reach: Reach | None, log: History
    ) -> tuple[Conversation, Alignment] | None:
        """The conversation of a history that its client has rewritten, and how the two are aligned.

        Where several have as much in common with it, none is taken: a wrong one would be a leak.
        """
        if named is not None:
            alignment = await self._histories.align(named, log, named=True)
            is_meant = alignment.users or alignment.answers or alignment.issued
            return (named, alignment) if is_meant else None
        found: list[tuple[int, Conversation, Alignment]] = []
        async for conversation, by_hint in self._candidates(request, reach, log):
            alignment = await self._histories.align(conversation, log, named=by_hint)
            if alignment.last_seq < conversation.state.get(BROUGHT, 0):
                continue  # nothing that was answered here has come back
            is_meant = is_evidence(alignment) or is_whole_log(alignment)
            if is_meant or (by_hint and confirms_hint(alignment)):
                same = sum(one.mark == "same" for one in alignment.marks)
                found.append((same, conversation, alignment))
        found.sort(key=lambda one: one[0], reverse=True)
        if not found or (len(found) > 1 and found[0][0] == found[1][0]):
            return None
        return found[0][1:]

    async def _candidates(
        self, request: ChatRequest, reach: Reach | None, log: History
    ) -> AsyncIterator[tuple[Conversation, bool]]:
        """Conversations that a history may belong to, and whether a client's own id for something names them."""
        tenant, met = request.caller.tenant, set()
        hints = set(hint_digests(tenant, request.hints))
        anchors = await self._anchors.find([*await log.anchor_digests(), *hints])
        hinted = {anchor.conversation_id for anchor in anchors if anchor.digest in hints}
        if reach is not None:
            met.add(reach.match.conversation.id)
            yield reach.match.conversation, reach.match.conversation.id in hinted
        anchored = [anchor.conversation_id for anchor in sorted(anchors, key=lambda one: one.digest in hints)]
        for conversation_id in [*([log.checkpoint.conversation_id] if log.checkpoint else []), *anchored]:
            if conversation_id in met or len(met) >= MOST_CANDIDATES:
                continue
            met.add(conversation_id)
            conversation = await self._store.get(tenant=tenant, conversation_id=conversation_id)
            if conversation is not None and not is_anothers(request, conversation):
                yield conversation, conversation.id in hinted

    async def _continue_aligned(
        self,
        request: ChatRequest,
        found: Conversation,
        alignment: Alignment,
        instructions: tuple[Message, ...],
        log: History,
    ) -> Recollection:
        """Go on behind the last aligned message with what the client has added, and note what it has changed."""
        placed = found
        brings_nothing = new_index(alignment) == len(log.raws)
        answer = await self._answers.find(found, request, log) if brings_nothing else None
        if not alignment.continues and answer is None:
            (last,) = await self._store.read(found, alignment.last_seq, alignment.last_seq + 1)
            placed = branch_of(found, last, new_conversation_id(found.root, self._random_bytes))
        aligned = await self._histories.place(found, placed, log.raws, alignment)
        before = next((at for at in reversed(range(aligned.new_from)) if alignment.marks[at].mark in ALIGNED), None)
        calls_open = before is not None and leaves_calls_open(Message(bytes(log.raws[before])))
        return await self._placed_behind(
            request, placed, aligned, instructions, log, calls_open=calls_open, answer=answer
        )

    async def _placed_behind(
        self,
        request: ChatRequest,
        placed: Conversation,
        aligned: AlignedHistory,
        instructions: tuple[Message, ...],
        log: History,
        *,
        calls_open: bool,
        answer: LogMessage | None = None,
        known: tuple[int, Remembered] | None = None,
    ) -> Recollection:
        """A request in its place at the end of a conversation, or of a branch that is to be created.

        Args:
            calls_open: whether the message before the new ones may be followed by tool results.
            answer: what answered the request before, where this is its repetition.
            known: as `_continue` takes it.
        """
        new = log.messages_from(aligned.new_from)
        await _check(new, first_index=len(request.raws) - len(new), calls_open=calls_open)
        seqs = aligned.seqs
        if seqs is not None:
            seqs = (*seqs, *range(placed.head_seq + 1, placed.head_seq + 1 + len(new)))
        mode = placed.mode if _only_results(new) else "resend"  # an agent that appends brings its run along, too
        conversation = placed if placed.mode == mode else replace(placed, mode=mode)
        return Recollection(
            conversation=conversation,
            creates=placed.created_at is None,
            new=await self._entries(conversation, new),
            instructions=instructions,
            instructions_tokens=await self._counting.instructions(instructions, request, conversation.counter),
            client_log=None if conversation.marks.get(REDACTED) else log.raws,
            lacks_results=await _lacks_results(request, log, known),
            seqs=seqs,
            versions=aligned.versions,
            changes=aligned.changes,
            keeps=request.store,
            needs_store=request.store and not self._serves_degraded,
            points=_points(request, conversation),
            external_id=request.conversation_id,
            hints=request.hints,
            remembers=log.digest,
            replays=answer,
        )

    async def _continue(
        self,
        request: ChatRequest,
        reach: Reach,
        instructions: tuple[Message, ...],
        log: History,
        known: tuple[int, Remembered] | None,
    ) -> Recollection:
        """Go on after the matched message: on its conversation if that ends there, else on a branch. Where messages
        were erased the stored log is shown, and not the client's copy of it.

        Args:
            known: so many messages of the history came byte for byte before.
        """
        found, last, new_from = reach.match.conversation, reach.match.message, reach.index + 1
        brings_nothing = new_from == len(log.raws)
        answer = await self._answers.find(found, request, log) if brings_nothing else None
        branches = answer is None and found.head_seq != last.seq
        placed = branch_of(found, last, new_conversation_id(found.root, self._random_bytes)) if branches else found
        versions = await self._histories.read_versions(placed)
        seqs = None if known is None else known[1].seqs
        if seqs is not None:
            seqs = (*seqs[:new_from], *range(last.seq + 1 - (new_from - len(seqs)), last.seq + 1))
        aligned = AlignedHistory(new_from, seqs, versions, ())
        calls_open = leaves_calls_open(Message(bytes(log.raws[reach.index])))
        return await self._placed_behind(
            request, placed, aligned, instructions, log, calls_open=calls_open, answer=answer, known=known
        )

    async def _append(
        self,
        request: ChatRequest,
        named: Conversation | None,
        instructions: tuple[Message, ...],
        log: History,
        encoding: str,
        stack: AsyncExitStack,
    ) -> Recollection:
        tenant = request.caller.tenant
        if named is None and request.conversation_id is not None:
            root = root_of(tenant, request.conversation_id.encode())
            await stack.enter_async_context(self._leases.hold(root, request.conversation_id, self._wait_seconds))
            named = await self._named(tenant, request.conversation_id)
        if named is None:
            begun = await self._begin(request, instructions, log, encoding)
            placed = replace(begun, appends=True, needs_store=begun.keeps)
            if not placed.keeps:
                return placed
            # Its ids lead to it as soon as its question is stored: who appends next has to wait for the answer.
            begins = placed.conversation
            lease = await stack.enter_async_context(self._leases.hold(begins.root, begins.id, self._wait_seconds))
            return replace(placed, lease=lease)
        lease = await stack.enter_async_context(self._leases.hold(named.root, named.id, self._wait_seconds))
        conversation = await self._store.get(tenant=tenant, conversation_id=named.id)
        if conversation is None:
            raise ConversationNotFound(f"Conversation with id {named.id!r} not found.", param="conversation_id")
        messages: Sequence[Message] = log.messages
        answer = await self._answers.find(conversation, request, log)
        versions = await self._histories.read_versions(conversation)
        if request.mode == "auto":
            messages = messages[await self._repeating.said_before(conversation, messages) :]
        if answer is not None or await self._repeating.is_pending(conversation, messages):
            messages = []
        calls_open = bool(conversation.state.get(CALLS_OPEN))
        await _check(messages, first_index=len(instructions), calls_open=calls_open)
        if not instructions:
            instructions = tuple(Message(raw.encode()) for raw in conversation.state.get(INSTRUCTIONS, ()))
        if conversation.mode == "unknown":
            conversation = replace(conversation, mode="append")
        return Recollection(
            conversation=conversation,
            creates=False,
            new=await self._entries(conversation, messages),
            instructions=instructions,
            instructions_tokens=await self._counting.instructions(instructions, request, conversation.counter),
            client_log=None,
            versions=versions,
            keeps=request.store,
            needs_store=request.store,
            appends=True,
            lease=lease,
            hints=request.hints,
            replays=answer,
        )

    async def _begin(
        self,
        request: ChatRequest,
        instructions: tuple[Message, ...],
        log: History,
        encoding: str,
        named: Conversation | None = None,
    ) -> Recollection:
        """A new conversation whose log is all that the client sent; it takes over the id of the one `named`."""
        tenant = request.caller.tenant
        positions, messages = await log.positions(), log.messages
        await _check(messages, first_index=len(instructions), calls_open=False)
        root = root_of_log(tenant, log.start, positions)
        conversation = empty_log(
            tenant,
            encoding,
            conversation_id=new_conversation_id(root, self._random_bytes),
            root=root,
            state={**state_of_end_user(request), BROUGHT: len(messages)},
            external_id=request.conversation_id if named is None else None,
            mode="append" if request.mode == "append" else "resend" if log.holds_answer else "unknown",
        )
        return Recollection(
            conversation=conversation,
            creates=True,
            new=await self._entries(conversation, messages, positions),
            instructions=instructions,
            instructions_tokens=await self._counting.instructions(instructions, request, encoding),
            client_log=log.raws,
            lacks_results=await _lacks_results(request, log),
            keeps=request.store,
            needs_store=request.store and not self._serves_degraded,
            points=named is not None,
            external_id=request.conversation_id,
            hints=request.hints,
            is_first_attempt=True,
            remembers=log.digest,
        )

    async def _aside(
        self, request: ChatRequest, instructions: tuple[Message, ...], log: History, encoding: str
    ) -> Recollection:
        """A request that is answered without the store."""
        placed = await self._begin(request, instructions, log, encoding)
        return replace(placed, keeps=False, needs_store=False, points=False, remembers=None)

    async def _entries(
        self, conversation: Conversation, messages: Sequence[Message], positions: Sequence[Position] | None = None
    ) -> tuple[LogMessage, ...]:
        """New messages in their places after the conversation's head."""
        entries = await entries_behind(
            conversation, messages, self._counting, positions=positions, answers_from_seq=FOREIGN_ANSWERS_FROM_SEQ
        )
        return tuple(entries)


async def _check(messages: Sequence[Message], *, first_index: int, calls_open: bool) -> None:
    """Check new messages (`check_messages`); off the event loop where there are many."""
    if size_of(messages) > LONG_WALK_BYTES:
        await asyncio.to_thread(check_messages, messages, first_index=first_index, calls_open=calls_open)
    else:
        check_messages(messages, first_index=first_index, calls_open=calls_open)


async def _lacks_results(request: ChatRequest, log: History, known: tuple[int, Remembered] | None = None) -> bool:
    """Whether tool calls of a history have no result.

    Args:
        known: so many of its messages came byte for byte before.
    """
    if known is not None:
        count, remembered = known
        return remembered.lacks_results or has_missing_results(log.raws[count - 1 :])
    if b'"tool_calls"' not in request.body:
        return False
    if log.is_long:
        return await asyncio.to_thread(has_missing_results, log.raws)
    return has_missing_results(log.raws)


def _may_append(request: ChatRequest, log: History) -> bool:
    """A conversation is named and no history comes along. Chat UIs name it in unrelated calls too."""
    return request.conversation_id is not None and not request.chat_ui and not log.holds_answer


def _is_append(request: ChatRequest, named: Conversation | None, log: History) -> bool:
    """Without a mode header: an id whose client has not been seen to resend, and no history in the request."""
    if request.conversation_id is None or request.mode != "auto" or not _may_append(request, log):
        return False
    return named is None or named.mode != "resend"


def _only_results(messages: Sequence[Message]) -> bool:
    return bool(messages) and all(message.role == "tool" for message in messages)


def _names_ours(request: ChatRequest) -> bool:
    """Whether the id is one of ours, which no chat UI sends along with unrelated calls."""
    return request.conversation_id is not None and root_of_conversation(request.conversation_id) is not None


def _points(request: ChatRequest, conversation: Conversation) -> bool:
    """Whether a client's own id has to be made to mean this conversation."""
    wanted = request.conversation_id
    return wanted is not None and root_of_conversation(wanted) is None and conversation.external_id != wanted
