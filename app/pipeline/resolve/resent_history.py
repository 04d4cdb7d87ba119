"""A resent history and how far the store knows it: by its chain of links, then by its skeleton, always exactly."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from itertools import chain, pairwise
from typing import Final

import msgspec
from msgspec.structs import replace

from app.conversation.alignment import Alignment, element_from
from app.conversation.identity import Position, landmark_digests, prefix_digests, root_of, start_of, walk
from app.conversation.message_checks import INSTRUCTION_ROLES
from app.conversation.messages import Conversation, Message, size_of
from app.pipeline.chat_request import ChatRequest
from app.pipeline.resolve.answer_anchors import answer_digests, choice_digest, exchange_digest
from app.pipeline.resolve.resolved_request import REWRITTEN, is_anothers
from app.store.contract import Match, Store

ANSWER: Final = b'"assistant"'
ANCHORED_DIGESTS: Final = 16
"""By about so many names of the newest answers of a history its conversation is looked for."""
FAST_PATH_MESSAGES: Final = 8
LONG_WALK_BYTES: Final = 64 * 1024
"""Histories above this are canonicalised off the event loop (about 1 ms)."""
LANDMARK_MESSAGES: Final = 32
"""The beginning of a history that was aligned is known again at each multiple of this, unless less than this follows:
by what follows, the conversations are found that it may belong to."""


class Remembered(msgspec.Struct, frozen=True):
    """What the prefix memory keeps of a history that came byte for byte."""

    root: str
    position: Position
    seqs: tuple[int, ...] | None = None
    """For each of its messages the log message in whose place it stands, where those are not the same."""
    rewritten: int = 0
    """`Conversation.state[REWRITTEN]` as it was then: whether the client has changed what it shows since."""
    lacks_results: bool = False
    """Whether tool calls in it have no result."""

    @property
    def shift(self) -> int:
        """How far behind its index in the history the log message of the last one stands."""
        return 0 if self.seqs is None else self.seqs[-1] - len(self.seqs) + 1


class Checkpoint(msgspec.Struct, frozen=True):
    """A message of a client history through which it was aligned, so that it need not be again."""

    at: int
    """Its index."""
    position: Position
    """Where the chains stand after it."""
    root: str
    """Of the history's log."""
    conversation_id: str
    named: bool
    """Whether it was aligned so."""
    part: Alignment
    """The alignment through it (`alignment.close`); marks and omitted ranges only of what is behind `before`."""
    before: Checkpoint | None

    @property
    def seq(self) -> int:
        """The log message that it is."""
        return self.part.last_seq

    @property
    def head(self) -> Alignment:
        """The alignment through it."""
        parts, one = [self.part], self.before
        while one is not None:
            parts.append(one.part)
            one = one.before
        parts.reverse()
        marks = tuple(chain.from_iterable([part.marks for part in parts]))
        omitted = tuple(chain.from_iterable([part.omitted for part in parts]))
        return replace(self.part, marks=marks, omitted=omitted)


