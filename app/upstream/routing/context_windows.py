"""Finds how many tokens a deployment takes: its context window, from the best source.

The sources in order: configuration, the provider's own model list, a limit learned from an overflow, the registry of
known models, and a default. The default is small on purpose: a window that is thought too small costs an early summary,
one that is thought too large a refused call. A learned limit never lowers a configured window. If it is smaller than
the list's number, it wins: lists name what a model can take, not what the host behind a router takes.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from app.conversation.names import is_valid_name
from app.errors import UpstreamUnavailable
from app.upstream.provider_contract import ClientKey, ContextWindow, ModelDeployment, UpstreamProvider
from app.upstream.routing import known_model_windows
from app.upstream.routing.learned_limits import LearnedLimits, is_plausible_window

log = logging.getLogger(__name__)

DEFAULT_WINDOW_TOKENS = 8192

LIST_WAIT_SECONDS = 2.0
"""All requests together wait no longer than this for a provider's first model list."""
LIST_CACHE_SECONDS = 600.0
LIST_RETRY_SECONDS = 60.0
"""How long no list is fetched after a failure."""

_SERVED_WINDOW_FIELDS = ("max_model_len", "n_ctx", "loaded_context_length")
"""The window as it is served now: vLLM and SGLang, llama.cpp, LM Studio."""
_ADVERTISED_WINDOW_FIELDS = (
    "context_window",
    "context_length",
    "max_context_length",
    "context_size",
    "max_context_window_tokens",
    "max_input_tokens",
    "inputTokenLimit",
)
"""The window as it is advertised: Groq, OpenRouter and Together, Mistral, Novita, Copilot, Anthropic, Gemini."""
_TRAINED_WINDOW_FIELDS = ("n_ctx_train",)
"""llama.cpp's number for the model file; the served window may be smaller."""
_MAX_OUTPUT_FIELDS = ("max_completion_tokens", "max_output_tokens", "max_output_length", "outputTokenLimit")
_NESTED_OBJECTS = ("top_provider", "meta", "limits", "capabilities", "model_spec")
"""Objects inside an entry that have the same fields."""


