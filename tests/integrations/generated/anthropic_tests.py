"""A pytest plugin for the tests of the `anthropic` package that are generated from Anthropic's specification.

Those tests send placeholders to a mock server that answers anything. This plugin stands in the place of the package's
own `conftest.py`, which needs packages that these tests do not use, and changes in each request what no gateway can
answer: the names of models. `RUNS` has the tests that need more than that, as in `generated_tests`.

Environment: `TEST_API_BASE_URL`.
"""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Generator, Iterator, Mapping
from typing import Any, Final, cast

import anthropic
import pytest
from generated_tests import Run  # type: ignore[import-not-found]  # both are plugins, in a folder of their own

MODEL: Final = "sim-8k"
PLACEHOLDER_PATH: Final = "/v1/models/model_id"
CHANGED: Final = Run("with a model that is there")
ALL_FIELDS: Final = [
    Run("refused", refused="inference_geo", without=("thread", "compaction")),
    Run("changed", without=("thread", "compaction", "inference_geo")),
]
"""The test sends every field. The provider behind has no `inference_geo`, the gateway holds no threads, and
`compaction` cannot be combined with `context_management`."""
RUNS: Final[Mapping[str, list[Run]]] = {
    **{f"test_method_create_with_all_params_overload_{n}": ALL_FIELDS for n in (1, 2)},
}


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    runs = RUNS.get(metafunc.function.__name__, [CHANGED])
    metafunc.parametrize("run", runs, ids=lambda run: run.id, indirect=True)


@pytest.fixture(autouse=True)
def run(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Run:
    """Prepares both clients for the test."""
    chosen: Run = request.param
    prepare, prepare_async = anthropic.Anthropic._prepare_options, anthropic.AsyncAnthropic._prepare_options

    def change(options: Any) -> Any:
        chosen.change(options)
        if isinstance(options.json_data, dict):
            options.json_data = {**options.json_data, "model": MODEL}
        options.url = options.url.replace(PLACEHOLDER_PATH, f"/v1/models/{MODEL}")
        return options

    async def prepare_changed_async(client: Any, options: Any) -> Any:
        return change(await prepare_async(client, options))

    monkeypatch.setattr(anthropic.Anthropic, "_prepare_options", lambda c, options: change(prepare(c, options)))
    monkeypatch.setattr(anthropic.AsyncAnthropic, "_prepare_options", prepare_changed_async)
    return chosen


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Function) -> Generator[None, None, None]:
    refused = cast(Run, item.callspec.params["run"]).refused
    try:
        yield
    except (anthropic.BadRequestError, anthropic.NotFoundError) as error:
        if refused is None:
            raise
        assert refused in error.message, f"refused for another reason: {error}"
        assert set(cast(dict[str, Any], error.body)) == {"type", "error", "request_id"}
    else:
        assert refused is None, "the gateway refuses this no longer"


@pytest.fixture
def client(request: pytest.FixtureRequest) -> Iterator[anthropic.Anthropic]:
    with anthropic.Anthropic(**make_options(request)) as made:
        yield made


@pytest.fixture
async def async_client(request: pytest.FixtureRequest) -> AsyncIterator[anthropic.AsyncAnthropic]:
    async with anthropic.AsyncAnthropic(**make_options(request)) as made:
        yield made


def make_options(request: pytest.FixtureRequest) -> dict[str, Any]:
    chosen: Any = getattr(request, "param", True)
    options = chosen if isinstance(chosen, dict) else {"strict": chosen}
    if "http_client" in options:
        pytest.skip("the client over aiohttp is the same client")
    return {
        "base_url": os.environ["TEST_API_BASE_URL"],
        "api_key": "sk-any",
        "max_retries": 0,
        "_strict_response_validation": options.get("strict", True),
    }
