"""Which conversation does a request mean, and what of it is new? Decides between continuing, branching and beginning.

A resend carries its history and is recognised by its chain of links. An append names a conversation and carries new
messages only. Anything else under a known id (a chat UI's title call) is answered without the store.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack
from typing import Final

from msgspec.structs import replace

from app.conversation.identity import (
    Position,
    PrefixMemory,
    new_conversation_id,
    root_of,
    root_of_conversation,
)
from app.conversation.messages import Conversation, LogMessage, Message, size_of
from app.conversation.validation import TOOL_ROLES, check_messages, leaves_calls_open
from app.errors import ConversationNotFound, StoreUnavailable
from app.exchange.counting import Counting
from app.exchange.growing import branch_of, empty_log, entries_behind
from app.exchange.history import LONG_WALK_BYTES, History, Reach, Remembered, Search, root_of_log, split_messages
from app.exchange.placement import CALLS_OPEN, INSTRUCTIONS, REDACTED, Recollection
from app.exchange.repeating import Repeating
from app.exchange.request import ChatRequest
from app.exchange.retries.identity import digest_request
from app.exchange.retries.replay import StoredAnswers
from app.observability.tracing import traced
from app.store.base import Store
from app.store.leases import LeaseKeeper

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
        random_bytes: Callable[[int], bytes],
        wait_seconds: float,
        serves_degraded: bool,
    ) -> None:
        self._store = store
        self._search = Search(store)
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
        if request.mode == "append" or _is_append(request, named, log):
            return await self._append(request, named, instructions, log, encoding, stack)
        if named is not None and await self._is_run(request, named, log):
            return await self._append(request, named, instructions, log, encoding, stack)
        if named is not None or log.digests or log.holds_answer:
            resent = await self._resend(request, named, instructions, log)
            if resent is not None:
                return resent
        if named is not None and request.mode == "auto":
            if _names_ours(request) and not log.holds_answer:
                return await self._append(request, named, instructions, log, encoding, stack)
            if not _is_chat(request, log):
                return await self._aside(request, instructions, log, encoding)
        return await self._begin(request, instructions, log, encoding, named)

    async def _is_run(self, request: ChatRequest, named: Conversation, log: History) -> bool:
        """Whether an appending client brings the newest part of the log again: an agent after a call of a tool.

        A history that is all of the log is a resend.
        """
        if request.mode != "auto" or request.chat_ui or named.mode == "resend" or not log.holds_answer:
            return False
        count = await self._repeating.said_before(named, log.messages)
        if count:
            return count <= named.head_seq and count < len(log.messages)
        return request.retry and await self._answers.find(named, await digest_request(request, log)) is not None

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
        """The conversation that this history continues or branches from; None if there is none."""
        tenant = request.caller.tenant
        known = self._prefixes.recall(log.digests)
        if known is not None:
            count, remembered = known
            rest = [Message(bytes(raw)) for raw in log.raws[count:]]
            within = named.id if named is not None else None
            reach = await self._search.behind(tenant, within, remembered, rest, count)
            if reach is not None:
                new = rest[reach.index + 1 - count :]
                return await self._continue(request, reach, new, instructions, log, log.digest)
        if named is None and not log.holds_answer:
            return None
        reach, aligned = await self._search.whole(tenant, named, log)
        if reach is None:
            return None
        new = log.messages[reach.index + 1 :]
        placed = await self._continue(request, reach, new, instructions, log, log.digest if aligned else None)
        if aligned or placed.client_log is None:
            return placed
        counts = await self._counting.messages(log.messages, placed.conversation.encoding)
        return replace(placed, client_tokens=sum(counts))

    async def _continue(
        self,
        request: ChatRequest,
        reach: Reach,
        new: Sequence[Message],
        instructions: tuple[Message, ...],
        log: History,
        digest: bytes | None,
    ) -> Recollection:
        """Go on after the matched message: on its conversation if that ends there, else on a branch. Where messages
        were erased the stored log is shown, and not the client's copy of it.
        """
        found, last = reach.match.conversation, reach.match.message
        is_retry = request.retry and not new
        answer = await self._answers.find(found, await digest_request(request, log)) if is_retry else None
        branches = answer is None and found.head_seq != last.seq
        placed = branch_of(found, last, new_conversation_id(found.root, self._random_bytes)) if branches else found
        mode = found.mode if _only_results(new) else "resend"  # an agent that appends brings its run along, too
        conversation = placed if placed.mode == mode else replace(placed, mode=mode)
        await _check(
            new,
            first_index=len(request.raws) - len(new),
            calls_open=leaves_calls_open(Message(bytes(log.raws[reach.index]))),
        )
        return Recollection(
            conversation=conversation,
            creates=branches,
            new=await self._entries(conversation, new),
            instructions=instructions,
            instructions_tokens=await self._counting.instructions(instructions, request, conversation.encoding),
            client_log=None if conversation.marks.get(REDACTED) else log.raws,
            client_tokens=None,
            keeps=request.store,
            needs_store=request.store and not self._serves_degraded,
            points=_points(request, conversation),
            external_id=request.conversation_id,
            remembers=digest,
            replays=answer,
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
        answer = await self._answers.find(conversation, await digest_request(request, log)) if request.retry else None
        if request.mode == "auto":
            messages = messages[await self._repeating.said_before(conversation, messages) :]
        if answer is not None or await self._repeating.is_pending(conversation, messages):
            messages = []
        calls_open = bool(conversation.state.get(CALLS_OPEN))
        await _check(messages, first_index=len(instructions), calls_open=calls_open)
        if calls_open and messages and messages[0].role not in TOOL_ROLES:
            messages = [*await self._repeating.results_given_up(conversation), *messages]
        if not instructions:
            instructions = tuple(Message(raw.encode()) for raw in conversation.state.get(INSTRUCTIONS, ()))
        if conversation.mode == "unknown":
            conversation = replace(conversation, mode="append")
        return Recollection(
            conversation=conversation,
            creates=False,
            new=await self._entries(conversation, messages),
            instructions=instructions,
            instructions_tokens=await self._counting.instructions(instructions, request, conversation.encoding),
            client_log=None,
            client_tokens=None,
            keeps=request.store,
            needs_store=request.store,
            appends=True,
            lease=lease,
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
            client_tokens=None,
            keeps=request.store,
            needs_store=request.store and not self._serves_degraded,
            points=named is not None,
            external_id=request.conversation_id,
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


def _may_append(request: ChatRequest, log: History) -> bool:
    """A conversation is named and no history comes along. Chat UIs name it in unrelated calls too."""
    return request.conversation_id is not None and not request.chat_ui and not log.holds_answer


def _is_append(request: ChatRequest, named: Conversation | None, log: History) -> bool:
    """Without a mode header: an id whose client has not been seen to resend, and no history in the request."""
    if request.conversation_id is None or request.mode != "auto" or not _may_append(request, log):
        return False
    return named is None or named.mode != "resend"


def _is_chat(request: ChatRequest, log: History) -> bool:
    """Whether a chat UI's request is part of a chat for sure: its unrelated calls hold no answers. Where one of those
    came first under the chat's id, the id goes over to the chat."""
    return request.chat_ui and log.holds_answer


def _only_results(messages: Sequence[Message]) -> bool:
    return bool(messages) and all(message.role == "tool" for message in messages)


def _names_ours(request: ChatRequest) -> bool:
    """Whether the id is one of ours, which no chat UI sends along with unrelated calls."""
    return request.conversation_id is not None and root_of_conversation(request.conversation_id) is not None


def _points(request: ChatRequest, conversation: Conversation) -> bool:
    """Whether a client's own id has to be made to mean this conversation."""
    wanted = request.conversation_id
    return wanted is not None and root_of_conversation(wanted) is None and conversation.external_id != wanted
