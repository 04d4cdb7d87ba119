"""Several rounds of asking told as one answer: chunk by chunk for a stream, or whole. Pure.

What the client is to see of each round goes through; the gateway's own tool calls, the end of a round that is gone on
from, and its usage do not. `id`, `created` and `model` are those of the first round, usage is the sum.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, Literal

from app.compaction.compaction_job import summed
from app.pipeline.call.search_tool import RECALL, is_recall
from app.pipeline.respond.stream_frames import decoded, encoded
from app.upstream.protocols.stream_collector import Collector
from app.upstream.protocols.tool_call_deltas import ToolCalls

CUT_SHORT: Final = ("length", "content_filter", "error")
"""Finish reasons after which nothing is searched: the call may not be whole, or not be wanted."""
FOR_CALLS: Final = ("tool_calls", "function_call")
IDENTITY: Final = ("id", "created", "model")
JOINED: Final = ("content", "reasoning_content", "reasoning")
CALLS_KEY: Final = b'"tool_calls"'
ROLE_KEY: Final = b'"role"'


class StreamedRounds:
    """The rounds of a streamed answer.

    Args:
        source: whose answer it is, for error messages.

    Attributes:
        recalls: the gateway's own calls with which the present round ended; empty while it need not be gone on from.
    """

    def __init__(self, source: str = "upstream") -> None:
        self._source = source
        self.recalls: list[dict[str, Any]] = []
        self._earlier: list[Mapping[str, Any]] = []
        """What was reported of each round that is over."""
        self._identity: dict[str, Any] = {}
        self._role_told = False
        self._role_owed: str | None = None
        """A role that came in a chunk with nothing else that the client is to see."""
        self._last = False
        self._first = True
        self._collector = Collector(self._source)
        self._calls = CallSplitter()

    def begin(self, *, last: bool) -> None:
        """Go on with the next round.

        Args:
            last: the model may not search any more.
        """
        self._earlier = self.reported
        self._collector = Collector(self._source)
        self._calls = CallSplitter()
        self.recalls = []
        self._last = last
        self._first = False

    @property
    def reported(self) -> list[Mapping[str, Any]]:
        """Usage of each round so far, where the upstream told it."""
        return [*self._earlier, *([self._collector.usage] if self._collector.usage else [])]

    @property
    def message(self) -> dict[str, Any]:
        """The message with which the present round ended."""
        return {**self._collector.message(), "tool_calls": self.recalls}

    def told(self, data: bytes) -> bytes | None:
        """The client's form of a chunk: the same object where nothing of it changes, None where nothing is left.

        Raises:
            UpstreamUnavailable: it is not a JSON object.
        """
        was_unfinished = self._collector.finish_reason is None
        self._collector.add(data)
        if self.recalls:
            return None
        if self._collector.error is not None:
            return data
        ends = was_unfinished and self._collector.finish_reason is not None
        if self._identity and not ends and self._first and self._role_owed is None and CALLS_KEY not in data:
            self._role_told = self._role_told or ROLE_KEY in data
            return data
        return self._changed(data, ends=ends)

    def closing(self, finish_reason: str) -> list[bytes]:
        """Chunks that end the answer here, after a round that could not be gone on from."""
        kind = {**self._identity, "object": "chat.completion.chunk"}
        choice = {"index": 0, "delta": {}, "finish_reason": finish_reason}
        usage = summed(self.reported)
        ends = [{**kind, "choices": [choice]}, *([{**kind, "choices": [], "usage": usage}] if usage else [])]
        return [encoded(chunk) for chunk in ends]

    def _changed(self, data: bytes, *, ends: bool) -> bytes | None:
        chunk = decoded(data)
        changed = self._fit_identity(chunk) | self._fit_usage(chunk)
        choice = _first_choice(chunk)
        if choice is None:
            return encoded(chunk) if changed else data
        found = choice.get("delta")
        delta: dict[str, Any] = found if isinstance(found, dict) else {}
        hides = self._fit_calls(delta, ends=ends)
        if ends:
            hides = self._fit_end(chunk, choice) or hides
        if hides and not _says_something(delta, choice, chunk):
            self._role_owed = self._role_owed or delta.get("role")
            return None
        changed = self._fit_role(delta) or changed or hides
        choice["delta"] = delta
        return encoded(chunk) if changed else data

    def _fit_identity(self, chunk: dict[str, Any]) -> bool:
        if self._first:
            if not self._identity:
                self._identity = {name: chunk[name] for name in IDENTITY if chunk.get(name)}
            return False
        chunk.update(self._identity)
        return True

    def _fit_usage(self, chunk: dict[str, Any]) -> bool:
        """Usage as the sum over the rounds; Groq's stands in a field of its own."""
        changed = False
        for holder in (chunk, chunk.get("x_groq")):
            if self._earlier and isinstance(holder, dict) and isinstance(holder.get("usage"), dict):
                holder["usage"] = summed([*self._earlier, holder["usage"]])
                changed = True
        return changed

    def _fit_calls(self, delta: dict[str, Any], *, ends: bool) -> bool:
        """Take our own calls out; whether that took anything out or put anything back."""
        fragments = delta.get("tool_calls")
        came = fragments if isinstance(fragments, list) else []
        shown = self._calls.visible(came) + (self._calls.settled() if ends else [])
        if len(shown) == len(came) and all(one is other for one, other in zip(shown, came, strict=True)):
            return False
        if shown:
            delta["tool_calls"] = shown
        else:
            del delta["tool_calls"]
        return True

    def _fit_end(self, chunk: dict[str, Any], choice: dict[str, Any]) -> bool:
        """Decide whether the round is gone on from, and if so take its end out; whether anything changed."""
        reason = choice["finish_reason"]
        own = self._calls.own
        if not own or self._calls.has_others or reason in CUT_SHORT:
            return False
        if self._last:
            choice["finish_reason"] = "stop" if reason in FOR_CALLS else reason
            return True
        self.recalls = identified(own)
        choice["finish_reason"] = None
        chunk.pop("usage", None)
        return True

    def _fit_role(self, delta: dict[str, Any]) -> bool:
        """One role in the whole answer, in the first chunk that the client sees."""
        if self._role_told:
            return not self._first and delta.pop("role", None) is not None
        if self._role_owed is not None and "role" not in delta:
            delta["role"] = self._role_owed
            self._role_owed = None
            self._role_told = True
            return True
        self._role_told = "role" in delta
        return False


