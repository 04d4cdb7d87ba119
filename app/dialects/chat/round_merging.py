"""Merges the rounds of the search tool into one answer, chunk by chunk for a stream, or whole. Pure.

The client does not see calls of the search tool, nor the finish reason and usage of a round that another round follows.
`id`, `created` and `model` are those of the first round; usage is the sum over all rounds.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, Literal

from app.dialects.body.message import ChatMessage
from app.dialects.chat.stream_decoder import ChatStreamDecoder
from app.dialects.chat.stream_frames import DONE_FRAME, ERROR_EVENT, decode_chunk, encode_chunk
from app.dialects.chat.tool_call_collector import ToolCallCollector
from app.dialects.search_tool import TOOL_NAME
from app.dialects.search_tool_fields import build_call_message, is_search_call
from app.dialects.sse import DONE_DATA, SseEvent
from app.dialects.usage import sum_usages

TRUNCATED_REASONS: Final = ("length", "content_filter", "error")
"""Finish reasons after which no search is run: the call may be cut off, or filtered."""
CUT_OFF_REASON: Final = "length"
"""The finish reason of an answer that was cut off, as of one for whose further rounds the window has no room."""
TOOL_CALL_REASONS: Final = ("tool_calls", "function_call")
IDENTITY_FIELDS: Final = ("id", "created", "model")
JOINED_FIELDS: Final = ("content", "reasoning_content", "reasoning")
CALLS_KEY: Final = b'"tool_calls"'
ROLE_KEY: Final = b'"role"'


class StreamRoundMerger:
    """Merges the rounds of a streamed answer.

    Args:
        source: the deployment's key, for error messages.

    Attributes:
        search_calls: the calls of the search tool with which the current round ended; empty if no round needs to
            follow.
    """

    def __init__(self, source: str = "upstream") -> None:
        self._source = source
        self.search_calls: list[dict[str, Any]] = []
        self._earlier_usages: list[Mapping[str, Any]] = []
        """Usage of each finished round, if reported."""
        self._identity: dict[str, Any] = {}
        self._is_role_sent = False
        self._pending_role: str | None = None
        """The role from a chunk that was hidden, to be sent with the next visible chunk."""
        self._is_last_round = False
        self._is_first_round = True
        self._collector = ChatStreamDecoder(self._source)
        self._call_splitter = ToolCallSplitter()

    def begin_round(self, *, is_last_round: bool) -> None:
        """Begins the next round.

        Args:
            is_last_round: the model must answer without another search.
        """
        self._earlier_usages = self.reported_usages
        self._collector = ChatStreamDecoder(self._source)
        self._call_splitter = ToolCallSplitter()
        self.search_calls = []
        self._is_last_round = is_last_round
        self._is_first_round = False

    @property
    def reported_usages(self) -> list[Mapping[str, Any]]:
        """Usage of each round so far, if the upstream reported it."""
        return [*self._earlier_usages, *([self._collector.usage] if self._collector.usage else [])]

    def build_call_message(self) -> ChatMessage:
        """Builds the message with which the current round ended, for the next round's prompt."""
        return build_call_message(self._collector.build_message(), self.search_calls)

    def render_frame(self, event: SseEvent) -> bytes:
        """Renders the client's frame for an event; empty if the client must not see the event.

        Raises:
            UpstreamUnavailable: the event is a chunk that is not a JSON object.
        """
        data = event.data.strip() if event.data else b""
        if not data:
            return b""
        if data == DONE_DATA:
            return b"" if self.search_calls else DONE_FRAME
        if event.name == ERROR_EVENT:
            return b"event: error\n" + _render_data_frame(data)
        chunk = self.rewrite_chunk(data)
        return b"" if chunk is None else _render_data_frame(chunk)

    def rewrite_chunk(self, data: bytes) -> bytes | None:
        """Rewrites a chunk for the client.

        Returns:
            `data` itself if nothing changes; None if the client must not see the chunk.

        Raises:
            UpstreamUnavailable: the chunk is not a JSON object.
        """
        was_unfinished = self._collector.finish is None
        self._collector.add_chunk(data)
        # The round has ended and another follows: what still comes is its usage, which `reported_usages` has.
        if self.search_calls:
            return None
        if self._collector.error is not None:
            return data
        ends = was_unfinished and self._collector.finish is not None
        # The fast path, for nearly every chunk: the chunk is plain text of the first round, and is not decoded again.
        if (
            self._identity
            and not ends
            and self._is_first_round
            and self._pending_role is None
            and CALLS_KEY not in data
        ):
            self._is_role_sent = self._is_role_sent or ROLE_KEY in data
            return data
        return self._rewrite_decoded_chunk(data, ends=ends)

    def render_cut_off_end(self) -> list[bytes]:
        """Renders the frames that end the answer if the window has no room for another round."""
        kind = {**self._identity, "object": "chat.completion.chunk"}
        choice = {"index": 0, "delta": {}, "finish_reason": CUT_OFF_REASON}
        usage = sum_usages(self.reported_usages)
        ends = [{**kind, "choices": [choice]}, *([{**kind, "choices": [], "usage": usage}] if usage else [])]
        return [_render_data_frame(encode_chunk(chunk)) for chunk in ends]

    def _rewrite_decoded_chunk(self, data: bytes, *, ends: bool) -> bytes | None:
        chunk = decode_chunk(data)
        changed = self._replace_identity(chunk) | self._replace_usage_by_sum(chunk)
        choice = _find_first_choice(chunk)
        if choice is None:
            return encode_chunk(chunk) if changed else data
        raw_delta = choice.get("delta")
        delta: dict[str, Any] = raw_delta if isinstance(raw_delta, dict) else {}
        hides = self._filter_call_fragments(delta, ends=ends)
        if ends:
            hides = self._decide_next_round(chunk, choice) or hides
        if hides and not _has_visible_content(delta, choice, chunk):
            self._pending_role = self._pending_role or delta.get("role")
            return None
        changed = self._send_role_once(delta) or changed or hides
        choice["delta"] = delta
        return encode_chunk(chunk) if changed else data

    def _replace_identity(self, chunk: dict[str, Any]) -> bool:
        if self._is_first_round:
            if not self._identity:
                self._identity = {name: chunk[name] for name in IDENTITY_FIELDS if chunk.get(name)}
            return False
        chunk.update(self._identity)
        return True

    def _replace_usage_by_sum(self, chunk: dict[str, Any]) -> bool:
        """Replaces usage by the sum over the rounds; returns whether anything changed. Groq reports it in `x_groq`."""
        changed = False
        for holder in (chunk, chunk.get("x_groq")):
            if self._earlier_usages and isinstance(holder, dict) and isinstance(holder.get("usage"), dict):
                holder["usage"] = sum_usages([*self._earlier_usages, holder["usage"]])
                changed = True
        return changed

    def _filter_call_fragments(self, delta: dict[str, Any], *, ends: bool) -> bool:
        """Removes fragments of search calls, and adds held-back fragments of the client's; returns whether the delta
        changed.
        """
        fragments = delta.get("tool_calls")
        received = fragments if isinstance(fragments, list) else []
        visible = self._call_splitter.select_visible_fragments(received) + (
            self._call_splitter.release_pending_calls() if ends else []
        )
        if len(visible) == len(received) and all(
            shown_fragment is received_fragment
            for shown_fragment, received_fragment in zip(visible, received, strict=True)
        ):
            return False
        if visible:
            delta["tool_calls"] = visible
        else:
            del delta["tool_calls"]
        return True

    def _decide_next_round(self, chunk: dict[str, Any], choice: dict[str, Any]) -> bool:
        """Decides at the end of a round whether another follows, and hides the end if so; returns whether anything
        changed."""
        reason = choice["finish_reason"]
        search_calls = self._call_splitter.search_calls
        # If the model also called a tool of the client, only the client can run it: the answer ends here for the
        # client.
        if not search_calls or self._call_splitter.has_client_calls or reason in TRUNCATED_REASONS:
            return False
        if self._is_last_round:
            # The calls were hidden, so a client would look for calls that are not there.
            choice["finish_reason"] = "stop" if reason in TOOL_CALL_REASONS else reason
            return True
        self.search_calls = assign_call_ids(search_calls)
        choice["finish_reason"] = None
        chunk.pop("usage", None)
        return True

    def _send_role_once(self, delta: dict[str, Any]) -> bool:
        """Keeps one role in the whole answer, in the first visible chunk; returns whether the delta changed."""
        if self._is_role_sent:
            return not self._is_first_round and delta.pop("role", None) is not None
        if self._pending_role is not None and "role" not in delta:
            delta["role"] = self._pending_role
            self._pending_role = None
            self._is_role_sent = True
            return True
        self._is_role_sent = "role" in delta
        return False


