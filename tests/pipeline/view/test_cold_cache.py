"""A pause that the provider's cache does not outlive: what would be compacted soon is compacted now, for nothing."""

from __future__ import annotations

import asyncio
import dataclasses
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from app.pipeline.compact.precompaction import Precompactor
from tests.live import TEST_DEPENDENCIES, Reply, ScriptedUpstream
from tests.support.gateway import answering, assistant, is_summary, long_history, until, user, world

PREPARED = {"additive": {"blocking": False, "prepare_ratio": 0.6}}
SUMMARY_SECONDS = 0.05
"""In which a summary is begun after an answer, if it is needed."""
WARM, COLD = timedelta(minutes=4), timedelta(minutes=11)


def reply(body: dict[str, Any]) -> Reply:
    """An answer that was read from the cache by half."""
    answer = answering(body)
    if not is_summary(body):
        answer.body["usage"]["prompt_tokens_details"] = {"cached_tokens": 5}
    return answer


def is_making_summaries() -> bool:
    """Whether the gateway, which runs in this loop, has begun a summary ahead that is not yet stored."""
    coroutines = (task.get_coro() for task in asyncio.all_tasks())
    return any(getattr(one, "__qualname__", "") == Precompactor._run_traced.__qualname__ for one in coroutines)


async def find_status_after(pause: timedelta, **policy: Any) -> str:
    """The status of the first turn after a pause that comes when the next summary was made ahead."""
    times = {"now": datetime(2026, 11, 26, tzinfo=UTC)}
    surroundings = dataclasses.replace(TEST_DEPENDENCIES, now=lambda: times["now"])
    policies = {"additive": {**PREPARED["additive"], **policy}}
    async with world(ScriptedUpstream(default=reply), dependencies=surroundings, policies=policies) as w:
        history = long_history(60)
        for end in range(41, 121, 2):
            said = await w.say(history[:end])
            assert said["context_status"] == "full"
            await asyncio.sleep(SUMMARY_SECONDS)
            await until(lambda: not is_making_summaries())
            if w.chunks():
                break
        times["now"] += pause
        # So short that it does not cross the threshold, as the summary was made for.
        said = await w.say([*history[:end], assistant(said["choices"][0]["message"]["content"]), user("Go on.")])
        status: str = said["context_status"]
        return status


@pytest.mark.parametrize(("pause", "status"), [(WARM, "full"), (COLD, "summarized")])
async def test_a_prepared_summary_is_shown_when_the_cache_is_cold(pause: timedelta, status: str) -> None:
    assert await find_status_after(pause) == status
