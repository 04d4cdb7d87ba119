"""Finds old messages that mean what a question asks for, by vectors of an embedding model.

Vectors are made in the background when a question first needs them, and kept beside their messages. The first question
after that is searched for by its words alone; and so is each question while the model does not answer.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from app.context.plan.policy import EmbeddingModel
from app.context.quote.meaning import PassagePlace, encode_vectors, list_passage_texts, rank_by_meaning
from app.conversation.conversation_types import Conversation
from app.errors import GatewayError, StoreUnreadable
from app.pipeline.turn.background_tasks import BackgroundTasks
from app.pipeline.turn.resolved_request import REDACTED
from app.store.contract.conversations import ConversationStore, MessageVectors
from app.upstream.embeddings import Embedder

log = logging.getLogger(__name__)

MAX_MESSAGES: Final = 4_000
"""The most messages that are searched by meaning: the newest hidden ones. It bounds what their vectors cost to make,
and to read for each question (about 20 MB)."""
MAX_FOUND: Final = 24
"""The most passages that a search returns."""
MESSAGES_PER_BATCH: Final = 32
TEXTS_PER_CALL: Final = 64
"""How many passages one call of the model gets."""
QUESTION_SECONDS: Final = 1.0
"""How long a turn waits for the vector of its question."""


@dataclass(eq=False)
class MeaningSearch:
    """Searches conversations by meaning. There is one instance for each process.

    Args:
        embedders: by what the policies name.
    """

    store: ConversationStore
    embedders: Mapping[EmbeddingModel, Embedder]
    tasks: BackgroundTasks
    _embedded_conversations: set[str] = field(default_factory=set, init=False)
    """Conversations whose messages are being embedded by this process."""

    async def find_passages(
        self, conversation: Conversation, model: EmbeddingModel, question: str, *, before_seq: int
    ) -> list[PassagePlace]:
        """Returns the passages before `before_seq` that are nearest to a question, nearest first; none while there are
        no vectors, or the model does not answer.

        Raises:
            StoreUnavailable: the vectors cannot be read.
        """
        embedder = self.embedders[model]
        from_seq = max(0, before_seq - MAX_MESSAGES)
        try:
            stored = await self.store.read_vectors(
                conversation, model=embedder.name, from_seq=from_seq, before_seq=before_seq
            )
        except StoreUnreadable:  # sealed with a key that is gone: they are made anew
            stored = []
        # A redacted message has no vectors, and gets none.
        known_seqs = {one.seq for one in stored}.union(conversation.marks.get(REDACTED, ()))
        if any(seq not in known_seqs for seq in range(from_seq, before_seq)):
            self._start_embedding(conversation, embedder, from_seq, known_seqs)
        if not stored:
            return []
        try:
            async with asyncio.timeout(QUESTION_SECONDS):
                (vector,) = await embedder.embed_texts([question])
        except (GatewayError, TimeoutError) as error:
            log.warning("could not embed a question with %s: %s", embedder.name, error)
            return []
        return await asyncio.to_thread(
            rank_by_meaning, vector, [(one.seq, one.vectors) for one in stored], limit=MAX_FOUND
        )

    def _start_embedding(
        self, conversation: Conversation, embedder: Embedder, from_seq: int, known_seqs: set[int]
    ) -> None:
        if conversation.id in self._embedded_conversations:
            return
        self._embedded_conversations.add(conversation.id)
        # Up to the newest message: what is shown now will be hidden later.
        seqs = [seq for seq in range(from_seq, conversation.head_seq + 1) if seq not in known_seqs]
        self.tasks.spawn(self._embed_messages(conversation, embedder, seqs))

    async def _embed_messages(self, conversation: Conversation, embedder: Embedder, seqs: Sequence[int]) -> None:
        try:
            # The newest first: a question asks for them more often.
            for end in range(len(seqs), 0, -MESSAGES_PER_BATCH):
                await self._embed_batch(conversation, embedder, seqs[max(0, end - MESSAGES_PER_BATCH) : end])
        except (GatewayError, TimeoutError) as error:
            log.warning("could not embed old messages with %s: %s", embedder.name, error)
        finally:
            self._embedded_conversations.discard(conversation.id)

    async def _embed_batch(self, conversation: Conversation, embedder: Embedder, seqs: Sequence[int]) -> None:
        entries = await self.store.read_log_ranges(conversation, [(seq, seq + 1) for seq in seqs])
        texts = [list_passage_texts(entry) for entry in entries]
        waiting = [text for passages in texts for text in passages]
        vectors: list[Sequence[float]] = []
        for start in range(0, len(waiting), TEXTS_PER_CALL):
            vectors += await embedder.embed_texts(waiting[start : start + TEXTS_PER_CALL])
        rest = iter(vectors)
        made = [
            # A message without text gets none, and is not read again.
            MessageVectors(entry.seq, entry.link, encode_vectors([next(rest) for _ in passages]))
            for entry, passages in zip(entries, texts, strict=True)
        ]
        await self.store.add_vectors(conversation, model=embedder.name, vectors=made)