class History:
    """The log that a request brings, decoded and walked at most once.

    Args:
        first: its first message, which has been looked at already.
    """

    def __init__(self, tenant: str, raws: Sequence[bytes], first: Message) -> None:
        self.start = start_of(tenant)
        self._tenant = tenant
        self.raws = raws
        self._first = first
        self._messages: list[Message] | None = None
        self._positions: list[Position] | None = None
        self._newest_positions: list[Position] | None = None
        self._holds_answer: bool | None = None
        self._digests: list[tuple[int, bytes]] | None = None
        self._landmarks: list[tuple[int, bytes]] | None = None
        self.checkpoint: Checkpoint | None = None
        """Set where the beginning of the history is known to have been aligned."""

    @property
    def messages(self) -> list[Message]:
        if self._messages is None:
            rest = self.raws[1:]
            self._messages = [self._first, *[Message(bytes(raw)) for raw in rest]] if rest else [self._first]
        return self._messages

    def messages_from(self, index: int) -> list[Message]:
        """The messages from an index on, without decoding those before."""
        if self._messages is None and index:
            return [Message(bytes(raw)) for raw in self.raws[index:]]
        return self.messages[index:]

    @property
    def holds_answer(self) -> bool:
        """Whether an assistant message may be among these. The raw text is searched: a false yes costs one query."""
        if self._holds_answer is None:
            self._holds_answer = ANSWER in self._first.raw
            for raw in () if self._holds_answer else self.raws[1:]:
                if ANSWER in bytes(raw):
                    self._holds_answer = True
                    break
        return self._holds_answer

    def ends_after(self, index: int, *, named: bool) -> bool:
        """Whether only what is new can follow a message: no answer, but for one at the end, which the model is to go
        on from. Of a conversation that the client named, several user messages may be old, too: clients that summarize
        keep their users' messages."""
        rest = self.messages_from(index + 1)
        users = sum(message.role == "user" for message in rest) if named else 0
        return users < 2 and not any(message.role == "assistant" for message in rest[:-1])

    async def anchor_digests(self) -> list[bytes]:
        """The digests by which the newest answers of the history are found, the newest first."""
        digests: list[bytes] = []
        (first, positions), messages = await self.newest_positions(), self.messages
        for index in reversed(range(len(messages))):
            if messages[index].role != "assistant":
                continue
            if index < first:
                first, positions = 0, await self.positions()
            answer = element_from(messages[index])
            question = element_from(messages[index - 1]) if index else None
            exchange = exchange_digest(self._tenant, question, answer)
            digests += [*answer_digests(self._tenant, answer), choice_digest(self._tenant, positions[index - first])]
            digests += [] if exchange is None else [exchange]
            if len(digests) >= ANCHORED_DIGESTS:
                break
        return list(dict.fromkeys(digests))

    @property
    def digests(self) -> list[tuple[int, bytes]]:
        """Of its raw prefixes, the whole last; none of a short history, which is recognised as quickly by its links."""
        if self._digests is None:
            self._digests = prefix_digests(self.raws, self._tenant) if len(self.raws) >= FAST_PATH_MESSAGES else []
        return self._digests

    @property
    def landmarks(self) -> list[tuple[int, bytes]]:
        """Digests of its prefixes of each so many messages, but for those that nearly all of it is in."""
        if self._landmarks is None:
            raws = self.raws[: max(0, len(self.raws) - LANDMARK_MESSAGES)]
            self._landmarks = landmark_digests(raws, self._tenant, LANDMARK_MESSAGES)
        return self._landmarks

    @property
    def digest(self) -> bytes | None:
        """Under which it is remembered whole, if it is long enough for that."""
        digests = self.digests
        return digests[-1][1] if digests else None

    async def positions(self) -> list[Position]:
        """Where the chains stand after each message; off the event loop when that takes long."""
        if self._positions is None:
            self._positions = await self._walk(self.messages, self.start)
        return self._positions

    async def newest_positions(self) -> tuple[int, list[Position]]:
        """The same from the checkpoint on, and the index of the first of these."""
        known = self.checkpoint
        if known is None or self._positions is not None:
            return 0, await self.positions()
        if self._newest_positions is None:
            rest = self.messages_from(known.at + 1)
            self._newest_positions = [known.position, *await self._walk(rest, known.position)]
        return known.at, self._newest_positions

    async def _walk(self, messages: Sequence[Message], start: Position) -> list[Position]:
        if size_of(messages) >= LONG_WALK_BYTES:
            return await asyncio.to_thread(lambda: list(walk(messages, start)))
        return list(walk(messages, start))

    async def find_root(self) -> str:
        """The root of its log."""
        if self.checkpoint is not None:
            return self.checkpoint.root
        return root_of_log(self._tenant, self.start, await self.positions())

    @property
    def is_long(self) -> bool:
        """Whether work on each of its messages belongs off the event loop."""
        return size_of(self.messages) >= LONG_WALK_BYTES


