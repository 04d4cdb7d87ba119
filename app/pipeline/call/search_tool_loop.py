"""Run the searches that a model asks for, and go on with its answer: the client sees one answer, the log gets one."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, AsyncIterator, Mapping, Sequence
from typing import Any, Final, Protocol

from msgspec.structs import replace

from app.context.plan.budget import Budget
from app.context.plan.outline import Plan, Summarize
from app.conversation.messages import Conversation, Message
from app.errors import GatewayError, StoreUnavailable, UpstreamRefused, UpstreamUnavailable
from app.pipeline.call.first_event import Begun
from app.pipeline.call.search_tool import (
    MAX_CALLS,
    MAX_ROUNDS,
    Recalled,
    Unusable,
    Wanted,
    going_on,
    may_be_offered,
    offering,
    repeated,
    wanted,
)
from app.pipeline.call.search_tool_results import LEAST_TOKENS, NO_ROOM, TOO_MANY, UNAVAILABLE, Shown, shown
from app.pipeline.call.search_tool_rounds import StreamedRounds, WholeRounds
from app.pipeline.call.upstream_call import Ask, Asked, Compacts
from app.pipeline.respond.stream_frames import error_frames
from app.pipeline.respond.stream_relay import ERROR_EVENT, await_end, finished_whole
from app.pipeline.token_counting import Counting
from app.pipeline.view.view_builder import Turn, View, Views
from app.pipeline.view.view_state import last_view_of
from app.store.contract import Found
from app.upstream.protocols.sse import DONE, Event, EventDecoder
from app.upstream.provider import Deployment
from app.upstream.routing.router import ReadReply

log = logging.getLogger(__name__)

FOUND_MESSAGES: Final = 12
"""How many messages one search looks at, neighbours included."""
MAX_RESULT_TOKENS: Final = 4_096
"""The most that one result takes, however large the window."""
SHORTEST_RESULT_TOKENS: Final = 32
"""What a result that only says that there is no room takes, its message included."""
CLOSING_TOKENS: Final = 96
"""Kept for one more call, so that its result can say that there is no room."""

TOOL_WORD: Final = b"tool"
"""In a refusal that may be about the tool."""
MAX_TOOLLESS: Final = 1_000


class Finds(Protocol):
    """Searches a conversation's stored messages."""

    async def find(
        self, conversation: Conversation, text: str, /, *, from_seq: int, before_seq: int, limit: int
    ) -> Sequence[Found]:
        """Messages with `from_seq` <= seq < `before_seq` that hold words of `text`: best first, then neighbours.

        Raises:
            StoreUnavailable: they cannot be searched.
        """


class Recalling:
    """Offers the recall tool and answers its calls."""

    def __init__(self, *, ask: Ask, views: Views, finding: Finds, counting: Counting) -> None:
        self._ask = ask
        self._views = views
        self._finding = finding
        self._counting = counting
        self._toolless: set[str] = set()
        """`provider/model` of those that refused the tool and then answered without it."""

    async def plan(self, turn: Turn, budget: Budget, summarize: Summarize) -> tuple[Turn, View]:
        """A view, planned with the tool among the tools where part of the log is not shown.

        Whether the last view left something out says which to try first, so that most turns are planned once.

        Raises:
            GatewayError: as `Views.make`.
        """
        if not self._may_offer(turn):
            return turn, await self._views.make(turn, budget, summarize=summarize)
        with_tool = await self._offered(turn)
        first, other = (with_tool, turn) if _was_cut(turn, budget) else (turn, with_tool)
        view = await self._views.make(first, budget, summarize=summarize)
        if _leaves_out(view.plan) == (first is with_tool):
            return first, view
        return other, await self._views.make(other, budget, summarize=summarize)

    def settled(self, turn: Turn, view: View) -> Turn:
        """The turn as it is sent: without the tool where the view turned out to show everything."""
        if turn.recalled is None or view.plan.boundary_seq > 0:
            return turn
        return _without_tool(turn, turn.recalled)

    async def put(self, turn: Turn, view: View, compacts: Compacts) -> tuple[Asked, Turn, View]:
        """Ask for an answer; once more without the tool where that is what the upstream refuses.

        Raises:
            GatewayError: as `Ask.put`.
        """
        try:
            asked, sent = await self._ask.put(turn, view, compacts)
            return asked, turn, sent
        except UpstreamRefused as refused:
            if turn.recalled is None or turn.recalled.asked.value("tools") or TOOL_WORD not in refused.raw_body.lower():
                raise
        plain = _without_tool(turn, turn.recalled)
        asked, sent = await self._ask.put(plain, view, compacts)
        log.info("%s takes no tools", turn.model_key)
        if len(self._toolless) < MAX_TOOLLESS:
            self._toolless.add(turn.model_key)
        return asked, plain, sent

    async def begun(self, turn: Turn, asked: Asked) -> Asked:
        """A stream that goes on through the searches its model asks for. Returns once there is something to show.

        Raises:
            GatewayError: the upstream failed before that.
        """
        if turn.recalled is None:
            return asked
        assert isinstance(asked.reply, Begun)
        current = _Current(asked.reply)
        try:
            rounds = self._rounds(turn, asked)
            frames = _frames(rounds, current, asked.deployment.key)
            decoder = EventDecoder(asked.deployment.key)
            first = await anext(frames, b"")
            return replace(asked, reply=Begun(current, decoder.feed(first), _told_errors(frames), decoder))
        except BaseException:
            await current.aclose()
            raise

    async def whole(self, turn: Turn, asked: Asked) -> Asked:
        """An answer that is not streamed, gone on with until its model searches no more.

        Raises:
            GatewayError: the upstream failed, or answered with something else.
        """
        if turn.recalled is None:
            return asked
        rounds = self._rounds(turn, asked)
        told = WholeRounds()
        while True:
            assert isinstance(asked.reply, ReadReply)
            body = asked.reply.body
            told.add(body, finished_whole(body, asked.deployment), last=rounds.is_last)
            if not told.recalls:
                return _with_body(asked, told.body())
            next_asked = await rounds.next(told.message, told.reported)
            if next_asked is None:
                return _with_body(asked, told.body(finish_reason="length"))
            asked = next_asked

    def _may_offer(self, turn: Turn) -> bool:
        if (turn.request.recall or turn.policy.recalls) != "tool" or not turn.place.keeps:
            return False
        if turn.model_key in self._toolless:
            return False
        return may_be_offered(turn.request, turn.target.deployments[0].quirks.strip_fields)

    async def _offered(self, turn: Turn) -> Turn:
        place, request = turn.place, offering(turn.request)
        tokens = await self._counting.instructions(place.instructions, request, place.conversation.counter)
        recalled = Recalled(turn.request, place.instructions_tokens)
        return replace(turn, request=request, recalled=recalled, place=replace(place, instructions_tokens=tokens))

    def _rounds(self, turn: Turn, asked: Asked) -> _Rounds:
        return _Rounds(self._ask, self._finding, self._counting, turn, asked.shown, asked.deployment)


