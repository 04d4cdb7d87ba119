"""Builds turns, requests and resolved requests without new messages from a stored conversation: to plan its next view,
to compact it on request, and to pin its messages."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import msgspec
import orjson
from msgspec.structs import replace

from app.context.plan.outline import SummarizeMode
from app.context.plan.policy import ContextPolicy
from app.context.view.client_versions import NO_VERSIONS
from app.conversation.conversation_types import Conversation, LogMessage
from app.dialects.item_decoding import decode_item
from app.errors import InvalidRequest, ModelRequired
from app.pipeline.resolve.model_context import ModelContexts
from app.pipeline.turn.chat_request import Caller, ChatRequest, CompactionOptions, ContextParameters
from app.pipeline.turn.resolved_request import STORED_INSTRUCTIONS, ResolvedRequest, ShownLog, TurnStorage
from app.pipeline.turn.token_counting import MessageCounter
from app.pipeline.turn.turn import Turn
from app.pipeline.view.view_restoration import MAX_OUTPUT_TOKENS, read_request_facts
from app.store.contract.conversations import ConversationStore
from app.store.contract.leases import Lease

MAX_NEWEST_MESSAGES: Final = 64
"""How many newest messages are searched for the last answer."""


class StoredTurnRequest(msgspec.Struct, frozen=True):
    """Options of a turn on a stored conversation. Without a model or a policy, those of the last answer are used."""

    model: str | None = None
    policy: str | None = None
    summarize: SummarizeMode = "auto"
    instructions: str | None = None
    """What the summaries should focus on."""
    through_seq: int | None = None
    """A compaction ends before this `seq`; None: the policy decides."""


@dataclass(eq=False, kw_only=True)
class StoredTurnBuilder:
    """Builds turns from stored conversations. Of a log it reads the newest messages only."""

    store: ConversationStore
    message_counter: MessageCounter
    model_contexts: ModelContexts

    async def build_turn(
        self, caller: Caller, conversation: Conversation, turn_request: StoredTurnRequest, *, lease: Lease | None = None
    ) -> Turn:
        """Builds the turn of a request that adds no message.

        Raises:
            ModelRequired: neither `turn_request` nor an answer names a model.
            PolicyNotFound, ModelNotFound: there is no policy or model of that name.
            StoreUnavailable: the last answer cannot be read.
        """
        last_answer = await self.find_last_answer(conversation)
        last_request = read_request_facts({} if last_answer is None else last_answer.meta or {})
        model = turn_request.model or last_request.get("model")
        if model is None:
            raise ModelRequired(
                f"Conversation {conversation.id!r} has no answer yet from which to take the model.",
                param="model",
                hint="Name a model with `model`.",
            )
        policy = turn_request.policy or self._keep_known_policy(last_request.get("policy"))
        request = build_bare_request(
            caller, model, turn_request, policy=policy, max_output_tokens=last_request.get(MAX_OUTPUT_TOKENS)
        )
        model_context = await self.model_contexts.find_model_context(request)
        resolved_request = build_bare_resolved_request(conversation, lease)
        if conversation.has_client_versions:
            stored = await self.store.read_client_versions(conversation)
            versions = NO_VERSIONS.with_later_versions(stored, conversation.redacted_seqs)
            resolved_request = replace(resolved_request, shown=ShownLog(client_versions=versions))
        instructions_tokens = await self.message_counter.count_instruction_tokens(
            resolved_request.instructions, request, conversation.token_counter_name
        )
        turn = self.model_contexts.build_turn(
            request, model_context, replace(resolved_request, instructions_tokens=instructions_tokens)
        )
        last_tokens = turn.calibration.last_instructions_tokens
        if last_tokens is None:
            return turn
        # Clients send system messages and tool schemas with each request, so the next ones are expected to be as long
        # as the last ones.
        return replace(turn, resolved_request=replace(turn.resolved_request, instructions_tokens=last_tokens))

    async def find_last_answer(self, conversation: Conversation) -> LogMessage | None:
        """Returns the newest answer that came through the gateway; None if none is among the last messages."""
        end = conversation.head_seq + 1
        newest = await self.store.read_log(conversation, max(0, end - MAX_NEWEST_MESSAGES), end)
        return next((entry for entry in reversed(newest) if (entry.meta or {}).get("model")), None)

    def _keep_known_policy(self, name: str | None) -> str | None:
        return name if name in self.model_contexts.policies else None


def check_policy_summarizes(policy: ContextPolicy) -> None:
    """Refuses a policy that writes no summaries.

    Raises:
        InvalidRequest: the policy writes no summaries.
    """
    if not policy.may_summarize:
        raise InvalidRequest(f"Policy {policy.name!r} writes no summaries.", code="invalid_value", param="policy")


def build_bare_request(
    caller: Caller, model: str, turn_request: StoredTurnRequest, *, policy: str | None, max_output_tokens: int | None
) -> ChatRequest:
    """Builds a request without messages."""
    return ChatRequest(
        caller=caller,
        request_id="",
        body=b"",
        raw_fields={"model": orjson.dumps(model)},
        raw_messages=(),
        model=model,
        context=ContextParameters(policy=policy),
        max_output_tokens=max_output_tokens,
        compaction=CompactionOptions(
            turn_request.summarize, turn_request.through_seq, instructions=turn_request.instructions
        ),
    )


def build_bare_resolved_request(conversation: Conversation, lease: Lease | None = None) -> ResolvedRequest:
    """Builds a resolved request without new messages, after the last message of a conversation. Its instructions are
    not counted yet."""
    return ResolvedRequest(
        conversation=conversation,
        creates_conversation=False,
        new_messages=(),
        instructions=tuple(decode_item(raw.encode()) for raw in conversation.state.get(STORED_INSTRUCTIONS, ())),
        instructions_tokens=0,
        client_messages=None,
        is_named=True,
        storage=TurnStorage(needs_store=True, lease=lease),
        is_append=True,
    )
