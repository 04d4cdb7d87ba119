"""Names under which conversations are found whose clients rewrite what they resend: answers, ids that were issued with
them, and ids that clients send for purposes of their own.

They are written after the answer, those of many turns together; one that is lost costs a recognition, nothing else.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from app.conversation.alignment import MIN_PREFIX_CHARACTERS, AlignmentElement
from app.conversation.identity import LinkPosition, compute_anchor_digest
from app.conversation.messages import AnswerAnchor, Conversation
from app.errors import GatewayError
from app.pipeline.background_tasks import BackgroundTasks
from app.store.contract import Store

log = logging.getLogger(__name__)

FLUSH_SECONDS: Final = 0.05
MAX_UNWRITTEN_ANCHORS: Final = 10_000
"""Anchors that are kept back while the store is away; more are dropped."""
WHOLE_CONVERSATION_SEQ: Final = -1
"""`Anchor.seq` of one that names no message."""


def digest_answer(tenant: str, answer: AlignmentElement) -> list[bytes]:
    """The digests under which an answer is found: its beginning, so that it is found when its client kept less of it,
    and the ids of its calls. None of a short answer, which others have got, too."""
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
    """The digest under which an answer is found that is too short to be found alone: that of question and answer."""
    if question is None or question.kind != "user" or answer.call_ids or len(answer.text) >= MIN_PREFIX_CHARACTERS:
        return None
    return compute_anchor_digest(tenant, "exchange", question.digest + answer.digest)


def digest_choice(tenant: str, position: LinkPosition) -> bytes:
    """The digest under which a choice is found that was not taken up, however short: by its place in the chain."""
    return compute_anchor_digest(tenant, "choice", position.link)


def digest_conversation_hints(tenant: str, conversation_hints: Mapping[str, str]) -> list[bytes]:
    """The digests of ids that a client sends for its own purposes, by the name of the field or header."""
    return [
        compute_anchor_digest(tenant, name, value.encode("utf-8", "replace"))
        for name, value in conversation_hints.items()
    ]


class AnswerAnchors:
    """Keeps anchors, a batch at a time, and finds them. One for each process."""

    def __init__(self, store: Store, tasks: BackgroundTasks) -> None:
        self._store = store
        self._tasks = tasks
        self._unwritten: list[AnswerAnchor] = []
        self._being_written: list[AnswerAnchor] = []
        """On their way into the store."""
        self._timer: asyncio.TimerHandle | None = None
        self._is_open = True

    def add_anchors(
        self,
        conversation: Conversation,
        answers: Sequence[AlignmentElement],
        conversation_hints: Mapping[str, str],
        choice_positions: Iterable[LinkPosition] = (),
        question: AlignmentElement | None = None,
    ) -> None:
        """Make a conversation findable by the answer at its head, in each of its choices, and by its client's hints.

        Args:
            choice_positions: where the chain would stand after each choice but the first.
            question: the message that was answered.
        """
        tenant, root_and_id = conversation.tenant, (conversation.root, conversation.id)
        digests = {digest for answer in answers for digest in digest_answer(tenant, answer)}
        digests.update(digest_choice(tenant, position) for position in choice_positions)
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
        """The anchors with these digests, the most recent first.

        Raises:
            StoreUnavailable: they cannot be read.
        """
        if not digests:
            return []
        wanted = set(digests)
        unwritten = [one for one in (*self._unwritten, *self._being_written) if one.digest in wanted]
        return [*unwritten, *await self._store.find_anchors(digests)]

    async def flush(self) -> None:
        """Write what waits."""
        self._being_written += self._unwritten
        self._unwritten = []
        if not self._being_written:
            return
        written = list(self._being_written)
        try:
            await self._store.add_anchors(written)
        except GatewayError as error:
            log.warning("names of answers could not be kept: %s", error.message)
        del self._being_written[: len(written)]

    async def aclose(self) -> None:
        """Write what waits, and no more from then on."""
        self._is_open = False
        if self._timer is not None:
            self._timer.cancel()
        await self.flush()

    def _start_flush(self) -> None:
        self._timer = None
        self._tasks.spawn(self.flush())
