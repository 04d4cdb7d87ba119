"""Places a resent history: the conversation that it continues or branches from, and what of it is new.

Without an id, rule 1 of docs/decisions/0050 decides (`conversation_proof`). An id of the caller's decides by itself,
and the history is aligned with its log."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

import msgspec
from msgspec.structs import replace

from app.conversation.conversation_types import AnswerAnchor, ClientVersion, Conversation, LogMessage
from app.conversation.fingerprints import FingerprintScope
from app.conversation.identity import compute_anchor_digest, make_conversation_id
from app.conversation.item import Item, may_precede_tool_result
from app.dialects.item_decoding import decode_item
from app.pipeline.resolve.answer_replay import StoredAnswers
from app.pipeline.resolve.client_history import ClientHistory
from app.pipeline.resolve.client_log import ALIGNED_MARKS, AlignedLog, HistoryAligner, find_first_new_index
from app.pipeline.resolve.conversation_proof import (
    ConversationProver,
    Proof,
    find_quoted_answer,
    leaves_out_said_words,
    list_scopes,
)
from app.pipeline.turn.chat_request import ChatRequest
from app.pipeline.turn.conversation_builders import build_branch
from app.pipeline.turn.resolved_request import ShownLog, has_other_end_user
from app.store.contract.conversations import MAX_ANCHORS, ConversationStore

WHOLE_CONVERSATION_SEQ: Final = -1
"""`AnswerAnchor.seq` of an anchor that names a conversation and no message."""


class PlacedHistory(msgspec.Struct, frozen=True):
    """A history with its conversation."""

    target: Conversation
    """The conversation that the new messages are appended to: a stored one, or a branch that is to be created."""
    new_from_index: int
    """The index of the first message that the log does not have."""
    shown: ShownLog
    """What the messages before the new ones show of the log."""
    has_open_calls: bool
    """Whether the message before the new ones may be followed by tool results."""
    stored_answer: LogMessage | None = None
    """The stored answer, if this request is a retry."""
    moved_messages: tuple[Item, ...] = ()
    """Messages that the client has put between known ones, and that are logged now, before the new ones."""


def digest_conversation_hints(tenant: str, conversation_hints: Mapping[str, str]) -> list[bytes]:
    """Returns the digests of the ids that a client sends for its own purposes, by the name of the field or header."""
    return [
        compute_anchor_digest(tenant, name, value.encode("utf-8", "replace"))
        for name, value in conversation_hints.items()
    ]


def build_hint_anchors(conversation_hints: Mapping[str, str], conversation: Conversation) -> list[AnswerAnchor]:
    """Returns the anchors by which a conversation is found when its client replaces its history by a summary."""
    digests = digest_conversation_hints(conversation.tenant, conversation_hints)
    return [AnswerAnchor(one, conversation.root, conversation.id, WHOLE_CONVERSATION_SEQ) for one in digests]


@dataclass(eq=False, kw_only=True)
class HistoryResolver:
    """Places histories. The usual client costs one query."""

    store: ConversationStore
    stored_answers: StoredAnswers
    history_aligner: HistoryAligner
    prover: ConversationProver
    random_bytes: Callable[[int], bytes]

    async def place_unnamed_history(self, request: ChatRequest, client_history: ClientHistory) -> PlacedHistory | None:
        """Places the history of a request without an id; None if nothing proves its conversation.

        Raises:
            StoreUnavailable: the store cannot be read.
        """
        if not client_history.may_contain_answer and not request.continuation.hints:
            return None
        proof = await self.prover.find_proof(request, client_history)
        if proof is None and request.continuation.hints:
            proof = await self._find_summarized_conversation(request, client_history)
        if proof is None:
            return None
        answer_indexes = client_history.list_answer_indexes(proof.index if proof.is_reworded else proof.index + 1)
        if answer_indexes:
            # Equal answers of two branches prove neither of them. The family is proven: the chain chooses the branch,
            # if it goes through a further answer. Another person of the family may have asked the same question.
            match = await self._find_family_match(request, proof.conversation, client_history)
            if match is not None and match[1] >= answer_indexes[-1]:
                proof = await self.prover.build_link_proof(*match, client_history)
        if proof.aligned_log is None:
            return await self._place_by_links(request, proof, client_history)
        return await self._place_aligned(request, proof.conversation, proof.aligned_log, client_history)

    async def place_named_history(
        self, request: ChatRequest, named_conversation: Conversation, client_history: ClientHistory
    ) -> PlacedHistory | None:
        """Places a history in the conversation that its client names, or in a branch of it; None if the two have
        nothing in common.

        Raises:
            StoreUnavailable: the store cannot be read.
        """
        match = await self._find_family_match(request, named_conversation, client_history)
        if match is not None:
            conversation, index, seq = match
            if conversation.head_seq != seq and seq <= dict(named_conversation.lineage).get(conversation.id, -1):
                # The chain ends where the two branched, or before. The client goes on in the one that it names.
                conversation = named_conversation
            rest = client_history.list_answer_indexes(index + 1)
            is_new = not rest or rest == [len(client_history.raw_messages) - 1]
            if index == seq and is_new and not conversation.has_client_versions:
                users = [one for one in client_history.decode_messages(index + 1) if one.role == "user"]
                if conversation.head_seq == seq or len(users) < 2:
                    return await self._place_by_links(request, Proof(conversation, index, seq), client_history)
            named_conversation = conversation
        aligned_log = await self.history_aligner.align(
            named_conversation, client_history, None if match is None else match[1:], omits_answers=True
        )
        if not _has_common_words(aligned_log):
            return None
        return await self._place_aligned(request, named_conversation, aligned_log, client_history, is_named=True)

    async def _find_family_match(
        self, request: ChatRequest, named_conversation: Conversation, client_history: ClientHistory
    ) -> tuple[Conversation, int, int] | None:
        """Returns the deepest message of the named conversation's family that the history reaches by the exact chain:
        its conversation, index and seq.

        A chat UI asks several models under one id. The id points to the last of these conversations, and the others
        have no id, so conversations without an id count for chat UIs, too.
        """
        positions = await client_history.compute_link_positions()
        # A message that the chain skips has the link of the message before it.
        indexes = {position.link: index for index, position in reversed(list(enumerate(positions)))}
        own_root = await client_history.find_log_root()
        for root in dict.fromkeys((own_root, named_conversation.root)):
            matches = await self.store.find_link_matches(
                tenant=request.log_tenant,
                root=root,
                links=[position.link for position in positions],
                named_conversation_id=named_conversation.id,
            )
            found = [
                one
                for one in matches
                if not has_other_end_user(request, one.conversation)
                and (
                    one.conversation.family_id == named_conversation.family_id
                    or (request.continuation.is_chat_ui and one.conversation.external_id is None)
                )
            ]
            if found:
                best = max(
                    found, key=lambda one: (indexes[one.message.link], one.conversation.head_seq == one.message.seq)
                )
                return best.conversation, indexes[best.message.link], best.message.seq
        return None

    async def _find_summarized_conversation(self, request: ChatRequest, client_history: ClientHistory) -> Proof | None:
        """Returns the one conversation of the client's hints whose newest answer stands in a user message: the client
        has asked the model for a summary, and sends that in the place of its history."""
        digests = digest_conversation_hints(request.log_tenant, request.continuation.hints)
        anchors = await self.store.find_anchors(digests)
        # A hint of many conversations, such as an application's constant, names none of them.
        crowded = {one for one in digests if sum(anchor.digest == one for anchor in anchors) >= MAX_ANCHORS}
        ids = dict.fromkeys(anchor.conversation_id for anchor in anchors if anchor.digest not in crowded)
        found: list[Proof] = []
        for conversation_id in ids:
            conversation = await self.store.find_conversation(
                tenant=request.log_tenant, conversation_id=conversation_id
            )
            if conversation is not None and not has_other_end_user(request, conversation):
                proof = await self._check_summarized_conversation(request, conversation, client_history)
                found += [] if proof is None else [proof]
        return found[0] if len(found) == 1 else None

    async def _check_summarized_conversation(
        self, request: ChatRequest, conversation: Conversation, client_history: ClientHistory
    ) -> Proof | None:
        (newest,) = await self.store.read_log(conversation, conversation.head_seq, conversation.head_seq + 1)
        if newest.incomplete or (index := find_quoted_answer(client_history.messages, newest.message)) is None:
            return None
        aligned_log = await self.history_aligner.align(conversation, client_history, None, omits_answers=True)
        marks = aligned_log.alignment.marks
        # After the summary, a client keeps newest answers, and may add its own.
        if not aligned_log.alignment.continues_log or any(
            at < index and marks[at].kind not in ALIGNED_MARKS for at in client_history.list_answer_indexes()
        ):
            return None
        scope = list_scopes(request)[0]
        if not await self._is_owned_answer(request, scope, conversation, newest):
            return None
        return Proof(conversation, index, newest.seq, aligned_log)

    async def _is_owned_answer(
        self, request: ChatRequest, scope: FingerprintScope, conversation: Conversation, answer: LogMessage
    ) -> bool:
        """Returns whether an answer of a log was given in that conversation alone, among those with the same hints."""
        digest = scope.compute_fingerprint("link", answer.link).digest
        proofs = await self.store.find_proofs(tenant=request.log_tenant, fingerprints=[digest])
        return any(one.conversation is not None and one.conversation.id == conversation.id for one in proofs)

    async def _place_by_links(
        self, request: ChatRequest, proof: Proof, client_history: ClientHistory
    ) -> PlacedHistory | None:
        """Places a history whose messages are those of the log through the proof. Messages after it may be known: a
        question whose answer was lost, or is to be given again."""
        conversation, seq = proof.conversation, proof.seq
        last: LogMessage | None = None
        first, positions = await client_history.compute_newest_positions()
        end = min(conversation.head_seq + 1, len(client_history.raw_messages))
        previous_link = b""
        for entry in await self.store.read_log(conversation, seq, end) if seq < conversation.head_seq else ():
            is_same = entry.seq < first or positions[entry.seq - first].link == entry.link
            if not is_same or (entry.link == previous_link):
                break
            last, seq, previous_link = entry, entry.seq, entry.link
        stored_answer = await self._find_retry_answer(request, conversation, seq + 1, client_history)
        target = conversation
        if stored_answer is None and (conversation.head_seq != seq or self._must_branch(request, conversation)):
            if last is None:
                (last,) = await self.store.read_log(conversation, seq, seq + 1)
            target = build_branch(conversation, last, make_conversation_id(conversation.root, self.random_bytes))
        last_message = decode_item(bytes(client_history.raw_messages[seq]))
        return PlacedHistory(target, seq + 1, ShownLog(), may_precede_tool_result(last_message), stored_answer)

    def _must_branch(self, request: ChatRequest, conversation: Conversation) -> bool:
        """Returns whether a proof may not continue a conversation: its caller names it."""
        return request.continuation.conversation_id is None and conversation.is_named

    async def _place_aligned(
        self,
        request: ChatRequest,
        conversation: Conversation,
        aligned_log: AlignedLog,
        client_history: ClientHistory,
        *,
        is_named: bool = False,
    ) -> PlacedHistory | None:
        """Places an aligned history, and finds which messages its client changed.

        A branch is given only to a request that names the conversation or carries everything that was said in it
        before: who has its id can read it all.
        """
        alignment, target = aligned_log.alignment, conversation
        stored_answer = await self._find_retry_answer(request, conversation, alignment.first_new_index, client_history)
        is_continued = alignment.continues_log and not self._must_branch(request, conversation)
        if not is_continued and stored_answer is None:
            if not is_named and leaves_out_said_words(aligned_log, alignment.last_seq + 1):
                return None
            if alignment.last_seq < 0:
                return None
            last = aligned_log.entries[alignment.last_seq]
            target = build_branch(conversation, last, make_conversation_id(conversation.root, self.random_bytes))
        shown = await self.history_aligner.compare_with_shown(target, client_history, aligned_log)
        new_from_index = find_first_new_index(alignment)
        last_index = next(
            (index for index in reversed(range(new_from_index)) if alignment.marks[index].kind in ALIGNED_MARKS),
            None,
        )
        has_open_calls = last_index is not None and may_precede_tool_result(
            decode_item(bytes(client_history.raw_messages[last_index]))
        )
        placed = PlacedHistory(target, new_from_index, shown, has_open_calls, stored_answer)
        return placed if stored_answer is not None else _log_moved_messages(placed, aligned_log, client_history)

    async def _find_retry_answer(
        self, request: ChatRequest, conversation: Conversation, new_from_index: int, client_history: ClientHistory
    ) -> LogMessage | None:
        if new_from_index != len(client_history.raw_messages):
            return None
        return await self.stored_answers.find_retry_answer(conversation, request)


def _has_common_words(aligned_log: AlignedLog) -> bool:
    """Returns whether a history has a user message, a longer answer or a call of the log: "Fine." is in every log."""
    return any(
        (one.kind == "same" and element.kind in ("user", "call")) or (one.kind in ALIGNED_MARKS and element.known_words)
        for one, element in zip(aligned_log.alignment.marks, aligned_log.history, strict=True)
    )


def _log_moved_messages(placed: PlacedHistory, aligned_log: AlignedLog, client_history: ClientHistory) -> PlacedHistory:
    """Returns the placed history with the messages that the client has put between known ones as new messages of the
    log, so that nothing vanishes. They are shown where the client has them, and left out in the log's place.

    A message is logged when it comes a second time in the same place, or when summaries may hide its place: clients put
    retrieved texts between messages, too, and those do not come again.
    """
    shown, target = placed.shown, placed.target
    logged_elsewhere = {aligned_log.log[seq].digest: seq for seq in aligned_log.moved_seqs}
    # Beside messages that the client leaves out, a message stands for them.
    omitted_starts = {first for first, _ in aligned_log.alignment.omitted} - aligned_log.moved_seqs
    fresh = {body for version in shown.new_versions for body in version.bodies or ()}
    moved: list[Item] = []
    moved_seqs: set[int] = set()
    for index, one in enumerate(aligned_log.alignment.marks[: placed.new_from_index]):
        element = aligned_log.history[index]
        if one.kind != "inserted" or element.kind not in ("user", "answer") or one.seq in omitted_starts:
            continue
        if element.digest in logged_elsewhere:
            moved_seqs.add(logged_elsewhere[element.digest])
        elif target.chunk_count or bytes(client_history.raw_messages[index]) not in fresh:
            moved.append(client_history.messages[index])
    if not moved:
        return replace(placed, shown=replace(shown, moved_seqs=frozenset(moved_seqs)))
    first = target.head_seq + 1
    hidden = [ClientVersion(seq, first, seq + 1, (), 0) for seq in range(first, first + len(moved))]
    versions = shown.client_versions.with_later_versions(hidden, target.redacted_seqs)
    shown = replace(
        shown,
        client_versions=versions,
        new_versions=(*shown.new_versions, *hidden),
        moved_seqs=frozenset({*moved_seqs, *range(first, first + len(moved))}),
    )
    return replace(placed, shown=shown, moved_messages=tuple(moved))
