"""A pytest plugin for the tests of the `openai` package that are generated from OpenAI's specification.

Those tests send placeholders to a mock server that answers anything. A gateway answers only what makes sense, so this
plugin says for each test how it is run; the test's own code and its assertions stay as they are. There are three ways:

- *as it is*: the request is sent unchanged. A placeholder id in its path is that of a response that exists: before each
  test a response is created through the gateway, and its row in the database gets the placeholder as its id.
- *refused*: the request is sent unchanged, and the gateway answers with a documented error, whose `param` (or, if the
  error has none, a part of whose message) the table names.
- *changed*: what the gateway refuses is changed in the request, and the test must pass.

A test that the table does not name runs as it is, and must pass.

Environment: `TEST_API_BASE_URL`, `TEST_DATABASE` (the gateway's SQLite file).
"""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Generator, Mapping
from contextlib import closing
from dataclasses import dataclass, field
from typing import Any, Final, cast

import openai
import pytest
from openai.types.responses import Response

MODEL: Final = "sim-8k"
PLACEHOLDER_IDS: Final = ("resp_677efb5139a88190b512bc3fef8e535d", "resp_123")
"""The ids of responses in the tests. `response_id` and `previous_response_id` are none: they lack OpenAI's prefix."""
NEW_TEXT: Final[Mapping[str, Any]] = {"model": MODEL, "input": "The archive has locker code 7741."}
SEEDED_PATH: Final = "/responses/resp_123/input_items"
LATER: Final = ("background", "background_options", "prompt")
"""Fields of a request that the gateway refuses until it can do what they ask for."""
ANSWERED: Final[Mapping[str, Any]] = {"model": MODEL, "prompt_cache_options": {"mode": "implicit", "ttl": "30m"}}
"""A request that is answered. `prewarm` asks for no answer, and a provider of Chat Completions cannot do that."""


@dataclass(frozen=True)
class Run:
    """How a test is run."""

    id: str
    refused: str | None = None
    """`param` of the error that the gateway must answer with, or a part of the error's message."""
    body: Mapping[str, Any] = field(default_factory=dict)
    """Fields of the body that get another value."""
    query: Mapping[str, Any] = field(default_factory=dict)
    """Parameters of the query that get another value."""
    without: tuple[str, ...] = ()
    """Fields of the body and parameters of the query that are left out."""
    path: str | None = None

    def change(self, options: Any) -> None:
        """Changes the client's request options in place."""
        if isinstance(options.json_data, dict):
            options.json_data = {k: v for k, v in {**options.json_data, **self.body}.items() if k not in self.without}
        if self.query or self.without:
            options.params = {k: v for k, v in {**options.params, **self.query}.items() if k not in self.without}
        options.url = self.path or options.url


AS_IS: Final = Run("as it is")
EMPTY_REQUEST: Final = [Run("refused", refused="model"), Run("changed", body=NEW_TEXT)]
"""The test sends no field. OpenAI needs none if a prompt template names the model; templates come later."""
ALL_FIELDS: Final = [
    Run("refused", refused="background"),
    Run("refused without background", refused="prompt", without=("background",)),
    Run("refused without prompt", refused="previous_response_id", without=("background", "prompt")),
    Run(
        "refused in a conversation",
        refused="prompt_cache_options.prewarm",
        body={"model": MODEL},
        without=(*LATER, "previous_response_id"),
    ),
    Run("in a conversation", body=ANSWERED, without=(*LATER, "previous_response_id")),
    Run(
        "after a response",
        body={**ANSWERED, "previous_response_id": "resp_123"},
        without=(*LATER, "conversation"),
    ),
]
"""The test sends every field: also those that come later, two states, of which OpenAI allows one, and `prewarm`."""
REPLAY: Final = [Run("refused", refused="stream")]
"""The replay of a stored response as a stream comes later; there is nothing to change it to."""
COMPACT: Final = [
    Run(
        "changed",
        body={"model": MODEL, "input": [{"role": "assistant", "content": "The archive has locker code 7741."}]},
        without=("previous_response_id",),
    )
]
"""The test names no input. What users said comes back word for word, which the types of the output do not have."""
UNKNOWN_ID: Final = [Run("refused", refused="response_id"), Run("changed", path=SEEDED_PATH)]

