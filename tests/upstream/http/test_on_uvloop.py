"""What holds of calls to providers on asyncio's own loop holds on the one that the gateway runs on."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Coroutine
from types import ModuleType
from typing import Any

import pytest
import uvloop

from tests.upstream.http import test_http_client
from tests.upstream.protocols import test_openai


def of(module: ModuleType) -> list[Callable[[], Coroutine[Any, Any, None]]]:
    """The tests of a module that need nothing but a loop."""
    functions = [function for name, function in vars(module).items() if name.startswith("test_")]
    return [each for each in functions if inspect.iscoroutinefunction(each) and not inspect.signature(each).parameters]


@pytest.mark.parametrize("test", [*of(test_http_client), *of(test_openai)], ids=lambda test: test.__name__)
def test_it_is_so_on_uvloop(test: Callable[[], Coroutine[Any, Any, None]]) -> None:
    uvloop.run(test())
