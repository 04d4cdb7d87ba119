"""Finds the conversation of a history that its client has rewritten, and tells when a match proves too little."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from typing import Final

from app.conversation.alignment import Alignment
from app.conversation.alignment_evidence import confirms_conversation_hint, covers_whole_log, proves_same_conversation
from app.conversation.conversation_types import Conversation
from app.pipeline.chat_request import ChatRequest
from app.pipeline.resolve.answer_anchors import AnswerAnchors, digest_conversation_hints
from app.pipeline.resolve.client_history_matching import AlignedPrefix, ClientHistory, PrefixMatch
from app.pipeline.resolve.history_alignment import HistoryAligner
from app.pipeline.resolve.resolved_request import FIRST_REQUEST_MESSAGES, has_other_end_user
from app.store.contract.conversations import ConversationStore

MAX_CANDIDATES: Final = 6
"""The most conversations that one rewritten history is aligned with."""


class RewrittenHistorySearch:
    """Searches by our answers in a history and by the client's hints, and aligns the history with what it finds."""

    def __init__(
        self, store: ConversationStore, history_aligner: HistoryAligner, answer_anchors: AnswerAnchors
    ) -> None:
        self._store = store
        self._history_aligner = history_aligner
        self._answer_anchors = answer_anchors

    async def is_ambiguous_match(self, prefix_match: PrefixMatch, client_history: ClientHistory) -> bool:
        """Returns whether a matched place leaves it open whose conversation it is: several conversations end there, or
        the gateway gave no answer before it (for example few-shot messages that an application puts before all its
        conversations).

        If only one conversation has this first question, a history that goes on with another version of the answer
        belongs to that conversation.
        """
        if prefix_match.stored_match.message.seq >= await self._count_first_request_messages(prefix_match):
            return prefix_match.is_shared_head
        messages_after = client_history.messages[prefix_match.index + 1 : -1]
        return prefix_match.is_shared_message or not messages_after or messages_after[0].role != "assistant"

    async def find_hinted_conversation(
        self,
        request: ChatRequest,
        named_conversation: Conversation | None,
        prefix_match: PrefixMatch,
        client_history: ClientHistory,
    ) -> tuple[Conversation, Alignment] | None:
        """Returns the one conversation that the client's hints name and that the history continues, with their
        alignment, if the match leaves that open: several conversations end at the matched place, or the history would
        begin a branch there. For example, two threads with the same words have different session ids."""
        is_certain = prefix_match.is_head and not prefix_match.is_shared_head
        if named_conversation is not None or is_certain or not request.conversation_hints:
            return None
        found: list[tuple[Conversation, Alignment]] = []
        async for conversation, _ in self._find_candidates(request, ()):
            alignment = await self._history_aligner.align_history(conversation, client_history, is_named=True)
            if alignment.continues_log and confirms_conversation_hint(alignment):
                found.append((conversation, alignment))
        if len(found) > 1:
            # A client whose stream broke off has sent its request again, and continues the answer that came whole.
            found = [one for one in found if not await self._is_head_incomplete(one[0])]
        return found[0] if len(found) == 1 else None

    async def _is_head_incomplete(self, conversation: Conversation) -> bool:
        """Returns whether a conversation's last message is an answer that broke off."""
        (newest,) = await self._store.read_log(conversation, conversation.head_seq, conversation.head_seq + 1)
        return newest.incomplete

    async def _count_first_request_messages(self, prefix_match: PrefixMatch) -> int:
        """Returns how many messages the first request of a matched conversation had, as far as the log up to the
        matched place shows it.

        Conversations of earlier versions do not store this number. Then it is read from the log: only our answers have
        ids.
        """
        conversation, seq = prefix_match.stored_match.conversation, prefix_match.stored_match.message.seq
        stored_count: int | None = conversation.state.get(FIRST_REQUEST_MESSAGES)
        if stored_count is not None or prefix_match.is_head:
            return stored_count or 0
        entries = await self._store.read_log(conversation, 0, seq + 1)
        return next((entry.seq for entry in entries if "id" in (entry.meta or {})), seq + 1)

    async def find_conversation(
        self,
        request: ChatRequest,
        named_conversation: Conversation | None,
        prefix_match: PrefixMatch | None,
        client_history: ClientHistory,
    ) -> tuple[Conversation, Alignment] | None:
        """Returns the conversation of a history that its client has rewritten, with their alignment.

        If two conversations match equally well, none is returned: a wrong one would be a leak.
        """
        if named_conversation is not None:
            alignment = await self._history_aligner.align_history(named_conversation, client_history, is_named=True)
            is_match = (
                alignment.same_user_message_count or alignment.returned_answer_count or alignment.returned_call_id_count
            )
            return (named_conversation, alignment) if is_match else None
        candidates: list[tuple[int, Conversation, Alignment]] = []
        known_conversations = [] if prefix_match is None else [prefix_match.stored_match.conversation]
        async for conversation, is_hinted in self._find_candidates(
            request, await client_history.build_anchor_digests(), known_conversations, client_history.aligned_prefix
        ):
            alignment = await self._history_aligner.align_history(conversation, client_history, is_named=is_hinted)
            if alignment.last_seq < conversation.state.get(FIRST_REQUEST_MESSAGES, 0):
                continue  # only messages of the first request match: no answer of ours has come back
            is_match = proves_same_conversation(alignment) or covers_whole_log(alignment)
            if is_match or (is_hinted and confirms_conversation_hint(alignment)):
                same_count = sum(one.kind == "same" for one in alignment.message_alignments)
                candidates.append((same_count, conversation, alignment))
        candidates.sort(key=lambda one: one[0], reverse=True)
        if not candidates or (len(candidates) > 1 and candidates[0][0] == candidates[1][0]):
            return None
        return candidates[0][1:]

    async def _find_candidates(
        self,
        request: ChatRequest,
        answer_digests: Sequence[bytes],
        known_conversations: Sequence[Conversation] = (),
        aligned_prefix: AlignedPrefix | None = None,
    ) -> AsyncIterator[tuple[Conversation, bool]]:
        """Yields conversations that a history may belong to, each with whether the client's own id for something names
        it.

        Args:
            answer_digests: the history's `ClientHistory.build_anchor_digests`.
            known_conversations: candidates that were found otherwise. They come first.
            aligned_prefix: the beginning of the history whose alignment is known.
        """
        tenant, seen_ids = request.log_tenant, {conversation.id for conversation in known_conversations}
        hint_digests = set(digest_conversation_hints(tenant, request.conversation_hints))
        anchors = await self._answer_anchors.find_anchors([*answer_digests, *hint_digests])
        hinted_ids = {anchor.conversation_id for anchor in anchors if anchor.digest in hint_digests}
        for conversation in known_conversations:
            yield conversation, conversation.id in hinted_ids
        # Anchors of answers come before hints: sub-agents share a session id, but not their answers.
        anchored_ids = [
            anchor.conversation_id for anchor in sorted(anchors, key=lambda one: one.digest in hint_digests)
        ]
        for conversation_id in [*([aligned_prefix.conversation_id] if aligned_prefix else []), *anchored_ids]:
            if conversation_id in seen_ids or len(seen_ids) >= MAX_CANDIDATES:
                continue
            seen_ids.add(conversation_id)
            candidate = await self._store.find_conversation(tenant=tenant, conversation_id=conversation_id)
            if candidate is not None and not has_other_end_user(request, candidate):
                yield candidate, candidate.id in hinted_ids
