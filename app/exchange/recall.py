"""Which conversation does a request mean, and what of it is new? Decides between continuing, branching and beginning.

A resend carries its history and is recognised by its chain of links. An append names a conversation and carries new
messages only. Anything else under a known id (a chat UI's title call) is answered without the store.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack
from typing import Final

import msgspec
from msgspec.structs import replace

from app.conversation.canonical import canonical
from app.conversation.identity import (
    Position,
    PrefixMemory,
    new_conversation_id,
    prefix_digests,
    root_of,
    root_of_conversation,
    start_of,
    walk,
)
from app.conversation.messages import Conversation, LogMessage, Message
from app.conversation.validation import INSTRUCTION_ROLES, TOOL_ROLES, check_messages
from app.errors import ConversationNotFound, StoreUnavailable
from app.exchange.counting import Counting
from app.exchange.request import ChatRequest
from app.store.base import Lease, Match, Store
from app.store.leases import LeaseKeeper

FAST_PATH_MESSAGES: Final = 8
"""Shorter histories are recognised as quickly by their links."""
FOREIGN_ANSWERS_FROM_SEQ: Final = 7
"""From here on an assistant's message that is no answer of ours makes a log recognisable too: a client that reshapes
each answer would otherwise begin a conversation with every turn. Greetings that everyone shares are over by then."""
LONG_WALK_BYTES: Final = 64 * 1024
"""Histories above this are canonicalised off the event loop (about 1 ms)."""
PENDING, CALLS_OPEN = "pending", "calls_open"
"""`Conversation.state`: how many of the last messages have no answer yet; whether a tool result may come next."""
INSTRUCTIONS = "instructions"
"""`Conversation.state`: leading system messages that an appending client sent once."""


class Remembered(msgspec.Struct, frozen=True):
    """What the prefix memory keeps of a history that came byte for byte."""

    root: str
    position: Position


class Recollection(msgspec.Struct, frozen=True):
    """A request in its place: the conversation as it stands, and what the request adds to it."""

    conversation: Conversation
    """As stored; the one to be created where `creates`. Its log ends where this request's new messages begin."""
    creates: bool
    new: tuple[LogMessage, ...]
    instructions: tuple[Message, ...]
    instructions_tokens: int
    client_log: Sequence[bytes] | None
    """The log as the client sent it, instructions aside; None where it sent only what is new."""
    client_tokens: int | None
    """Tokens of `client_log`, where it is not the stored log message for message."""
    keeps: bool = True
    """Whether this turn is stored."""
    degraded: bool = False
    needs_store: bool = False
    """Without the store the request is refused: an append, or any request where that is configured."""
    appends: bool = False
    lease: Lease | None = None
    points: bool = False
    """The client's own id is to mean this conversation once it is stored."""
    external_id: str | None = None
    """The client's own id."""
    is_first_attempt: bool = False
    """The conversation began with this request."""
    replays: LogMessage | None = None
    """The stored answer, where the client's own retry asks again what was answered meanwhile."""
    remembers: bytes | None = None
    """Digest under which the whole client log is remembered for the fast path."""

    @property
    def aligned(self) -> bool:
        """Whether message i of the client's log is message i of ours."""
        return self.client_log is not None and self.client_tokens is None

    @property
    def next_seq(self) -> int:
        return self.conversation.head_seq + 1 + len(self.new)

    @property
    def log_tokens(self) -> int:
        return self.new[-1].tokens_total if self.new else self.conversation.head_tokens_total

    @property
    def is_fresh(self) -> bool:
        """Nothing of its log is stored yet."""
        return self.conversation.head_seq < 0


class _History:
    """The log that a request brings, decoded and walked at most once."""

    def __init__(self, tenant: str, raws: Sequence[bytes]) -> None:
        self.start = start_of(tenant)
        self.raws = raws
        self._messages: list[Message] | None = None
        self._positions: list[Position] | None = None

    @property
    def messages(self) -> list[Message]:
        if self._messages is None:
            self._messages = [Message(bytes(raw)) for raw in self.raws]
        return self._messages

    async def positions(self) -> list[Position]:
        """Where the chains stand after each message; off the event loop when that takes long."""
        if self._positions is None:
            messages = self.messages
            if sum(len(message.raw) for message in messages) < LONG_WALK_BYTES:
                self._positions = list(walk(messages, self.start))
            else:
                self._positions = await asyncio.to_thread(lambda: list(walk(messages, self.start)))
        return self._positions


