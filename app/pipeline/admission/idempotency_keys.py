"""`Idempotency-Key` across processes. The process that claims a key answers its request; the others wait and give the
same answer again."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Final

from app.conversation.conversation_types import Conversation
from app.errors import IdempotencyKeyInUse, IdempotencyKeyReused, StoreUnavailable
from app.pipeline.admission.answer_replay import render_stored_answer
from app.pipeline.admission.request_digest import compute_idempotency_digest
from app.pipeline.background_tasks import BackgroundTasks
from app.pipeline.chat_request import ChatRequest
from app.pipeline.resolve.resolved_request import REDACTED
from app.pipeline.respond.answer_types import Answer
from app.store.contract.conversations import ConversationStore
from app.store.contract.keys import IdempotencyKeyRecord, KeyStore

log = logging.getLogger(__name__)

CLAIM_SECONDS: Final = 30.0
"""How long a claim lasts after the last renewal, for example if its process has died or cannot reach the store. While
the store is unavailable for less than this, no second process answers the request."""
RENEW_SECONDS: Final = CLAIM_SECONDS / 3
"""A third of `CLAIM_SECONDS`, so that one failed renewal does not end a claim."""
RELEASE_BACKOFF_SECONDS: Final = (0.25, 2.0)
"""The first and the longest pause between attempts to release claims, after the store was unavailable."""
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


class IdempotencyClaim:
    """A key whose request this process answers. The claim is renewed until the answer is recorded or the claim is
    released."""

    def __init__(
        self, idempotency_keys: IdempotencyKeys, request: ChatRequest, request_digest: bytes, holder: str
    ) -> None:
        self._idempotency_keys = idempotency_keys
        self.tenant = request.caller.tenant
        self.idempotency_key = str(request.idempotency_key)
        self.request_digest = request_digest
        self.holder = holder
        self.renewal_timer: asyncio.TimerHandle | None = None
        self.renewal_task: asyncio.Task[None] | None = None
        self.is_open = True

    async def record_answer(self, conversation: Conversation) -> bool:
        """Records that the key's answer is the last message of the conversation. Returns whether the store has recorded
        it."""
        return await self._idempotency_keys.record_answer(self, conversation)

    async def release(self) -> None:
        """Releases the key, so that another request may claim it. Does nothing if an answer was recorded."""
        await self._idempotency_keys.release_claim(self)


class IdempotencyKeys:
    """Claims keys in the store, and finds the answers of keys that have one.

    Args:
        new_holder: returns a name for a claim, unique among all processes that share the store.
        wait_seconds: how long a request waits for the request with the same key in another process.
        random: returns a number in [0, 1), evenly distributed.
        clock: returns monotonic seconds.
    """

    def __init__(
        self,
        *,
        keys: KeyStore,
        conversations: ConversationStore,
        tasks: BackgroundTasks,
        new_holder: Callable[[], str],
        wait_seconds: float,
        clock: Callable[[], float],
        sleep: Callable[[float], Awaitable[None]],
        random: Callable[[], float],
    ) -> None:
        self._keys = keys
        self._conversations = conversations
        self._tasks = tasks
        self._new_holder = new_holder
        self._max_wait_seconds = wait_seconds
        self._clock = clock
        self._sleep = sleep
        self._random = random
        self._unreleased_claims: dict[IdempotencyClaim, float] = {}
        """Claims that could not be released, each with the time at which it ends by itself."""
        self._release_task: asyncio.Task[None] | None = None

    async def claim_key_or_replay(self, request: ChatRequest) -> IdempotencyClaim | Answer | None:
        """Claims a request's key, or waits until the process that has it is done.

        Returns:
            The claim; or the stored answer, in the form that the request asks for; or None if the request is to be
            answered without a claim: the store is unavailable, or the answer was erased.

        Raises:
            IdempotencyKeyReused: the key was sent with another request.
            IdempotencyKeyInUse: the request with that key still runs in another process.
        """
        claim = IdempotencyClaim(self, request, await compute_idempotency_digest(request), self._new_holder())
        deadline = self._clock() + self._max_wait_seconds
        while True:
            try:
                request_key = await self._claim_in_store(claim)
            except StoreUnavailable as error:
                log.warning("could not claim an idempotency key: %s", error.message)
                # The store may have made the claim although its reply was lost.
                self._schedule_release(claim)
                return None
            except asyncio.CancelledError:
                # The claim may have been made in the moment of the cancellation. Shielded, because this task is
                # cancelled.
                await self._tasks.run_shielded(self.release_claim(claim))
                raise
            if request_key.state == "claimed":
                self._schedule_renewal(claim)
                return claim
            if request_key.state == "differs":
                raise make_key_reused_error()
            if request_key.state == "done":
                return await self._replay_stored_answer(request, request_key)
            if self._clock() >= deadline:
                raise make_key_in_use_error()
            # Random pauses, so that several waiting processes do not read the store at the same moment.
            min_pause, max_pause = POLL_SECONDS
            await self._sleep(min_pause + (max_pause - min_pause) * self._random())

    async def record_answer(self, claim: IdempotencyClaim, conversation: Conversation) -> bool:
        if not await self._stop_renewal(claim):
            return False
        try:
            await self._keys.complete_idempotency_key(
                tenant=claim.tenant,
                key=claim.idempotency_key,
                holder=claim.holder,
                conversation_id=conversation.id,
                seq=conversation.head_seq,
            )
        except StoreUnavailable as error:
            log.warning("could not store which answer belongs to an idempotency key: %s", error.message)
            return False
        return True

    async def release_claim(self, claim: IdempotencyClaim) -> None:
        if not await self._stop_renewal(claim):
            return
        try:
            await self._release_in_store(claim)
        except StoreUnavailable as error:
            log.warning("could not release an idempotency key; trying again later: %s", error.message)
            self._schedule_release(claim)

    async def _release_in_store(self, claim: IdempotencyClaim) -> None:
        await self._keys.release_idempotency_key(tenant=claim.tenant, key=claim.idempotency_key, holder=claim.holder)

    def _schedule_release(self, claim: IdempotencyClaim) -> None:
        """Releases a claim when the store is available again, unless the claim has ended by then."""
        self._unreleased_claims[claim] = self._clock() + CLAIM_SECONDS
        if self._release_task is None or self._release_task.done():
            self._release_task = self._tasks.spawn(self._retry_releases())

    async def _retry_releases(self) -> None:
        """Releases the remaining claims, one at a time. If the store is still unavailable, the first failure ends the
        round."""
        pause, max_pause = RELEASE_BACKOFF_SECONDS
        while self._unreleased_claims:
            await self._sleep(pause)
            pause = min(2 * pause, max_pause)
            for claim, expires_at in list(self._unreleased_claims.items()):
                if expires_at > self._clock():
                    try:
                        await self._release_in_store(claim)
                    except StoreUnavailable:
                        break
                # The claim was released, or has ended by itself.
                del self._unreleased_claims[claim]

    async def _claim_in_store(self, claim: IdempotencyClaim) -> IdempotencyKeyRecord:
        return await self._keys.claim_idempotency_key(
            tenant=claim.tenant,
            key=claim.idempotency_key,
            digest=claim.request_digest,
            holder=claim.holder,
            seconds=CLAIM_SECONDS,
            kept_seconds=KEY_RETENTION_SECONDS,
        )

    async def _stop_renewal(self, claim: IdempotencyClaim) -> bool:
        """Stops the renewal of a claim. Returns False if it was stopped before."""
        was_open, claim.is_open = claim.is_open, False
        if claim.renewal_timer is not None:
            claim.renewal_timer.cancel()
        # A renewal under way must end first: after the release, it would claim the key again.
        if claim.renewal_task is not None:
            await asyncio.wait({claim.renewal_task})
        return was_open

    def _schedule_renewal(self, claim: IdempotencyClaim) -> None:
        claim.renewal_timer = asyncio.get_running_loop().call_later(RENEW_SECONDS, self._start_renewal, claim)

    def _start_renewal(self, claim: IdempotencyClaim) -> None:
        claim.renewal_task = self._tasks.spawn(self._renew_claim(claim))

    async def _renew_claim(self, claim: IdempotencyClaim) -> None:
        try:
            await self._claim_in_store(claim)
        except StoreUnavailable as error:
            # The claim may still be valid: the next renewal tries again.
            log.warning("could not renew the claim of an idempotency key: %s", error.message)
        if claim.is_open:
            self._schedule_renewal(claim)

    async def _replay_stored_answer(self, request: ChatRequest, request_key: IdempotencyKeyRecord) -> Answer | None:
        """Returns the answer that was given under a key, or None if it has been erased."""
        assert request_key.conversation_id is not None
        assert request_key.seq is not None
        conversation = await self._conversations.find_conversation(
            tenant=request.log_tenant, conversation_id=request_key.conversation_id
        )
        if conversation is None or conversation.head_seq < request_key.seq:
            return None
        if request_key.seq in conversation.marks.get(REDACTED, ()):
            return None
        (entry,) = await self._conversations.read_log(conversation, request_key.seq, request_key.seq + 1)
        return None if entry.meta is None else render_stored_answer(entry, conversation.id, request)
