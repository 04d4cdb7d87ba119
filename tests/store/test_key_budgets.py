"""What calls may cost is reserved before them and gives way to what they have cost."""

from __future__ import annotations

import asyncio
import itertools
from typing import Any

import pytest

from app.conversation.api_keys import KeyBudget
from app.dialects.usage import TokenUsage
from app.errors import BudgetExceeded, StoreUnavailable
from app.store import key_budgets
from app.store.contract.limits import BudgetUse
from app.store.key_budgets import KeyBudgets
from app.store.usage_recorder import UsageRecorder
from tests.store.example_logs import Clock
from tests.support.memory_store import MemoryStore

BUDGET = KeyBudget("key_1", 1.0)


class World:
    """A store, and processes on it."""

    def __init__(self) -> None:
        self.clock = Clock()
        self.store = MemoryStore(clock=self.clock)
        self.names = map(str, itertools.count())
        self.usage = UsageRecorder(self.store, now=self.clock)
        self.budgets = self.process()

    def process(self) -> KeyBudgets:
        return KeyBudgets(
            self.store, self.usage, holder=next(self.names), now=self.clock, new_id=lambda: next(self.names)
        )

    def spend(self, usd: float) -> None:
        self.usage.record_call("shop", BUDGET.key_id, "m", TokenUsage(1), usd)

    async def use(self) -> tuple[float, float]:
        use = await self.store.read_budget_use(key_id=BUDGET.key_id, since_day="2026-01-01")
        return use.spent_usd, use.reserved_usd


@pytest.fixture
def world() -> World:
    return World()


async def test_a_reservation_ends_after_its_cost_is_written(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    reservation_id = await world.budgets.reserve(BUDGET, 0.75)
    assert reservation_id is not None
    with pytest.raises(BudgetExceeded, match=r"budget of \$1.00 .* and \$0.75 reserved .* may cost \$0.5000"):
        await world.process().reserve(BUDGET, 0.5)
    world.spend(0.25)
    world.budgets.release(reservation_id)
    for _ in range(20):
        spent, reserved = await world.use()
        assert spent == 0.25 or reserved == 0.75, "for a moment the money is neither spent nor reserved"
        await asyncio.sleep(0)
    assert await world.use() == (0.25, 0.0)
    await world.budgets.aclose()


async def test_a_refusal_first_waits_for_the_calls_of_its_process_that_are_over(world: World) -> None:
    reservation_id = await world.budgets.reserve(BUDGET, 0.75)
    assert reservation_id is not None
    world.budgets.release(reservation_id)
    assert await world.budgets.reserve(BUDGET, 1.0) is not None
    with pytest.raises(BudgetExceeded, match="nothing is left for another request"):
        await world.budgets.check_budget(BUDGET)
    await world.budgets.check_budget(None)


async def test_a_spent_budget_is_refused_until_the_month_ends(world: World) -> None:
    world.spend(1.0)
    await world.usage.flush()
    for refuse in (world.budgets.check_budget(BUDGET), world.budgets.reserve(BUDGET, 0.01)):
        with pytest.raises(BudgetExceeded, match="has spent its budget") as refused:
            await refuse
    world.clock.forward(refused.value.retry_after_seconds or 0.0)
    await world.budgets.check_budget(BUDGET)


async def test_a_killed_process_gives_back_what_it_has_reserved_and_a_running_one_does_not(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(key_budgets, "RENEW_SECONDS", 0.0)
    await world.budgets.reserve(BUDGET, 0.5)
    killed = world.process()
    await killed.reserve(BUDGET, 0.5)
    world.budgets.start()
    for _ in range(4):
        world.clock.forward(20)
        await asyncio.sleep(0.01)
    await world.process().reserve(BUDGET, 0.5)
    with pytest.raises(BudgetExceeded):
        await world.process().reserve(BUDGET, 0.25)
    await world.budgets.aclose()


async def test_the_renewal_survives_every_failure(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(key_budgets, "RENEW_SECONDS", 0.0)
    failures = [StoreUnavailable("The database is away."), ValueError("a bug")]
    renewals = 0

    async def renew_reservations(*, holder: str, seconds: float) -> None:
        nonlocal renewals
        if failures:
            raise failures.pop()
        renewals += 1

    monkeypatch.setattr(world.store, "renew_reservations", renew_reservations)
    await world.budgets.reserve(BUDGET, 0.5)
    world.budgets.start()
    await asyncio.sleep(0.02)
    assert renewals > 1
    await world.budgets.aclose()


async def test_while_the_store_is_away_calls_go_on_and_their_reservations_are_released_later(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def away(*_: object, **__: object) -> BudgetUse:
        raise StoreUnavailable("The database is away.")

    reservation_id = await world.budgets.reserve(BUDGET, 0.5)
    assert reservation_id is not None
    with monkeypatch.context() as patch:
        for name in ("reserve_budget", "read_budget_use", "release_reservations"):
            patch.setattr(world.store, name, away)
        await world.budgets.check_budget(BUDGET)
        assert await world.budgets.reserve(BUDGET, 5.0) is None
        world.budgets.release(reservation_id)
        await asyncio.sleep(0.01)
    assert (await world.use())[1] == 0.5
    await world.budgets.aclose()
    assert (await world.use())[1] == 0.0


async def test_a_reservation_whose_answer_was_lost_holds_nothing_back(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    reserve_budget = world.store.reserve_budget

    async def lose_answer(*arguments: Any, **named: Any) -> BudgetUse:
        await reserve_budget(*arguments, **named)
        raise StoreUnavailable("The connection broke off.")

    with monkeypatch.context() as patch:
        patch.setattr(world.store, "reserve_budget", lose_answer)
        assert await world.budgets.reserve(BUDGET, 0.5) is None
    await world.budgets.aclose()
    assert (await world.use())[1] == 0.0