class _Reach(msgspec.Struct, frozen=True):
    """How far into a request's log a stored message reaches: `match` is its message `index`."""

    index: int
    match: Match


class Recall:
    """Finds a request's conversation. One indexed query for a resend; the lease and one read for an append."""

    def __init__(
        self,
        *,
        store: Store,
        leases: LeaseKeeper,
        counting: Counting,
        prefixes: PrefixMemory[Remembered],
        random_bytes: Callable[[int], bytes],
        wait_seconds: float,
        serves_degraded: bool,
    ) -> None:
        self._store = store
        self._leases = leases
        self._counting = counting
        self._prefixes = prefixes
        self._random_bytes = random_bytes
        self._wait_seconds = wait_seconds
        self._serves_degraded = serves_degraded

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
        instructions, raws = _split(request.raws)
        log = _History(request.caller.tenant, raws)
        if request.mode == "stateless":
            return await self._aside(request, instructions, log, encoding)
        try:
            placed = await self._placed(request, instructions, log, encoding, stack)
        except StoreUnavailable:
            if not self._serves_degraded or request.mode == "append" or _may_append(request, raws):
                raise
            return await self.without_store(request, encoding)
        return replace(placed, needs_store=placed.appends or not self._serves_degraded) if placed.keeps else placed

    async def without_store(self, request: ChatRequest, encoding: str) -> Recollection:
        """A request that brings its history, to be answered while the store is away."""
        instructions, raws = _split(request.raws)
        log = _History(request.caller.tenant, raws)
        return replace(await self._aside(request, instructions, log, encoding), degraded=True)

    async def _placed(
        self,
        request: ChatRequest,
        instructions: tuple[Message, ...],
        log: _History,
        encoding: str,
        stack: AsyncExitStack,
    ) -> Recollection:
        named = await self._named(request)
        if request.mode == "append" or _is_append(request, named, log.raws):
            return await self._append(request, named, instructions, log, encoding, stack)
        resent = await self._resend(request, named, instructions, log)
        if resent is not None:
            return resent
        if named is not None and request.mode == "auto":
            if _names_ours(request) and not _holds_answer(log.raws):
                return await self._append(request, named, instructions, log, encoding, stack)
            return await self._aside(request, instructions, log, encoding)
        return await self._begin(request, instructions, log, encoding, named)

    async def _named(self, request: ChatRequest) -> Conversation | None:
        if request.conversation_id is None:
            return None
        found = await self._store.get(tenant=request.caller.tenant, conversation_id=request.conversation_id)
        if found is None and root_of_conversation(request.conversation_id) is not None:
            raise ConversationNotFound(
                f"Conversation with id {request.conversation_id!r} not found.", param="conversation_id"
            )
        return found

    async def _resend(
        self,
        request: ChatRequest,
        named: Conversation | None,
        instructions: tuple[Message, ...],
        log: _History,
    ) -> Recollection | None:
        """The conversation that this history continues or branches from; None if there is none."""
        tenant = request.caller.tenant
        within = named.id if named is not None else None
        digests = prefix_digests(log.raws, tenant) if len(log.raws) >= FAST_PATH_MESSAGES else []
        digest = digests[-1][1] if digests else None
        known = self._prefixes.recall(digests)
        if known is not None:
            count, remembered = known
            rest = [Message(bytes(raw)) for raw in log.raws[count:]]
            reach = await self._search_on(tenant, within, remembered, rest, count)
            if reach is not None:
                return await self._continue(request, reach, rest[reach.index + 1 - count :], instructions, log, digest)
        if named is None and not _holds_answer(log.raws):
            return None
        reach, aligned = await self._search(tenant, within, log)
        if reach is None:
            return None
        new = log.messages[reach.index + 1 :]
        placed = await self._continue(request, reach, new, instructions, log, digest if aligned else None)
        if aligned:
            return placed
        counts = await self._counting.messages(log.messages, placed.conversation.encoding)
        return replace(placed, client_tokens=sum(counts))

    async def _search_on(
        self, tenant: str, within: str | None, remembered: Remembered, rest: Sequence[Message], count: int
    ) -> _Reach | None:
        """The deepest stored message behind `count` remembered ones; None where only the whole search can tell."""
        positions = [remembered.position, *walk(rest, remembered.position)]
        found = await self._store.find(
            tenant=tenant,
            root=remembered.root,
            links=[position.link for position in positions],
            skeletons=[position.skeleton for position in positions[1:] if position.in_skeleton],
            within=within,
        )
        reach = _deepest([match for match in found if not match.by_skeleton], positions, first_index=count - 1)
        further = _deepest_skeleton([match for match in found if match.by_skeleton], positions)
        if reach is None or reach.match.message.seq != reach.index:
            return None
        return reach if further is None or further.index + count - 1 <= reach.index else None

    async def _search(self, tenant: str, within: str | None, log: _History) -> tuple[_Reach | None, bool]:
        """The deepest stored message that the chain, then the skeleton reaches, and whether both logs are aligned."""
        positions = await log.positions()
        root = _root(tenant, log.start, positions)
        found = await self._store.find(
            tenant=tenant,
            root=root,
            links=[position.link for position in positions],
            skeletons=[position.skeleton for position in positions if position.in_skeleton],
            within=within,
        )
        by_link = _deepest([match for match in found if not match.by_skeleton], positions, first_index=0)
        by_skeleton = _deepest_skeleton([match for match in found if match.by_skeleton], positions)
        if by_skeleton is None or (by_link is not None and by_link.index >= by_skeleton.index):
            return by_link, by_link is not None and by_link.match.message.seq == by_link.index
        rest = log.messages[by_skeleton.index + 1 :]
        if rest:
            anchor = by_skeleton.match.message
            onward = list(walk(rest, Position(anchor.link, anchor.skeleton, True)))
            links = [position.link for position in onward]
            further = await self._store.find(tenant=tenant, root=root, links=links, skeletons=[], within=within)
            deeper = _deepest(further, onward, first_index=by_skeleton.index + 1)
            if deeper is not None:
                return deeper, False
        return by_skeleton, False

    async def _continue(
        self,
        request: ChatRequest,
        reach: _Reach,
        new: Sequence[Message],
        instructions: tuple[Message, ...],
        log: _History,
        digest: bytes | None,
    ) -> Recollection:
        """Go on after the matched message: on its conversation if that ends there, else on a branch."""
        found, last = reach.match.conversation, reach.match.message
        branches = found.head_seq != last.seq
        conversation = self._branch(found, last) if branches else replace(found, mode="resend")
        check_messages(
            new,
            first_index=len(request.raws) - len(new),
            calls_open=_calls_open(Message(bytes(log.raws[reach.index]))),
        )
        return Recollection(
            conversation=conversation,
            creates=branches,
            new=await self._log_messages(conversation, new),
            instructions=instructions,
            instructions_tokens=await self._counting.instructions(instructions, request, conversation.encoding),
            client_log=log.raws,
            client_tokens=None,
            keeps=request.store,
            points=_points(request, conversation),
            external_id=request.conversation_id,
            remembers=digest,
        )

    def _branch(self, parent: Conversation, last: LogMessage) -> Conversation:
        """A new conversation that shares its parent's log through `last`."""
        return Conversation(
            id=new_conversation_id(parent.root, self._random_bytes),
            root=parent.root,
            tenant=parent.tenant,
            head_seq=last.seq,
            head_link=last.link,
            head_skeleton=last.skeleton,
            head_tokens_total=last.tokens_total,
            answered=last.answered,
            encoding=parent.encoding,
            lineage=lineage_through(parent, last.seq),
            mode="resend",
            chunk_count=parent.chunk_count,
            state={name: value for name, value in parent.state.items() if name not in (PENDING, CALLS_OPEN)},
        )

    async def _append(
        self,
        request: ChatRequest,
        named: Conversation | None,
        instructions: tuple[Message, ...],
        log: _History,
        encoding: str,
        stack: AsyncExitStack,
    ) -> Recollection:
        tenant = request.caller.tenant
        if named is None and request.conversation_id is not None:
            root = root_of(tenant, request.conversation_id.encode())
            await stack.enter_async_context(self._leases.hold(root, request.conversation_id, self._wait_seconds))
            named = await self._named(request)
        if named is None:
            return replace(await self._begin(request, instructions, log, encoding), appends=True)
        lease = await stack.enter_async_context(self._leases.hold(named.root, named.id, self._wait_seconds))
        conversation = await self._store.get(tenant=tenant, conversation_id=named.id)
        if conversation is None:
            raise ConversationNotFound(f"Conversation with id {named.id!r} not found.", param="conversation_id")
        messages: Sequence[Message] = log.messages
        answer = await self._answer_to(conversation, messages) if request.retry else None
        if answer is not None or await self._is_pending(conversation, messages):
            messages = []
        check_messages(
            messages, first_index=len(instructions), calls_open=bool(conversation.state.get(CALLS_OPEN))
        )
        if not instructions:
            instructions = tuple(Message(raw.encode()) for raw in conversation.state.get(INSTRUCTIONS, ()))
        mode = "append" if conversation.mode == "unknown" else conversation.mode
        conversation = replace(conversation, mode=mode)
        return Recollection(
            conversation=conversation,
            creates=False,
            new=await self._log_messages(conversation, messages),
            instructions=instructions,
            instructions_tokens=await self._counting.instructions(instructions, request, conversation.encoding),
            client_log=None,
            client_tokens=None,
            keeps=request.store,
            appends=True,
            lease=lease,
            replays=answer,
        )

    async def _is_pending(self, conversation: Conversation, messages: Sequence[Message]) -> bool:
        """Whether the log ends with exactly these messages, stored by an attempt that got no answer."""
        count = len(messages)
        if not count or int(conversation.state.get(PENDING, 0)) < count:
            return False
        tail = await self._store.read(conversation, conversation.head_seq + 1 - count, conversation.head_seq + 1)
        return [_form(entry.message) for entry in tail] == [_form(message) for message in messages]

    async def _answer_to(self, conversation: Conversation, messages: Sequence[Message]) -> LogMessage | None:
        """The last answer, if it is whole and these very messages are what it answers."""
        if not messages or conversation.state.get(PENDING):
            return None
        first = conversation.head_seq - len(messages)
        tail = await self._store.read(conversation, first, conversation.head_seq + 1)
        if len(tail) <= len(messages) or tail[-1].incomplete or tail[-1].meta is None:
            return None
        same = [_form(entry.message) for entry in tail[:-1]] == [_form(message) for message in messages]
        return tail[-1] if same else None

    async def _begin(
        self,
        request: ChatRequest,
        instructions: tuple[Message, ...],
        log: _History,
        encoding: str,
        named: Conversation | None = None,
    ) -> Recollection:
        """A new conversation whose log is all that the client sent; it takes over the id of the one `named`."""
        check_messages(log.messages, first_index=len(instructions), calls_open=False)
        tenant, start = request.caller.tenant, log.start
        positions = await log.positions()
        root = _root(tenant, start, positions)
        conversation = Conversation(
            id=new_conversation_id(root, self._random_bytes),
            root=root,
            tenant=tenant,
            head_seq=-1,
            head_link=start.link,
            head_skeleton=start.skeleton,
            head_tokens_total=0,
            answered=False,
            encoding=encoding,
            external_id=request.conversation_id if named is None else None,
            mode="append" if request.mode == "append" else "resend" if _holds_answer(log.raws) else "unknown",
        )
        return Recollection(
            conversation=conversation,
            creates=True,
            new=await self._log_messages(conversation, log.messages, positions),
            instructions=instructions,
            instructions_tokens=await self._counting.instructions(instructions, request, encoding),
            client_log=log.raws,
            client_tokens=None,
            keeps=request.store,
            points=named is not None,
            external_id=request.conversation_id,
            is_first_attempt=True,
            remembers=prefix_digests(log.raws, tenant, last=1)[-1][1] if len(log.raws) >= FAST_PATH_MESSAGES else None,
        )

    async def _aside(
        self, request: ChatRequest, instructions: tuple[Message, ...], log: _History, encoding: str
    ) -> Recollection:
        """A request that is answered without the store."""
        placed = await self._begin(request, instructions, log, encoding)
        return replace(placed, keeps=False, points=False, remembers=None)

    async def _log_messages(
        self,
        conversation: Conversation,
        messages: Sequence[Message],
        positions: Sequence[Position] | None = None,
    ) -> tuple[LogMessage, ...]:
        """New messages in their places after the conversation's head."""
        if not messages:
            return ()
        counts = await self._counting.messages(messages, conversation.encoding)
        if positions is None:
            head = Position(conversation.head_link, conversation.head_skeleton, False)
            positions = list(walk(messages, head))
        entries = []
        seq, total, answered = conversation.head_seq, conversation.head_tokens_total, conversation.answered
        for message, position, tokens in zip(messages, positions, counts, strict=True):
            seq += 1
            total += tokens
            answered = answered or (seq >= FOREIGN_ANSWERS_FROM_SEQ and message.role == "assistant")
            entries.append(
                LogMessage(
                    seq=seq,
                    message=message,
                    link=position.link,
                    skeleton=position.skeleton,
                    in_skeleton=position.in_skeleton,
                    tokens=tokens,
                    tokens_total=total,
                    answered=answered,
                )
            )
        return tuple(entries)


