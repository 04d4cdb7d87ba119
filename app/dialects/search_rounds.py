"""Joins the rounds of the search tool into one answer, as values. Pure.

The client does not see calls of the search tool, nor the finish and the usage of a round that another round follows.
The identity is that of the first round; usage is the sum over all rounds. While no search call has come in the first
round, the provider's events can pass to a client of the same protocol.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

from msgspec.structs import replace

from app.conversation.item import Item
from app.dialects.answer_decoding import AnswerDecoder
from app.dialects.answer_events import AnswerValue, Begin, CallBegin, CallText, Citation, Finish, Other, Text, Usage
from app.dialects.body.message import ChatMessage, decode_body
from app.dialects.search_tool import TOOL_NAME
from app.dialects.search_tool_fields import is_search_call, shorten_call_arguments
from app.dialects.sse import SseEvent
from app.dialects.usage import sum_usages

TRUNCATED_REASONS: Final = ("length", "content_filter", "error")
"""Finish reasons after which no search is run: the call may be cut off, or filtered."""
CUT_OFF_REASON: Final = "length"
"""The finish reason of an answer for whose further rounds the window has no room."""
TOOL_CALL_REASONS: Final = ("tool_calls", "function_call")


class JoinedEvents(list[SseEvent]):
    """Events that came together, as far as they pass, and what the others say."""

    __slots__ = ("values",)

    def __init__(self, events: Iterable[SseEvent] = (), values: Sequence[AnswerValue] = ()) -> None:
        super().__init__(events)
        self.values = values


class RoundJoiner:
    """Joins the rounds of one answer.

    Args:
        decoder: decodes the first round.
        is_same_protocol: whether the client speaks the provider's protocol.
        may_pass: whether events may pass, too, since the answer is streamed.

    Attributes:
        search_calls: the calls of the search tool with which the current round ended; empty if no round needs to
            follow.
        has_hidden: whether something of the provider's answers was hidden.
    """

    def __init__(
        self,
        decoder: AnswerDecoder,
        *,
        is_same_protocol: bool = False,
        may_pass: bool = True,
        is_last_round: bool = False,
    ) -> None:
        self.search_calls: list[dict[str, Any]] = []
        self.has_hidden = False
        self._is_same_protocol = is_same_protocol
        self._passes = is_same_protocol and may_pass
        self._begin: Begin | None = None
        self._is_begin_told = False
        self._last_block: int | None = None
        self._call_count = 0
        """How many calls the client gets."""
        self._earlier_usages: list[Mapping[str, Any]] = []
        self._is_first_round = True
        self._start_round(decoder, is_last_round=is_last_round)

    def begin_round(self, decoder: AnswerDecoder, *, is_last_round: bool) -> None:
        """Begins the next round.

        Args:
            is_last_round: the model must answer without another search.
        """
        self._earlier_usages = self.reported_usages
        self._is_first_round = False
        self._start_round(decoder, is_last_round=is_last_round)

    def _start_round(self, decoder: AnswerDecoder, *, is_last_round: bool) -> None:
        self._decoder = decoder
        decoder.awaited_name = TOOL_NAME
        decoder.holds_names = not self._passes
        decoder.tells_others = self._is_same_protocol and not self._passes
        self._is_last_round = is_last_round
        self._numbers: dict[int, int | None] = {}
        """The client's number of each call of the round; None for a call of the search tool."""
        self._block_shift: int | None = None
        """What is added to the number of each block of text: the first one of a round continues that of the round
        before."""
        self._has_finished = False
        self._told_usage: Mapping[str, Any] | None = None
        self.search_calls = []

    @property
    def reported_usages(self) -> list[Mapping[str, Any]]:
        """Usage of each round so far, if the provider reported it."""
        return [*self._earlier_usages, *([self._decoder.usage] if self._decoder.usage else [])]

    @property
    def has_round_ended(self) -> bool:
        """Whether the provider has said its last of the current round."""
        return self._decoder.has_ended

    def join_events(self, events: Sequence[SseEvent]) -> JoinedEvents:
        """Returns what events of the current round mean to the client.

        Raises:
            UpstreamUnavailable: the data of an event is not a JSON object.
        """
        joined = JoinedEvents(values=(values := []))
        for event in events:
            data = event.data.strip() if event.data else b""
            if not data or self._decoder.has_ended:
                continue
            said = self._join_all(self._decoder.decode(data, event.name))
            self._passes = self._passes and not self._has_search
            if self._passes:
                joined.append(event)
            else:
                self._decoder.holds_names, self._decoder.tells_others = True, self._is_same_protocol
                values += self._tell_begin(said)
        return joined

    def join_values(self, values: Iterable[AnswerValue]) -> list[AnswerValue]:
        """Returns what values of the current round mean to the client."""
        return self._tell_begin(self._join_all(values))

    def join_rest(self) -> list[AnswerValue]:
        """Returns what was held back, after a round that did not come to its end."""
        return self.join_values(self._decoder.decode_rest())

    def cut_off(self) -> list[AnswerValue]:
        """Ends the answer if the window has no room for another round."""
        return self._tell_begin([Finish(CUT_OFF_REASON), *self._sum_usage()])

    def build_call_message(self) -> Item:
        """Builds the message with which the current round ended, for the next round's prompt. It is the provider's own
        unless its calls must be changed: some servers parse the arguments of earlier calls."""
        message = self._decoder.build_item()
        body = decode_body(message)
        calls = [shorten_call_arguments(call) for call in self.search_calls]
        return message if body["tool_calls"] == calls else ChatMessage.from_body({**body, "tool_calls": calls})

    @property
    def _has_search(self) -> bool:
        """Whether a call of the round is one of the search tool, or may be one."""
        return None in self._numbers.values() or self._decoder.has_awaited_call

    def _join_all(self, values: Iterable[AnswerValue]) -> list[AnswerValue]:
        return [joined for value in values for joined in self._join_value(value)]

    def _tell_begin(self, said: list[AnswerValue]) -> list[AnswerValue]:
        """Returns what is said after the beginning of the answer. If there is nothing but a search, the answer has not
        begun for the client: the next round may still fail."""
        if self._begin is None or self._is_begin_told or (not said and self._has_search):
            return said
        self._is_begin_told = True
        return [self._begin, *said]

    def _join_value(self, value: AnswerValue) -> Iterator[AnswerValue]:
        match value:
            case Begin():
                if self._is_first_round:
                    self._begin, self._is_begin_told = value, False
            case CallBegin(call=call):
                is_search = value.name == TOOL_NAME and not value.is_custom
                self._numbers[call] = None if is_search else self._call_count
                self.has_hidden = self.has_hidden or is_search
                if not is_search:
                    self._call_count += 1
                    yield self._renumber(value, call)
            case CallText(call=call) | Other(call=int(call)):
                if self._numbers[call] is not None:
                    yield self._renumber(value, call)
            case Text(block=int(block)):
                if self._block_shift is None:
                    self._block_shift = 0 if self._last_block is None else self._last_block - block
                self._last_block = block + self._block_shift
                yield replace(value, block=self._last_block) if self._block_shift else value
            case Citation(block=int(block)) if self._block_shift:
                yield replace(value, block=block + self._block_shift)
            case Usage():
                if self._has_finished and not self.search_calls and value.counts is not self._told_usage:
                    yield from self._sum_usage()
            case Finish(choice=0):
                yield from self._decide_next_round(value.reason)
            case _:
                yield value

    def _renumber(self, value: CallBegin | CallText | Other, call: int) -> AnswerValue:
        number = self._numbers[call]
        return value if number == call else replace(value, call=number)

    def _decide_next_round(self, reason: str) -> Iterator[AnswerValue]:
        """Decides at the end of a round whether another follows; the end is hidden if so."""
        self._has_finished = True
        owners = self._numbers.values()
        # If the model also called a tool of the client, only the client can run it: the answer ends here for the
        # client.
        if owners and all(owner is None for owner in owners) and reason not in TRUNCATED_REASONS:
            if not self._is_last_round:
                calls = decode_body(self._decoder.build_item()).get("tool_calls") or []
                self.search_calls = assign_call_ids([call for call in calls if is_search_call(call)])
                return
            # The calls were hidden, so a client would look for calls that are not there.
            reason = "stop" if reason in TOOL_CALL_REASONS else reason
        yield Finish(reason)
        if self._decoder.usage is not None:
            yield from self._sum_usage()

    def _sum_usage(self) -> Iterator[AnswerValue]:
        self._told_usage = self._decoder.usage
        if (total := sum_usages(self.reported_usages)) is not None:
            yield Usage(total)


def assign_call_ids(calls: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """Gives each call a unique id, which its result must name. Some servers send no ids, or equal ones."""
    used_ids: set[str] = set()
    identified_calls = []
    for number, call in enumerate(calls):
        call_id = call.get("id")
        if not isinstance(call_id, str) or not call_id or call_id in used_ids:
            call_id = f"call_recall_{number}"
        used_ids.add(call_id)
        identified_calls.append({**call, "id": call_id})
    return identified_calls