RUNS: Final[Mapping[str, list[Run]]] = {
    **{f"test_{kind}_create_overload_{n}": EMPTY_REQUEST for kind in ("method", "raw_response") for n in (1, 2)},
    **{f"test_streaming_response_create_overload_{n}": EMPTY_REQUEST for n in (1, 2)},
    **{f"test_method_create_with_all_params_overload_{n}": ALL_FIELDS for n in (1, 2)},
    "test_method_retrieve_with_all_params_overload_1": [
        Run("refused", refused="starting_after"),
        Run("changed", without=("starting_after",)),
    ],
    "test_method_retrieve_overload_2": REPLAY,
    "test_method_retrieve_with_all_params_overload_2": REPLAY,
    "test_raw_response_retrieve_overload_2": REPLAY,
    "test_streaming_response_retrieve_overload_2": REPLAY,
    # Only a response in the background can be cancelled, here as with OpenAI; and that comes later.
    "test_method_cancel": [Run("refused", refused="Cannot cancel a synchronous response")],
    "test_raw_response_cancel": [Run("refused", refused="Cannot cancel a synchronous response")],
    "test_streaming_response_cancel": [Run("refused", refused="Cannot cancel a synchronous response")],
    "test_method_compact": COMPACT,
    "test_method_compact_with_all_params": COMPACT,
    "test_raw_response_compact": COMPACT,
    "test_streaming_response_compact": COMPACT,
    "test_method_list": UNKNOWN_ID,
    "test_raw_response_list": UNKNOWN_ID,
    "test_streaming_response_list": UNKNOWN_ID,
    "test_method_list_with_all_params": [
        Run("refused", refused="limit"),
        Run("changed", query={"limit": 1}, without=("after",), path=SEEDED_PATH),
    ],
    "test_method_count": EMPTY_REQUEST,
    "test_raw_response_count": EMPTY_REQUEST,
    "test_streaming_response_count": EMPTY_REQUEST,
    "test_method_count_with_all_params": [
        Run("refused", refused="previous_response_id"),
        Run("in a conversation", body={"model": MODEL}, without=("previous_response_id",)),
        Run("after a response", body={"model": MODEL}, without=("conversation",)),
    ],
}


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    name = metafunc.function.__name__
    metafunc.parametrize("run", RUNS.get(name, [AS_IS]), ids=lambda run: run.id, indirect=True)


@pytest.fixture(autouse=True)
def run(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Run:
    """Prepares the database and both clients for the test."""
    chosen: Run = request.param
    prepare, prepare_async = openai.OpenAI._prepare_options, openai.AsyncOpenAI._prepare_options

    def prepare_changed(client: Any, options: Any) -> Any:
        prepared = prepare(client, options)
        chosen.change(prepared)
        return prepared

    async def prepare_changed_async(client: Any, options: Any) -> Any:
        prepared = await prepare_async(client, options)
        chosen.change(prepared)
        return prepared

    for placeholder in PLACEHOLDER_IDS:
        seed_response(placeholder)
    monkeypatch.setattr(openai.OpenAI, "_prepare_options", prepare_changed)
    monkeypatch.setattr(openai.AsyncOpenAI, "_prepare_options", prepare_changed_async)
    return chosen


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Function) -> Generator[None, None, None]:
    refused = cast(Run, item.callspec.params["run"]).refused
    try:
        yield
    except (openai.BadRequestError, openai.NotFoundError) as error:
        if refused is None:
            raise
        assert refused == error.param or refused in error.message, f"refused for another reason: {error}"
        assert set(cast(dict[str, Any], error.body)) == {"message", "type", "param", "code"}
    else:
        assert refused is None, "the gateway refuses this no longer"


def seed_response(response_id: str) -> None:
    """Makes sure that there is a response with this id."""
    with closing(sqlite3.connect(os.environ["TEST_DATABASE"], timeout=30)) as database, database:
        if database.execute("SELECT 1 FROM completions WHERE id = ?", (response_id,)).fetchone() is None:
            database.execute("UPDATE completions SET id = ? WHERE id = ?", (response_id, create_response()))


def create_response() -> str:
    with openai.OpenAI(base_url=os.environ["TEST_API_BASE_URL"], api_key="My API Key", max_retries=0) as client:
        created: Response = client.responses.create(**NEW_TEXT)
    return created.id
