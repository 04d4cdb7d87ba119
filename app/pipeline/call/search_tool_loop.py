"""Runs the searches that a model asks for and continues its answer. The client and the log get one answer."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, AsyncIterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from msgspec.structs import replace

from app.context.plan.budget import Budget
from app.context.plan.outline import Plan, SummarizeMode
from app.dialects.answer_decoding import Answer, AnswerDecoder
from app.dialects.answer_events import Failure
from app.dialects.assembled_answer import AssembledAnswer
from app.dialects.error_body import encode_error_body
from app.dialects.provider_dialects import PROVIDER_DIALECTS
from app.dialects.search_rounds import JoinedEvents, RoundJoiner
from app.dialects.search_tool import InvalidArguments, SearchToolQuery
from app.dialects.search_tool_fields import (
    DEFINITIONS,
    accepts_search_tool,
    add_search_tool,
    build_next_round_fields,
    build_result_message,
    parse_search_call,
)
from app.dialects.sse import SseEvent
from app.errors import GatewayError, StoreUnavailable, UpstreamRefused, UpstreamUnavailable
from app.pipeline.call.search_tool_results import (
    MIN_RESULT_TOKENS,
    NO_ROOM_LEFT,
    SEARCH_UNAVAILABLE,
    TOO_MANY_SEARCHES,
    SearchToolResult,
    render_search_result,
)
from app.pipeline.call.upstream_call import UpstreamAnswer, UpstreamCaller
from app.pipeline.call.upstream_reply import StreamReply, parse_whole_answer
from app.pipeline.turn.last_view_and_calibration import read_last_view
from app.pipeline.turn.token_counting import MessageCounter
from app.pipeline.turn.turn import SearchToolSession, Turn, View
from app.pipeline.view.message_search import MessageSearch
from app.pipeline.view.view_builder import ViewBuilder
from app.store.contract.conversations import SearchHit
from app.upstream.routing.router import BufferedReply

log = logging.getLogger(__name__)

MAX_SEARCH_ROUNDS: Final = 8
"""How many rounds one answer may take in addition to the first. In the last round the model cannot search."""
MAX_CALLS_PER_ROUND: Final = 8
"""How many searches one message may ask for; further calls get a result that says so."""
MAX_FOUND_MESSAGES: Final = 12
"""How many messages one search returns at most, neighbours included."""
MAX_RESULT_TOKENS: Final = 4_096
"""The limit of one result in calibrated tokens, however large the window is."""
EMPTY_RESULT_TOKENS: Final = 32
"""Tokens of a tool message that only says that there is no room."""
LAST_CALL_RESERVE_TOKENS: Final = 96
"""Tokens kept free for one more call of the tool, so that its result can say that there is no room."""

REFUSAL_TOOL_WORD: Final = b"tool"
"""An error body with this word may be about the search tool."""
MAX_MODELS_WITHOUT_TOOLS: Final = 1_000


@dataclass(eq=False, kw_only=True)
class SearchToolLoop:
    """Adds the search tool to requests, and runs rounds until the model calls it no more."""

    upstream_caller: UpstreamCaller
    view_builder: ViewBuilder
    message_finder: MessageSearch
    message_counter: MessageCounter
    _models_without_tools: set[str] = field(default_factory=set, init=False)
    """`provider/model` of deployments that refused the tool and then answered without it."""

    async def plan_view_with_tool(self, turn: Turn, budget: Budget, summarize: SummarizeMode) -> tuple[Turn, View]:
        """Plans a view for a request that wants the search tool. The tool is added if the view does not show the whole
        log.

        The tool's own tokens may decide whether the whole log fits, so both plans may be needed. The last view tells
        which one to try first: most turns are planned once.

        Raises:
            GatewayError: as `ViewBuilder.build_view`.
        """
        if not self._may_offer_tool(turn):
            return turn, await self.view_builder.build_view(turn, budget, summarize=summarize)
        turn_with_tool = await self._add_tool(turn)
        first_turn, other_turn = (
            (turn_with_tool, turn) if _has_incomplete_last_view(turn, budget) else (turn, turn_with_tool)
        )
        view = await self.view_builder.build_view(first_turn, budget, summarize=summarize)
        if _has_hidden_messages(view.plan) == (first_turn is turn_with_tool):
            return first_turn, view
        return other_turn, await self.view_builder.build_view(other_turn, budget, summarize=summarize)

    def record_model_without_tools(self, model_key: str) -> None:
        """Records that a deployment refused the tool and then answered without it: the tool is not offered to it."""
        log.info("%s accepts no tools; the search tool is not offered to it", model_key)
        if len(self._models_without_tools) < MAX_MODELS_WITHOUT_TOOLS:
            self._models_without_tools.add(model_key)

    async def start_streamed_rounds(self, turn: Turn, upstream_answer: UpstreamAnswer) -> UpstreamAnswer:
        """Starts a stream that runs the model's searches and continues. Returns when something for the client has come.

        Raises:
            GatewayError: the upstream failed before that.
        """
        reply = _JoinedReply(_SearchRounds(self, turn, upstream_answer), upstream_answer)
        try:
            # Until here a failure can still become an HTTP error, because no byte has been sent.
            await reply.wait_for_first_events()
        except BaseException:
            await reply.aclose()
            raise
        return replace(upstream_answer, reply=reply)

    async def run_whole_rounds(self, turn: Turn, upstream_answer: UpstreamAnswer) -> tuple[Answer, BufferedReply]:
        """Runs the model's searches until it answers.

        Returns:
            All rounds as one answer, and the reply to the last one; the provider's answer if nothing of it is hidden.

        Raises:
            GatewayError: the upstream failed, or a reply is not an answer.
        """
        rounds = _SearchRounds(self, turn, upstream_answer)
        values = [value async for joined in rounds.join() for value in joined.values]
        reply = rounds.reply
        assert isinstance(reply, BufferedReply)
        assert rounds.joiner is not None
        if rounds.joiner.has_hidden:
            return AssembledAnswer(values), reply
        return parse_whole_answer(reply.body, upstream_answer.deployment, reply.protocol), reply

    def _may_offer_tool(self, turn: Turn) -> bool:
        """Whether the search tool can be added to a request: not if it asks for several choices, if the provider takes
        no tools, or if the tool cannot stand beside the request's own (`accepts_search_tool`)."""
        if not turn.resolved_request.storage.is_stored or turn.model_key in self._models_without_tools:
            return False
        takes_tools = "tools" not in turn.target.deployments[0].quirks.strip_fields
        return takes_tools and turn.request.choice_count == 1 and accepts_search_tool(turn.request.decode_field)

    async def _add_tool(self, turn: Turn) -> Turn:
        resolved_request, request = turn.resolved_request, turn.request
        fields = add_search_tool(request.raw_fields, DEFINITIONS[request.protocol])
        request = replace(request, raw_fields=fields)
        tokens = await self.message_counter.count_instruction_tokens(
            resolved_request.instructions, request, resolved_request.conversation.token_counter_name
        )
        search_tool_session = SearchToolSession(turn.request, resolved_request.instructions_tokens)
        return replace(
            turn,
            request=request,
            search_tool_session=search_tool_session,
            resolved_request=replace(resolved_request, instructions_tokens=tokens),
        )


