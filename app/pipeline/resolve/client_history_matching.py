"""A resent client history, and the search for the stored messages that it begins with: by the chain of links, then by
the skeleton. Both searches are exact."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from itertools import chain, pairwise
from typing import Final

import msgspec
from msgspec.structs import replace

from app.conversation.alignment import Alignment, build_alignment_element
from app.conversation.conversation_types import Conversation
from app.conversation.identity import (
    LinkPosition,
    compute_family_root,
    compute_interval_prefix_digests,
    compute_links_after_messages,
    compute_prefix_digests,
    compute_start_position,
)
from app.conversation.item import INSTRUCTION_ROLES, Item, count_item_bytes
from app.dialects.chat.message_checks import check_messages
from app.dialects.item_decoding import decode_item
from app.dialects.missing_tool_results import has_missing_tool_results, may_have_tool_calls
from app.dialects.responses.stored_response import is_instructions_field
from app.pipeline.chat_request import ChatRequest
from app.pipeline.resolve.answer_anchors import build_answer_digests, digest_choice_position, digest_question_and_answer
from app.pipeline.resolve.resolved_request import REWRITE_MARK, has_other_end_user
from app.store.contract.conversations import ConversationStore, LinkMatch

ASSISTANT_MARKER: Final = b'"assistant"'
"""The JSON of every assistant message contains these bytes."""
ANSWER_ITEM_MARKERS: Final = (b'_call"', b'"reasoning"', b'"compaction"')
"""The JSON of a message of the Responses API that is an answer, but says no text, contains one of these."""
ENOUGH_ANCHOR_DIGESTS: Final = 16
"""A rewritten history is looked up by about this many digests of its newest answers."""
MIN_FAST_PATH_MESSAGES: Final = 3
"""Shorter histories are recognised as quickly by their links, so their bytes are not remembered: most requests with one
message are never continued."""
LONG_HISTORY_BYTES: Final = 64 * 1024
"""The links of longer histories are computed in a thread: 64 KiB take about 1 ms."""
PREFIX_INTERVAL_MESSAGES: Final = 32
"""The beginning of an aligned history is remembered after each multiple of this number of messages, unless fewer
messages than this follow. The messages that follow are needed to find the conversations that the history may belong
to."""


class RememberedPrefix(msgspec.Struct, frozen=True):
    """What the prefix cache remembers of a history that came before, byte for byte."""

    root: str
    position: LinkPosition
    log_seqs: tuple[int, ...] | None = None
    """For each message of the prefix, the seq of its log message; None if index and seq are the same."""
    rewrite_mark: int = 0
    """`Conversation.state[REWRITE_MARK]` at that time. Another value now means that the client has changed messages
    since."""
    has_missing_results: bool = False
    """Whether tool calls in the prefix have no result."""

    @property
    def seq_shift(self) -> int:
        """The seq of the last message's log message minus its index in the history."""
        return 0 if self.log_seqs is None else self.log_seqs[-1] - len(self.log_seqs) + 1


class AlignedPrefix(msgspec.Struct, frozen=True):
    """The beginning of a client history whose alignment is known and need not be computed again."""

    last_index: int
    """The index of the prefix's last message."""
    position: LinkPosition
    """The position of the chains after the last message."""
    root: str
    """The root of the history's log."""
    conversation_id: str
    is_named: bool
    """Whether the client named the conversation in the alignment."""
    own_alignment: Alignment
    """The alignment through the last message (`alignment.cut_alignment_head`), with the marks and omitted ranges after
    `previous` only."""
    previous: AlignedPrefix | None

    @property
    def last_seq(self) -> int:
        """The seq of the last message's log message."""
        return self.own_alignment.last_seq

    @property
    def alignment(self) -> Alignment:
        """The alignment of the whole prefix."""
        parts, one = [self.own_alignment], self.previous
        while one is not None:
            parts.append(one.own_alignment)
            one = one.previous
        parts.reverse()
        marks = tuple(chain.from_iterable([part.message_alignments for part in parts]))
        omitted = tuple(chain.from_iterable([part.omitted_ranges for part in parts]))
        return replace(self.own_alignment, message_alignments=marks, omitted_ranges=omitted)


