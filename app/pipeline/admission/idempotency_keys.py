"""`Idempotency-Key` across processes. The process that claims a key answers its request; the others wait and give the
same answer again."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Final

from app.conversation.conversation_types import Conversation
from app.errors import IdempotencyKeyInUse, IdempotencyKeyReused, StoreUnavailable
from app.pipeline.resolve.answer_replay import StoredAnswers, compute_idempotency_digest
from app.pipeline.turn.answer_types import Answer
from app.pipeline.turn.background_tasks import BackgroundTasks
from app.pipeline.turn.chat_request import ChatRequest
from app.store.contract.keys import IdempotencyKeyRecord, KeyStore

log = logging.getLogger(__name__)

CLAIM_SECONDS: Final = 30.0
"""How long a claim lasts after the last renewal, for example if its process has died or cannot reach the store. While
the store is unavailable for less than this, no second process answers the request."""
RENEW_SECONDS: Final = CLAIM_SECONDS / 3
"""A third of `CLAIM_SECONDS`, so that one failed renewal does not end a claim."""
KEY_RETENTION_SECONDS: Final = 24 * 3600.0
"""How long a key's answer is given again."""
POLL_SECONDS: Final = (0.05, 0.25)
"""The shortest and the longest pause between two reads of a key that another process has claimed."""


def make_key_reused_error() -> IdempotencyKeyReused:
    return IdempotencyKeyReused(
        "This `Idempotency-Key` was used with another request before.",
        param="Idempotency-Key",
        hint="Use a new key for each new request; send the same key only when you retry a request.",
    )


def make_key_in_use_error() -> IdempotencyKeyInUse:
    return IdempotencyKeyInUse(
        "A request with this `Idempotency-Key` is still being answered.",
        param="Idempotency-Key",
        retry_after_seconds=1,
    )


@dataclass(eq=False, kw_only=True)
class IdempotencyKeys:
    """What claims of keys need.

    Args:
        new_holder: returns a name for a claim, unique among all processes that share the store.
        wait_seconds: how long a request waits for the request with the same key in another process.
        random: returns a number in [0, 1), evenly distributed.
        clock: returns monotonic seconds.
    """

    store: KeyStore
    stored_answers: StoredAnswers
    tasks: BackgroundTasks
    new_holder: Callable[[], str]
    wait_seconds: float
    clock: Callable[[], float]
    sleep: Callable[[float], Awaitable[None]]
    random: Callable[[], float]


@dataclass(eq=False)
class IdempotencyClaim:
    """One request's claim of its key. Once acquired, it is renewed until the answer is recorded or the claim is
    released, which it is to be in the end.

    Attributes:
        is_recorded: whether the store leads from the key to the answer.
    """

    keys: IdempotencyKeys
    request: ChatRequest
    is_recorded: bool = False
    renewal: asyncio.Task[None] | None = field(default=None, init=False)
    _may_be_held: bool = field(default=False, init=False)

    def __post_init__(self) -> None:
        self._row = {
            "tenant": self.request.caller.tenant,
            "key": str(self.request.retry.idempotency_key),
            "holder": self.keys.new_holder(),
        }

    async def acquire_or_replay(self) -> Answer | None:
        """Acquires the key, or waits until the process that has it is done.

        Returns:
            The stored answer of the key, in the form that the request asks for; or None if the request is to be
            answered: the key is acquired, the answer was erased, or the store is unavailable.

        Raises:
            IdempotencyKeyReused: the key was sent with another request.
            IdempotencyKeyInUse: the request with that key still runs in another process.
        """
        self._digest = await compute_idempotency_digest(self.request)
        deadline = self.keys.clock() + self.keys.wait_seconds
        # The store may acquire the key although its reply is lost.
        self._may_be_held = True
        while (record := await self._acquire()) is not None and record.state == "running":
            if self.keys.clock() >= deadline:
                self._may_be_held = False
                raise make_key_in_use_error()
            # Random pauses, so that several waiting processes do not read the store at the same moment.
            min_pause, max_pause = POLL_SECONDS
            await self.keys.sleep(min_pause + (max_pause - min_pause) * self.keys.random())
        if record is None:
            return None
        if record.state == "claimed":
            self.renewal = self.keys.tasks.spawn(self._renew())
            return None
        self._may_be_held = False
        if record.state == "differs":
            raise make_key_reused_error()
        assert record.conversation_id is not None
        answer = await self.keys.stored_answers.replay_answer(self.request, record.conversation_id, record.seq)
        self.is_recorded = answer is not None
        return answer

    async def record_answer(self, conversation: Conversation) -> None:
        """Records that the key's answer is the last message of the conversation."""
        if self.renewal is None:
            return
        await self._stop_renewal()
        # Not released any more: if the record is written late, nobody else shall answer the request before.
        self._may_be_held = False
        try:
            await self.keys.store.complete_idempotency_key(
                **self._row, conversation_id=conversation.id, seq=conversation.head_seq
            )
            self.is_recorded = True
        except StoreUnavailable as error:
            log.warning("could not store which answer belongs to an idempotency key: %s", error.message)

    async def release(self) -> None:
        """Releases the key, so that another request may claim it, unless its answer was recorded. If the store is
        unavailable, the claim ends by itself."""
        await self._stop_renewal()
        if not self._may_be_held:
            return
        self._may_be_held = False
        try:
            await self.keys.store.release_idempotency_key(**self._row)
        except StoreUnavailable as error:
            log.warning("could not release an idempotency key; its claim ends by itself: %s", error.message)

    async def _acquire(self) -> IdempotencyKeyRecord | None:
        """Acquires or renews the claim; None if the store is unavailable."""
        try:
            return await self.keys.store.claim_idempotency_key(
                **self._row, digest=self._digest, seconds=CLAIM_SECONDS, kept_seconds=KEY_RETENTION_SECONDS
            )
        except StoreUnavailable as error:
            log.warning("could not claim an idempotency key: %s", error.message)
            return None

    async def _renew(self) -> None:
        while True:
            await asyncio.sleep(RENEW_SECONDS)
            # To its end: after the release, a renewal under way would claim the key again.
            await self.keys.tasks.run_shielded_to_end(self._acquire())

    async def _stop_renewal(self) -> None:
        # Forgotten, because a cancelled task keeps its frames, which keep this claim.
        renewal, self.renewal = self.renewal, None
        if renewal is not None:
            renewal.cancel()
            await asyncio.wait({renewal})
