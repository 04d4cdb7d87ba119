"""What happens when a turn has ended, in one order: the answer is billed, the gateway learns from it, the log gets it,
waiting retries are told, and the next turn's summary is begun."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from app.conversation.conversation_types import Conversation
from app.conversation.item import Item
from app.dialects.answer_decoding import PROTOCOL_FACTS
from app.dialects.sealed_parts import has_sealed_parts
from app.pipeline.call.upstream_call import UpstreamCaller
from app.pipeline.compact.precompaction import Precompactor
from app.pipeline.persist.completion_writer import CompletionWriter
from app.pipeline.persist.turn_writer import AnswerToStore, TurnWriter
from app.pipeline.respond.answer_billing import AnswerBilling
from app.pipeline.respond.answer_learning import AnswerLearner
from app.pipeline.respond.turn_end import TurnEnd
from app.pipeline.turn.resolved_request import OPAQUE_ORIGIN, OPAQUE_ORIGINS, REQUEST_DIGEST
from app.pipeline.view.view_restoration import REQUEST_FACTS, VIEW_FACTS, build_request_facts, build_view_facts


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
        if request.stores_completion and resolved_request.storage.is_stored and end.is_whole:
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
            **request.answer_format.build_facts(end.answer),
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
            is_streamed=request.stream,
        )
