"""Anchors: digests by which a conversation is found although its client rewrites its history. An anchor is made of an
answer, of ids that were issued with an answer, or of an id that the client sends for its own purposes.

Anchors are written after the answer, in batches of many turns. A lost anchor only means that a rewritten history is not
recognised.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from app.conversation.alignment import MIN_PREFIX_CHARACTERS, AlignmentElement
from app.conversation.conversation_types import AnswerAnchor, Conversation
from app.conversation.identity import LinkPosition, compute_anchor_digest
from app.errors import GatewayError
from app.pipeline.background_tasks import BackgroundTasks
from app.store.contract.conversations import ConversationStore

log = logging.getLogger(__name__)

FLUSH_SECONDS: Final = 0.05
"""Seconds from the first waiting anchor to the write of the batch (docs/decisions/0037)."""
MAX_UNWRITTEN_ANCHORS: Final = 10_000
"""Anchors that wait in memory while the store is unavailable. Further anchors are dropped."""
WHOLE_CONVERSATION_SEQ: Final = -1
"""`AnswerAnchor.seq` of an anchor that names a conversation and no message."""


def build_answer_digests(tenant: str, answer: AlignmentElement) -> list[bytes]:
    """Returns the digests by which an answer is found: one for its first characters, so that an answer that the client
    cut short is found, too, and one for each id of its tool calls. A short answer gets no digest of its text, because
    other conversations have the same short answer."""
    found = [
        compute_anchor_digest(tenant, "call", call_id.encode("utf-8", "replace"))
        for call_id in answer.call_ids
        if call_id
    ]
    if len(answer.text) >= MIN_PREFIX_CHARACTERS:
        begins = answer.text[:MIN_PREFIX_CHARACTERS].encode("utf-8", "replace")
        found.append(compute_anchor_digest(tenant, "answer", begins))
    return found


def digest_question_and_answer(
    tenant: str, question: AlignmentElement | None, answer: AlignmentElement
) -> bytes | None:
    """Returns the digest of a question together with its answer, if the answer is too short for an anchor of its own;
    else None."""
    if question is None or question.kind != "user" or answer.call_ids or len(answer.text) >= MIN_PREFIX_CHARACTERS:
        return None
    return compute_anchor_digest(tenant, "exchange", question.digest + answer.digest)


def digest_choice_position(tenant: str, position: LinkPosition) -> bytes:
    """Returns the digest of a choice that the client did not take up. The digest names the choice's position in the
    chain of links, so it works for short answers, too."""
    return compute_anchor_digest(tenant, "choice", position.link)


def digest_conversation_hints(tenant: str, conversation_hints: Mapping[str, str]) -> list[bytes]:
    """Returns the digests of ids that a client sends for its own purposes, by the name of the field or header."""
    return [
        compute_anchor_digest(tenant, name, value.encode("utf-8", "replace"))
        for name, value in conversation_hints.items()
    ]


class AnswerAnchors:
    """Writes anchors in batches, and finds them. There is one instance for each process."""

    def __init__(self, store: ConversationStore, tasks: BackgroundTasks) -> None:
        self._store = store
        self._tasks = tasks
        self._unwritten: list[AnswerAnchor] = []
        self._being_written: list[AnswerAnchor] = []
        """Anchors whose write has begun. `find_anchors` must see them until the store has them."""
        self._timer: asyncio.TimerHandle | None = None
        self._is_open = True

    def queue_anchors(
        self,
        conversation: Conversation,
        answers: Sequence[AlignmentElement],
        conversation_hints: Mapping[str, str],
        choice_positions: Iterable[LinkPosition] = (),
        question: AlignmentElement | None = None,
    ) -> None:
        """Adds anchors to a conversation for the answer at its head, for each of the answer's choices, and for the
        client's conversation hints.

        Args:
            choice_positions: the position of the chain after each choice but the first.
            question: the message that was answered.
        """
        tenant, root_and_id = conversation.tenant, (conversation.root, conversation.id)
        digests = {digest for answer in answers for digest in build_answer_digests(tenant, answer)}
        digests.update(digest_choice_position(tenant, position) for position in choice_positions)
        digests.update(filter(None, [digest_question_and_answer(tenant, question, answer) for answer in answers]))
        anchors = [AnswerAnchor(digest, *root_and_id, conversation.head_seq) for digest in sorted(digests)]
        anchors += [
            AnswerAnchor(digest, *root_and_id, WHOLE_CONVERSATION_SEQ)
            for digest in digest_conversation_hints(tenant, conversation_hints)
        ]
        if not anchors or not self._is_open or len(self._unwritten) >= MAX_UNWRITTEN_ANCHORS:
            return
        self._unwritten += anchors
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(FLUSH_SECONDS, self._start_flush)

    async def find_anchors(self, digests: Sequence[bytes]) -> list[AnswerAnchor]:
        """Returns the anchors with these digests, the most recent first.

        Raises:
            StoreUnavailable: the store cannot be read.
        """
        if not digests:
            return []
        wanted = set(digests)
        unwritten = [one for one in (*self._unwritten, *self._being_written) if one.digest in wanted]
        return [*unwritten, *await self._store.find_anchors(digests)]

    async def flush(self) -> None:
        """Writes the waiting anchors."""
        self._being_written += self._unwritten
        self._unwritten = []
        if not self._being_written:
            return
        written = list(self._being_written)
        try:
            await self._store.add_anchors(written)
        except GatewayError as error:
            # A failed batch is dropped, not retried: the turn is stored already, and only the recognition of a
            # rewritten history is lost.
            log.warning("could not store anchors of answers: %s", error.message)
        del self._being_written[: len(written)]

    async def aclose(self) -> None:
        """Writes the waiting anchors. Later anchors are ignored."""
        self._is_open = False
        if self._timer is not None:
            self._timer.cancel()
        await self.flush()

    def _start_flush(self) -> None:
        self._timer = None
        self._tasks.spawn(self.flush())
