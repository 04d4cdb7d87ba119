"""Where the size of a context window is known from."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from app.errors import UpstreamUnavailable
from app.upstream.provider_contract import ClientKey, ContextWindow, ModelDeployment
from app.upstream.routing import known_model_windows
from app.upstream.routing.context_windows import ContextWindows
from app.upstream.routing.learned_limits import LearnedLimits
from tests.upstream.scripted_provider import ScriptedProvider, Time

SHORT_WAIT_SECONDS = 0.02


def provider(*entries: dict[str, Any]) -> ScriptedProvider:
    made = ScriptedProvider("p")
    made.listed = list(entries)
    return made


def windows(learned: dict[str, int] | None = None, time: Time | None = None, **more: Any) -> ContextWindows:
    clock = (time or Time()).clock
    limits = LearnedLimits({}, now=clock)
    for key, tokens in (learned or {}).items():
        limits.learn(key, tokens)
    return ContextWindows(limits, clock=clock, default_tokens=5000, **more)


async def test_configuration_comes_first_and_asks_nobody() -> None:
    listed = provider({"id": "gpt-4o", "context_window": 1000})

    window = await windows().find_window(ModelDeployment(listed, "gpt-4o", context_window=9000, max_output_tokens=7))

    assert window == ContextWindow(9000, "config", 7)
    assert listed.list_asked == 0


async def test_then_comes_the_providers_own_list() -> None:
    window = await windows().find_window(ModelDeployment(provider({"id": "gpt-4o", "max_model_len": 32768}), "gpt-4o"))

    assert window == ContextWindow(32768, "upstream")


async def test_then_what_an_overflow_taught() -> None:
    window = await windows({"p/gpt-4o": 9999}).find_window(
        ModelDeployment(provider({"id": "gpt-4o"}, {"id": "x"}), "gpt-4o")
    )

    assert (window.tokens, window.source) == (9999, "learned")


async def test_then_the_registry() -> None:
    window = await windows().find_window(ModelDeployment(provider(), "openai/gpt-4o-2024-08-06"))

    assert window == ContextWindow(128_000, "registry", 16_384)


async def test_and_at_last_a_stated_default() -> None:
    assert await windows().find_window(ModelDeployment(provider(), "nobody-knows-it")) == ContextWindow(5000, "default")


@pytest.mark.parametrize("taught", [4096, 9000])
async def test_what_was_taught_never_changes_a_configured_window(taught: int) -> None:
    deployment = ModelDeployment(provider(), "m", context_window=8000, max_output_tokens=7)

    assert await windows({"p/m": taught}).find_window(deployment) == ContextWindow(8000, "config", 7)


async def test_a_window_that_was_taught_names_the_one_that_is_known_without_it() -> None:
    window = await windows({"p/gpt-4o": 9000}).find_window(ModelDeployment(provider(), "gpt-4o"))

    assert window.without_limit == ContextWindow(128_000, "registry", 16_384)


async def test_a_derived_limit_changes_no_window() -> None:
    limits = LearnedLimits({}, now=Time().clock)
    limits.learn("p/gpt-4o", 9000, is_stated=False)
    known = ContextWindows(limits, clock=Time().clock)

    assert (await known.find_window(ModelDeployment(provider(), "gpt-4o"))).source == "registry"


@pytest.mark.parametrize(("taught", "source"), [(4096, "learned"), (9000, "upstream")])
async def test_what_was_taught_wins_over_the_list_only_where_it_is_smaller(taught: int, source: str) -> None:
    deployment = ModelDeployment(provider({"id": "m", "context_length": 8000}), "m")

    assert (await windows({"p/m": taught}).find_window(deployment)).source == source


@pytest.mark.parametrize(
    ("entry", "tokens", "max_output"),
    [
        ({"max_model_len": 4096}, 4096, None),
        ({"context_length": 131072}, 131072, None),
        ({"context_window": 131072, "max_completion_tokens": 8192}, 131072, 8192),
        ({"max_context_length": 32768}, 32768, None),
        ({"max_context_length": 32768, "loaded_context_length": 4096}, 4096, None),
        ({"meta": {"n_ctx_train": 131072}}, 131072, None),
        ({"meta": {"n_ctx_train": 131072, "n_ctx": 8192}}, 8192, None),
        (
            {"context_length": 200000, "top_provider": {"context_length": 131072, "max_completion_tokens": 9000}},
            131072,
            9000,
        ),
        ({"context_length": 8000, "top_provider": {"context_length": None}}, 8000, None),
        ({"capabilities": {"limits": {"max_context_window_tokens": 64000, "max_output_tokens": 4096}}}, 64000, 4096),
        ({"inputTokenLimit": 1048576, "outputTokenLimit": 8192}, 1048576, 8192),
    ],
)
async def test_every_servers_field_for_it_is_understood(
    entry: dict[str, Any], tokens: int, max_output: int | None
) -> None:
    window = await windows().find_window(ModelDeployment(provider({"id": "m", **entry}, {"id": "other"}), "m"))

    assert window == ContextWindow(tokens, "upstream", max_output)


@pytest.mark.parametrize("value", ["4096", None, True, 0, -1, 4096.5, 10**15, {}])
async def test_nonsense_in_a_list_is_not_believed(value: object) -> None:
    assert (
        await windows().find_window(ModelDeployment(provider({"id": "m", "context_length": value}), "m"))
    ).source == "default"


async def test_a_server_of_one_model_serves_it_under_any_name() -> None:
    window = await windows().find_window(ModelDeployment(provider({"id": "/models/x.gguf", "n_ctx": 2048}), "whatever"))

    assert window.tokens == 2048


async def test_another_models_window_is_not_taken() -> None:
    entries = ({"id": "a", "n_ctx": 2048}, {"id": "b", "n_ctx": 4096})

    assert (await windows().find_window(ModelDeployment(provider(*entries), "c"))).source == "default"


async def test_a_name_with_geminis_prefix_is_found() -> None:
    entries = ({"id": "models/m", "inputTokenLimit": 9000}, {"id": "models/n"})

    assert (await windows().find_window(ModelDeployment(provider(*entries), "m"))).tokens == 9000


async def test_a_list_is_fetched_once_for_all_requests() -> None:
    listed = provider({"id": "m", "n_ctx": 4096})
    known = windows()

    found = await asyncio.gather(*(known.find_window(ModelDeployment(listed, "m")) for _ in range(10)))
    found += [await known.find_window(ModelDeployment(listed, "n"))]

    assert {window.tokens for window in found} == {4096}
    assert listed.list_asked == 1


async def test_a_list_that_is_not_fresh_is_used_while_a_new_one_is_fetched() -> None:
    listed, time = provider({"id": "m", "n_ctx": 4096}), Time()
    known = windows(time=time)
    assert (await known.find_window(ModelDeployment(listed, "m"))).tokens == 4096

    listed.listed, listed.list_gate = [{"id": "m", "n_ctx": 8192}], asyncio.Event()
    time.now += 601
    assert (await known.find_window(ModelDeployment(listed, "m"))).tokens == 4096
    listed.list_gate.set()
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert (await known.find_window(ModelDeployment(listed, "m"))).tokens == 8192
    assert listed.list_asked == 2


async def test_a_failure_is_remembered_for_a_while() -> None:
    listed, time = provider(), Time()
    listed.listed = UpstreamUnavailable("no list")
    known = windows(time=time)

    for _ in range(3):
        assert (await known.find_window(ModelDeployment(listed, "m"))).source == "default"
    assert listed.list_asked == 1
    time.now += 61
    listed.listed = [{"id": "m", "n_ctx": 4096}]
    await known.find_window(ModelDeployment(listed, "m"))
    await asyncio.sleep(0)
    assert (await known.find_window(ModelDeployment(listed, "m"))).tokens == 4096


async def test_a_list_that_wants_the_clients_key_is_asked_again_with_it() -> None:
    listed = provider()
    listed.listed = UpstreamUnavailable("401")
    known = windows()
    known.prefetch_model_lists([listed])
    assert (await known.find_window(ModelDeployment(listed, "m"))).source == "default"
    listed.listed = [{"id": "m", "n_ctx": 4096}]
    assert (await known.find_window(ModelDeployment(listed, "m"), ClientKey("Bearer theirs", "p"))).tokens == 4096
    assert listed.list_asked == 2


async def test_a_request_without_a_key_waits_for_the_fetch_that_anothers_key_has_started() -> None:
    listed = provider()
    listed.listed = UpstreamUnavailable("401")
    known = windows()
    assert (await known.find_window(ModelDeployment(listed, "m"))).source == "default"
    listed.listed, listed.list_gate = [{"id": "m", "n_ctx": 4096}], asyncio.Event()
    with_key = asyncio.ensure_future(known.find_window(ModelDeployment(listed, "m"), ClientKey("Bearer theirs", "p")))
    await asyncio.sleep(0)
    without_key = asyncio.ensure_future(known.find_window(ModelDeployment(listed, "m")))
    await asyncio.sleep(0)
    listed.list_gate.set()
    assert [(await one).tokens for one in (with_key, without_key)] == [4096, 4096]


async def test_a_key_that_is_not_meant_for_a_provider_is_no_reason_to_ask_for_its_list_again() -> None:
    listed = provider()
    listed.listed = UpstreamUnavailable("401")
    known = windows()
    for _ in range(3):
        await known.find_window(ModelDeployment(listed, "m"), ClientKey("Bearer theirs", "another"))
    assert listed.list_asked == 1


async def test_a_slow_list_delays_requests_once_and_shortly() -> None:
    listed, time = provider({"id": "m", "n_ctx": 4096}), Time()
    listed.list_gate = asyncio.Event()
    known = windows(time=time, list_wait_seconds=SHORT_WAIT_SECONDS)

    async with asyncio.timeout(5):
        first = await asyncio.gather(*(known.find_window(ModelDeployment(listed, "m")) for _ in range(5)))
    assert {window.source for window in first} == {"default"}

    time.now += 1
    later = asyncio.ensure_future(known.find_window(ModelDeployment(listed, "m")))
    await asyncio.sleep(0)
    assert later.done()
    listed.list_gate.set()
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert (await known.find_window(ModelDeployment(listed, "m"))).tokens == 4096
    await known.aclose()


async def test_a_list_that_never_comes_does_not_outlive_the_service() -> None:
    listed = provider()
    listed.list_gate = asyncio.Event()
    known = windows(list_wait_seconds=SHORT_WAIT_SECONDS)
    known.prefetch_model_lists([listed])
    await asyncio.sleep(0)
    assert listed.list_asked == 1

    await known.aclose()
    assert [task for task in asyncio.all_tasks() if task is not asyncio.current_task()] == []


@pytest.mark.parametrize(
    ("name", "same_as"),
    [
        ("GPT-4o", "gpt-4o"),
        ("openai/gpt-4o", "gpt-4o"),
        ("openrouter/openai/gpt-4o:extended", "gpt-4o"),
        ("gpt-4o-2099-01-31", "gpt-4o"),
        ("gpt-4-9999", "gpt-4"),
        ("us.anthropic.claude-sonnet-4-5-20250929-v1:0", "claude-sonnet-4-5"),
        ("claude-sonnet-4-5@20250929", "claude-sonnet-4-5"),
        ("models/gemini-2.5-flash", "gemini-2.5-flash"),
        ("meta-llama/Llama-3.3-70B-Instruct", "llama-3.3-70b-instruct"),
    ],
)
def test_names_are_known_with_prefixes_dates_and_versions(name: str, same_as: str) -> None:
    assert known_model_windows.find_known_window(name) == known_model_windows.find_known_window(same_as) is not None


@pytest.mark.parametrize("name", ["", "/", "-2024-01-01", "gpt", "sim-8k", "x" * 100_000, "ü/ö:ä"])
def test_other_names_are_not_guessed_at(name: str) -> None:
    assert known_model_windows.find_known_window(name) is None


@pytest.mark.parametrize(
    ("name", "limits"),
    [
        ("gpt-4o", (128_000, None, 16_384)),
        ("gpt-5", (400_000, 272_000, 128_000)),
        ("gemini-2.5-pro", (1_048_576, None, 65_536)),
    ],
)
def test_well_known_models_have_the_limits_that_their_makers_state(
    name: str, limits: tuple[int, int | None, int]
) -> None:
    assert known_model_windows.find_known_window(name) == limits


def test_the_table_is_small_and_sane() -> None:
    assert known_model_windows.WINDOW_TABLE_PATH.stat().st_size < 60_000
    for name in ("gpt-4.1", "o3", "deepseek-chat", "mistral-large-latest", "grok-4", "qwen3-32b"):
        limits = known_model_windows.find_known_window(name)
        assert limits is not None
        context, max_input, max_output = limits
        assert 30_000 <= context <= 2_000_000
        assert max_input is None or max_input < context
        assert max_output is None or max_output < context
