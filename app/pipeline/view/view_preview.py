"""Plans the view that would be sent if a stored conversation went on now. Reads what a turn would read; calls no
model."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from app.context.plan.budget import Budget, compute_compaction_threshold
from app.context.plan.outline import Plan
from app.context.view.message_fate import MessageFate, compute_message_fates
from app.conversation.conversation_types import Conversation, LogMessage
from app.conversation.item import Item
from app.pipeline.turn import Turn
from app.pipeline.view.view_builder import ViewBuilder
from app.store.contract.conversations import ConversationStore


@dataclass(frozen=True, slots=True)
class ViewPreview:
    """The plan for a conversation's log as it is stored."""

    conversation: Conversation
    instructions: Sequence[Item]
    """The stored system messages. Most clients send theirs with each request, and these are not known here."""
    budget: Budget
    plan: Plan
    compacts_above: int
    """A prompt with more tokens than this is compacted or shortened."""

    @property
    def prompt_tokens(self) -> int:
        return self.budget.calibrate_tokens(self.plan.prompt_tokens)

    @property
    def limit_tokens(self) -> int:
        return self.budget.limit


async def build_preview(view_builder: ViewBuilder, turn: Turn) -> ViewPreview:
    """Plans a turn without new messages (`conversations.views.stored_turn`), whether or not the view fits.

    Raises:
        StoreUnavailable: the log or its summaries cannot be read.
    """
    view = await view_builder.plan_view(turn, view_builder.compute_budget(turn), summarize=turn.request.summarize)
    compacts_above = compute_compaction_threshold(turn.policy, view.budget, has_summaries=bool(view.plan.summaries))
    return ViewPreview(
        turn.resolved_request.conversation, turn.resolved_request.instructions, view.budget, view.plan, compacts_above
    )


async def read_message_fates(
    store: ConversationStore, conversation: Conversation, plan: Plan, from_seq: int, to_seq: int
) -> list[tuple[LogMessage, MessageFate]]:
    """Returns the log messages `[from_seq, to_seq)`, each with its fate in a plan."""
    entries = await store.read_log(conversation, from_seq, to_seq)
    return list(zip(entries, compute_message_fates(entries, plan), strict=True))
