"""Names under which conversations are found whose clients rewrite what they resend: answers, ids that were issued with
them, and ids that clients send for purposes of their own.

They are written after the answer, those of many turns together; one that is lost costs a recognition, nothing else.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from app.conversation.alignment import MIN_PREFIX_CHARACTERS, Element
from app.conversation.identity import Position, anchor_digest
from app.conversation.messages import Anchor, Conversation
from app.errors import GatewayError
from app.pipeline.background_tasks import Tasks
from app.store.contract import Store

log = logging.getLogger(__name__)

FLUSH_SECONDS: Final = 0.05
MOST_WAITING: Final = 10_000
"""Anchors that are kept back while the store is away; more are dropped."""
WHOLE_CONVERSATION: Final = -1
"""`Anchor.seq` of one that names no message."""


def answer_digests(tenant: str, answer: Element) -> list[bytes]:
    """The digests under which an answer is found: its beginning, so that it is found when its client kept less of it,
    and the ids of its calls. None of a short answer, which others have got, too."""
    found = [
        anchor_digest(tenant, "call", call_id.encode("utf-8", "replace")) for call_id in answer.call_ids if call_id
    ]
    if len(answer.text) >= MIN_PREFIX_CHARACTERS:
        begins = answer.text[:MIN_PREFIX_CHARACTERS].encode("utf-8", "replace")
        found.append(anchor_digest(tenant, "answer", begins))
    return found


def exchange_digest(tenant: str, question: Element | None, answer: Element) -> bytes | None:
    """The digest under which an answer is found that is too short to be found alone: that of question and answer."""
    if question is None or question.kind != "user" or answer.call_ids or len(answer.text) >= MIN_PREFIX_CHARACTERS:
        return None
    return anchor_digest(tenant, "exchange", question.digest + answer.digest)


def choice_digest(tenant: str, position: Position) -> bytes:
    """The digest under which a choice is found that was not taken up, however short: by its place in the chain."""
    return anchor_digest(tenant, "choice", position.link)


def hint_digests(tenant: str, hints: Mapping[str, str]) -> list[bytes]:
    """The digests of ids that a client sends for its own purposes, by the name of the field or header."""
    return [anchor_digest(tenant, name, value.encode("utf-8", "replace")) for name, value in hints.items()]


class Anchors:
    """Keeps anchors, a batch at a time, and finds them. One for each process."""

    def __init__(self, store: Store, tasks: Tasks) -> None:
        self._store = store
        self._tasks = tasks
        self._waiting: list[Anchor] = []
        self._written: list[Anchor] = []
        """On their way into the store."""
        self._timer: asyncio.TimerHandle | None = None
        self._is_open = True

    def note(
        self,
        conversation: Conversation,
        answers: Sequence[Element],
        hints: Mapping[str, str],
        others: Iterable[Position] = (),
        question: Element | None = None,
    ) -> None:
        """Make a conversation findable by the answer at its head, in each of its choices, and by its client's hints.

        Args:
            others: where the chain would stand after each choice but the first.
            question: the message that was answered.
        """
        tenant, place = conversation.tenant, (conversation.root, conversation.id)
        digests = {digest for answer in answers for digest in answer_digests(tenant, answer)}
        digests.update(choice_digest(tenant, position) for position in others)
        digests.update(filter(None, [exchange_digest(tenant, question, answer) for answer in answers]))
        anchors = [Anchor(digest, *place, conversation.head_seq) for digest in sorted(digests)]
        anchors += [Anchor(digest, *place, WHOLE_CONVERSATION) for digest in hint_digests(tenant, hints)]
        if not anchors or not self._is_open or len(self._waiting) >= MOST_WAITING:
            return
        self._waiting += anchors
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(FLUSH_SECONDS, self._flush_later)

    async def find(self, digests: Sequence[bytes]) -> list[Anchor]:
        """The anchors with these digests, the most recent first.

        Raises:
            StoreUnavailable: they cannot be read.
        """
        if not digests:
            return []
        wanted = set(digests)
        fresh = [one for one in (*self._waiting, *self._written) if one.digest in wanted]
        return [*fresh, *await self._store.find_anchors(digests)]

    async def flush(self) -> None:
        """Write what waits."""
        self._written += self._waiting
        self._waiting = []
        if not self._written:
            return
        written = list(self._written)
        try:
            await self._store.keep_anchors(written)
        except GatewayError as error:
            log.warning("names of answers could not be kept: %s", error.message)
        del self._written[: len(written)]

    async def aclose(self) -> None:
        """Write what waits, and no more from then on."""
        self._is_open = False
        if self._timer is not None:
            self._timer.cancel()
        await self.flush()

    def _flush_later(self) -> None:
        self._timer = None
        self._tasks.spawn(self.flush())