def lineage_through(parent: Conversation, last_seq: int) -> tuple[tuple[str, int], ...]:
    """The lineage of a branch that shares its parent's log through `last_seq`."""
    shared = []
    for conversation_id, upto_seq in parent.path:
        shared.append((conversation_id, min(upto_seq, last_seq)))
        if upto_seq >= last_seq:
            break
    return tuple(shared)


def _split(raws: Sequence[bytes]) -> tuple[tuple[Message, ...], Sequence[bytes]]:
    """Leading system and developer messages, and the log after them, which is never empty: the last message belongs
    to it whatever its role."""
    instructions: list[Message] = []
    for index, raw in enumerate(raws):
        message = Message(bytes(raw))
        if message.role not in INSTRUCTION_ROLES:
            return tuple(instructions), raws[index:] if index else raws
        instructions.append(message)
    return tuple(instructions[:-1]), raws[-1:]


def _root(tenant: str, start: Position, positions: Sequence[Position]) -> str:
    """The root of a log: by its first message that the chain does not look through."""
    first = next((position.link for position in positions if position.link != start.link), start.link)
    return root_of(tenant, first)


def _holds_answer(log: Sequence[bytes]) -> bool:
    """Whether an assistant message may be among these. The raw text is searched: a false yes costs one query."""
    return any(b'"assistant"' in bytes(raw) for raw in log)


