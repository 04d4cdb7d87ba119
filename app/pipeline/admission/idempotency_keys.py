"""`Idempotency-Key` among processes: whoever claims a key answers; the others wait and give that answer again."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Final

from app.conversation.messages import Conversation
from app.errors import IdempotencyKeyInUse, IdempotencyKeyReused, StoreUnavailable
from app.pipeline.admission.answer_replay import replayed
from app.pipeline.admission.request_digest import digest_body
from app.pipeline.background_tasks import Tasks
from app.pipeline.chat_request import ChatRequest
from app.pipeline.resolve.resolved_request import REDACTED
from app.pipeline.respond.answer import Answer
from app.store.contract import RequestKey, Store

log = logging.getLogger(__name__)

CLAIM_SECONDS: Final = 30.0
"""How long a claim outlives its process, or the line from there to the store. A store that is away for less does not
let a second process answer meanwhile."""
RENEW_SECONDS: Final = CLAIM_SECONDS / 3
FREE_SECONDS: Final = (0.25, 2.0)
"""The first and the longest pause between attempts to give up keys that nobody answers, once the store was away."""
KEPT_SECONDS: Final = 24 * 3600.0
"""How long the answer of a key is given again."""
POLL_SECONDS: Final = (0.05, 0.25)
"""Bounds of the pause between two looks at a key that another process has claimed."""


def key_reused() -> IdempotencyKeyReused:
    return IdempotencyKeyReused(
        "This `Idempotency-Key` was sent with another request before.",
        param="Idempotency-Key",
        hint="Send a new key with each new request, and the same only with its repetitions.",
    )


def key_in_use() -> IdempotencyKeyInUse:
    return IdempotencyKeyInUse(
        "A request with this `Idempotency-Key` is still being answered.",
        param="Idempotency-Key",
        retry_after_seconds=1,
    )


class Claim:
    """A key that this process answers. Renewed until it is settled or given up."""

    def __init__(self, keys: RequestKeys, request: ChatRequest, digest: bytes, holder: str) -> None:
        self._keys = keys
        self.tenant = request.caller.tenant
        self.key = str(request.idempotency_key)
        self.digest = digest
        self.holder = holder
        self.timer: asyncio.TimerHandle | None = None
        self.renewal: asyncio.Task[None] | None = None
        self.is_open = True

    async def settle(self, conversation: Conversation) -> bool:
        """The request was answered: the answer is the last message of the conversation. Whether that is noted."""
        return await self._keys.settle(self, conversation)

    async def give_up(self) -> None:
        """The request got no answer, unless it was settled: the next may claim its key."""
        await self._keys.give_up(self)


class RequestKeys:
    """Claims keys in the store and looks for the answers of those that are settled.

    Args:
        new_holder: names a claim among all that share the store.
        wait_seconds: how long a request waits for one that runs elsewhere.
        random: uniform in [0, 1).
        clock: monotonic seconds.
    """

    def __init__(
        self,
        *,
        store: Store,
        tasks: Tasks,
        new_holder: Callable[[], str],
        wait_seconds: float,
        clock: Callable[[], float],
        sleep: Callable[[float], Awaitable[None]],
        random: Callable[[], float],
    ) -> None:
        self._store = store
        self._tasks = tasks
        self._new_holder = new_holder
        self._wait_seconds = wait_seconds
        self._clock = clock
        self._sleep = sleep
        self._random = random
        self._unfreed: dict[Claim, float] = {}
        """Claims that are to be given up, and when each will have ended by itself."""
        self._freeing: asyncio.Task[None] | None = None

    async def claim(self, request: ChatRequest) -> Claim | Answer | None:
        """Claim a request's key, once nobody else has it.

        Returns:
            The claim; or the stored answer, in the form that is asked for now; or None where there is nothing to be
            claimed: the store is away, or the answer was erased.

        Raises:
            IdempotencyKeyReused: it was sent with another request.
            IdempotencyKeyInUse: the request with that key still runs elsewhere.
        """
        claim = Claim(self, request, await digest_body(request), self._new_holder())
        deadline = self._clock() + self._wait_seconds
        while True:
            try:
                found = await self._ask(claim)
            except StoreUnavailable as error:
                log.warning("an idempotency key could not be claimed: %s", error.message)
                self._free_later(claim)  # only the word of it may have been lost
                return None
            except asyncio.CancelledError:
                await self._tasks.finish(self.give_up(claim))
                raise
            if found.state == "claimed":
                self._renew_later(claim)
                return claim
            if found.state == "differs":
                raise key_reused()
            if found.state == "done":
                return await self._stored(request, found)
            if self._clock() >= deadline:
                raise key_in_use()
            least, most = POLL_SECONDS
            await self._sleep(least + (most - least) * self._random())

    async def settle(self, claim: Claim, conversation: Conversation) -> bool:
        if not await self._close(claim):
            return False
        try:
            await self._store.settle_request(
                tenant=claim.tenant,
                key=claim.key,
                holder=claim.holder,
                conversation_id=conversation.id,
                seq=conversation.head_seq,
            )
        except StoreUnavailable as error:
            log.warning("the answer of an idempotency key could not be noted: %s", error.message)
            return False
        return True

    async def give_up(self, claim: Claim) -> None:
        if not await self._close(claim):
            return
        try:
            await self._free(claim)
        except StoreUnavailable as error:
            log.warning("an idempotency key could not be given up, yet: %s", error.message)
            self._free_later(claim)

    async def _free(self, claim: Claim) -> None:
        await self._store.give_up_request(tenant=claim.tenant, key=claim.key, holder=claim.holder)

    def _free_later(self, claim: Claim) -> None:
        """Give a claim up once the store is back, unless it has ended by then."""
        self._unfreed[claim] = self._clock() + CLAIM_SECONDS
        if self._freeing is None or self._freeing.done():
            self._freeing = self._tasks.spawn(self._free_all())

    async def _free_all(self) -> None:
        """One at a time: a store that is away is asked once for all of them."""
        pause, longest = FREE_SECONDS
        while self._unfreed:
            await self._sleep(pause)
            pause = min(2 * pause, longest)
            for claim, ends in list(self._unfreed.items()):
                if ends > self._clock():
                    try:
                        await self._free(claim)
                    except StoreUnavailable:
                        break
                del self._unfreed[claim]

    async def _ask(self, claim: Claim) -> RequestKey:
        return await self._store.claim_request(
            tenant=claim.tenant,
            key=claim.key,
            digest=claim.digest,
            holder=claim.holder,
            seconds=CLAIM_SECONDS,
            kept_seconds=KEPT_SECONDS,
        )

    async def _close(self, claim: Claim) -> bool:
        """Stop renewing; False if that was done before."""
        was_open, claim.is_open = claim.is_open, False
        if claim.timer is not None:
            claim.timer.cancel()
        if claim.renewal is not None:
            await asyncio.wait({claim.renewal})
        return was_open

    def _renew_later(self, claim: Claim) -> None:
        claim.timer = asyncio.get_running_loop().call_later(RENEW_SECONDS, self._renew, claim)

    def _renew(self, claim: Claim) -> None:
        claim.renewal = self._tasks.spawn(self._renewed(claim))

    async def _renewed(self, claim: Claim) -> None:
        try:
            await self._ask(claim)
        except StoreUnavailable as error:
            log.warning("an idempotency key could not be renewed: %s", error.message)
        if claim.is_open:
            self._renew_later(claim)

    async def _stored(self, request: ChatRequest, found: RequestKey) -> Answer | None:
        """The answer that was given under a key, if it is still there."""
        assert found.conversation_id is not None
        assert found.seq is not None
        conversation = await self._store.get(tenant=request.caller.tenant, conversation_id=found.conversation_id)
        if conversation is None or conversation.head_seq < found.seq:
            return None
        if found.seq in conversation.marks.get(REDACTED, ()):
            return None
        (entry,) = await self._store.read(conversation, found.seq, found.seq + 1)
        return None if entry.meta is None else replayed(entry, conversation.id, request)
