"""A stored conversation as a turn that brings nothing new: what the next request would be planned with."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import msgspec
import orjson
from msgspec.structs import replace

from app.context.plan.outline import Summarize
from app.context.plan.policy import Policy
from app.context.view.client_versions import ClientVersions
from app.conversation.messages import Conversation, LogMessage, Message
from app.errors import InvalidRequest, ModelRequired
from app.pipeline.chat_request import Caller, ChatRequest
from app.pipeline.resolve.model_context import Turns
from app.pipeline.resolve.resolved_request import INSTRUCTIONS, Recollection, has_versions
from app.pipeline.token_counting import Counting
from app.pipeline.view.view_builder import Turn
from app.pipeline.view.view_history import MAX_OUTPUT, asked_in
from app.store.contract import Lease, Store

NEWEST_MESSAGES: Final = 64
"""Among these the last answer is looked for."""


class Wish(msgspec.Struct, frozen=True):
    """How a stored conversation is to be looked at; what is left open is taken from its last answer."""

    model: str | None = None
    policy: str | None = None
    summarize: Summarize = "auto"
    instructions: str | None = None
    """What a compaction should pay attention to."""
    through_seq: int | None = None
    """Where a compaction ends: before this seq."""


class Standing:
    """Stored conversations as turns. Reads their newest messages, and nothing else of their logs."""

    def __init__(self, *, store: Store, counting: Counting, turns: Turns) -> None:
        self._store = store
        self._counting = counting
        self._turns = turns

    async def turn(self, caller: Caller, conversation: Conversation, wish: Wish, *, lease: Lease | None = None) -> Turn:
        """The turn that a request would be which adds nothing.

        Raises:
            ModelRequired: neither the wish nor an answer names a model.
            PolicyNotFound, ModelNotFound: there is none of that name.
            StoreUnavailable: the last answer cannot be read.
        """
        asked = asked_of(await self.last_answer(conversation))
        model = wish.model or asked.get("model")
        if model is None:
            raise ModelRequired(
                f"Conversation {conversation.id!r} has no answer yet that would name a model.",
                param="model",
                hint="Name one with `model`.",
            )
        policy = wish.policy or self._known_policy(asked.get("policy"))
        request = bare_request(caller, model, wish, policy=policy, max_output_tokens=asked.get(MAX_OUTPUT))
        means = await self._turns.means(request)
        place = place_of(conversation, lease)
        if has_versions(conversation):
            stored = await self._store.versions(conversation)
            place = replace(place, versions=ClientVersions.from_stored(stored, conversation.redacted))
        counted = await self._counting.instructions(place.instructions, request, conversation.counter)
        turn = self._turns.turn(request, means, replace(place, instructions_tokens=counted))
        last_tokens = turn.calibration.last_instructions_tokens
        if last_tokens is None:
            return turn
        # Clients send system messages and tool schemas with each request: those of the last one are expected again.
        return replace(turn, place=replace(turn.place, instructions_tokens=last_tokens))

    async def last_answer(self, conversation: Conversation) -> LogMessage | None:
        """The newest message that this gateway answered with, if it is among the last ones."""
        end = conversation.head_seq + 1
        newest = await self._store.read(conversation, max(0, end - NEWEST_MESSAGES), end)
        return next((entry for entry in reversed(newest) if (entry.meta or {}).get("model")), None)

    def _known_policy(self, name: str | None) -> str | None:
        return name if name in self._turns.policies else None


def check_summarizes(policy: Policy) -> None:
    """
    Raises:
        InvalidRequest: the policy writes no summaries.
    """
    if not policy.summarizes:
        raise InvalidRequest(f"Policy {policy.name!r} writes no summaries.", code="invalid_value", param="policy")


def asked_of(answer: LogMessage | None) -> Mapping[str, Any]:
    """What the request of an answer asked for (`pipeline.view.view_history.asked_facts`)."""
    return asked_in({} if answer is None else answer.meta or {})


def bare_request(
    caller: Caller, model: str, wish: Wish, *, policy: str | None, max_output_tokens: int | None
) -> ChatRequest:
    """A request without messages."""
    return ChatRequest(
        caller=caller,
        request_id="",
        body=b"",
        fields={"model": orjson.dumps(model)},
        raws=(),
        model=model,
        policy=policy,
        max_output_tokens=max_output_tokens,
        summarize=wish.summarize,
        instructions=wish.instructions,
        through_seq=wish.through_seq,
    )


def place_of(conversation: Conversation, lease: Lease | None = None) -> Recollection:
    """The place behind the last message of a stored conversation. Its instructions are not counted yet."""
    return Recollection(
        conversation=conversation,
        creates=False,
        new=(),
        instructions=tuple(Message(raw.encode()) for raw in conversation.state.get(INSTRUCTIONS, ())),
        instructions_tokens=0,
        client_log=None,
        needs_store=True,
        appends=True,
        lease=lease,
    )
