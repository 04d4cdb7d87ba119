"""What would be sent for a stored conversation if it went on now. Reads the store; calls no model, writes nothing."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

from msgspec.structs import replace

from app.compaction.summarizer import input_tokens
from app.context.budget import Budget, budget_for
from app.context.calibration import Calibration
from app.context.chain import active_chain
from app.context.disposition import Disposition, dispositions
from app.context.outline import Outline, Plan
from app.context.plan import plan
from app.context.policy import Policy
from app.context.tokens import TokenCounter
from app.conversation.messages import Conversation, LogMessage, Message
from app.exchange.pinning import fitting, pins_of
from app.exchange.placement import INSTRUCTIONS
from app.exchange.views import calibration_of, last_view_of
from app.store.base import Store


@dataclass(frozen=True, slots=True)
class Preview:
    """A plan for the log as it is stored, and what it means for each message."""

    conversation: Conversation
    log: Sequence[LogMessage]
    instructions: Sequence[Message]
    """System messages that are stored; most clients send theirs with each request, and those are not known here."""
    budget: Budget
    plan: Plan
    rows: Sequence[Disposition]

    @property
    def prompt_tokens(self) -> int:
        return self.budget.calibrated(self.plan.prompt_tokens)

    @property
    def limit_tokens(self) -> int:
        return self.budget.window - self.budget.reserve


async def preview(
    store: Store,
    conversation: Conversation,
    *,
    policy: Policy,
    window_tokens: int,
    model_key: str,
    counter: TokenCounter,
) -> Preview:
    """Plan a stored conversation.

    Args:
        model_key: `provider/model`, whose calibration is used.
        counter: counts in the conversation's encoding.

    Raises:
        StoreUnavailable: the log cannot be read.
    """
    log = await store.read(conversation, 0, conversation.head_seq + 1)
    stored = await store.chunks(root=conversation.root, path=conversation.path) if policy.summarizes else []
    chain, folds = active_chain(stored, replacing=policy.replaces)
    instructions = [Message(raw.encode()) for raw in conversation.state.get(INSTRUCTIONS, ())]
    calibration = calibration_of(conversation.state, model_key, Calibration())
    counted = counter.request([message.body for message in instructions])
    budget = budget_for(policy, window=window_tokens, ratio=calibration.ratio)
    outline = Outline(
        instructions_tokens=calibration.instructions_tokens(counted),
        log_tokens=conversation.head_tokens_total,
        next_seq=conversation.head_seq + 1,
        chunks=chain,
        folds=folds,
        tail=None,
        new_from_seq=conversation.head_seq + 1,
        pins=fitting(pins_of(conversation.state), policy, budget),
        last=last_view_of(conversation.state, policy, window_tokens),
    )
    decide = partial(
        plan,
        budget=budget,
        policy=policy,
        count=counter,
        summarizer_input_tokens=input_tokens(policy, window_tokens),
    )
    decided = decide(outline)
    if (start := decided.needs_tail) is not None:
        decided = decide(replace(outline, tail=log[start.to_seq :], tail_start=start))
    return Preview(conversation, log, instructions, budget, decided, dispositions(log, decided))