class ClientHistory:
    """The messages of a request after its instructions. They are decoded and hashed at most once, and only when they
    are needed.

    Args:
        first_message: the first message, which is decoded already; None if there are no messages.
        instructions: the leading system and developer messages, which are not part of the history.
    """

    def __init__(
        self,
        tenant: str,
        raw_messages: Sequence[bytes],
        first_message: Item | None,
        instructions: tuple[Item, ...] = (),
    ) -> None:
        self.instructions = instructions
        self.start_position = compute_start_position(tenant)
        self._tenant = tenant
        self.raw_messages = raw_messages
        self._first_message = first_message
        self._messages: list[Item] | None = None
        self._positions: list[LinkPosition] | None = None
        self._newest_positions: list[LinkPosition] | None = None
        self._may_contain_answer: bool | None = None
        self._prefix_digests: list[tuple[int, bytes]] | None = None
        self._interval_prefix_digests: list[tuple[int, bytes]] | None = None
        self.aligned_prefix: AlignedPrefix | None = None
        """Set if the beginning of the history is known to be aligned."""

    @property
    def messages(self) -> list[Item]:
        if self._messages is None:
            rest = self.raw_messages[1:]
            first = [] if self._first_message is None else [self._first_message]
            self._messages = [*first, *[decode_item(bytes(raw)) for raw in rest]] if rest else first
        return self._messages

    def decode_messages(self, from_index: int) -> list[Item]:
        """Returns the messages from an index on. Earlier messages are not decoded."""
        if self._messages is None and from_index:
            return [decode_item(bytes(raw)) for raw in self.raw_messages[from_index:]]
        return self.messages[from_index:]

    @property
    def may_contain_answer(self) -> bool:
        """Whether the history may contain an assistant message. The raw bytes are searched: a false yes costs one
        query."""
        if self._may_contain_answer is None:
            first = self._first_message
            self._may_contain_answer = first is not None and _may_be_answer(first.raw)
            for raw in () if self._may_contain_answer else self.raw_messages[1:]:
                if _may_be_answer(bytes(raw)):
                    self._may_contain_answer = True
                    break
        return self._may_contain_answer

    def can_rest_be_new(self, index: int, *, is_named: bool) -> bool:
        """Returns whether all messages after an index can be new to the log: no assistant message follows, but for one
        at the end, which is a prefill.

        If the client named the conversation, at most one user message may follow: clients that summarize keep their
        users' messages, so several may be old ones.
        """
        rest = self.decode_messages(index + 1)
        user_count = sum(message.role == "user" for message in rest) if is_named else 0
        return user_count < 2 and not any(message.role == "assistant" for message in rest[:-1])

    async def build_anchor_digests(self) -> list[bytes]:
        """Returns the digests by which the newest answers of the history are found, the newest first."""
        digests: list[bytes] = []
        (first, positions), messages = await self.compute_newest_link_positions(), self.messages
        for index in reversed(range(len(messages))):
            if messages[index].role != "assistant":
                continue
            if index < first:
                # The newest answers are in the known aligned prefix: the positions before its end are needed after all.
                first, positions = 0, await self.compute_link_positions()
            answer = build_alignment_element(messages[index])
            question = build_alignment_element(messages[index - 1]) if index else None
            pair_digest = digest_question_and_answer(self._tenant, question, answer)
            digests += [
                *build_answer_digests(self._tenant, answer),
                digest_choice_position(self._tenant, positions[index - first]),
            ]
            digests += [] if pair_digest is None else [pair_digest]
            if len(digests) >= ENOUGH_ANCHOR_DIGESTS:
                break
        return list(dict.fromkeys(digests))

    @property
    def raw_prefix_digests(self) -> list[tuple[int, bytes]]:
        """Digests of the history's raw prefixes; the last one is of the whole history. Empty for a short history."""
        if self._prefix_digests is None:
            self._prefix_digests = (
                compute_prefix_digests(self.raw_messages, self._tenant)
                if len(self.raw_messages) >= MIN_FAST_PATH_MESSAGES
                else []
            )
        return self._prefix_digests

    @property
    def interval_prefix_digests(self) -> list[tuple[int, bytes]]:
        """Digests of the history's prefixes at each multiple of `PREFIX_INTERVAL_MESSAGES`, each with its message
        count. Prefixes that contain nearly the whole history are left out."""
        if self._interval_prefix_digests is None:
            raw_messages = self.raw_messages[: max(0, len(self.raw_messages) - PREFIX_INTERVAL_MESSAGES)]
            self._interval_prefix_digests = compute_interval_prefix_digests(
                raw_messages, self._tenant, PREFIX_INTERVAL_MESSAGES
            )
        return self._interval_prefix_digests

    @property
    def history_digest(self) -> bytes | None:
        """The digest under which the whole history is remembered; None if the history is short."""
        digests = self.raw_prefix_digests
        return digests[-1][1] if digests else None

    async def compute_link_positions(self) -> list[LinkPosition]:
        """Returns the position of the chains after each message. A long history is hashed in a thread."""
        if self._positions is None:
            self._positions = await self._compute_positions_from(self.messages, self.start_position)
        return self._positions

    async def compute_newest_link_positions(self) -> tuple[int, list[LinkPosition]]:
        """Returns the index of the known aligned prefix's last message, and the position of the chains after that
        message and each later one."""
        aligned_prefix = self.aligned_prefix
        if aligned_prefix is None or self._positions is not None:
            return 0, await self.compute_link_positions()
        if self._newest_positions is None:
            rest = self.decode_messages(aligned_prefix.last_index + 1)
            self._newest_positions = [
                aligned_prefix.position,
                *await self._compute_positions_from(rest, aligned_prefix.position),
            ]
        return aligned_prefix.last_index, self._newest_positions

    async def _compute_positions_from(self, messages: Sequence[Item], start: LinkPosition) -> list[LinkPosition]:
        if count_item_bytes(messages) >= LONG_HISTORY_BYTES:
            return await asyncio.to_thread(lambda: list(compute_links_after_messages(messages, start)))
        return list(compute_links_after_messages(messages, start))

    async def find_log_root(self) -> str:
        """Returns the root of the history's log."""
        if self.aligned_prefix is not None:
            return self.aligned_prefix.root
        return compute_log_root(self._tenant, self.start_position, await self.compute_link_positions())

    @property
    def must_process_in_thread(self) -> bool:
        """Whether work on every message must be done in a thread."""
        return count_item_bytes(self.messages) >= LONG_HISTORY_BYTES


