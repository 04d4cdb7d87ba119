"""Bills an answer: once for each, stored or not, in the metrics, the request's record, its log line and the usage of
its key."""

from __future__ import annotations

from dataclasses import dataclass

from app.dialects.usage import TokenUsage
from app.observability.metrics import Metrics
from app.pipeline.respond.turn_end import TurnEnd
from app.pipeline.respond.turn_telemetry import build_turn_facts, record_turn
from app.pipeline.turn.background_tasks import BackgroundTasks
from app.pipeline.turn.token_counting import MessageCounter
from app.store.usage_recorder import UsageRecorder
from app.upstream.routing.prices import compute_call_cost_usd


@dataclass(frozen=True, slots=True)
class AnswerBilling:
    """Records what answers cost."""

    usage: UsageRecorder
    metrics: Metrics
    message_counter: MessageCounter
    tasks: BackgroundTasks

    def bill(self, end: TurnEnd) -> None:
        """Counts an answer, and adds its tokens and cost to the usage of its key."""
        facts = build_turn_facts(end.upstream_answer.deployment, end.report, end.usage, is_whole=end.is_whole)
        self.metrics.count_turn(facts)
        record_turn(facts)
        self.bill_usage(end)

    def bill_usage(self, end: TurnEnd) -> None:
        """Adds the tokens and the cost of an answer to the usage of its key. A stream that broke off has no report;
        then our own counts are used."""
        if end.usage is not None:
            self._record_call(end, end.usage)
            return
        if end.turn.request.allowance is not None:
            end.turn.request.allowance.keep_open()
        # In the background: nothing that follows may be lost if the request is cancelled meanwhile.
        self.tasks.spawn(self._bill_estimated_usage(end))

    async def _bill_estimated_usage(self, end: TurnEnd) -> None:
        encoding = end.turn.resolved_request.conversation.token_counter_name
        messages = [] if end.message is None else [end.message]
        try:
            output_tokens = sum(await self.message_counter.count_message_tokens(messages, encoding))
            self._record_call(end, TokenUsage(end.report.prompt_tokens, output_tokens=output_tokens))
        finally:
            if end.turn.request.allowance is not None:
                end.turn.request.allowance.finish()

    def _record_call(self, end: TurnEnd, usage: TokenUsage) -> None:
        request, deployment = end.turn.request, end.upstream_answer.deployment
        if request.allowance is not None:
            request.allowance.record_usage(usage)
        self.usage.record_call(
            request.caller.tenant,
            request.caller.api_key_id,
            deployment.upstream_model,
            usage,
            compute_call_cost_usd(deployment, usage),
        )
