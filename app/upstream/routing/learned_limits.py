"""Remembers how many tokens deployments took when they refused more. In memory; the caller stores the facts.

A learned limit is what a provider said in answer to one tenant's request, so it is weaker than anything an operator has
said: it is used only where no window is configured, it expires after a day, and a larger prompt that passes refutes it.
A wrong limit costs early summaries, a missing one costs one refused call for each prompt that is too long.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

import msgspec
from msgspec.structs import replace

LIMIT_FACT: Final = "limit"
"""A key of the stored facts of a `provider/model`: its `LearnedLimit`; null after an operator has cleared it."""
CLEARED_FACT: Final = "limits_cleared_at"
"""A key of these facts: when an operator cleared what was learned, in Unix seconds."""
LIMIT_SECONDS: Final = 86_400.0
"""How long a learned limit is valid."""
MIN_WINDOW_TOKENS: Final = 256
MAX_WINDOW_TOKENS: Final = 100_000_000


class LearnedLimit(msgspec.Struct, frozen=True):
    """A size above which prompts were refused."""

    tokens: int
    """Prompt and answer together."""
    learned_at: float
    """Unix seconds."""
    address: str = ""
    """The base URL of the provider that refused."""
    is_stated: bool = True
    """The provider named the number. If not, it was derived from what was refused and what passed."""
    is_refuted: bool = False
    """A larger prompt has passed since."""
    is_confirmed: bool = False
    """It was learned again after it was refuted: the deployment is a router whose hosts have different windows. The
    smaller one then counts until it expires, so that views do not change between the two."""

    def expires_at(self) -> float:
        return self.learned_at + LIMIT_SECONDS

    def is_in_force(self, now: float) -> bool:
        return not self.is_refuted and now < self.expires_at()

    def learn_again(self, newer: LearnedLimit) -> LearnedLimit:
        """Returns the limit after another refusal: the smaller of the two, unless this one has expired. A number that
        the provider named beats a derived one.
        """
        if newer.learned_at >= self.expires_at() or newer.address != self.address:
            return newer
        if newer.is_stated != self.is_stated:
            return newer if newer.is_stated else self
        if self.is_refuted:
            return replace(newer, is_confirmed=True)
        if newer.tokens >= self.tokens:
            return self
        return replace(newer, is_confirmed=self.is_confirmed)

    def learn_from_passed_prompt(self, prompt_tokens: int) -> LearnedLimit:
        """Returns the limit after a prompt was answered; refuted if the prompt was larger."""
        if self.is_confirmed or self.is_refuted or prompt_tokens <= self.tokens:
            return self
        return replace(self, is_refuted=True)


class LearnedLimits:
    """The learned limits of deployments, by `ModelDeployment.key`.

    Args:
        addresses: the base URL of each provider. Limits that were learned at another address are not used.
        now: Unix seconds.
    """

    def __init__(self, addresses: Mapping[str, str], *, now: Callable[[], float]) -> None:
        self._addresses = addresses
        self.now = now
        self._limits: dict[str, LearnedLimit] = {}
        self._cleared_at: dict[str, float] = {}

    def find_limit(self, key: str) -> LearnedLimit | None:
        """Returns the limit of a deployment that is in force."""
        limit = self._limits.get(key)
        return limit if limit is not None and limit.is_in_force(self.now()) else None

    def was_cleared_since(self, key: str, learned_at: float) -> bool:
        """Says whether an operator has cleared what was learned of a deployment since a time in Unix seconds."""
        return self._cleared_at.get(key, float("-inf")) >= learned_at

    def learn(self, key: str, tokens: int, *, is_stated: bool = True) -> dict[str, Any] | None:
        """Records a limit.

        Returns:
            The facts to store for the deployment; None if nothing has changed.
        """
        if not is_plausible_window(tokens):
            return None
        newer = LearnedLimit(tokens, self.now(), self._find_address(key), is_stated)
        known = self._limits.get(key)
        return self._put(key, newer if known is None else known.learn_again(newer))

    def learn_from_passed_prompt(self, key: str, prompt_tokens: int) -> dict[str, Any] | None:
        """Records that a prompt was answered. Returns the facts to store; None if nothing has changed."""
        known = self._limits.get(key)
        return None if known is None else self._put(key, known.learn_from_passed_prompt(prompt_tokens))

    def clear(self, key: str) -> dict[str, Any]:
        """Forgets what was learned of a deployment. Returns the facts to store."""
        self._limits.pop(key, None)
        self._cleared_at[key] = self.now()
        return {LIMIT_FACT: None, CLEARED_FACT: self._cleared_at[key]}

    def restore(self, facts_by_model: Mapping[str, Mapping[str, Any]]) -> None:
        """Takes over the stored facts of all models. Unreadable ones are ignored."""
        # A limit without a stored fact is kept: its write is still under way.
        unstored = {key: limit for key, limit in self._limits.items() if LIMIT_FACT not in facts_by_model.get(key, {})}
        stored = {key: read_learned_limit(facts) for key, facts in facts_by_model.items()}
        self._limits = unstored | {
            key: limit for key, limit in stored.items() if limit and limit.address == self._find_address(key)
        }
        cleared = {key: facts.get(CLEARED_FACT) for key, facts in facts_by_model.items()}
        self._cleared_at = {key: float(at) for key, at in cleared.items() if isinstance(at, int | float)}

    def list_limits(self) -> dict[str, LearnedLimit]:
        """Returns the limits that are in force, by deployment."""
        return {key: limit for key, limit in sorted(self._limits.items()) if limit.is_in_force(self.now())}

    def _put(self, key: str, limit: LearnedLimit) -> dict[str, Any] | None:
        if self._limits.get(key) == limit:
            return None
        self._limits[key] = limit
        return {LIMIT_FACT: msgspec.to_builtins(limit)}

    def _find_address(self, key: str) -> str:
        return self._addresses.get(key.partition("/")[0], "")


def read_learned_limit(facts: Mapping[str, Any]) -> LearnedLimit | None:
    """Reads the limit among the stored facts of a model; None if there is none that can be read."""
    try:
        return msgspec.convert(facts.get(LIMIT_FACT), LearnedLimit | None)
    except msgspec.ValidationError:
        return None


def is_plausible_window(tokens: object) -> bool:
    """Says whether a value may be the size of a context window."""
    return isinstance(tokens, int) and not isinstance(tokens, bool) and MIN_WINDOW_TOKENS <= tokens <= MAX_WINDOW_TOKENS