def _may_be_answer(raw: bytes) -> bool:
    """Returns whether the JSON text of a message may be that of an assistant message."""
    return ASSISTANT_MARKER in raw or (raw.startswith(b"[") and any(marker in raw for marker in ANSWER_ITEM_MARKERS))


def build_client_history(request: ChatRequest) -> ClientHistory:
    """Splits a request into its instructions and its client history. The last message belongs to the history, whatever
    its role. The history is empty only if a request continues an earlier response and brings no message."""
    raw_messages, tenant = request.raw_messages, request.log_tenant
    instructions: list[Item] = []
    for index, raw in enumerate(raw_messages):
        message = decode_item(bytes(raw))
        if message.role not in INSTRUCTION_ROLES:
            history = raw_messages[index:] if index else raw_messages
            return ClientHistory(tenant, history, message, tuple(instructions))
        instructions.append(message)
    if not instructions or is_instructions_field(instructions[-1].raw):
        return ClientHistory(tenant, (), None, tuple(instructions))
    return ClientHistory(tenant, raw_messages[-1:], instructions[-1], tuple(instructions[:-1]))


class PrefixMatch(msgspec.Struct, frozen=True):
    """How far the stored messages reach into a client history: message `index` of the history is `stored_match`."""

    index: int
    stored_match: LinkMatch
    is_aligned_by_index: bool = False
    """Whether the index of each message up to there is its seq."""
    is_shared_head: bool = False
    """Whether conversations of several families end with this message after the same log."""
    is_shared_message: bool = False
    """Whether conversations of several families have this message after the same log."""

    @property
    def is_head(self) -> bool:
        """Whether the stored message is the last of its conversation."""
        return self.stored_match.message.seq == self.stored_match.conversation.head_seq


