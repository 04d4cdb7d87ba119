"""A provider that speaks the Responses API as strictly as OpenAI does, with scripted answers, over real HTTP."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from tests.live import Reply, ScriptedUpstream
from tests.support.responses_checks import RefusedRequest, check_request, count_prompt_tokens

Item = dict[str, Any]
ENCRYPTED_INCLUDE: Final = "reasoning.encrypted_content"
ID_PREFIXES: Final = {
    "message": "msg_",
    "reasoning": "rs_",
    "function_call": "fc_",
    "custom_tool_call": "ctc_",
    "web_search_call": "ws_",
}
CREATED_AT: Final = 1_700_000_000


@dataclass
class ScriptedResponse:
    """One scripted answer. Ids and encrypted reasoning are added when it is given.

    Attributes:
        items: the output items.
        incomplete: the reason why the answer is incomplete.
        error: the error with which the response fails, after its items.
        interleaves: whether the deltas of all items come in turns, as those of parallel calls may.
        has_usage: whether the last response object has usage.
    """

    items: Sequence[Item] = ()
    incomplete: str | None = None
    error: dict[str, Any] | None = None
    interleaves: bool = False
    has_usage: bool = True
    fields: dict[str, Any] = field(default_factory=dict)
    """Further fields of the response object."""


def text_item(text: str, *annotations: dict[str, Any], **fields: Any) -> Item:
    part = {"type": "output_text", "text": text, "annotations": list(annotations), "logprobs": []}
    return {"type": "message", "role": "assistant", "content": [part], "status": "completed", **fields}


def refusal_item(refusal: str) -> Item:
    part = {"type": "refusal", "refusal": refusal}
    return {"type": "message", "role": "assistant", "content": [part], "status": "completed"}


def reasoning_item(*summaries: str, texts: Sequence[str] = ()) -> Item:
    """A reasoning with encrypted content, if the request asks for that."""
    content = {"content": [{"type": "reasoning_text", "text": text} for text in texts]} if texts else {}
    return {"type": "reasoning", "summary": [{"type": "summary_text", "text": text} for text in summaries], **content}


def function_call_item(name: str, arguments: str, call_id: str) -> Item:
    return {
        "type": "function_call",
        "call_id": call_id,
        "name": name,
        "arguments": arguments,
        "status": "completed",
    }


def custom_call_item(name: str, text: str, call_id: str) -> Item:
    return {"type": "custom_tool_call", "call_id": call_id, "name": name, "input": text, "status": "completed"}


def web_search_item(query: str) -> Item:
    return {"type": "web_search_call", "status": "completed", "action": {"type": "search", "query": query}}


def respond(*items: Item | str, **more: Any) -> ScriptedResponse:
    """An answer of these items; a string is a message."""
    return ScriptedResponse([text_item(item) if isinstance(item, str) else item for item in items], **more)


class ResponsesUpstream(ScriptedUpstream):
    """Answers each valid request with the next scripted response, or with what `default` makes of it. A scripted
    `Reply` is sent as it is. Invalid requests get OpenAI's errors and use no scripted answer.

    Args:
        answers: the scripted answers.
        default: the answer if no scripted one is left, from the request's body.
        window: the most tokens that a prompt may have, as `count_prompt_tokens` counts; None: no limit.
        fails_in_stream: whether a streamed request with a longer prompt fails in the stream instead of with status 400.

    Attributes:
        refusals: the errors of refused requests.
        issued_secrets: every encrypted content that was given.
    """

    def __init__(
        self,
        *answers: ScriptedResponse | Reply,
        default: Callable[[dict[str, Any]], ScriptedResponse] | None = None,
        window: int | None = None,
        fails_in_stream: bool = False,
    ) -> None:
        super().__init__(default=self._reply)
        self.answers = list(answers)
        self.default_answer = default or (lambda body: respond("Fine."))
        self.window = window
        self.fails_in_stream = fails_in_stream
        self.refusals: list[dict[str, Any]] = []
        self.issued_secrets: set[str] = set()
        self._id_count = 0

    def _reply(self, body: dict[str, Any]) -> Reply:
        try:
            if not self.paths[-1].endswith("/responses"):
                raise RefusedRequest(f"Invalid URL (POST {self.paths[-1]})", status=404)
            check_request(body, self.issued_secrets)
            tokens = count_prompt_tokens(body)
            if self.window is not None and tokens > self.window:
                error = RefusedRequest(
                    "Your input exceeds the context window of this model. Please adjust your input and try again.",
                    code="context_length_exceeded",
                    param="input",
                )
                if not (body.get("stream") and self.fails_in_stream):
                    raise error
                return self._render(ScriptedResponse(error={"code": error.code, "message": error.message}), body, 0)
        except RefusedRequest as refused:
            self.refusals.append(refused.build_body()["error"])
            return Reply(refused.build_body(), status=refused.status)
        answer = self.answers.pop(0) if self.answers else self.default_answer(body)
        return answer if isinstance(answer, Reply) else self._render(answer, body, tokens)

    def _render(self, answer: ScriptedResponse, body: dict[str, Any], tokens: int) -> Reply:
        response = build_response(
            answer, body, self._next_id("resp_"), [self._complete_item(item, body) for item in answer.items], tokens
        )
        if body.get("stream"):
            return Reply(pieces=[render_event(event) for event in number_events(build_events(response, answer))])
        return Reply(response)

    def _next_id(self, prefix: str) -> str:
        self._id_count += 1
        return f"{prefix}{self._id_count:048x}"

    def _complete_item(self, item: Item, body: dict[str, Any]) -> Item:
        completed = {"id": self._next_id(ID_PREFIXES.get(item["type"], "item_")), **item}
        if item["type"] == "reasoning" and ENCRYPTED_INCLUDE in (body.get("include") or ()):
            secret = self._next_id("gAAAA")
            self.issued_secrets.add(secret)
            completed.setdefault("encrypted_content", secret)
        return completed


def build_response(
    answer: ScriptedResponse, body: dict[str, Any], response_id: str, output: list[Item], tokens: int
) -> dict[str, Any]:
    """Builds the whole response object."""
    output_tokens = sum(len(json.dumps(item)) for item in output) // 4
    usage = {
        "input_tokens": tokens,
        "input_tokens_details": {"cached_tokens": tokens // 2, "cache_write_tokens": 0},
        "output_tokens": output_tokens,
        "output_tokens_details": {"reasoning_tokens": 3 if any(item["type"] == "reasoning" for item in output) else 0},
        "total_tokens": tokens + output_tokens,
    }
    status = "failed" if answer.error else "incomplete" if answer.incomplete else "completed"
    return {
        "id": response_id,
        "object": "response",
        "created_at": CREATED_AT,
        "status": status,
        "error": answer.error,
        "incomplete_details": {"reason": answer.incomplete} if answer.incomplete else None,
        "instructions": body.get("instructions"),
        "max_output_tokens": body.get("max_output_tokens"),
        "metadata": body.get("metadata") or {},
        "model": body["model"],
        "output": output,
        "parallel_tool_calls": body.get("parallel_tool_calls", True),
        "previous_response_id": None,
        "reasoning": body.get("reasoning") or {"effort": None, "summary": None},
        "service_tier": "default",
        "store": False,
        "temperature": body.get("temperature", 1.0),
        "text": body.get("text") or {"format": {"type": "text"}},
        "tool_choice": body.get("tool_choice", "auto"),
        "tools": body.get("tools") or [],
        "top_p": body.get("top_p", 1.0),
        "truncation": body.get("truncation") or "disabled",
        "usage": usage if answer.has_usage and not answer.error else None,
        **answer.fields,
    }


def render_event(event: dict[str, Any]) -> bytes:
    return b"event: %b\ndata: %b\n\n" % (event["type"].encode(), json.dumps(event, separators=(",", ":")).encode())


def number_events(events: Iterator[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    for number, event in enumerate(events):
        yield {**event, "sequence_number": number}


def build_events(response: dict[str, Any], answer: ScriptedResponse) -> Iterator[dict[str, Any]]:
    """Builds the events of a stream, in OpenAI's order, without their numbers."""
    begun = {
        **response,
        "status": "in_progress",
        "output": [],
        "usage": None,
        "error": None,
        "incomplete_details": None,
        "service_tier": "auto",
    }
    yield {"type": "response.created", "response": begun}
    yield {"type": "response.in_progress", "response": begun}
    runs = [list(build_item_events(index, item)) for index, item in enumerate(response["output"])]
    if answer.interleaves:
        while any(runs):
            yield from [run.pop(0) for run in runs if run]
    for run in runs:
        yield from run
    yield {"type": f"response.{response['status']}", "response": response}