def _may_append(request: ChatRequest, log: Sequence[bytes]) -> bool:
    """A conversation is named and no history comes along. Chat UIs name it in unrelated calls too."""
    return request.conversation_id is not None and not request.chat_ui and not _holds_answer(log)


def _is_append(request: ChatRequest, named: Conversation | None, log: Sequence[bytes]) -> bool:
    """Without a mode header: an id whose client has not been seen to resend, and no history in the request."""
    if request.mode != "auto" or not _may_append(request, log):
        return False
    return named is None or named.mode != "resend"


def _names_ours(request: ChatRequest) -> bool:
    """Whether the id is one of ours, which no chat UI sends along with unrelated calls."""
    return request.conversation_id is not None and root_of_conversation(request.conversation_id) is not None


def _points(request: ChatRequest, conversation: Conversation) -> bool:
    """Whether a client's own id has to be made to mean this conversation."""
    wanted = request.conversation_id
    return wanted is not None and root_of_conversation(wanted) is None and conversation.external_id != wanted


def _form(message: Message) -> bytes:
    """What a message is compared by: its canonical form, its text where the chain looks through it."""
    return canonical(message.body) or message.raw


def _calls_open(message: Message) -> bool:
    return message.role in TOOL_ROLES or (message.role == "assistant" and bool(message.tool_calls))