class PrefixSearch:
    """Finds how far a tenant's stored messages reach into a client history."""

    def __init__(self, store: ConversationStore) -> None:
        self._store = store

    async def search_after_prefix(
        self,
        request: ChatRequest,
        named_conversation: Conversation | None,
        remembered_prefix: RememberedPrefix,
        rest: Sequence[Item],
        prefix_count: int,
    ) -> PrefixMatch | None:
        """Returns the last stored message that the history reaches after `prefix_count` remembered messages. Returns
        None if only a search over the whole history can decide."""
        positions = [remembered_prefix.position, *compute_links_after_messages(rest, remembered_prefix.position)]
        matches = await self._find_link_matches(
            request,
            root=remembered_prefix.root,
            links=[position.link for position in positions],
            skeletons=[position.skeleton_link for position in positions[1:] if position.is_in_skeleton],
            named_conversation=named_conversation,
        )
        by_link = _find_deepest_by_link(
            [match for match in matches if not match.by_skeleton], positions, first_index=prefix_count - 1
        )
        by_skeleton = _find_deepest_by_skeleton([match for match in matches if match.by_skeleton], positions)
        # In the next three cases the memory of the prefix is out of date: a message moved, the client changed messages
        # meanwhile, or the skeleton reaches further than the links.
        if by_link is None or by_link.stored_match.message.seq != by_link.index + remembered_prefix.seq_shift:
            return None
        if by_link.stored_match.conversation.state.get(REWRITE_MARK, 0) != remembered_prefix.rewrite_mark:
            return None
        if by_skeleton is not None and by_skeleton.index + prefix_count - 1 > by_link.index:
            return None
        return _mark_shared(by_link, matches)

    async def search_history(
        self, request: ChatRequest, named_conversation: Conversation | None, client_history: ClientHistory
    ) -> PrefixMatch | None:
        """Returns the last stored message that the history reaches, by the chain of links, then by the skeleton.

        Args:
            named_conversation: the conversation that the client names. Its root can differ from the root of its log, if
                it was created before its first message.
        """
        first, positions = await client_history.compute_newest_link_positions()
        links = [position.link for position in positions]
        skeletons = [position.skeleton_link for position in positions if position.is_in_skeleton]
        matches: list[LinkMatch] = []
        own_root = await client_history.find_log_root()
        for root in dict.fromkeys((own_root, own_root if named_conversation is None else named_conversation.root)):
            matches = await self._find_link_matches(
                request, root=root, links=links, skeletons=skeletons, named_conversation=named_conversation
            )
            if matches:
                break
        if not matches:
            return None
        if client_history.must_process_in_thread:
            by_link, by_skeleton = await asyncio.to_thread(_find_deepest_matches, matches, positions, first)
        else:
            by_link, by_skeleton = _find_deepest_matches(matches, positions, first)
        if by_skeleton is None or (by_link is not None and by_link.index >= by_skeleton.index):
            if by_link is None:
                return None
            # After a known aligned prefix, an alignment costs no more than checking that each index equals its seq.
            return (
                _mark_shared(by_link, matches)
                if first
                else _mark_aligned_and_shared(by_link, matches, positions, client_history.start_position)
            )
        # The skeleton skips tool traffic. From the matched message on, the links may match again and reach further.
        rest = client_history.messages[by_skeleton.index + 1 :]
        if rest:
            matched_message = by_skeleton.stored_match.message
            onward = list(
                compute_links_after_messages(rest, LinkPosition(matched_message.link, matched_message.skeleton, True))
            )
            links = [position.link for position in onward]
            further = await self._find_link_matches(
                request, root=root, links=links, skeletons=[], named_conversation=named_conversation
            )
            deeper = _find_deepest_by_link(further, onward, first_index=by_skeleton.index + 1)
            if deeper is not None:
                return _mark_shared(deeper, further)
        return _mark_shared(by_skeleton, matches)

    async def _find_link_matches(
        self,
        request: ChatRequest,
        *,
        root: str,
        links: Sequence[bytes],
        skeletons: Sequence[bytes],
        named_conversation: Conversation | None,
    ) -> list[LinkMatch]:
        """Returns the store's matches (`ConversationStore.find_link_matches`) without conversations of other end users.

        If the client named a conversation, only that one and its branches count: other conversations may begin with the
        same words. A chat UI asks several models under one id. The id points to the last of these conversations, and
        the others have no id, so conversations without an id count for chat UIs, too.
        """
        matches = await self._store.find_link_matches(
            tenant=request.log_tenant,
            root=root,
            links=links,
            skeletons=skeletons,
            named_conversation_id=None if named_conversation is None else named_conversation.id,
        )
        return [
            match
            for match in matches
            if not has_other_end_user(request, match.conversation)
            and (named_conversation is None or _may_mean_conversation(request, match.conversation, named_conversation))
        ]


