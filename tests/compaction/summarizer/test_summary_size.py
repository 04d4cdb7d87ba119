"""How long a summary may be, by what it stands for."""

from __future__ import annotations

import re

import pytest

from app.assembly.providers_and_routes import build_policy
from app.context.plan.outline import SummaryRange, SummaryStyle
from app.context.plan.policy import SummarizerPolicy, make_policy
from app.settings import load_settings
from tests.compaction.simulated_compaction import Scene, job_for, log_of, saying, talk


async def asked_for(tokens: int, *, window: int, most: int = 4096, style: SummaryStyle = "additive") -> tuple[int, int]:
    """How many tokens the summary of a range may have, and the words that its writer is told."""
    log = log_of(talk(tokens // 90))
    log = log[: next((at for at, entry in enumerate(log) if entry.tokens_total > tokens), len(log))]
    scene = Scene(window=window, said=saying("What was said about lockers."))
    policy = make_policy(summarizer=SummarizerPolicy(max_summary_tokens=most))
    await scene.compactor.compact(job_for(log, SummaryRange(0, len(log), style=style), policy=policy, window=window))
    call = scene.router.calls[0]
    [words] = re.findall(r"in at most (\d+) words", call["messages"][-1]["content"])
    return call["max_tokens"], int(words)


async def test_at_128k_a_summary_of_72_800_tokens_is_asked_for_with_2_000_to_4_000() -> None:
    tokens, words = await asked_for(72_800, window=128_000)
    assert 3_500 <= tokens <= 3_640
    assert 2_000 <= words / 0.75 <= 4_000


@pytest.mark.parametrize(
    ("tokens", "window", "most", "asked"),
    [
        (4_000, 8_192, 4_096, 512),
        (12_000, 128_000, 4_096, 1_024),
        (40_000, 128_000, 4_096, 2_000),
        (72_800, 128_000, 2_048, 2_048),
        (90_000, 128_000, 4_096, 4_096),
        (90_000, 128_000, 300, 300),
    ],
)
async def test_it_scales_with_what_it_stands_for_and_is_never_longer_than_configured(
    tokens: int, window: int, most: int, asked: int
) -> None:
    allowed, _ = await asked_for(tokens, window=window, most=most)
    assert 0.98 * asked <= allowed <= asked


@pytest.mark.parametrize(("kind", "tokens"), [("additive", 4_096), ("checkpoint", 2_048)])
def test_without_a_number_of_its_own_each_kind_has_the_one_of_its_source(kind: str, tokens: int) -> None:
    assert build_policy(load_settings(environ={}), kind).summarizer.max_summary_tokens == tokens