def _deepest(found: Sequence[Match], positions: Sequence[Position], *, first_index: int) -> _Reach | None:
    """The stored message furthest along the request's chain; `found` lists equals in order of preference.

    Messages that the chain looks through share their link with the one before. Where several of the request's have
    it, the one at the stored message's own place is meant, so that those behind it count as new.
    """
    indexes_of: dict[bytes, list[int]] = {}
    for index, position in enumerate(positions, start=first_index):
        indexes_of.setdefault(position.link, []).append(index)
    best: _Reach | None = None
    best_rank = (-1, False, False)
    for match in found:
        indexes, seq = indexes_of.get(match.message.link), match.message.seq
        if indexes is None:
            continue
        aligns = seq in indexes
        rank = (indexes[-1], seq == match.conversation.head_seq, aligns)
        if rank > best_rank:
            best, best_rank = _Reach(seq if aligns else indexes[-1], match), rank
    return best


def _deepest_skeleton(found: Sequence[Match], positions: Sequence[Position]) -> _Reach | None:
    index_of = {position.skeleton: index for index, position in enumerate(positions) if position.in_skeleton}
    best: _Reach | None = None
    for match in found:
        index = index_of.get(match.message.skeleton)
        if index is not None and (best is None or index > best.index):
            best = _Reach(index, match)
    return best