class WholeRounds:
    """The rounds of an answer that is not streamed.

    Attributes:
        recalls, message, reported: as of `StreamedRounds`.
    """

    def __init__(self) -> None:
        self.recalls: list[dict[str, Any]] = []
        self.reported: list[Mapping[str, Any]] = []
        self.message: dict[str, Any] = {}
        self._bodies: list[bytes] = []

    def add(self, body: bytes, collector: Collector, *, last: bool) -> None:
        """Take a round.

        Args:
            collector: has taken the body.
            last: the model may not search any more.
        """
        self._bodies.append(body)
        self.message = collector.message()
        if collector.usage:
            self.reported.append(collector.usage)
        calls = self.message.get("tool_calls") or []
        own = [call for call in calls if is_recall(call)]
        goes_on = len(own) == len(calls) and collector.finish_reason not in CUT_SHORT and not last
        self.recalls = identified(own) if goes_on else []
        if self.recalls:
            self.message["tool_calls"] = self.recalls

    def body(self, *, finish_reason: str | None = None) -> bytes:
        """The answer: the body that came where nothing of it is ours.

        Args:
            finish_reason: of an answer that could not be gone on with.
        """
        rounds = [decoded(body) for body in self._bodies]
        answer = rounds[-1]
        choice = _first_choice(answer)
        if choice is None or not isinstance(choice.get("message"), dict):
            return self._bodies[-1]
        message = choice["message"]
        took = _take_own_calls(message)
        if len(rounds) == 1 and not took:
            return self._bodies[0]
        if took and not message.get("tool_calls") and choice.get("finish_reason") in FOR_CALLS:
            choice["finish_reason"] = "stop"
        if finish_reason is not None:
            choice["finish_reason"] = finish_reason
        self._join(message, rounds[:-1])
        answer.update({name: rounds[0][name] for name in IDENTITY if rounds[0].get(name)})
        if self.reported:
            answer["usage"] = summed(self.reported)
        return encoded(answer)

    def _join(self, message: dict[str, Any], earlier: list[dict[str, Any]]) -> None:
        choices = [_first_choice(body) or {} for body in earlier]
        messages = [choice.get("message") or {} for choice in choices] + [message]
        for name in JOINED:
            texts = [said[name] for said in messages if said.get(name)]
            if texts and all(isinstance(text, str) for text in texts):
                message[name] = "".join(texts)
            elif texts:
                message[name] = [part for text in texts for part in _parts(text)]