class WholeRoundMerger:
    """Merges the rounds of an answer that is not streamed.

    Attributes:
        search_calls, reported_usages: as of `StreamRoundMerger`.
    """

    def __init__(self) -> None:
        self.search_calls: list[dict[str, Any]] = []
        self.reported_usages: list[Mapping[str, Any]] = []
        self._round_message: dict[str, Any] = {}
        self._bodies: list[bytes] = []

    def add_round(self, body: bytes, collector: ChatStreamDecoder, *, is_last_round: bool) -> None:
        """Adds a round.

        Args:
            body: the reply's body.
            collector: the collector that has read the body.
            is_last_round: the model must answer without another search.
        """
        self._bodies.append(body)
        self._round_message = collector.build_message()
        if collector.usage:
            self.reported_usages.append(collector.usage)
        calls = self._round_message.get("tool_calls") or []
        search_calls = [call for call in calls if is_search_call(call)]
        goes_on = len(search_calls) == len(calls) and collector.finish not in TRUNCATED_REASONS and not is_last_round
        self.search_calls = assign_call_ids(search_calls) if goes_on else []

    def build_call_message(self) -> ChatMessage:
        """Builds the message with which the last round ended, for the next round's prompt."""
        return build_call_message(self._round_message, self.search_calls)

    def render_body(self, *, is_cut_off: bool = False) -> bytes:
        """Renders the answer; returns the upstream's own body if there was one round without search calls.

        Args:
            is_cut_off: whether the window had no room for another round.
        """
        rounds = [decode_chunk(body) for body in self._bodies]
        answer = rounds[-1]
        choice = _find_first_choice(answer)
        if choice is None or not isinstance(choice.get("message"), dict):
            return self._bodies[-1]
        message = choice["message"]
        has_removed_calls = _remove_search_calls(message)
        if len(rounds) == 1 and not has_removed_calls:
            return self._bodies[0]
        if has_removed_calls and not message.get("tool_calls") and choice.get("finish_reason") in TOOL_CALL_REASONS:
            choice["finish_reason"] = "stop"
        if is_cut_off:
            choice["finish_reason"] = CUT_OFF_REASON
        self._join_round_texts(message, rounds[:-1])
        answer.update({name: rounds[0][name] for name in IDENTITY_FIELDS if rounds[0].get(name)})
        if self.reported_usages:
            answer["usage"] = sum_usages(self.reported_usages)
        return encode_chunk(answer)

    # Rounds may have text before their calls. A stream has shown it to its client, so the whole answer has it, too.
    def _join_round_texts(self, message: dict[str, Any], earlier: list[dict[str, Any]]) -> None:
        choices = [_find_first_choice(body) or {} for body in earlier]
        messages = [choice.get("message") or {} for choice in choices] + [message]
        for name in JOINED_FIELDS:
            texts = [round_message[name] for round_message in messages if round_message.get(name)]
            if texts and all(isinstance(text, str) for text in texts):
                message[name] = "".join(texts)
            elif texts:
                message[name] = [part for text in texts for part in _list_content_parts(text)]


