"""The simulated model: `answer_request(request) → SimulatedAnswer`, a deterministic function of the request. Pure.

It knows only what the prompt shows: it answers questions with sentences of the prompt, notes statements, calls tools
when asked to, and summarizes transcripts by extraction. So a fact that is missing in the view is missing in the answer.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Protocol, TypeVar

import msgspec
import orjson
from msgspec import Meta

from app.conversation.item import CountedSchemas, Item
from app.dialects.chat.counted_content import read_schemas
from app.dialects.chat.message import ChatMessage
from app.dialects.chat.message_fields import extract_text
from app.errors import InvalidRequest
from app.simulator.context_window import check_window
from app.simulator.extractive_summary import (
    QUOTATION_ROLE,
    cut_to_tokens,
    find_transcript_to_summarize,
    shorten_to_best_sentence,
    summarize_by_extraction,
)
from app.simulator.question_answering import (
    NOTED_PREFIX,
    UNKNOWN_ANSWER,
    PromptText,
    find_answer_sentence,
    find_word_stems,
    is_question,
    remove_frames,
    remove_labels,
    split_sentences,
)
from app.simulator.simulated_tool_calls import (
    SEARCH_TOOL_NAME,
    build_schema_instance,
    make_search_call,
    make_tool_calls,
    parse_tools,
)
from app.simulator.tool_pairing import check_tool_pairing

MAX_NOTE_CHARS = 160
MAX_RESULT_CHARS = 400
GREETING = "Hello. I am a simulated model: I answer from what my context shows."
Fields = TypeVar("Fields", bound=msgspec.Struct)


class _ToolCallFields(msgspec.Struct):
    function: dict[str, Any] | None = None


class _MessageFields(msgspec.Struct):
    role: Any = ""
    content: Any = None
    tool_calls: list[_ToolCallFields] | None = None


class _ResponseFormatFields(msgspec.Struct):
    type: Any = None
    json_schema: dict[str, Any] | None = None


class _ChatRequestFields(msgspec.Struct):
    """The fields of a chat completion request that are read."""

    messages: Annotated[list[_MessageFields], Meta(min_length=1)]
    n: Annotated[int, Meta(ge=1, le=128)] | None = None
    stream: bool | None = None
    stream_options: dict[str, Any] | None = None
    max_tokens: int | None = None
    max_completion_tokens: int | None = None
    stop: str | list[str] | None = None
    tools: list[dict[str, Any]] | None = None
    tool_choice: str | dict[str, Any] | None = None
    parallel_tool_calls: bool | None = None
    response_format: _ResponseFormatFields | None = None


class SimulatorTokenCounter(Protocol):
    """Counts tokens the way the gateway does (`context.count.token_counter`)."""

    def count(self, text: str) -> int: ...

    def count_request(self, messages: Iterable[Item], schemas: CountedSchemas) -> int: ...


@dataclass(frozen=True, slots=True)
class SimulatedAnswer:
    """The answer, or the error body with which the request is refused (status 400)."""

    text: str | None = None
    tool_calls: tuple[dict[str, Any], ...] = ()
    finish_reason: str = "stop"
    choice_count: int = 1
    prompt_tokens: int = 0
    completion_tokens: int = 0
    is_summary: bool = False
    error_body: dict[str, Any] | None = None


def check_fields(body: Mapping[str, Any], shape: type[Fields]) -> Fields:
    """Returns the fields of a request.

    Raises:
        InvalidRequest: a field has another type, or is out of bounds.
    """
    try:
        return msgspec.convert(body, shape)
    except msgspec.ValidationError as error:
        complaint, _, place = str(error).partition(" - at ")
        param = place.strip("`").removeprefix("$.") or None
        raise InvalidRequest(f"{complaint} in {param}.", code="invalid_type", param=param) from error


def answer_request(request: Mapping[str, Any], *, window: int, counter: SimulatorTokenCounter) -> SimulatedAnswer:
    """Answers a chat completion request.

    Args:
        request: the decoded body. `messages`, `tools`, `tool_choice`, `response_format`, `stop`, `n`, `max_tokens` and
            `max_completion_tokens` are honoured; everything else is accepted.
        window: the context window to enforce, in tokens.
        counter: counts prompt and answer.
    """
    prompt_tokens = 0
    try:
        fields = check_fields(request, _ChatRequestFields)
        check_tool_pairing(request["messages"])
        prompt_tokens = counter.count_request(
            [ChatMessage(b"", message) for message in request["messages"]], read_schemas({"tools": fields.tools})
        )
        requested_tokens = fields.max_completion_tokens or fields.max_tokens or 0
        check_window(window, prompt_tokens, requested_tokens)
        limit = requested_tokens or window - prompt_tokens
        return _choose_answer(fields, prompt_tokens, requested_tokens, limit, counter)
    except InvalidRequest as error:
        return SimulatedAnswer(prompt_tokens=prompt_tokens, error_body=error.build_body())


def _choose_answer(
    fields: _ChatRequestFields, prompt_tokens: int, requested_tokens: int, limit: int, counter: SimulatorTokenCounter
) -> SimulatedAnswer:
    choices = fields.n or 1
    texts = [_read_prompt_text(message) for message in fields.messages]
    transcript = find_transcript_to_summarize(texts)
    calls = [] if transcript else _choose_calls(fields, texts)
    if calls:
        tokens = sum(counter.count(orjson.dumps(call[call["type"]]).decode()) for call in calls)
        return SimulatedAnswer(None, tuple(calls), "tool_calls", choices, prompt_tokens, tokens * choices)
    text = (
        summarize_by_extraction(transcript, requested_tokens, counter.count)
        if transcript
        else _write_answer_text(fields, texts)
    )
    for sequence in [fields.stop] if isinstance(fields.stop, str) else fields.stop or ():
        text = text.partition(sequence)[0] if sequence else text
    shown_text = cut_to_tokens(text, limit, counter.count)
    return SimulatedAnswer(
        text=shown_text,
        finish_reason="stop" if shown_text == text else "length",
        choice_count=choices,
        prompt_tokens=prompt_tokens,
        completion_tokens=counter.count(shown_text) * choices,
        is_summary=transcript is not None,
    )


def _read_prompt_text(message: _MessageFields) -> PromptText:
    text = extract_text(message.content)
    role = QUOTATION_ROLE if text.startswith("Quoted from earlier") else str(message.role)
    return PromptText(role, remove_frames(text))


def _choose_calls(fields: _ChatRequestFields, texts: Sequence[PromptText]) -> list[dict[str, Any]]:
    """Returns the calls that the request demands or its newest message asks for. Like a real model, it searches only if
    its context has no answer.
    """
    is_users_turn, user_text = texts[-1].role == "user", _find_newest_user_text(texts)
    id_seed, choice = str(len(texts)), fields.tool_choice or "auto"
    calls = make_tool_calls(fields.tools or (), choice, user_text, may_choose=is_users_turn, id_seed=id_seed)
    may_search = choice == "auto" and SEARCH_TOOL_NAME in {tool.name for tool in parse_tools(fields.tools)}
    if not calls and is_users_turn and may_search and _answer_user_message(texts) == UNKNOWN_ANSWER:
        calls = [make_search_call(user_text, id_seed)]
    return calls[:1] if fields.parallel_tool_calls is False else calls


def _write_answer_text(fields: _ChatRequestFields, texts: Sequence[PromptText]) -> str:
    """Returns an ordinary answer, in the form that `response_format` asks for."""
    response_format = fields.response_format or _ResponseFormatFields()
    if response_format.type == "json_schema":
        schema = (response_format.json_schema or {}).get("schema") or {}
        return orjson.dumps(build_schema_instance(schema, _find_newest_user_text(texts))).decode()
    text = _report_tool_results(fields.messages, texts) or _answer_user_message(texts)
    return orjson.dumps({"answer": text}).decode() if response_format.type == "json_object" else text


def _answer_user_message(texts: Sequence[PromptText]) -> str:
    """Returns an answer to the newest user message from the context, or a note of what it says."""
    user_text = _find_newest_user_text(texts)
    newest = max((at for at, source in enumerate(texts) if source.role == "user"), default=len(texts) - 1)
    questions, statements = _split_questions(user_text)
    if not find_word_stems(user_text):
        return GREETING
    if not questions:
        return f"{NOTED_PREFIX} {shorten_to_best_sentence(user_text, MAX_NOTE_CHARS)}"
    context = [*(source.text for source in (*texts[:newest], *texts[newest + 1 :])), statements]
    found = filter(None, (find_answer_sentence(question, context) for question in questions))
    return " ".join(dict.fromkeys(map(remove_labels, found))) or UNKNOWN_ANSWER


def _split_questions(user_text: str) -> tuple[list[str], str]:
    """Returns the questions of the last paragraph that has any, and the rest of the message."""
    paragraphs = user_text.split("\n\n")
    for index in range(len(paragraphs) - 1, -1, -1):
        sentences = [sentence.text for sentence in split_sentences(paragraphs[index])]
        questions = [sentence for sentence in sentences if is_question(sentence)]
        if questions:
            statements = [sentence for sentence in sentences if not is_question(sentence)]
            return questions, "\n".join([*paragraphs[:index], *statements, *paragraphs[index + 1 :]])
    return [], user_text


def _report_tool_results(messages: Sequence[_MessageFields], texts: Sequence[PromptText]) -> str:
    """Returns an answer that repeats the tool results at the end of the prompt; empty if there are none, or if they are
    those of the search tool: they are context to answer from.
    """
    count = next((at for at, source in enumerate(reversed(texts)) if source.role not in {"tool", "function"}), 0)
    calls = messages[-count - 1].tool_calls or () if count < len(messages) else ()
    if not count or any((call.function or {}).get("name") == SEARCH_TOOL_NAME for call in calls):
        return ""
    return "The tool says: " + " | ".join(source.text.strip()[:MAX_RESULT_CHARS] for source in texts[-count:])


def _find_newest_user_text(texts: Sequence[PromptText]) -> str:
    return next((source.text for source in reversed(texts) if source.role == "user"), "")
