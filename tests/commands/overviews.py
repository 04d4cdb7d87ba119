"""Overviews as a gateway tells them."""

from __future__ import annotations

import math
from typing import Any


def overview(**changed: Any) -> dict[str, Any]:
    """A busy gateway after an hour and more."""
    samples = [
        {
            "at": 1_790_000_000 + 10 * index,
            "requests": 40 * index + int(30 * math.sin(index / 20)),
            "errors": index // 90,
            "refusals": index // 50,
            "prompt_tokens": 90_000 * index,
            "saved_tokens": 30_000 * index,
            "cached_tokens": 50_000 * index,
            "cost_usd": 0.01 * index,
            "compactions": index // 4,
            "first_byte_p95_seconds": None if index % 100 == 0 else 0.3 + 0.2 * math.sin(index / 30),
        }
        for index in range(360)
    ]
    waits = {"p50": 0.0123, "p95": 0.345, "p99": 1.2345}
    told = {
        "object": "overview",
        "version": "0.1.0",
        "started_at": 1_789_990_000,
        "uptime_seconds": 11_120,
        "workers": 2,
        "simulated": False,
        "database": "postgresql",
        "now": {
            "requests_in_flight": 7,
            "streams_open": 5,
            "compactions_running": 1,
            "background_tasks": 2,
            "store_queue_depth": 0,
        },
        "totals": {
            "requests": 14_390,
            "errors": 3,
            "refusals": 7,
            "prompt_tokens": 32_400_000,
            "log_tokens": 43_200_000,
            "saved_tokens": 10_800_000,
            "reported_prompt_tokens": 32_000_000,
            "cached_tokens": 17_950_000,
            "completion_tokens": 1_250_000,
            "summary_prompt_tokens": 230_000,
            "summary_completion_tokens": 20_000,
            "cost_usd": 3.59,
            "saved_usd": 1.2,
            "compactions": {"completed": 88, "mechanical": 1, "failed": 0},
            "statuses": {"full": 14_000, "summarized": 380, "trimmed": 10},
        },
        "latency": {
            name: dict(waits) for name in ("first_byte_seconds", "request_seconds", "upstream_seconds", "store_seconds")
        },
        "models": [
            {
                "model": f"model-{number}",
                "provider": "openai",
                "requests": 1_000 - number,
                "errors": number % 2,
                "prompt_tokens": 2_000_000,
                "completion_tokens": 90_000,
                "cached_tokens": 1_000_000,
                "cost_usd": None if number % 3 else 0.25,
            }
            for number in range(12)
        ],
        "errors": [
            {"code": "upstream_timeout", "status": 504, "count": 2},
            {"code": "rate_limit_exceeded", "status": 429, "count": 7},
        ],
        "series": {"interval_seconds": 10, "samples": samples},
    }
    return {**told, **changed}


def fresh_overview() -> dict[str, Any]:
    """A gateway that has been asked nothing yet."""
    told = overview(models=[], errors=[], uptime_seconds=3, workers=1, simulated=True, database="sqlite")
    told["totals"] = {
        name: {} if isinstance(value, dict) else None if name.endswith("usd") else 0
        for name, value in told["totals"].items()
    }
    told["latency"] = {name: dict.fromkeys(("p50", "p95", "p99")) for name in told["latency"]}
    told["series"] = {"interval_seconds": 10, "samples": []}
    return told