RoundMerger = StreamRoundMerger | WholeRoundMerger


def assign_call_ids(calls: list[dict[str, Any]]) -> list[dict[str, Any]]:
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


def _remove_search_calls(message: dict[str, Any]) -> bool:
    calls = message.get("tool_calls")
    if not isinstance(calls, list):
        return False
    client_calls = [call for call in calls if not (isinstance(call, dict) and is_search_call(call))]
    if len(client_calls) == len(calls):
        return False
    if client_calls:
        message["tool_calls"] = client_calls
    else:
        del message["tool_calls"]
    return True


def _render_data_frame(data: bytes) -> bytes:
    return b"data: " + data.replace(b"\n", b" ") + b"\n\n"


def _find_first_choice(body: Mapping[str, Any]) -> dict[str, Any] | None:
    choices = body.get("choices")
    for choice in choices if isinstance(choices, list) else ():
        if isinstance(choice, dict) and choice.get("index", 0) == 0:
            return choice
    return None


def _has_visible_content(delta: Mapping[str, Any], choice: Mapping[str, Any], chunk: Mapping[str, Any]) -> bool:
    """Whether a chunk holds anything for the client after parts of it were removed."""
    has_delta = any(value for name, value in delta.items() if name != "role")
    return bool(has_delta or choice.get("finish_reason") or chunk.get("usage"))