class _Rounds:
    """The rounds of one answer: what was added to its prompt, and what there is room for."""

    def __init__(
        self, ask: Ask, finding: Finds, counting: Counting, turn: Turn, sent: View, deployment: Deployment
    ) -> None:
        assert turn.recalled is not None
        self._ask = ask
        self._finding = finding
        self._counting = counting
        self._turn = turn
        self._recalled = turn.recalled
        self._sent = sent
        self._deployment = deployment
        self._encoding = turn.place.conversation.counter
        self._added: list[bytes] = []
        self._tokens = sent.plan.prompt_tokens
        self._is_full = False
        """A search found no room for its result."""

    @property
    def is_last(self) -> bool:
        """Whether the model may not search any more."""
        return self._is_full or self._recalled.rounds >= MAX_ROUNDS

    async def next(self, message: Mapping[str, Any], usages: Sequence[Mapping[str, Any]]) -> Asked | None:
        """Run the calls that a message consists of and ask again; None where there is no room even for that.

        Args:
            usages: what was reported of the rounds so far.

        Raises:
            GatewayError: the upstream failed.
        """
        calls = message["tool_calls"]
        asking = Message.of({**message, "tool_calls": [repeated(call) for call in calls]})
        (asking_tokens,) = await self._counting.messages([asking], self._encoding)
        budget = self._sent.budget
        tokens = self._tokens + asking_tokens
        if budget.calibrated(tokens + len(calls) * SHORTEST_RESULT_TOKENS) > budget.hard + budget.output:
            return None
        results = []
        for number, call in enumerate(calls):
            later = (len(calls) - number - 1) * SHORTEST_RESULT_TOKENS
            room = budget.raw(budget.hard) - tokens - later
            text = TOO_MANY if number >= MAX_CALLS else await self._result(call, room)
            result = Message.of({"role": "tool", "tool_call_id": call["id"], "content": text})
            results.append(result)
            tokens += sum(await self._counting.messages([result], self._encoding))
        self._added += [asking.raw, *(result.raw for result in results)]
        self._tokens = tokens
        if self._recalled.rounds == 0:
            self._recalled.first_usage = usages[0] if usages else None
        self._recalled.rounds += 1
        request = going_on(self._turn.request, self._recalled.asked, last=self.is_last)
        turn, added_tokens = replace(self._turn, request=request), tokens - self._sent.plan.prompt_tokens
        return await self._ask.again(self._deployment, turn, self._sent, self._added, added_tokens)

    async def _result(self, call: Mapping[str, Any], room_tokens: int) -> str:
        """What the model is told of one search."""
        asked = wanted(call["function"].get("arguments"))
        if isinstance(asked, Unusable):
            return asked.reason
        result = await self._search(asked, room_tokens - CLOSING_TOKENS)
        self._is_full = self._is_full or result.text == NO_ROOM
        self._recalled.searches.append({"query": asked.query, "found": list(result.seqs)})
        return result.text

    async def _search(self, asked: Wanted, room_tokens: int) -> Shown:
        budget, plan, policy = self._sent.budget, self._sent.plan, self._turn.policy
        limit = min(room_tokens, budget.raw(min(MAX_RESULT_TOKENS, int(budget.window * policy.recall_ratio))))
        if limit < LEAST_TOKENS:
            return Shown(NO_ROOM)
        from_seq = 0 if asked.after is None else max(0, asked.after + 1)
        before_seq = plan.boundary_seq if asked.before is None else min(asked.before, plan.boundary_seq)
        found: Sequence[Found] = ()
        if from_seq < before_seq:
            try:
                found = await self._finding.find(
                    self._turn.place.conversation,
                    asked.query,
                    from_seq=from_seq,
                    before_seq=before_seq,
                    limit=FOUND_MESSAGES,
                )
            except StoreUnavailable:
                return Shown(UNAVAILABLE)
        hidden = [one for one in found if not _is_shown(one.message.seq, plan)]
        count = self._counting.counter(self._encoding).count
        return await asyncio.to_thread(shown, hidden, asked.query, limit, count)


