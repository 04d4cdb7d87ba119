"""Cached input tokens are counted in once, whichever way a provider tells them."""

from __future__ import annotations

import pytest

from app.dialects.usage import TokenUsage, read_usage


@pytest.mark.parametrize(
    ("usage", "told"),
    [
        ({"prompt_tokens": 1_200}, TokenUsage(1_200)),
        ({"prompt_tokens": 1_200, "completion_tokens": 7, "output_tokens": 8}, TokenUsage(1_200, 0, 7)),
        ({"input_tokens": 1_200, "output_tokens": 8}, TokenUsage(1_200, 0, 8)),
        ({"prompt_tokens": 1_200, "prompt_tokens_details": {"cached_tokens": 1_024}}, TokenUsage(1_200, 1_024)),
        ({"prompt_tokens": 1_200, "prompt_tokens_details": None}, TokenUsage(1_200)),
        ({"input_tokens": 1_200, "input_tokens_details": {"cached_tokens": 128}}, TokenUsage(1_200, 128)),
        (
            {"prompt_tokens": 900, "prompt_cache_hit_tokens": 640, "prompt_cache_miss_tokens": 260},
            TokenUsage(900, 640),
        ),
        ({"input_tokens": 50, "cache_read_input_tokens": 2_000}, TokenUsage(2_050, 2_000)),
        (
            {"input_tokens": 50, "cache_read_input_tokens": 0, "cache_creation_input_tokens": 300},
            TokenUsage(350, 0, 0, 300),
        ),
        (
            {
                "input_tokens": 50,
                "cache_creation_input_tokens": 300,
                "cache_creation": {"ephemeral_5m_input_tokens": 100, "ephemeral_1h_input_tokens": 200},
            },
            TokenUsage(350, 0, 0, 300, 200),
        ),
        ({"prompt_tokens": 900, "prompt_tokens_details": {"cache_write_tokens": 640}}, TokenUsage(900, 0, 0, 640)),
        (
            {"input_tokens": 900, "input_tokens_details": {"cached_tokens": 700, "cache_write_tokens": 640}},
            TokenUsage(900, 700, 0, 200),
        ),
        ({"prompt_tokens": 2_050, "cache_read_input_tokens": 2_000}, TokenUsage(2_050, 2_000)),
        ({"prompt_tokens": 50, "cache_read_input_tokens": 2_000}, TokenUsage(2_050, 2_000)),
    ],
)
def test_cached_tokens_are_counted_in_once(usage: dict[str, object], told: TokenUsage) -> None:
    assert read_usage(usage) == told


@pytest.mark.parametrize("usage", [None, {}, {"prompt_tokens": 0}, {"prompt_tokens": "many"}, {"prompt_tokens": True}])
def test_a_report_that_says_nothing_is_none(usage: dict[str, object] | None) -> None:
    assert read_usage(usage) is None