def _list_content_parts(content: Any) -> list[Any]:
    return content if isinstance(content, list) else [{"type": "text", "text": content}]


class ToolCallSplitter:
    """Splits the tool calls of one streamed message into search calls and the client's calls.

    A call is held back until its name tells whose call it is. The client's calls are renumbered without gaps if a call
    before them is hidden; otherwise their fragments are passed on as they came.
    """

    __slots__ = ("_calls", "_merged")

    def __init__(self) -> None:
        self._merged = ToolCallCollector()
        self._calls: list[_SplitCall] = []

    @property
    def search_calls(self) -> list[dict[str, Any]]:
        """The calls of the search tool, in order, as far as they have come."""
        calls = enumerate(self._calls)
        return [self._merged.build_call(number) for number, call in calls if self._find_owner(number, call) == "own"]

    @property
    def has_client_calls(self) -> bool:
        """Whether the client has got a call."""
        return any(call.is_released for call in self._calls)

    def select_visible_fragments(self, fragments: list[Any]) -> list[Any]:
        """Selects the fragments of a delta's `tool_calls` that the client must see."""
        visible_fragments: list[Any] = []
        for fragment in fragments:
            if not isinstance(fragment, dict):
                visible_fragments.append(fragment)
                continue
            number = self._merged.add_fragment(fragment)
            if number == len(self._calls):
                self._calls.append(_SplitCall())
            visible_fragments += self._hold_or_release_fragment(number, fragment)
        return visible_fragments

    def release_pending_calls(self) -> list[Any]:
        """Releases the client's calls that were held back, at the end of the message: their names are complete now."""
        pending = [number for number, call in enumerate(self._calls) if not call.is_released]
        return [self._release_call(number) for number in pending if self._merged.function_name(number) != TOOL_NAME]

    def _hold_or_release_fragment(self, number: int, fragment: dict[str, Any]) -> list[Any]:
        call = self._calls[number]
        if call.is_released:
            return [_renumber_fragment(fragment, call.index)]
        call.held_fragments.append(fragment)
        call.has_arguments = call.has_arguments or _has_arguments(fragment)
        call.is_function = call.is_function and "custom" not in fragment
        return [self._release_call(number)] if self._find_owner(number, call) == "client" else []

    def _find_owner(self, number: int, call: _SplitCall) -> Literal["own", "client", "open"]:
        name = self._merged.function_name(number)
        if name == TOOL_NAME:
            return "own"
        # Some servers send a name in several fragments. Arguments come after the name, so they show that it is
        # complete.
        may_become_ours = TOOL_NAME.startswith(name) and not (name and call.has_arguments)
        return "open" if may_become_ours and call.is_function and not call.is_released else "client"

    def _release_call(self, number: int) -> dict[str, Any]:
        """Releases a client's call: returns a fragment with all of the call that was held back."""
        call = self._calls[number]
        if any(not earlier.is_released for earlier in self._calls[:number]) or self._has_renumbered_call:
            call.index = sum(released_call.is_released for released_call in self._calls)
        call.is_released = True
        fragment = (
            call.held_fragments[0]
            if len(call.held_fragments) == 1
            else {**_select_index_field(call.held_fragments[0]), **self._merged.build_call(number)}
        )
        call.held_fragments.clear()
        return _renumber_fragment(fragment, call.index)

    @property
    def _has_renumbered_call(self) -> bool:
        return any(call.index is not None for call in self._calls)


class _SplitCall:
    __slots__ = ("has_arguments", "held_fragments", "index", "is_function", "is_released")

    def __init__(self) -> None:
        self.held_fragments: list[dict[str, Any]] = []
        self.has_arguments = False
        self.is_function = True
        self.is_released = False
        self.index: int | None = None
        """The new `index` in the client's stream; None if the call keeps its own."""


def _renumber_fragment(fragment: dict[str, Any], index: int | None) -> dict[str, Any]:
    return fragment if index is None or fragment.get("index") == index else {**fragment, "index": index}


def _select_index_field(fragment: Mapping[str, Any]) -> dict[str, Any]:
    return {"index": fragment["index"]} if "index" in fragment else {}


def _has_arguments(fragment: Mapping[str, Any]) -> bool:
    function = fragment.get("function")
    return isinstance(function, dict) and bool(function.get("arguments"))