def split_messages(request: ChatRequest) -> tuple[tuple[Message, ...], History]:
    """Leading system and developer messages, and the log after them, which is never empty: the last message belongs
    to it whatever its role."""
    raws, tenant = request.raws, request.caller.tenant
    instructions: list[Message] = []
    for index, raw in enumerate(raws):
        message = Message(bytes(raw))
        if message.body.get("role") not in INSTRUCTION_ROLES:
            return tuple(instructions), History(tenant, raws[index:] if index else raws, message)
        instructions.append(message)
    return tuple(instructions[:-1]), History(tenant, raws[-1:], instructions[-1])


class Reach(msgspec.Struct, frozen=True):
    """How far into a request's log a stored message reaches: `match` is its message `index`."""

    index: int
    match: Match
    is_aligned: bool = False
    """Whether each message of the history up to there is the log message of the same number."""
    is_shared: bool = False
    """Whether conversations of other families end with the very same log."""
    is_kept_again: bool = False
    """Whether conversations of other families have stored the same message after the same log."""

    @property
    def is_head(self) -> bool:
        """Whether the stored message is the last of its conversation."""
        return self.match.message.seq == self.match.conversation.head_seq


class Search:
    """Looks up how far a tenant's stored messages reach into a request's log."""

    def __init__(self, store: Store) -> None:
        self._store = store

    async def behind(
        self,
        request: ChatRequest,
        named: Conversation | None,
        remembered: Remembered,
        rest: Sequence[Message],
        count: int,
    ) -> Reach | None:
        """The deepest stored message behind `count` remembered ones; None where only the whole search can tell."""
        positions = [remembered.position, *walk(rest, remembered.position)]
        found = await self._find(
            request,
            root=remembered.root,
            links=[position.link for position in positions],
            skeletons=[position.skeleton for position in positions[1:] if position.in_skeleton],
            named=named,
        )
        reach = _deepest([match for match in found if not match.by_skeleton], positions, first_index=count - 1)
        further = _deepest_skeleton([match for match in found if match.by_skeleton], positions)
        if reach is None or reach.match.message.seq != reach.index + remembered.shift:
            return None
        if reach.match.conversation.state.get(REWRITTEN, 0) != remembered.rewritten:
            return None
        if further is not None and further.index + count - 1 > reach.index:
            return None
        return _with_keepers(reach, found)

    async def whole(self, request: ChatRequest, named: Conversation | None, log: History) -> Reach | None:
        """The deepest stored message that the chain, then the skeleton reaches.

        Args:
            named: the conversation that the client says it is. It may have another root than its log: one that was
                begun before anything was said.
        """
        first, positions = await log.newest_positions()
        links = [position.link for position in positions]
        skeletons = [position.skeleton for position in positions if position.in_skeleton]
        found: list[Match] = []
        own = await log.find_root()
        for root in dict.fromkeys((own, own if named is None else named.root)):
            found = await self._find(request, root=root, links=links, skeletons=skeletons, named=named)
            if found:
                break
        if not found:
            return None
        if log.is_long:
            by_link, by_skeleton = await asyncio.to_thread(_find_deepest, found, positions, first)
        else:
            by_link, by_skeleton = _find_deepest(found, positions, first)
        if by_skeleton is None or (by_link is not None and by_link.index >= by_skeleton.index):
            if by_link is None:
                return None
            # Behind a checkpoint an alignment is as cheap as to look whether each message has its own place.
            return _with_keepers(by_link, found) if first else _described(by_link, found, positions, log.start)
        rest = log.messages[by_skeleton.index + 1 :]
        if rest:
            anchor = by_skeleton.match.message
            onward = list(walk(rest, Position(anchor.link, anchor.skeleton, True)))
            links = [position.link for position in onward]
            further = await self._find(request, root=root, links=links, skeletons=[], named=named)
            deeper = _deepest(further, onward, first_index=by_skeleton.index + 1)
            if deeper is not None:
                return _with_keepers(deeper, further)
        return _with_keepers(by_skeleton, found)

    async def _find(
        self,
        request: ChatRequest,
        *,
        root: str,
        links: Sequence[bytes],
        skeletons: Sequence[bytes],
        named: Conversation | None,
    ) -> list[Match]:
        """As `Store.find`, but for conversations of other end users: these say nothing of whose a place is. Where the
        client named a conversation, only that one and its branches count: others may begin with the same words. Chat
        UIs ask several models under one id, which means the last of these conversations: the others have none."""
        found = await self._store.find(
            tenant=request.caller.tenant,
            root=root,
            links=links,
            skeletons=skeletons,
            within=None if named is None else named.id,
        )
        return [
            match
            for match in found
            if not is_anothers(request, match.conversation)
            and (named is None or _may_be_named(request, match.conversation, named))
        ]