@dataclass(eq=False)
class _SearchRounds:
    """Runs the rounds of one answer. Keeps the messages that the rounds add to the prompt, and the room that is left.

    Args:
        upstream_answer: the first round.

    Attributes:
        reply: the reply of the current round.
        joiner: joins the rounds; None until the first one is read.
    """

    loop: SearchToolLoop
    turn: Turn
    upstream_answer: UpstreamAnswer

    def __post_init__(self) -> None:
        assert self.turn.search_tool_session is not None
        self.reply: StreamReply | BufferedReply = self.upstream_answer.reply
        self.joiner: RoundJoiner | None = None
        self._search_tool_session = self.turn.search_tool_session
        self._sent_view = self.upstream_answer.sent_view
        self._deployment = self.upstream_answer.deployment
        self._encoding = self.turn.resolved_request.conversation.token_counter_name
        self._added_messages: list[bytes] = []
        self._prompt_tokens = self._sent_view.plan.prompt_tokens
        self._is_out_of_room = False
        """Whether a search had no room for its result."""

    async def join(self) -> AsyncGenerator[JoinedEvents, None]:
        """Yields what all rounds say to the client. What came together stays together.

        Raises:
            GatewayError: the upstream failed. If a stream has begun for the client, only what breaks off is raised: a
                refusal is the stream's last word.
        """
        has_begun = False
        while True:
            joiner, decoder = self._begin_round()
            async for joined in self._join_round(joiner, decoder):
                if joined or joined.values:
                    has_begun = True
                    yield joined
            if not joiner.search_calls:
                yield JoinedEvents(values=joiner.join_rest())
                return
            await self.reply.aclose()
            try:
                next_reply = await self._request_next_round(joiner)
            except GatewayError as error:
                # The relay makes the end of a stream of a break. A refusal cannot become an HTTP error any more, once
                # the client has read a part of the answer.
                if isinstance(error, UpstreamUnavailable) or not (has_begun and self.turn.request.delivery.stream):
                    raise
                yield JoinedEvents(values=[Failure(encode_error_body(error))])
                return
            if next_reply is None:
                # The window is full. The text so far is an answer that was cut off.
                yield JoinedEvents(values=joiner.cut_off())
                return
            self.reply = next_reply

    @property
    def _is_last_round(self) -> bool:
        """Whether the model must answer without another search."""
        return self._is_out_of_room or self._search_tool_session.rounds >= MAX_SEARCH_ROUNDS

    def _begin_round(self) -> tuple[RoundJoiner, AnswerDecoder]:
        is_last_round = self._is_last_round
        reply, stream = self.reply, isinstance(self.reply, StreamReply)
        decoder = (
            parse_whole_answer(reply.body, self._deployment, reply.protocol)
            if isinstance(reply, BufferedReply)
            else PROVIDER_DIALECTS[reply.protocol].make_decoder(self._deployment.key)
        )
        if self.joiner is None:
            is_same = self.turn.request.delivery.answer_format.protocol == reply.protocol
            self.joiner = RoundJoiner(decoder, is_same_protocol=is_same, may_pass=stream, is_last_round=is_last_round)
        else:
            self.joiner.begin_round(decoder, is_last_round=is_last_round)
        return self.joiner, decoder

    async def _join_round(self, joiner: RoundJoiner, decoder: AnswerDecoder) -> AsyncGenerator[JoinedEvents, None]:
        """Yields what the current round says. A streamed round that another round follows ends with its last event, or
        when its connection breaks: its calls are complete."""
        reply = self.reply
        if isinstance(reply, BufferedReply):
            yield JoinedEvents(values=joiner.join_values(decoder.decode_whole(reply.body)))
            return
        try:
            yield joiner.join_events(reply.first_events)
            if not joiner.has_round_ended:
                async for events in reply.iter_events():
                    yield joiner.join_events(events)
                    if joiner.has_round_ended:
                        break
            if joiner.has_round_ended:
                await reply.drain()
        except UpstreamUnavailable:
            if not joiner.search_calls:
                raise

    async def _request_next_round(self, joiner: RoundJoiner) -> StreamReply | BufferedReply | None:
        """Runs the searches with which the current round ended, and calls the upstream for the next round.

        Returns:
            The upstream's reply; None if the window has no room even for results that say so.

        Raises:
            GatewayError: the upstream failed.
        """
        calls, shortened_message, usages = joiner.search_calls, joiner.build_call_message(), joiner.reported_usages
        (message_tokens,) = await self.loop.message_counter.count_message_tokens([shortened_message], self._encoding)
        budget = self._sent_view.budget
        tokens = self._prompt_tokens + message_tokens
        # The part that is kept free for the answer may be used here: a short answer is better than none.
        if budget.calibrate_tokens(tokens + len(calls) * EMPTY_RESULT_TOKENS) > budget.limit + budget.output:
            return None
        results = []
        for number, call in enumerate(calls):
            reserved_tokens = (len(calls) - number - 1) * EMPTY_RESULT_TOKENS
            # Each call needs a result, so room for the results of the calls after this one is kept.
            room_tokens = budget.compute_raw_tokens(budget.limit) - tokens - reserved_tokens
            text = (
                TOO_MANY_SEARCHES if number >= MAX_CALLS_PER_ROUND else await self._run_search_call(call, room_tokens)
            )
            result = build_result_message(call, text)
            results.append(result)
            tokens += sum(await self.loop.message_counter.count_message_tokens([result], self._encoding))
        self._added_messages += [shortened_message.raw, *(result.raw for result in results)]
        self._prompt_tokens = tokens
        # Calibration compares the planned prompt with its own report. Later rounds have longer prompts.
        if self._search_tool_session.rounds == 0:
            self._search_tool_session.first_usage = usages[0] if usages else None
        self._search_tool_session.rounds += 1
        request, client_request = self.turn.request, self._search_tool_session.request_without_tool
        fields = build_next_round_fields(
            request.raw_fields,
            request.decode_field,
            client_request.raw_fields["tools"] if client_request.decode_field("tools") else None,
            is_last_round=self._is_last_round,
            protocol=request.protocol,
        )
        request = replace(request, raw_fields=fields)
        turn, added_tokens = replace(self.turn, request=request), tokens - self._sent_view.plan.prompt_tokens
        upstream_answer = await self.loop.upstream_caller.call_next_round(
            self._deployment, turn, self._sent_view, self._added_messages, added_tokens
        )
        return upstream_answer.reply

    async def _run_search_call(self, call: Mapping[str, Any], room_tokens: int) -> str:
        """Runs one search and returns the text of its tool result."""
        tool_query = parse_search_call(call)
        if isinstance(tool_query, InvalidArguments):
            return tool_query.reason
        result = await self._search_messages(tool_query, room_tokens - LAST_CALL_RESERVE_TOKENS)
        self._is_out_of_room = self._is_out_of_room or result.text == NO_ROOM_LEFT
        self._search_tool_session.searches.append({"query": tool_query.query, "found": list(result.seqs)})
        return result.text

    async def _search_messages(self, tool_query: SearchToolQuery, room_tokens: int) -> SearchToolResult:
        budget, plan, policy = self._sent_view.budget, self._sent_view.plan, self.turn.policy
        limit = min(
            room_tokens,
            budget.compute_raw_tokens(min(MAX_RESULT_TOKENS, int(budget.window * policy.quotations.recall_ratio))),
        )
        if limit < MIN_RESULT_TOKENS:
            return SearchToolResult(NO_ROOM_LEFT)
        from_seq = 0 if tool_query.after is None else max(0, tool_query.after + 1)
        before_seq = plan.boundary_seq if tool_query.before is None else min(tool_query.before, plan.boundary_seq)
        matches: Sequence[SearchHit] = ()
        if from_seq < before_seq:
            try:
                matches = await self.loop.message_finder.find_messages(
                    self.turn.resolved_request.conversation,
                    tool_query.query,
                    from_seq=from_seq,
                    before_seq=before_seq,
                    limit=MAX_FOUND_MESSAGES,
                )
            # The model can answer without the search. Failing here would lose the answer.
            except StoreUnavailable:
                return SearchToolResult(SEARCH_UNAVAILABLE)
        words = self._sent_view.words
        hidden_matches = [
            replace(match, message=words.quote_message(match.message))
            for match in matches
            if words.may_be_quoted(match.message.seq) and not _is_shown_before_boundary(match.message.seq, plan)
        ]
        count_tokens = self.loop.message_counter.find_token_counter(self._encoding).count
        # Cutting excerpts and counting their tokens takes milliseconds; the event loop must not wait for it.
        return await asyncio.to_thread(render_search_result, hidden_matches, tool_query.query, limit, count_tokens)


