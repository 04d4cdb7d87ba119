"""A turn whose answer has come: what those need who finish it."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from typing import Any

import msgspec

from app.conversation.item import Item
from app.dialects.answer_decoding import Answer
from app.dialects.usage import TokenUsage, read_usage
from app.pipeline.call.upstream_call import UpstreamAnswer
from app.pipeline.respond.context_status import ContextReport
from app.pipeline.turn.turn import SearchToolSession, Turn, View


class TurnEnd(msgspec.Struct, frozen=True, dict=True):
    """A turn whose answer has come, as far as it came."""

    turn: Turn
    planned_view: View
    """The view that was planned last. The deployment that answered may have got a smaller one."""
    upstream_answer: UpstreamAnswer
    report: ContextReport
    answer: Answer
    message: Item | None
    """The answer as the log keeps it; None if nothing of it came."""
    is_whole: bool = True
    """Whether the answer came to its end."""

    @cached_property
    def usage(self) -> TokenUsage | None:
        """What the provider counted in all rounds; None if it reported nothing."""
        return read_usage(self.answer.usage)

    @cached_property
    def planned_prompt_usage(self) -> TokenUsage | None:
        """What the provider counted for the view's own prompt."""
        return select_planned_prompt_usage(self.turn.search_tool_session, self.usage)

    @cached_property
    def context(self) -> Mapping[str, Any]:
        """The `context` object of the answer."""
        cost = self.report.build_cost_object(self.upstream_answer.deployment, self.usage)
        return self.report.build_context_object(self.planned_prompt_usage, cost)


def select_planned_prompt_usage(session: SearchToolSession | None, usage: TokenUsage | None) -> TokenUsage | None:
    """Returns the usage of the view's own prompt, without the further rounds of the search tool."""
    return read_usage(session.first_usage) if session is not None and session.rounds else usage
