"""Limits the requests and tokens of a minute: for each API key, for each tenant, and for all callers together. All
processes on one store count together, exactly."""

from __future__ import annotations

import logging
from collections.abc import Callable, Coroutine, Iterator, Sequence
from typing import Any, Final

import msgspec

from app.errors import RateLimitExceeded, StoreUnavailable
from app.store.contract.limits import LimitStore, RateCount, RateLimit, RateUse

log = logging.getLogger(__name__)

MAX_RETRY_AFTER_SECONDS: Final = 60
"""SDKs do not retry if they are to wait longer."""
MAX_COUNTED_TOKENS: Final = 1_000_000_000
"""Clients and providers may name any number; the database adds them up in 64 bits."""


class CountedCall(msgspec.Struct, frozen=True):
    """A request that was counted."""

    scopes: tuple[str, ...]
    tokens: int
    counted_at: int
    headers: dict[str, str]


class RateLimits:
    """Counts requests and refuses those above a limit. While the store is unavailable nothing is limited."""

    def __init__(self, store: LimitStore, spawn: Callable[[Coroutine[Any, Any, None]], object]) -> None:
        self._store = store
        self._spawn = spawn

    async def count_call(self, limits: Sequence[RateLimit], *, tokens: int) -> CountedCall | None:
        """Counts a request; returns None if nothing is limited, or if the store is unavailable.

        Args:
            limits: the widest first: it is what the store locks.

        Raises:
            RateLimitExceeded: the request would exceed a limit.
        """
        if not limits:
            return None
        tokens = min(MAX_COUNTED_TOKENS, tokens)
        try:
            count = await self._store.count_call(limits, tokens=tokens)
        except StoreUnavailable as error:
            log.warning("could not count a request for the rate limits: %s", error.message)
            return None
        headers = _build_headers(limits, count)
        if count.counted_at is None:
            raise _make_refusal(limits, count, tokens, headers)
        return CountedCall(tuple(limit.scope for limit in limits), tokens, count.counted_at, headers)

    def settle_call(self, call: CountedCall, used_tokens: int) -> None:
        """Replaces the tokens with which a request was counted, in the background."""
        used_tokens = min(MAX_COUNTED_TOKENS, used_tokens)
        if used_tokens != call.tokens and "x-ratelimit-limit-tokens" in call.headers:
            self._spawn(self._correct_tokens(call, used_tokens - call.tokens))

    async def _correct_tokens(self, call: CountedCall, added_tokens: int) -> None:
        try:
            await self._store.correct_tokens(call.scopes, counted_at=call.counted_at, added_tokens=added_tokens)
        except StoreUnavailable as error:
            log.warning("could not correct the tokens of a request for the rate limits: %s", error.message)


def _build_headers(limits: Sequence[RateLimit], count: RateCount) -> dict[str, str]:
    """Builds OpenAI's headers for the limit with the least left."""
    headers: dict[str, str] = {}
    for kind in ("requests", "tokens"):
        left = [
            (max(0, maximum - getattr(use, kind)), maximum, use)
            for limit, use in zip(limits, count.uses, strict=True)
            if (maximum := getattr(limit, kind)) is not None
        ]
        if left:
            remaining, maximum, use = min(left, key=lambda one: one[0] / one[1])
            headers[f"x-ratelimit-limit-{kind}"] = str(maximum)
            headers[f"x-ratelimit-remaining-{kind}"] = str(remaining)
            headers[f"x-ratelimit-reset-{kind}"] = f"{use.resets_after_seconds}s"
    return headers


def _make_refusal(
    limits: Sequence[RateLimit], count: RateCount, tokens: int, headers: dict[str, str]
) -> RateLimitExceeded:
    limit, use, kind = next(_list_exceeded(limits, count, tokens))
    scope, _, name = limit.scope.partition(" ")
    who = {"all": "This gateway", "tenant": "This tenant", "key": f"This API key ({name})"}[scope]
    maximum, used = (limit.requests, use.requests) if kind == "requests" else (limit.tokens, use.tokens)
    asked = "" if kind == "requests" else f", and this request may take {tokens}"
    pause = min(MAX_RETRY_AFTER_SECONDS, max(1, use.frees_after_seconds))
    error = RateLimitExceeded(
        f"{who} may send {maximum} {kind} in a minute; it has sent {used}{asked}.",
        hint=f"Try again in {pause} s, or ask the operator to raise `limits.{kind}_per_minute.{scope}`.",
        retry_after_seconds=pause,
    )
    error.type = kind
    error.response_headers = headers
    return error


def _list_exceeded(
    limits: Sequence[RateLimit], count: RateCount, tokens: int
) -> Iterator[tuple[RateLimit, RateUse, str]]:
    """Yields the limits that a request exceeds, each with its use and what it limits."""
    for limit, use in zip(limits, count.uses, strict=True):
        if limit.requests is not None and use.requests + 1 > limit.requests:
            yield limit, use, "requests"
        elif limit.tokens is not None and use.tokens + min(tokens, limit.tokens) > limit.tokens:
            yield limit, use, "tokens"
    # Something became free between the refusal and the reading of the uses.
    yield limits[-1], count.uses[-1], "requests" if limits[-1].requests is not None else "tokens"