def _may_be_named(request: ChatRequest, found: Conversation, named: Conversation) -> bool:
    """Whether a client that named one conversation may mean another."""
    is_kin = found.path[0][0] == named.path[0][0]
    return is_kin or (request.chat_ui and found.external_id is None)


def root_of_log(tenant: str, start: Position, positions: Sequence[Position]) -> str:
    """The root of a log: by its first message that the chain does not look through."""
    for position in positions:
        if position.link != start.link:
            return root_of(tenant, position.link)
    return root_of(tenant, start.link)


def _described(reach: Reach, found: Sequence[Match], positions: Sequence[Position], start: Position) -> Reach:
    """A reach by links, with what else is known of it."""
    links = [start.link, *(position.link for position in positions[: reach.index + 1])]
    # A message that the chain looks through may stand elsewhere in the log.
    is_aligned = reach.match.message.seq == reach.index and all(one != next_one for one, next_one in pairwise(links))
    return _with_keepers(replace(reach, is_aligned=is_aligned), found)


def _with_keepers(reach: Reach, found: Sequence[Match]) -> Reach:
    """A reach, with what conversations of other families have of the matched message."""
    match = reach.match
    keepers = [
        one
        for one in found
        if one.by_skeleton == match.by_skeleton
        and (one.message.skeleton if match.by_skeleton else one.message.link)
        == (match.message.skeleton if match.by_skeleton else match.message.link)
    ]
    kept_by = {one.conversation.path[0][0] for one in keepers}
    ends = {one.conversation.path[0][0] for one in keepers if one.conversation.head_seq == one.message.seq}
    return replace(reach, is_shared=len(ends) > 1, is_kept_again=len(kept_by) > 1)


def _find_deepest(
    found: Sequence[Match], positions: Sequence[Position], first_index: int
) -> tuple[Reach | None, Reach | None]:
    """The deepest stored message by the chain of links, and by the skeleton."""
    by_link = _deepest([match for match in found if not match.by_skeleton], positions, first_index=first_index)
    further = _deepest_skeleton([match for match in found if match.by_skeleton], positions)
    return by_link, further and replace(further, index=further.index + first_index)


def _deepest(found: Sequence[Match], positions: Sequence[Position], *, first_index: int) -> Reach | None:
    """The stored message furthest along the request's chain; `found` lists equals in order of preference.

    Messages that the chain looks through share their link with the one before. Where several of the request's have
    it, the one at the stored message's own place is meant, so that those behind it count as new.
    """
    indexes_of: dict[bytes, list[int]] = {}
    for index, position in enumerate(positions, start=first_index):
        indexes_of.setdefault(position.link, []).append(index)
    best: Reach | None = None
    best_rank = (-1, False, False)
    for match in found:
        indexes, seq = indexes_of.get(match.message.link), match.message.seq
        if indexes is None:
            continue
        aligns = seq in indexes
        rank = (indexes[-1], seq == match.conversation.head_seq, aligns)
        if rank > best_rank:
            best, best_rank = Reach(seq if aligns else indexes[-1], match), rank
    return best


def _deepest_skeleton(found: Sequence[Match], positions: Sequence[Position]) -> Reach | None:
    index_of = {position.skeleton: index for index, position in enumerate(positions) if position.in_skeleton}
    best: Reach | None = None
    for match in found:
        index = index_of.get(match.message.skeleton)
        if index is not None and (best is None or index > best.index):
            best = Reach(index, match)
    return best