def _may_mean_conversation(request: ChatRequest, found: Conversation, named_conversation: Conversation) -> bool:
    """Returns whether a client that named one conversation may mean another."""
    is_same_family = found.lineage_with_self[0][0] == named_conversation.lineage_with_self[0][0]
    return is_same_family or (request.is_chat_ui and found.external_id is None)


def compute_log_root(tenant: str, start_position: LinkPosition, positions: Sequence[LinkPosition]) -> str:
    """Returns the root of a log: that of its first message that the chain does not skip."""
    for position in positions:
        if position.link != start_position.link:
            return compute_family_root(tenant, position.link)
    return compute_family_root(tenant, start_position.link)


def _mark_aligned_and_shared(
    prefix_match: PrefixMatch,
    matches: Sequence[LinkMatch],
    positions: Sequence[LinkPosition],
    start_position: LinkPosition,
) -> PrefixMatch:
    """Returns a match by links, with `is_aligned` and what other families have of the message."""
    links = [start_position.link, *(position.link for position in positions[: prefix_match.index + 1])]
    # The chain skips some messages: their link equals the one before. Such a message may have another place in the log.
    is_aligned = prefix_match.stored_match.message.seq == prefix_match.index and all(
        one != next_one for one, next_one in pairwise(links)
    )
    return _mark_shared(replace(prefix_match, is_aligned_by_index=is_aligned), matches)


def _mark_shared(prefix_match: PrefixMatch, matches: Sequence[LinkMatch]) -> PrefixMatch:
    """Returns a match with `is_shared_head` and `is_shared_message`."""
    match = prefix_match.stored_match
    equal_matches = [
        one
        for one in matches
        if one.by_skeleton == match.by_skeleton
        and (one.message.skeleton if match.by_skeleton else one.message.link)
        == (match.message.skeleton if match.by_skeleton else match.message.link)
    ]
    families = {one.conversation.lineage_with_self[0][0] for one in equal_matches}
    head_families = {
        one.conversation.lineage_with_self[0][0]
        for one in equal_matches
        if one.conversation.head_seq == one.message.seq
    }
    return replace(prefix_match, is_shared_head=len(head_families) > 1, is_shared_message=len(families) > 1)