def build_item_events(index: int, item: Item) -> Iterator[dict[str, Any]]:
    kind = item["type"]
    place = {"output_index": index, "item_id": item["id"]}
    empty: dict[str, Item] = {
        "message": {"content": []},
        "reasoning": {"summary": []},
        "function_call": {"arguments": ""},
        "custom_tool_call": {"input": ""},
        "web_search_call": {},
    }
    begun = {name: value for name, value in item.items() if name not in ("encrypted_content", "content")}
    begun |= empty[kind] | ({} if kind in ("reasoning", "custom_tool_call") else {"status": "in_progress"})
    yield {"type": "response.output_item.added", "output_index": index, "item": begun}
    if kind == "function_call":
        yield from build_text_events("response.function_call_arguments", place, item["arguments"], "arguments")
    elif kind == "custom_tool_call":
        yield from build_text_events("response.custom_tool_call_input", place, item["input"], "input")
    elif kind == "web_search_call":
        for state in ("in_progress", "searching", "completed"):
            yield {"type": f"response.web_search_call.{state}", **place}
    for number, part in enumerate(item.get("summary") or ()):
        part_place = {**place, "summary_index": number}
        part_event = "response.reasoning_summary_part"
        yield {"type": f"{part_event}.added", **part_place, "part": {**part, "text": ""}}
        yield from build_text_events("response.reasoning_summary_text", part_place, part["text"])
        yield {"type": f"{part_event}.done", **part_place, "part": part}
    for number, part in enumerate(item.get("content") or ()):
        yield from build_content_events({**place, "content_index": number}, part)
    yield {"type": "response.output_item.done", "output_index": index, "item": item}


def build_content_events(place: dict[str, Any], part: dict[str, Any]) -> Iterator[dict[str, Any]]:
    text_name = "refusal" if part["type"] == "refusal" else "text"
    begun = {**part, text_name: "", **({"annotations": []} if part["type"] == "output_text" else {})}
    yield {"type": "response.content_part.added", **place, "part": begun}
    more: dict[str, Any] = {"logprobs": []} if part["type"] == "output_text" else {}
    yield from build_text_events(f"response.{part['type']}", place, part[text_name], text_name, **more)
    for number, annotation in enumerate(part.get("annotations") or ()):
        added = {"annotation_index": number, "annotation": annotation}
        yield {"type": "response.output_text.annotation.added", **place, **added}
    yield {"type": "response.content_part.done", **place, "part": part}


def build_text_events(
    name: str, place: dict[str, Any], text: str, done_name: str = "text", **more: Any
) -> Iterator[dict[str, Any]]:
    for piece in re.findall(r"\s*\S+|\s+", text):
        yield {"type": f"{name}.delta", **place, "delta": piece, **more}
    yield {"type": f"{name}.done", **place, done_name: text, **more}
