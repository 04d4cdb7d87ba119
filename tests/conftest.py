"""What all rooms' tests share."""

from __future__ import annotations

import ctypes
import functools
import gc
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import httpx
import httpx2
import pytest
from fastapi.utils import create_model_field
from hypothesis import HealthCheck, settings

from tests.postgres import databases, empty_postgres_url, migrated_template, postgres_url
from tests.selection import is_left_out

__all__ = ["databases", "empty_postgres_url", "migrated_template", "postgres_url"]

# A busy machine draws slowly; that is no fault of the code under test. `make test` draws the same examples each time,
# so that a property cannot fail there by chance; `make test-long` draws new ones.
settings.register_profile(
    "thorough", max_examples=500, deadline=None, derandomize=False, suppress_health_check=[HealthCheck.too_slow]
)
settings.register_profile("full", settings.get_profile("thorough"), max_examples=100, derandomize=True, database=None)
settings.register_profile("few", settings.get_profile("full"), max_examples=15)
settings.load_profile(os.environ.get("CONCERTINA_TEST_EXAMPLES", "few"))


# A run in the background of a shell ignores Ctrl-C, and so would all programs that the tests start and interrupt.
signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Leaves long tests to `make test-full`, before their files are imported."""
    return True if is_left_out(collection_path, config.args) else None


@pytest.fixture(scope="session", autouse=True)
def doing_once() -> Iterator[None]:
    """What each application or client does anew, a test process does once: each application builds the validators of
    all answers, and each HTTP client reads all certificates of the system."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("httpx._transports.default.create_ssl_context", functools.cache(httpx.create_ssl_context))
        patch.setattr("httpx2._transports.default.create_ssl_context", functools.cache(httpx2.create_ssl_context))
        patch.setattr("fastapi.routing.create_model_field", functools.cache(create_model_field))
        yield


@pytest.fixture(scope="module", autouse=True)
def giving_back() -> Iterator[None]:
    """What large tests have freed goes back to the system: glibc keeps hundreds of megabytes of it, in pieces."""
    yield
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        gc.collect()
        trim(0)
