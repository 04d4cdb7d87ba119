"""The simulated model: `answer_request(request) → SimulatedAnswer`, a deterministic function of the request. Pure.

It knows only what the prompt shows: it answers questions with sentences of the prompt, notes statements, calls tools
when asked to, and summarizes transcripts by extraction. So a fact that is missing in the view is missing in the answer.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Protocol

import msgspec
import orjson
from msgspec import Meta

from app.conversation.item import CountedSchemas, Item
from app.dialects.body.message import ChatMessage
from app.dialects.body.message_fields import extract_text, read_schemas
from app.errors import InvalidRequest
from app.simulator.extractive_summary import (
    QUOTATION_ROLE,
    cut_to_tokens,
    find_transcript_to_summarize,
    summarize_by_extraction,
)
from app.simulator.question_answering import (
    UNKNOWN_ANSWER,
    PromptText,
    answer_user_message,
    find_newest_user_text,
    remove_frames,
)
from app.simulator.request_checks import check_tool_pairing, check_window
from app.simulator.simulated_tool_calls import SEARCH_TOOL_NAME, build_arguments, choose_functions, make_tool_call

MAX_RESULT_CHARS = 400


class _MessageFields(msgspec.Struct):
    role: Any = ""
    content: Any = None
    tool_calls: list[dict[str, Any]] | None = None


class _ChatRequestFields(msgspec.Struct):
    """The fields of a chat completion request that are read."""

    messages: Annotated[list[_MessageFields], Meta(min_length=1)]
    stream: bool | None = None
    stream_options: dict[str, Any] | None = None
    max_tokens: int | None = None
    max_completion_tokens: int | None = None
    stop: str | list[str] | None = None
    tools: list[dict[str, Any]] | None = None
    tool_choice: str | dict[str, Any] | None = None
    parallel_tool_calls: bool | None = None


class SimulatorTokenCounter(Protocol):
    """Counts tokens the way the gateway does (`context.count.token_counter`)."""

    def count(self, text: str) -> int: ...

    def count_request(self, messages: Iterable[Item], schemas: CountedSchemas) -> int: ...


@dataclass(frozen=True, slots=True)
class SimulatedAnswer:
    """The answer: a text or tool calls."""

    prompt_tokens: int
    text: str | None = None
    tool_calls: tuple[dict[str, Any], ...] = ()
    finish_reason: str = "stop"
    completion_tokens: int = 0
    is_summary: bool = False
    cached_tokens: int = 0
    """Tokens of the prompt that a cache had; `written_tokens` were written to it. The simulated model has no cache."""
    written_tokens: int = 0


def answer_request(request: Mapping[str, Any], *, window: int, counter: SimulatorTokenCounter) -> SimulatedAnswer:
    """Answers a chat completion request.

    Args:
        request: the decoded body. `messages`, `tools`, `tool_choice`, `stop`, `max_tokens` and
            `max_completion_tokens` are honoured; everything else is accepted.
        window: the context window to enforce, in tokens.
        counter: counts prompt and answer.

    Raises:
        InvalidRequest: a field has another type or is out of bounds, a tool call has no result, or the window is too
            small.
    """
    fields = _parse_fields(request)
    check_tool_pairing(request["messages"])
    messages = [ChatMessage(b"", message) for message in request["messages"]]
    prompt_tokens = counter.count_request(messages, read_schemas({"tools": fields.tools}))
    requested_tokens = fields.max_completion_tokens or fields.max_tokens or 0
    check_window(window, prompt_tokens, requested_tokens)
    texts = [_read_prompt_text(message) for message in fields.messages]
    transcript = find_transcript_to_summarize(texts)
    calls = () if transcript else tuple(_choose_calls(fields, texts))
    if calls:
        tokens = sum(counter.count(orjson.dumps(call["function"]).decode()) for call in calls)
        return SimulatedAnswer(prompt_tokens, None, calls, "tool_calls", tokens)
    if transcript:
        text = summarize_by_extraction(transcript, requested_tokens, counter.count)
    else:
        text = _report_tool_results(fields.messages, texts) or answer_user_message(texts)
    for sequence in [fields.stop] if isinstance(fields.stop, str) else fields.stop or ():
        text = text.partition(sequence)[0] if sequence else text
    shown_text = cut_to_tokens(text, requested_tokens or window - prompt_tokens, counter.count)
    return SimulatedAnswer(
        prompt_tokens,
        text=shown_text,
        finish_reason="stop" if shown_text == text else "length",
        completion_tokens=counter.count(shown_text),
        is_summary=transcript is not None,
    )


def _parse_fields(request: Mapping[str, Any]) -> _ChatRequestFields:
    try:
        return msgspec.convert(request, _ChatRequestFields)
    except msgspec.ValidationError as error:
        complaint, _, place = str(error).partition(" - at ")
        param = place.strip("`").removeprefix("$.") or None
        raise InvalidRequest(f"{complaint} in {param}.", code="invalid_type", param=param) from error


def _read_prompt_text(message: _MessageFields) -> PromptText:
    text = extract_text(message.content)
    role = QUOTATION_ROLE if text.startswith("Quoted from earlier") else str(message.role)
    return PromptText(role, remove_frames(text))


def _choose_calls(fields: _ChatRequestFields, texts: Sequence[PromptText]) -> list[dict[str, Any]]:
    """Returns the calls that the request demands or its newest message asks for. Like a real model, it searches only if
    its context has no answer.
    """
    declared = [tool.get("function") for tool in fields.tools or ()]
    functions = [one for one in declared if isinstance(one, Mapping) and isinstance(one.get("name"), str)]
    is_users_turn, user_text = texts[-1].role == "user", find_newest_user_text(texts)
    choice, id_seed = fields.tool_choice or "auto", str(len(texts))
    calls = []
    for function in choose_functions(functions, choice, user_text, may_choose=is_users_turn):
        name, schema = function["name"], function.get("parameters") or {"type": "object"}
        calls.append(make_tool_call(name, build_arguments(schema, user_text.replace(name, " ")), id_seed))
    may_search = choice == "auto" and is_users_turn and any(one["name"] == SEARCH_TOOL_NAME for one in functions)
    if not calls and may_search and answer_user_message(texts) == UNKNOWN_ANSWER:
        calls = [make_tool_call(SEARCH_TOOL_NAME, {"query": user_text}, id_seed)]
    return calls[:1] if fields.parallel_tool_calls is False else calls


def _report_tool_results(messages: Sequence[_MessageFields], texts: Sequence[PromptText]) -> str:
    """Returns an answer that repeats the tool results at the end of the prompt; empty if there are none, or if they are
    those of the search tool: they are context to answer from.
    """
    count = next((at for at, source in enumerate(reversed(texts)) if source.role != "tool"), 0)
    calls = messages[-count - 1].tool_calls or () if count else ()
    names = [call["function"].get("name") for call in calls if isinstance(call.get("function"), Mapping)]
    if not count or SEARCH_TOOL_NAME in names:
        return ""
    return "The tool says: " + " | ".join(source.text.strip()[:MAX_RESULT_CHARS] for source in texts[-count:])
