"""What would be sent for a stored conversation if it went on now. Reads what a turn would read; calls no model."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from app.context.plan.budget import Budget, compaction_line
from app.context.plan.outline import Plan
from app.context.view.message_fate import Disposition, dispositions
from app.conversation.messages import Conversation, LogMessage, Message
from app.pipeline.view.view_builder import Turn, Views
from app.store.contract import Store


@dataclass(frozen=True, slots=True)
class Preview:
    """A plan for the log as it is stored."""

    conversation: Conversation
    instructions: Sequence[Message]
    """System messages that are stored; most clients send theirs with each request, and those are not known here."""
    budget: Budget
    plan: Plan
    compacts_above: int
    """A longer prompt is compacted, or shortened."""

    @property
    def prompt_tokens(self) -> int:
        return self.budget.calibrated(self.plan.prompt_tokens)

    @property
    def limit_tokens(self) -> int:
        return self.budget.hard


async def preview(views: Views, turn: Turn) -> Preview:
    """Plan a turn that adds nothing (`conversations.views.stored_turn`), whether or not the view fits.

    Raises:
        StoreUnavailable: the log or its summaries cannot be read.
    """
    view = await views.planned(turn, views.budget(turn), summarize=turn.request.summarize)
    line = compaction_line(turn.policy, view.budget, folded=bool(view.plan.chunks))
    return Preview(turn.place.conversation, turn.place.instructions, view.budget, view.plan, line)


async def rows(
    store: Store, conversation: Conversation, plan: Plan, from_seq: int, to_seq: int
) -> list[tuple[LogMessage, Disposition]]:
    """Log messages `[from_seq, to_seq)`, each with what a plan makes of it."""
    entries = await store.read(conversation, from_seq, to_seq)
    return list(zip(entries, dispositions(entries, plan), strict=True))
