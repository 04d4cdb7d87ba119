"""Nobody is ever shown a word of another tenant's, whatever names and texts they have in common."""

from __future__ import annotations

from pathlib import Path

from tests.scenarios.crosstalk import KINDS, run

TENANTS = 50
REQUESTS = 2_000
"""`python -m tests.benchmarks.crosstalk` makes 10,000."""


async def test_tenants_who_say_the_same_at_once_never_meet(tmp_path: Path) -> None:
    outcome = await run(f"sqlite+aiosqlite:///{tmp_path}/kept.db", tenants=TENANTS, requests=REQUESTS)
    assert outcome.faults == []
    assert outcome.requests == REQUESTS
    assert outcome.summaries > TENANTS, "summaries are made along with the rest"
    assert {len(ids) for ids in outcome.conversations.values()} == {len(KINDS)}