def identified(calls: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Calls each with an id of its own, which their results name; some servers give none."""
    seen: set[str] = set()
    found = []
    for number, call in enumerate(calls):
        call_id = call.get("id")
        if not isinstance(call_id, str) or not call_id or call_id in seen:
            call_id = f"call_recall_{number}"
        seen.add(call_id)
        found.append({**call, "id": call_id})
    return found


def _take_own_calls(message: dict[str, Any]) -> bool:
    calls = message.get("tool_calls")
    if not isinstance(calls, list):
        return False
    others = [call for call in calls if not (isinstance(call, dict) and is_recall(call))]
    if len(others) == len(calls):
        return False
    if others:
        message["tool_calls"] = others
    else:
        del message["tool_calls"]
    return True


def _first_choice(body: Mapping[str, Any]) -> dict[str, Any] | None:
    choices = body.get("choices")
    for choice in choices if isinstance(choices, list) else ():
        if isinstance(choice, dict) and choice.get("index", 0) == 0:
            return choice
    return None


def _says_something(delta: Mapping[str, Any], choice: Mapping[str, Any], chunk: Mapping[str, Any]) -> bool:
    """Whether a chunk is worth sending after something was taken out of it."""
    spoken = any(value for name, value in delta.items() if name != "role")
    return bool(spoken or choice.get("finish_reason") or chunk.get("usage"))


def _parts(content: Any) -> list[Any]:
    return content if isinstance(content, list) else [{"type": "text", "text": content}]


class CallSplitter:
    """The tool calls of one streamed message. A call is held back until its name tells whose it is.

    The client's calls get numbers without gaps as soon as one is held back before them; until then their fragments are
    the objects that came.
    """

    __slots__ = ("_calls", "_merged")

    def __init__(self) -> None:
        self._merged = ToolCalls()
        self._calls: list[_Call] = []

    @property
    def own(self) -> list[dict[str, Any]]:
        """The gateway's, in order, as far as they have come."""
        calls = enumerate(self._calls)
        return [self._merged.call(number) for number, call in calls if self._owner(number, call) == "own"]

    @property
    def has_others(self) -> bool:
        """Whether the client has been given a call."""
        return any(call.released for call in self._calls)

    def visible(self, fragments: list[Any]) -> list[Any]:
        """What the client is to see of a delta's `tool_calls`."""
        shown: list[Any] = []
        for fragment in fragments:
            if not isinstance(fragment, dict):
                shown.append(fragment)
                continue
            number = self._merged.add(fragment)
            if number == len(self._calls):
                self._calls.append(_Call())
            shown += self._taken(number, fragment)
        return shown

    def settled(self) -> list[Any]:
        """At the end of the message: the client's calls whose names could still have become ours."""
        held = [number for number, call in enumerate(self._calls) if not call.released]
        return [self._release(number) for number in held if self._merged.name_of(number) != RECALL]

    def _taken(self, number: int, fragment: dict[str, Any]) -> list[Any]:
        call = self._calls[number]
        if call.released:
            return [_numbered(fragment, call.index)]
        call.held.append(fragment)
        call.has_arguments = call.has_arguments or _has_arguments(fragment)
        call.is_function = call.is_function and "custom" not in fragment
        return [self._release(number)] if self._owner(number, call) == "client" else []

    def _owner(self, number: int, call: _Call) -> Literal["own", "client", "open"]:
        name = self._merged.name_of(number)
        if name == RECALL:
            return "own"
        may_become_ours = RECALL.startswith(name) and not (name and call.has_arguments)
        return "open" if may_become_ours and call.is_function and not call.released else "client"

    def _release(self, number: int) -> dict[str, Any]:
        """The beginning of a client's call."""
        call = self._calls[number]
        if any(not earlier.released for earlier in self._calls[:number]) or self._is_renumbered:
            call.index = sum(one.released for one in self._calls)
        call.released = True
        begun = call.held[0] if len(call.held) == 1 else {**_index_of(call.held[0]), **self._merged.call(number)}
        call.held.clear()
        return _numbered(begun, call.index)

    @property
    def _is_renumbered(self) -> bool:
        return any(call.index is not None for call in self._calls)


class _Call:
    __slots__ = ("has_arguments", "held", "index", "is_function", "released")

    def __init__(self) -> None:
        self.held: list[dict[str, Any]] = []
        self.has_arguments = False
        self.is_function = True
        self.released = False
        self.index: int | None = None
        """Its new `index`; None where it keeps the one that it has."""


def _numbered(fragment: dict[str, Any], index: int | None) -> dict[str, Any]:
    return fragment if index is None or fragment.get("index") == index else {**fragment, "index": index}


def _index_of(fragment: Mapping[str, Any]) -> dict[str, Any]:
    return {"index": fragment["index"]} if "index" in fragment else {}


def _has_arguments(fragment: Mapping[str, Any]) -> bool:
    function = fragment.get("function")
    return isinstance(function, dict) and bool(function.get("arguments"))
