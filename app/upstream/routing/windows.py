"""How many tokens a deployment takes: what is known of its context window, from the best source there is.

First found: configuration, the provider's own model list, what an overflow taught, the registry of known models, and
at last a default that is deliberately small: a window that is thought too small costs an early summary, one that is
thought too large costs a refused call. What an overflow taught is the provider's own word, so where it is smaller than
configuration or the list it wins over both.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from app.errors import UpstreamUnavailable
from app.upstream.provider import ClientKey, Deployment, Provider, Window
from app.upstream.routing import window_registry

log = logging.getLogger(__name__)

DEFAULT_WINDOW_TOKENS = 8192

_SMALLEST_TOKENS = 256
_LARGEST_TOKENS = 100_000_000
_MOST_WINDOWS = 1_000
"""Of so many models of one list it is remembered what it says: clients may ask for any name."""

_SERVED = ("max_model_len", "n_ctx", "loaded_context_length")
"""The window as it is served now: vLLM and SGLang, llama.cpp, LM Studio."""
_STATED = (
    "context_window",
    "context_length",
    "max_context_length",
    "context_size",
    "max_context_window_tokens",
    "max_input_tokens",
    "inputTokenLimit",
)
"""The window as it is advertised: Groq, OpenRouter and Together, Mistral, Novita, Copilot, Anthropic, Gemini."""
_TRAINED = ("n_ctx_train",)
"""llama.cpp says it of the model file; what is served may be less."""
_OUTPUT = ("max_completion_tokens", "max_output_tokens", "max_output_length", "outputTokenLimit")
_WITHIN = ("top_provider", "meta", "limits", "capabilities", "model_spec")
"""Objects inside an entry that hold the same fields."""


@dataclass(frozen=True, slots=True)
class ListPolicy:
    """How model lists are fetched: `wait_seconds` is the most that a request ever waits for one, `fresh_seconds` how
    long one is believed, `failed_seconds` how long after a failure none is asked for."""

    wait_seconds: float = 2.0
    fresh_seconds: float = 600.0
    failed_seconds: float = 60.0


class Windows:
    """Context windows of deployments.

    Args:
        learned: limits that overflows have taught, by `Deployment.key`.
        default_tokens: for a model of which nothing is known.
        known: the registry of known models: context window, longest prompt, longest answer.
        clock: monotonic seconds.
    """

    def __init__(
        self,
        learned: Mapping[str, int] | None = None,
        *,
        default_tokens: int = DEFAULT_WINDOW_TOKENS,
        lists: ListPolicy | None = None,
        known: Callable[[str], tuple[int, int | None, int | None] | None] = window_registry.find,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._learned = {key: tokens for key, tokens in (learned or {}).items() if _is_plausible(tokens)}
        self._default_tokens = default_tokens
        self._lists = lists or ListPolicy()
        self._known = known
        self._clock = clock
        self._listings: dict[str, _Listing] = {}

    async def of(self, deployment: Deployment, client_key: ClientKey | None = None) -> Window:
        """The window of a deployment.

        Args:
            client_key: for the model list of a provider without a key of ours, if that may see it.
        """
        if deployment.context_window is not None:
            return self._least(deployment, Window(deployment.context_window, "config", deployment.max_output_tokens))
        listing = self._listing(deployment.provider)
        listing.refresh(None if client_key is None else client_key.show_to(deployment.provider))
        if listing.is_awaited:
            await listing.settle()
        listed = listing.window(deployment)
        if listed is not None:
            return self._least(deployment, listed)
        known = self._known(deployment.upstream_model)
        context, max_input, max_output = known or (self._default_tokens, None, None)
        taught = self._learned.get(deployment.key)
        if taught is not None:
            return Window(taught, "learned", deployment.max_output_tokens or max_output)
        source = "registry" if known else "default"
        return Window(context, source, deployment.max_output_tokens or max_output, max_input)

    def learned(self, key: str, tokens: int) -> bool:
        """Take note of a limit that an overflow stated; whether it is news."""
        if not _is_plausible(tokens) or self._learned.get(key) == tokens:
            return False
        self._learned[key] = tokens
        log.info("%s is known to take %d tokens", key, tokens)
        return True

    def prefetch(self, providers: Iterable[Provider]) -> None:
        """Begin to fetch the model lists of providers, so that no request waits for them. One that wants the client's
        key is asked again when a request brings it."""
        for provider in providers:
            self._listing(provider).refresh(None)

    async def aclose(self) -> None:
        """Stop fetching."""
        for listing in self._listings.values():
            await listing.aclose()

    def _least(self, deployment: Deployment, window: Window) -> Window:
        taught = self._learned.get(deployment.key)
        if taught is None or taught >= window.tokens:
            return window
        return Window(taught, "learned", window.max_output)

    def _listing(self, provider: Provider) -> _Listing:
        listing = self._listings.get(provider.name)
        if listing is None:
            listing = self._listings[provider.name] = _Listing(provider, self._lists, self._clock)
        return listing


class _Listing:
    """One provider's model list: fetched in the background, believed for a while, awaited once at most."""

    def __init__(self, provider: Provider, policy: ListPolicy, clock: Callable[[], float]) -> None:
        self._provider = provider
        self._policy = policy
        self._clock = clock
        self._entries: dict[str, dict[str, Any]] = {}
        self._windows: dict[tuple[str, int | None], Window | None] = {}
        """By model and the longest answer that is configured, what these entries come to."""
        self._next_fetch = float("-inf")
        self._refused_anonymous = False
        self._patience_ends: float | None = None
        self._task: asyncio.Task[None] | None = None

    def refresh(self, authorization: str | None) -> None:
        """Begin to fetch, unless that is under way or the last result still counts. A failure without a client's key
        does not count against the first client that brings one."""
        if self.is_awaited:
            return
        worth_another_try = self._refused_anonymous and authorization is not None
        if self._clock() < self._next_fetch and not worth_another_try:
            return
        self._task = asyncio.get_running_loop().create_task(self._fetch(authorization))

    @property
    def is_awaited(self) -> bool:
        """Whether a fetch is under way."""
        return self._task is not None and not self._task.done()

    async def settle(self) -> None:
        """Wait for the first fetch; all requests together wait no longer than `wait_seconds` from its beginning."""
        if self._task is None:
            return
        if self._patience_ends is None:
            self._patience_ends = self._clock() + self._policy.wait_seconds
        remaining = self._patience_ends - self._clock()
        if remaining > 0:
            await asyncio.wait({self._task}, timeout=remaining)

    def window(self, deployment: Deployment) -> Window | None:
        """What the list says of a deployment; worked out once for each list."""
        key = deployment.upstream_model, deployment.max_output_tokens
        if key in self._windows:
            return self._windows[key]
        if len(self._windows) >= _MOST_WINDOWS:
            self._windows.clear()
        entry = self._entry(deployment.upstream_model)
        window = self._windows[key] = None if entry is None else _listed(deployment, entry)
        return window

    def _entry(self, model: str) -> dict[str, Any] | None:
        """What the list says of a model. A server of a single model is taken to serve it under any name."""
        found = self._entries.get(model) or self._entries.get(model.lower())
        if found is None and len(self._entries) == 1:
            (found,) = self._entries.values()
        return found

    async def aclose(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def _fetch(self, authorization: str | None) -> None:
        try:
            entries = await self._provider.models(authorization)
        except UpstreamUnavailable as error:
            log.info("no model list from provider %r: %s", self._provider.name, error.message)
            self._next_fetch = self._clock() + self._policy.failed_seconds
            self._refused_anonymous = authorization is None
            return
        self._refused_anonymous = False
        self._entries = _by_name(entries)
        self._windows.clear()
        self._next_fetch = self._clock() + self._policy.fresh_seconds


def _listed(deployment: Deployment, entry: Mapping[str, Any]) -> Window | None:
    tokens = _window_of(entry)
    if tokens is None:
        return None
    return Window(tokens, "upstream", deployment.max_output_tokens or _smallest(_numbers(entry, _OUTPUT)))


def _by_name(entries: Sequence[Mapping[str, Any]]) -> dict[str, dict[str, Any]]:
    named = {}
    for entry in entries:
        name = entry.get("id") or entry.get("name")
        if isinstance(name, str):
            named[name.removeprefix("models/")] = dict(entry)
    return named


def _window_of(entry: Mapping[str, Any]) -> int | None:
    """The window of a list's entry: as it is served, else as it is advertised, else as the model was trained; of
    several numbers of a kind the smallest (a router's best host may take less than the model could)."""
    for names in (_SERVED, _STATED, _TRAINED):
        tokens = _smallest(_numbers(entry, names))
        if tokens is not None:
            return tokens
    return None


def _numbers(entry: Mapping[str, Any], names: Sequence[str]) -> list[int]:
    numbers = [entry[name] for name in names if name in entry]
    for within in _WITHIN:
        inner = entry.get(within)
        if isinstance(inner, dict):
            numbers.extend(_numbers(inner, names))
    return [number for number in numbers if _is_plausible(number)]


def _smallest(numbers: Sequence[int]) -> int | None:
    return min(numbers, default=None)


def _is_plausible(tokens: object) -> bool:
    return isinstance(tokens, int) and not isinstance(tokens, bool) and _SMALLEST_TOKENS <= tokens <= _LARGEST_TOKENS