def _find_deepest_matches(
    matches: Sequence[LinkMatch], positions: Sequence[LinkPosition], first_index: int
) -> tuple[PrefixMatch | None, PrefixMatch | None]:
    """Returns the last stored message that the history reaches by links, and the last by skeleton."""
    by_link = _find_deepest_by_link(
        [match for match in matches if not match.by_skeleton], positions, first_index=first_index
    )
    by_skeleton = _find_deepest_by_skeleton([match for match in matches if match.by_skeleton], positions)
    return by_link, by_skeleton and replace(by_skeleton, index=by_skeleton.index + first_index)


def _find_deepest_by_link(
    matches: Sequence[LinkMatch], positions: Sequence[LinkPosition], *, first_index: int
) -> PrefixMatch | None:
    """Returns the stored message that is furthest along the request's chain. `matches` lists equal ones in order of
    preference.

    A message that the chain skips has the same link as the one before it. If several of the request's messages have the
    link, the one whose index is the stored message's seq is taken, so that the messages after it count as new.
    """
    indexes_by_link: dict[bytes, list[int]] = {}
    for index, position in enumerate(positions, start=first_index):
        indexes_by_link.setdefault(position.link, []).append(index)
    best: PrefixMatch | None = None
    best_rank = (-1, False, False)
    for match in matches:
        indexes, seq = indexes_by_link.get(match.message.link), match.message.seq
        if indexes is None:
            continue
        aligns = seq in indexes
        rank = (indexes[-1], seq == match.conversation.head_seq, aligns)
        if rank > best_rank:
            best, best_rank = PrefixMatch(seq if aligns else indexes[-1], match), rank
    return best


def _find_deepest_by_skeleton(matches: Sequence[LinkMatch], positions: Sequence[LinkPosition]) -> PrefixMatch | None:
    index_by_skeleton = {
        position.skeleton_link: index for index, position in enumerate(positions) if position.is_in_skeleton
    }
    best: PrefixMatch | None = None
    for match in matches:
        index = index_by_skeleton.get(match.message.skeleton)
        if index is not None and (best is None or index > best.index):
            best = PrefixMatch(index, match)
    return best


async def check_new_messages(messages: Sequence[Item], *, first_index: int, has_open_calls: bool) -> None:
    """Checks new messages (`check_messages`). Long messages are checked in a thread, so that the event loop stays
    free."""
    if count_item_bytes(messages) > LONG_HISTORY_BYTES:
        await asyncio.to_thread(check_messages, messages, first_index=first_index, may_begin_with_result=has_open_calls)
    else:
        check_messages(messages, first_index=first_index, may_begin_with_result=has_open_calls)


async def detect_missing_results(
    request: ChatRequest, client_history: ClientHistory, remembered_prefix: tuple[int, RememberedPrefix] | None = None
) -> bool:
    """Returns whether tool calls of a history have no result.

    Args:
        remembered_prefix: the beginning of the history that came before, byte for byte; only the rest is checked.
    """
    if remembered_prefix is not None:
        count, remembered = remembered_prefix
        return remembered.has_missing_results or has_missing_tool_results(client_history.raw_messages[count - 1 :])
    # A search for the bytes is cheaper than decoding the messages, and most requests have no tool calls.
    if not may_have_tool_calls(request.body):
        return False
    if client_history.must_process_in_thread:
        return await asyncio.to_thread(has_missing_tool_results, client_history.raw_messages)
    return has_missing_tool_results(client_history.raw_messages)


def may_append(request: ChatRequest, client_history: ClientHistory) -> bool:
    """Returns whether the request names a conversation and brings no history. Chat UIs name their chat in unrelated
    calls, too, so they never append."""
    return request.conversation_id is not None and not request.is_chat_ui and not client_history.may_contain_answer


def is_append_request(
    request: ChatRequest, named_conversation: Conversation | None, client_history: ClientHistory
) -> bool:
    """Returns whether a request without a mode header is an append: its client names a conversation, has not been seen
    to resend, and sends no history."""
    if request.conversation_id is None or request.context_mode != "auto" or not may_append(request, client_history):
        return False
    return named_conversation is None or named_conversation.mode != "resend"