class ContextWindows:
    """Context windows of deployments.

    Args:
        learned_limits: limits learned from overflows.
        default_tokens: for an unknown model.
        list_wait_seconds: see `LIST_WAIT_SECONDS`.
        find_known: the registry of known models: context window, longest prompt, longest answer.
        clock: monotonic seconds.
    """

    def __init__(
        self,
        learned_limits: LearnedLimits,
        *,
        default_tokens: int = DEFAULT_WINDOW_TOKENS,
        list_wait_seconds: float = LIST_WAIT_SECONDS,
        find_known: Callable[[str], tuple[int, int | None, int | None] | None] = known_model_windows.find_known_window,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._learned_limits = learned_limits
        self._default_tokens = default_tokens
        self._list_wait_seconds = list_wait_seconds
        self._find_known = find_known
        self._clock = clock
        self._model_lists: dict[str, _ProviderModelList] = {}

    async def find_window(self, deployment: ModelDeployment, client_key: ClientKey | None = None) -> ContextWindow:
        """Returns the window of a deployment.

        Args:
            deployment: the model at its provider.
            client_key: for the model list of a provider without its own key, if that provider may see it.
        """
        if deployment.context_window is not None:
            return ContextWindow(deployment.context_window, "config", deployment.max_output_tokens)
        limit = self._learned_limits.find_limit(deployment.key)
        provider = deployment.provider
        model_list = self._find_or_add_model_list(provider)
        await model_list.refresh(None if client_key is None else client_key.disclose_to_provider(provider))
        listed_window = model_list.find_window(deployment)
        # A derived number is too weak a reason to change what other tenants' models see.
        learned_tokens = limit.tokens if limit is not None and limit.is_stated else None
        if listed_window is not None:
            return listed_window if learned_tokens is None else listed_window.apply_limit(learned_tokens)
        known_window = self._find_known(deployment.upstream_model)
        context, max_input, max_output = known_window or (self._default_tokens, None, None)
        source = "registry" if known_window else "default"
        window = ContextWindow(context, source, deployment.max_output_tokens or max_output, max_input)
        if learned_tokens is None:
            return window
        return ContextWindow(learned_tokens, "learned", window.max_output_tokens, without_limit=window)

    def prefetch_model_lists(self, providers: Iterable[UpstreamProvider]) -> None:
        """Starts to fetch the model lists of providers, so that no request waits for them. A provider that needs the
        client's key is asked again when a request brings one.
        """
        for provider in providers:
            self._find_or_add_model_list(provider).start_fetch_if_stale(None)

    async def aclose(self) -> None:
        """Stops fetching."""
        for model_list in self._model_lists.values():
            await model_list.aclose()

    def _find_or_add_model_list(self, provider: UpstreamProvider) -> _ProviderModelList:
        if provider.name not in self._model_lists:
            self._model_lists[provider.name] = _ProviderModelList(provider, self._list_wait_seconds, self._clock)
        return self._model_lists[provider.name]


class _ProviderModelList:
    """One provider's model list: fetched in the background, valid for a while, awaited at most once."""

    def __init__(self, provider: UpstreamProvider, wait_seconds: float, clock: Callable[[], float]) -> None:
        self._provider = provider
        self._wait_seconds = wait_seconds
        self._clock = clock
        self._limits: dict[str, tuple[int | None, int | None]] = {}
        """The window and the longest answer of each model, as far as the list has them."""
        self._next_fetch_at = float("-inf")
        self._has_failed_without_key = False
        self._wait_deadline: float | None = None
        self._fetch_task: asyncio.Task[None] | None = None

    async def refresh(self, authorization: str | None) -> None:
        """Fetches the list if it is out of date. Waits for a running fetch; all requests together wait at most
        `wait_seconds` from the first wait.
        """
        self.start_fetch_if_stale(authorization)
        if self._fetch_task is None or self._fetch_task.done():
            return
        if self._wait_deadline is None:
            self._wait_deadline = self._clock() + self._wait_seconds
        remaining = self._wait_deadline - self._clock()
        if remaining > 0:
            await asyncio.wait({self._fetch_task}, timeout=remaining)

    def start_fetch_if_stale(self, authorization: str | None) -> None:
        """Starts a fetch, unless one is running or the last result is still valid. A failure without a client's key
        does not bar the first client that brings one.
        """
        is_fetching = self._fetch_task is not None and not self._fetch_task.done()
        worth_another_try = self._has_failed_without_key and authorization is not None
        if not is_fetching and (self._clock() >= self._next_fetch_at or worth_another_try):
            self._fetch_task = asyncio.get_running_loop().create_task(self._fetch_list(authorization))

    def find_window(self, deployment: ModelDeployment) -> ContextWindow | None:
        """Returns what the list says of a deployment. A server with a single model is taken to serve it under any
        name."""
        model = deployment.upstream_model
        only_limits = next(iter(self._limits.values())) if len(self._limits) == 1 else (None, None)
        tokens, max_output = self._limits.get(model) or self._limits.get(model.lower()) or only_limits
        if tokens is None:
            return None
        return ContextWindow(tokens, "upstream", deployment.max_output_tokens or max_output)

    async def aclose(self) -> None:
        if self._fetch_task is not None:
            self._fetch_task.cancel()
            await asyncio.gather(self._fetch_task, return_exceptions=True)

    async def _fetch_list(self, authorization: str | None) -> None:
        # Set first: whatever happens below, the next request must not fetch again at once.
        self._next_fetch_at = self._clock() + LIST_RETRY_SECONDS
        try:
            self._limits = _read_limits(await self._provider.list_models(authorization))
        except UpstreamUnavailable as error:
            log.info("could not read the model list of provider %r: %s", self._provider.name, error.message)
            self._has_failed_without_key = authorization is None
            return
        self._has_failed_without_key = False
        self._next_fetch_at = self._clock() + LIST_CACHE_SECONDS


def _read_limits(entries: Sequence[Mapping[str, Any]]) -> dict[str, tuple[int | None, int | None]]:
    """Returns the window and the longest answer of each model of a list."""
    limits = {}
    for entry in entries:
        name = entry.get("id") or entry.get("name")
        if isinstance(name, str) and is_valid_name(name):
            max_output = min(_collect_plausible_numbers(entry, _MAX_OUTPUT_FIELDS), default=None)
            limits[name.removeprefix("models/")] = (_parse_window_tokens(entry), max_output)
    return limits


def _parse_window_tokens(entry: Mapping[str, Any]) -> int | None:
    """Returns the window of a list's entry: as served, else as advertised, else as trained. Of several numbers of one
    kind the smallest counts: a router's best host may take less than the model could.
    """
    for names in (_SERVED_WINDOW_FIELDS, _ADVERTISED_WINDOW_FIELDS, _TRAINED_WINDOW_FIELDS):
        if numbers := _collect_plausible_numbers(entry, names):
            return min(numbers)
    return None


def _collect_plausible_numbers(entry: Mapping[str, Any], names: Sequence[str]) -> list[int]:
    numbers = [entry[name] for name in names if name in entry]
    for within in _NESTED_OBJECTS:
        inner = entry.get(within)
        if isinstance(inner, dict):
            numbers.extend(_collect_plausible_numbers(inner, names))
    return [number for number in numbers if is_plausible_window(number)]
