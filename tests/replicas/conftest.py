"""A fleet that the tests of a module share, as each of them finds it."""

from __future__ import annotations

import pytest

from tests.replicas.fleet import Fleet


@pytest.fixture
def replicas(shared: Fleet) -> Fleet:
    shared.model.forget()
    return shared
