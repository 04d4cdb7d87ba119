"""Keeping leases: waiting in line, across processes, through lost connections."""

from __future__ import annotations

import asyncio
import heapq
import itertools
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

import pytest

from app.errors import ConversationBusy, StoreUnavailable
from app.store.contract.leases import Lease
from app.store.contract.store import Store
from app.store.leases import LeaseKeeper
from app.store.store_factory import create_store
from tests.store.example_logs import NOON, Clock, fresh_tenant
from tests.support.memory_store import MemoryStore


class Time:
    """Monotonic seconds that pass when nobody else has anything to do."""

    def __init__(self) -> None:
        self.now = 0.0
        self.pauses: list[float] = []
        self._sleepers: list[tuple[float, int, asyncio.Event]] = []
        self._numbers = itertools.count()

    def __call__(self) -> float:
        return self.now

    async def sleep(self, seconds: float) -> None:
        self.pauses.append(seconds)
        awake = asyncio.Event()
        heapq.heappush(self._sleepers, (self.now + seconds, next(self._numbers), awake))
        await awake.wait()

    async def pass_(self, seconds: float) -> None:
        """Let time pass, waking sleepers in order."""
        end = self.now + seconds
        await settle()
        while self._sleepers and self._sleepers[0][0] <= end:
            self.now, _, awake = heapq.heappop(self._sleepers)
            awake.set()
            await settle()
        self.now = end


async def settle() -> None:
    for _ in range(20):
        await asyncio.sleep(0)


class CountedStore(MemoryStore):
    """Counts what keepers ask of it, and can go away."""

    def __init__(self) -> None:
        super().__init__(clock=Clock())
        self.asked: list[str] = []
        self.is_away = False

    def _ask(self, what: str) -> None:
        self.asked.append(what)
        if self.is_away:
            raise StoreUnavailable("away")

    async def claim_lease(self, *, root: str, key: str, holder: str, seconds: float) -> Lease | None:
        self._ask("claim")
        return await super().claim_lease(root=root, key=key, holder=holder, seconds=seconds)

    async def renew_leases(self, leases: Sequence[Lease], seconds: float) -> list[Lease]:
        self._ask("renew")
        return await super().renew_leases(leases, seconds)

    async def release_lease(self, lease: Lease) -> None:
        self._ask("release")
        await super().release_lease(lease)


@asynccontextmanager
async def keeper(store: Store, time: Time, holder: str = "me") -> AsyncIterator[LeaseKeeper]:
    made = LeaseKeeper(store, holder, lease_seconds=30, clock=time, sleep=time.sleep, random=lambda: 0.5)
    made.start()
    yield made
    await made.aclose()


@pytest.fixture
def time() -> Time:
    return Time()


@pytest.fixture
def counted() -> CountedStore:
    return CountedStore()


async def test_one_after_the_other_holds_the_lease_in_a_process(counted: CountedStore, time: Time) -> None:
    inside: list[int] = []
    async with keeper(counted, time) as leases:

        async def turn(number: int) -> None:
            async with leases.hold_lease("root", "key", 10):
                inside.append(number)
                await asyncio.sleep(0)
                assert inside[-1] == number

        await asyncio.gather(*(turn(number) for number in range(5)))
    assert inside == [0, 1, 2, 3, 4]
    assert counted.asked == ["claim", "release"] * 5, "nobody polls who can wait in line"


async def test_different_keys_do_not_wait_for_each_other(counted: CountedStore, time: Time) -> None:
    async with keeper(counted, time) as leases, leases.hold_lease("root", "a", 0), leases.hold_lease("root", "b", 0):
        assert counted.asked == ["claim", "claim"]


async def test_a_wait_within_a_process_is_bounded(counted: CountedStore, time: Time) -> None:
    async with keeper(counted, time) as leases, leases.hold_lease("root", "key", 0):
        with pytest.raises(ConversationBusy) as refused:
            async with leases.hold_lease("root", "key", 0.01):
                pytest.fail("two hold one lease")
    assert refused.value.retry_after_seconds


async def test_a_wait_for_another_process_polls_with_jitter_and_is_bounded(counted: CountedStore, time: Time) -> None:
    first = LeaseKeeper(counted, "first", clock=time, sleep=time.sleep)
    second = LeaseKeeper(counted, "second", clock=time, sleep=time.sleep)
    async with first.hold_lease("root", "key", 1):
        waiting = asyncio.create_task(_hold_once(second, wait_seconds=1.0))
        await time.pass_(0.99)
        assert not waiting.done()
        await time.pass_(0.02)
        with pytest.raises(ConversationBusy):
            await waiting
    polls = time.pauses[:-1]
    assert all(0.02 <= pause <= 0.1 for pause in polls)
    assert len(set(polls)) == len(polls)
    assert 10 <= len(polls) <= 50


async def test_a_lease_that_another_process_gives_back_is_taken(counted: CountedStore, time: Time) -> None:
    async with keeper(counted, time, "first") as first, keeper(counted, time, "second") as second:
        async with first.hold_lease("root", "key", 1):
            waiting = asyncio.create_task(_hold_once(second, wait_seconds=5))
            await time.pass_(0.5)
        await time.pass_(0.2)
        assert (await waiting).holder == "second"


async def test_a_held_lease_is_renewed_for_as_long_as_it_takes(counted: CountedStore, time: Time) -> None:
    async with keeper(counted, time) as leases:
        await time.pass_(100)
        assert "renew" not in counted.asked, "nothing is held, nothing is asked"
        async with leases.hold_lease("root", "key", 1) as lease:
            await time.pass_(300)
            assert 29 <= counted.asked.count("renew") <= 31
            assert leases.is_held(lease)