class _JoinedReply(StreamReply):
    """The streams of all rounds of one answer, as one stream.

    Args:
        upstream_answer: the first round.
    """

    def __init__(self, rounds: _SearchRounds, upstream_answer: UpstreamAnswer) -> None:
        reply = upstream_answer.reply
        assert isinstance(reply, StreamReply)
        self.first_events: JoinedEvents = JoinedEvents()
        self.protocol, self.status, self.headers = reply.protocol, reply.status, reply.headers
        self._rounds, self._events = rounds, rounds.join()

    async def wait_for_first_events(self) -> None:
        """Waits until something for the client has come."""
        self.first_events = await anext(self._events, self.first_events)

    def iter_events(self) -> AsyncIterator[Sequence[SseEvent]]:
        return self._events

    async def drain(self) -> None:
        assert isinstance(self._rounds.reply, StreamReply)
        await self._rounds.reply.drain()

    async def aclose(self) -> None:
        await self._rounds.reply.aclose()


def may_have_refused_tool(turn: Turn, refused: UpstreamRefused) -> bool:
    """Whether the search tool may be what the upstream refused."""
    assert turn.search_tool_session is not None
    # If the client has tools of its own, the refusal would come without the search tool, too.
    if turn.search_tool_session.request_without_tool.decode_field("tools"):
        return False
    return REFUSAL_TOOL_WORD in refused.raw_body.lower()


def remove_search_tool(turn: Turn) -> Turn:
    """Returns the turn without the search tool that was added to it."""
    assert turn.search_tool_session is not None
    return replace(
        turn,
        request=turn.search_tool_session.request_without_tool,
        search_tool_session=None,
        resolved_request=replace(
            turn.resolved_request, instructions_tokens=turn.search_tool_session.instructions_tokens
        ),
    )


def _has_incomplete_last_view(turn: Turn, budget: Budget) -> bool:
    """Whether the last view for this window did not show the whole log."""
    return read_last_view(turn.resolved_request.conversation.state, turn.policy, budget.window).boundary.to_seq > 0


def _is_shown_before_boundary(seq: int, plan: Plan) -> bool:
    """Whether the view shows a message from before the boundary verbatim: the anchor, or a pinned message."""
    return seq == plan.repeated_message_seq or any(pin.from_seq <= seq < pin.to_seq for pin in plan.pins)


def _has_hidden_messages(plan: Plan) -> bool:
    """Whether there are messages to search: some that the view does not show, or some that will be summarized."""
    return plan.boundary_seq > 0 or bool(plan.to_summarize)
