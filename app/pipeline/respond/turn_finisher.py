"""What happens when a turn has ended, in one order: the answer is billed, the gateway learns from it, the log gets it,
waiting retries are told, and the next turn's summary is begun."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from app.conversation.conversation_types import Conversation
from app.conversation.item import Item
from app.dialects.answer_decoding import PROTOCOL_FACTS
from app.dialects.sealed_parts import has_sealed_parts
from app.dialects.usage import TokenUsage
from app.observability.metrics import Metrics, TurnFacts
from app.observability.request_record import current_request_record
from app.pipeline.call.upstream_call import UpstreamCaller
from app.pipeline.compact.precompaction import Precompactor
from app.pipeline.persist.completion_writer import CompletionWriter
from app.pipeline.persist.turn_writer import AnswerToStore, TurnWriter
from app.pipeline.respond.answer_learning import AnswerLearner
from app.pipeline.respond.turn_end import TurnEnd
from app.pipeline.turn.background_tasks import BackgroundTasks
from app.pipeline.turn.resolved_request import OPAQUE_ORIGIN, OPAQUE_ORIGINS, REQUEST_DIGEST
from app.pipeline.turn.token_counting import MessageCounter
from app.pipeline.view.view_restoration import REQUEST_FACTS, VIEW_FACTS, build_request_facts, build_view_facts
from app.store.usage_recorder import UsageRecorder
from app.upstream.routing.prices import compute_call_cost_usd, compute_prompt_cost_usd


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnFinisher:
    """Does what follows an answer. Its callers shield it: a client that leaves must not cut it off."""

    answer_billing: AnswerBilling
    answer_learner: AnswerLearner
    turn_writer: TurnWriter
    completion_writer: CompletionWriter
    upstream_caller: UpstreamCaller
    precompactor: Precompactor

    async def finish(self, end: TurnEnd) -> Conversation:
        """Bills an answer, learns from it, stores it, and starts the work that follows. Returns the conversation that
        holds it.

        Raises:
            ConversationBusy: an append lost its lease to another request.
            StoreUnavailable: the answer was not stored. It is billed.
        """
        assert end.message is not None
        # First, because the answer cost tokens, whether or not the store takes it.
        self.answer_billing.bill(end)
        answer = self._build_stored_answer(end, end.message)
        # A view for a smaller window than planned is the one that the next turn continues.
        turn, view = self.upstream_caller.select_view_to_continue(end.turn, end.planned_view, end.upstream_answer)
        request, resolved_request = turn.request, turn.resolved_request
        conversation = await self.turn_writer.write_answer(resolved_request, answer)
        if request.storing.stores_completion and resolved_request.storage.is_stored and end.is_whole:
            await self.completion_writer.write_completion(
                request, resolved_request, conversation, answer.meta["id"], answer.message
            )
        if request.on_answer is not None and end.is_whole:
            await request.on_answer(conversation if resolved_request.storage.is_stored else None)
        # Last: precompaction reads the log with this answer, and must not delay what the client waits for.
        self.precompactor.start_if_needed(turn, view, conversation)
        return conversation

    async def finish_without_answer(self, end: TurnEnd, *, is_billed: bool) -> None:
        """Ends a turn of whose answer nothing came: a conversation that began with it is erased.

        Args:
            is_billed: whether the provider has read the prompt.
        """
        if is_billed:
            self.answer_billing.bill_usage(end)
        await self.turn_writer.erase_unanswered_conversation(end.turn.resolved_request)

    def _build_stored_answer(self, end: TurnEnd, message: Item) -> AnswerToStore:
        request, resolved_request, upstream_answer = end.turn.request, end.turn.resolved_request, end.upstream_answer
        deployment, report = upstream_answer.deployment, end.report
        meta: dict[str, Any] = {
            **request.delivery.answer_format.build_facts(end.answer),
            "context_status": report.status,
            "context": end.context,
            VIEW_FACTS: build_view_facts(upstream_answer.sent_view, resolved_request, log_tokens=report.log_tokens),
            REQUEST_FACTS: build_request_facts(request),
            REQUEST_DIGEST: resolved_request.storage.request_digest,
            **({PROTOCOL_FACTS: report.protocol_fields} if report.protocol_fields else {}),
        }
        # A conversation's log has one answer for each turn: choice 0. The other choices are kept in its facts.
        if alternatives := end.answer.build_alternatives():
            meta["alternatives"] = alternatives
        state = self.answer_learner.learn(end)
        if has_sealed_parts(message.raw, deployment.provider.protocol):
            meta[OPAQUE_ORIGIN] = deployment.key
            origins = resolved_request.conversation.state.get(OPAQUE_ORIGINS, [])
            state[OPAQUE_ORIGINS] = list(dict.fromkeys((*origins, deployment.key)))
        return AnswerToStore(
            message=message,
            incomplete=not end.is_whole,
            meta=meta,
            state=state,
            chunk_count=len(end.planned_view.outline.summaries),
            is_streamed=request.delivery.stream,
        )


@dataclass(frozen=True, slots=True)
class AnswerBilling:
    """Bills answers: once for each, stored or not, in the metrics, the request's record, its log line and the usage of
    its key."""

    usage: UsageRecorder
    metrics: Metrics
    message_counter: MessageCounter
    tasks: BackgroundTasks

    def bill(self, end: TurnEnd) -> None:
        """Counts an answer, and adds its tokens and cost to the usage of its key."""
        deployment, report, usage = end.upstream_answer.deployment, end.report, end.usage
        saved_tokens = max(0, report.log_tokens - report.prompt_tokens)
        facts = TurnFacts(
            provider=deployment.provider.name,
            model=deployment.upstream_model,
            policy=report.policy,
            status=report.status,
            prompt_tokens=report.prompt_tokens,
            log_tokens=report.log_tokens,
            pressure=report.budget.compute_limit_pressure(report.prompt_tokens),
            saved_usd=compute_prompt_cost_usd(deployment.price, saved_tokens),
            is_whole=end.is_whole,
            has_recovered=report.recovered,
        )
        if usage is not None:
            facts.reported_tokens, facts.cached_tokens = usage.prompt_tokens, usage.cached_tokens
            facts.completion_tokens = usage.output_tokens
            facts.cost_usd = compute_call_cost_usd(deployment, usage)
        self.metrics.count_turn(facts)
        if (record := current_request_record()) is not None:
            record.turn, logged = facts, record.facts
            logged.provider, logged.cost, logged.cached = facts.provider, facts.cost_usd, facts.cached_tokens
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
