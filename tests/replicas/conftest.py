"""A fleet that the tests of a module share, as each of them finds it, and a PostgreSQL for those that pool it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.faults.servers import Database
from tests.replicas.fleet import Fleet


@pytest.fixture
def replicas(shared: Fleet) -> Fleet:
    shared.model.forget()
    return shared


@pytest.fixture(scope="module")
def server() -> Iterator[Database]:
    made = Database()
    try:
        made.start()
        yield made
    finally:
        made.remove()
