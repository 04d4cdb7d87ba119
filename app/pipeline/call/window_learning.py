"""Learns windows from refused and from answered prompts: for a deployment, and for the conversation alone.

What a refusal of one tenant's prompt teaches must not change what other tenants' models see where an operator has set
the window, nor if the number is only derived. Such a limit is kept in the conversation's state: its next views keep to
it, and nobody else's do. A limit that is wrong costs this conversation early summaries for a day.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any, Final

import msgspec
from msgspec.structs import replace

from app.compaction.summarizer.summary_request import SAME_MODEL
from app.context.plan.budget import compute_max_input_tokens
from app.errors import GatewayError, NotFound
from app.pipeline.turn.background_tasks import BackgroundTasks
from app.pipeline.turn.turn import RefusedSize, Turn
from app.store.contract.keys import KeyStore
from app.upstream.protocols.overflow_detection import ContextOverflow
from app.upstream.provider_contract import ContextWindow, ModelDeployment
from app.upstream.routing.learned_limits import LIMIT_FACT, LearnedLimit, LearnedLimits, read_learned_limit

log = logging.getLogger(__name__)

CONVERSATION_LIMITS: Final = "limits"
"""`Conversation.state`: the `LearnedLimit` of each `provider/model`."""
REFRESH_SECONDS: Final = 60.0
"""While a limit is used, the stored limits are read again after this time: another process may have cleared them."""


class ModelFactWriter:
    """Writes facts about models in the background."""

    def __init__(self, model_facts: KeyStore, tasks: BackgroundTasks) -> None:
        self._model_facts = model_facts
        self._tasks = tasks

    def start_write(self, model_key: str, facts: Mapping[str, Any]) -> None:
        self._tasks.spawn(self._write(model_key, facts))

    async def _write(self, model_key: str, facts: Mapping[str, Any]) -> None:
        try:
            await self._model_facts.merge_model_facts(model=model_key, facts=facts)
        except GatewayError as error:
            # Only other replicas and the next start lack the fact. This process has it.
            log.warning("could not store the learned facts of model %s: %s", model_key, error.message)


class WindowLearner:
    """Learns limits, applies those of conversations, and lets an operator see and clear them."""

    def __init__(
        self, limits: LearnedLimits, *, model_facts: KeyStore, fact_writer: ModelFactWriter, tasks: BackgroundTasks
    ) -> None:
        self._limits = limits
        self._model_facts = model_facts
        self._fact_writer = fact_writer
        self._tasks = tasks
        self._read_at = limits.now()

    def limit_window(self, window: ContextWindow, state: Mapping[str, Any], model_key: str) -> ContextWindow:
        """Returns a deployment's window, at most what a conversation has learned of it, unless that has expired or was
        cleared.

        Args:
            state: `Conversation.state`.
        """
        limits = self._limits
        limit = read_conversation_limit(state, model_key) if CONVERSATION_LIMITS in state else None
        if (
            limit is not None
            and limit.is_in_force(limits.now())
            and not limits.was_cleared_since(model_key, limit.learned_at)
        ):
            window = window.apply_limit(limit.tokens)
        if window.without_limit is not None and self._limits.now() >= self._read_at + REFRESH_SECONDS:
            self._read_at = self._limits.now()
            self._tasks.spawn(self._refresh())
        return window

    def learn_from_refusal(self, deployment: ModelDeployment, overflow: ContextOverflow) -> None:
        """Learns the window that a refusal states, for the deployment. Where a window is configured, this only shows an
        operator that the configured one is too large.
        """
        if overflow.limit_tokens is not None and not overflow.is_rate_limit:
            self._learn_deployment_limit(deployment.key, overflow.limit_tokens, is_stated=True)

    def learn_from_answer(
        self,
        state: Mapping[str, Any],
        deployment: ModelDeployment,
        *,
        refused: RefusedSize | None,
        prompt_tokens: int | None = None,
        truncated_at: int | None = None,
    ) -> dict[str, Any]:
        """Learns from an answered prompt, for the deployment and the conversation.

        Args:
            state: `Conversation.state`.
            deployment: the deployment that answered.
            refused: what was refused before the answer came.
            prompt_tokens: the provider's count of the prompt.
            truncated_at: the window at which the provider seems to cut prompts silently.

        Returns:
            The members of the conversation's state that change.
        """
        key, now = deployment.key, self._limits.now()
        limits = {
            name: limit
            for name in state.get(CONVERSATION_LIMITS, {})
            if (limit := read_conversation_limit(state, name))
        }
        before = dict(limits)
        if prompt_tokens is not None and truncated_at is None:
            if (facts := self._limits.learn_from_passed_prompt(key, prompt_tokens)) is not None:
                self._fact_writer.start_write(key, facts)
            if key in limits:
                limits[key] = limits[key].learn_from_passed_prompt(prompt_tokens)
        if truncated_at is not None:
            self._learn_deployment_limit(key, truncated_at, is_stated=True)
            refused = RefusedSize(key, truncated_at, is_of_deployment=deployment.context_window is None)
        if refused is not None:
            if not refused.is_stated:
                self._learn_deployment_limit(refused.model_key, refused.tokens, is_stated=False)
            # What counts for the whole deployment need not be kept here, too.
            if not refused.is_of_deployment:
                newer = LearnedLimit(refused.tokens, now, is_stated=refused.is_stated)
                known = limits.get(refused.model_key)
                limits[refused.model_key] = newer if known is None else known.learn_again(newer)
        return {} if limits == before else {CONVERSATION_LIMITS: msgspec.to_builtins(limits)}

    async def list_limits(self) -> dict[str, LearnedLimit]:
        """Returns the limits of all deployments that are in force, by `provider/model`.

        Raises:
            StoreUnavailable: the stored limits cannot be read.
        """
        await self._read_stored_limits()
        return self._limits.list_limits()

    async def clear_limit(self, model_key: str) -> LearnedLimit:
        """Forgets what was learned of a deployment, and what conversations have learned of it. Returns the limit.

        Raises:
            NotFound: no limit is known.
            StoreUnavailable: the limit cannot be deleted.
        """
        limit = (await self.list_limits()).get(model_key)
        if limit is None:
            raise NotFound(f"No limit was learned of {model_key!r}.", param="model")
        await self._model_facts.merge_model_facts(model=model_key, facts=self._limits.clear(model_key))
        return limit

    def _learn_deployment_limit(self, model_key: str, tokens: int, *, is_stated: bool) -> None:
        if (facts := self._limits.learn(model_key, tokens, is_stated=is_stated)) is not None:
            log.info("learned a limit of %s: %d tokens", model_key, tokens)
            self._fact_writer.start_write(model_key, facts)

    async def _refresh(self) -> None:
        try:
            await self._read_stored_limits()
        except GatewayError as error:
            log.info("could not read the learned limits: %s", error.message)

    async def _read_stored_limits(self) -> None:
        self._limits.restore(await self._model_facts.read_model_facts())


def read_conversation_limit(state: Mapping[str, Any], model_key: str) -> LearnedLimit | None:
    """Returns what a conversation that has limits has learned of a deployment."""
    return read_learned_limit({LIMIT_FACT: state[CONVERSATION_LIMITS].get(model_key)})


def replace_window(turn: Turn, window: ContextWindow) -> Turn:
    """Returns the turn with another window. A summarizer that is the same model reads no more than fits there."""
    room = turn.summarizer_input_tokens
    if turn.policy.summarizer.model == SAME_MODEL:
        room = compute_max_input_tokens(turn.policy, window.tokens)
    return replace(turn, window=window, summarizer_input_tokens=room)