async def test_a_lease_that_was_taken_over_is_known_to_be_lost(counted: CountedStore, time: Time) -> None:
    async with keeper(counted, time) as leases, leases.hold_lease("root", "key", 1) as lease:
        await counted.renew_leases([lease], 0)
        assert await counted.claim_lease(root="root", key="key", holder="other", seconds=60)
        await time.pass_(11)
        assert not leases.is_held(lease)
    assert counted.asked.count("release") == 0


async def test_a_store_that_is_away_for_a_while_costs_no_lease(counted: CountedStore, time: Time) -> None:
    async with keeper(counted, time) as leases, leases.hold_lease("root", "key", 1) as lease:
        counted.is_away = True
        await time.pass_(11)
        counted.is_away = False
        await time.pass_(11)
        assert leases.is_held(lease)
        assert counted.asked.count("renew") == 2


async def test_leaving_is_possible_while_the_store_is_away(counted: CountedStore, time: Time) -> None:
    async with keeper(counted, time) as leases:
        async with leases.hold_lease("root", "key", 1):
            counted.is_away = True
        with pytest.raises(StoreUnavailable):
            async with leases.hold_lease("root", "key", 1):
                pytest.fail("no lease was claimed")


async def test_a_lease_that_a_write_has_released_is_not_released_again(counted: CountedStore, time: Time) -> None:
    async with keeper(counted, time) as leases:
        async with leases.hold_lease("root", "key", 1) as lease:
            leases.forget_released_lease(lease)
        assert counted.asked == ["claim"]


async def test_closing_gives_everything_back(counted: CountedStore, time: Time) -> None:
    leases = LeaseKeeper(counted, "me", clock=time, sleep=time.sleep)
    leases.start()
    holding = asyncio.create_task(_hold_for_ever(leases))
    await settle()
    await leases.aclose()
    assert await counted.claim_lease(root="root", key="key", holder="other", seconds=1)
    holding.cancel()
    await asyncio.wait([holding])


async def test_whoever_is_cancelled_gives_the_lease_back(counted: CountedStore, time: Time) -> None:
    async with keeper(counted, time) as leases:
        holding = asyncio.create_task(_hold_for_ever(leases))
        await settle()
        holding.cancel()
        await asyncio.wait([holding])
        await settle()
        assert await counted.claim_lease(root="root", key="key", holder="other", seconds=1)


async def test_whoever_is_cancelled_while_claiming_leaves_no_lease_behind(time: Time) -> None:
    claimed = asyncio.Event()

    class SlowStore(CountedStore):
        async def claim_lease(self, *, root: str, key: str, holder: str, seconds: float) -> Lease | None:
            lease = await super().claim_lease(root=root, key=key, holder=holder, seconds=seconds)
            claimed.set()
            await asyncio.sleep(0)
            await asyncio.sleep(0)
            return lease

    store = SlowStore()
    async with keeper(store, time) as leases:
        claiming = asyncio.create_task(_hold_for_ever(leases))
        await claimed.wait()
        claiming.cancel()
        await asyncio.wait([claiming])
        await settle()
        assert store.asked == ["claim", "release"]


async def test_nothing_is_remembered_of_keys_that_nobody_wants(counted: CountedStore, time: Time) -> None:
    async with keeper(counted, time) as leases:
        await asyncio.gather(*(_hold_once(leases, key=f"key {number % 10}") for number in range(100)))
        assert not leases._local_locks
        assert not leases._held_leases


async def test_two_keepers_on_one_database_take_turns(store: Store) -> None:
    root = fresh_tenant()
    first, second = LeaseKeeper(store, "first"), LeaseKeeper(store, "second")
    inside = 0
    worst = 0

    async def turn(leases: LeaseKeeper) -> None:
        nonlocal inside, worst
        async with leases.hold_lease(root, "key", 30):
            inside += 1
            worst = max(worst, inside)
            await asyncio.sleep(0.001)
            inside -= 1

    first.start()
    second.start()
    await asyncio.gather(*(turn(leases) for leases in (first, second) for _ in range(5)))
    assert worst == 1
    await first.aclose()
    await second.aclose()


_HOLD_IN_A_PROCESS = """
import asyncio, sys
from app.store.store_factory import create_store
async def main():
    store = create_store(sys.argv[1])
    await store.open()
    lease = await store.claim_lease(root="root", key="key", holder="another process", seconds=float(sys.argv[2]))
    print(lease.token, flush=True)
    await asyncio.sleep(60)
asyncio.run(main())
"""


async def test_the_lease_of_a_killed_process_is_taken_over_when_it_ends(sqlite_url: str) -> None:
    clock = Clock()
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", _HOLD_IN_A_PROCESS, sqlite_url, "60", stdout=asyncio.subprocess.PIPE
    )
    try:
        assert process.stdout is not None
        token = int(await process.stdout.readline())
    finally:
        process.kill()
        await process.communicate()
    store = create_store(sqlite_url, clock=clock)
    await store.open()
    assert token > NOON.timestamp() * 1_000_000 - 10 * 365 * 86_400_000_000
    assert await store.claim_lease(root="root", key="key", holder="me", seconds=1) is None
    clock.forward(10 * 365 * 86_400)
    lease = await store.claim_lease(root="root", key="key", holder="me", seconds=1)
    assert lease is not None
    assert lease.token > token
    await store.close()


async def _hold_once(leases: LeaseKeeper, *, key: str = "key", wait_seconds: float = 10) -> Lease:
    async with leases.hold_lease("root", key, wait_seconds) as lease:
        return lease


async def _hold_for_ever(leases: LeaseKeeper) -> None:
    async with leases.hold_lease("root", "key", 1):
        await asyncio.Event().wait()