class _Current:
    """The reply of the round that is under way; `upstream.provider.Reply` for whoever closes the stream."""

    def __init__(self, begun: Begun) -> None:
        self.begun = begun
        self.status = begun.status
        self.headers = begun.headers

    async def read(self) -> bytes:
        return b"".join([piece async for piece in self.begun.pieces])

    def chunks(self) -> AsyncIterator[bytes]:
        return self.begun.pieces

    async def aclose(self) -> None:
        await self.begun.aclose()


async def _frames(rounds: _Rounds, current: _Current, source: str) -> AsyncGenerator[bytes, None]:
    """The client's part of each round's frames, several at a time when they come so, as one stream."""
    told = StreamedRounds(source)
    while True:
        async for events in _batches(current.begun, told):
            if frames := b"".join(_frame(event, told) for event in events):
                yield frames
        if not told.recalls:
            return
        await current.aclose()
        asked = await rounds.next(told.message, told.reported)
        if asked is None:
            for data in told.closing("length"):
                yield _data_frame(data)
            return
        assert isinstance(asked.reply, Begun)
        current.begun = asked.reply
        told.begin(last=rounds.is_last)


async def _batches(begun: Begun, told: StreamedRounds) -> AsyncGenerator[list[Event], None]:
    """A round's events as they come; one that is gone on from is over at its `[DONE]`, however it ends."""
    try:
        yield begun.events
        if told.recalls and any(map(_is_done, begun.events)):
            return
        async for piece in begun.pieces:
            events = begun.decoder.feed(piece)
            yield events
            if told.recalls and any(map(_is_done, events)):
                await await_end(begun.pieces)
                return
        yield begun.decoder.finish()
    except UpstreamUnavailable:
        if not told.recalls:
            raise


def _is_done(event: Event) -> bool:
    return event.data is not None and event.data.strip() == DONE


def _frame(event: Event, told: StreamedRounds) -> bytes:
    data = event.data.strip() if event.data else b""
    if not data:
        return b""
    if _is_done(event):
        return b"" if told.recalls else _data_frame(DONE)
    if event.name == ERROR_EVENT:
        return b"event: error\n" + _data_frame(data)
    shown_data = told.told(data)
    return b"" if shown_data is None else _data_frame(shown_data)


def _data_frame(data: bytes) -> bytes:
    return b"data: " + data.replace(b"\n", b" ") + b"\n\n"


async def _told_errors(frames: AsyncGenerator[bytes, None]) -> AsyncGenerator[bytes, None]:
    """The frames, and an upstream's refusal to go on as the error event that other upstreams would send."""
    try:
        async for frame in frames:
            yield frame
    except UpstreamUnavailable:
        raise
    except GatewayError as error:
        yield error_frames(error)


def _without_tool(turn: Turn, recalled: Recalled) -> Turn:
    place = replace(turn.place, instructions_tokens=recalled.instructions_tokens)
    return replace(turn, request=recalled.asked, recalled=None, place=place)


def _was_cut(turn: Turn, budget: Budget) -> bool:
    """Whether the last view for this window left something out."""
    return last_view_of(turn.place.conversation.state, turn.policy, budget.window).boundary.to_seq > 0


def _is_shown(seq: int, plan: Plan) -> bool:
    """Whether a message from before the boundary stands in the view all the same."""
    return seq == plan.anchor_seq or any(pin.from_seq <= seq < pin.to_seq for pin in plan.pins)


def _leaves_out(plan: Plan) -> bool:
    """Whether there is something to search, or will be once it is summarized."""
    return plan.boundary_seq > 0 or bool(plan.to_summarize)


def _with_body(asked: Asked, body: bytes) -> Asked:
    return replace(asked, reply=ReadReply(asked.reply.status, asked.reply.headers, body))
