"""What all rooms' tests share."""

from __future__ import annotations

import ctypes
import functools
import gc
from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, settings

from tests.postgres import databases, empty_postgres_url, migrated_template, postgres_url

__all__ = ["databases", "empty_postgres_url", "migrated_template", "postgres_url"]

# A busy machine draws slowly; that is no fault of the code under test.
settings.register_profile("concertina", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("concertina")


@pytest.fixture(scope="session", autouse=True)
def freezing_once() -> Iterator[None]:
    """Each application freezes what it finds, for the garbage collector to pass over. In a process that runs hundreds
    of them only the first may, or what they leave behind would never be collected."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(gc, "freeze", functools.cache(gc.freeze))
        yield


@pytest.fixture(scope="module", autouse=True)
def giving_back() -> Iterator[None]:
    """What large tests have freed goes back to the system: glibc keeps hundreds of megabytes of it, in pieces."""
    yield
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        gc.collect()
        trim(0)
