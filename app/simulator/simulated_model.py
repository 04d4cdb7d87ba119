"""The simulated model: `answer_request(request) → SimulatedAnswer`, a deterministic function of the request. Pure.

It knows only what the prompt shows: it answers questions with sentences of the prompt, notes statements, calls tools
when asked to, and summarizes transcripts by extraction. So a fact that is missing in the view is missing in the answer.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import orjson

from app.conversation.item import CountedSchemas, Item
from app.dialects.chat.counted_content import read_schemas
from app.dialects.chat.message import ChatMessage
from app.dialects.chat.message_fields import extract_text
from app.errors import InvalidRequest
from app.simulator.context_window import build_error_body, build_error_if_overflow
from app.simulator.extractive_summary import (
    find_transcript_to_summarize,
    shorten_to_best_sentence,
    summarize_by_extraction,
)
from app.simulator.question_answering import (
    NOTED_PREFIX,
    UNKNOWN_ANSWER,
    PromptText,
    find_answer_sentences,
    is_question,
)
from app.simulator.request_schemas import check_chat_request
from app.simulator.sentence_splitting import split_sentences
from app.simulator.simulated_tool_calls import (
    build_schema_instance,
    ends_with_search_results,
    make_search_call,
    make_tool_calls,
)
from app.simulator.tool_pairing import find_tool_pairing_fault

MAX_QUOTE_CHARS = 160
MAX_RESULT_CHARS = 400
GREETING = "Hello. I am a simulated model: I answer from what my context shows."


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

    def build_usage(self) -> dict[str, Any]:
        """Returns token numbers in OpenAI's form, with all details zero."""
        return {
            "prompt_tokens": self.prompt_tokens,
            "completion_tokens": self.completion_tokens,
            "total_tokens": self.prompt_tokens + self.completion_tokens,
            "prompt_tokens_details": {"cached_tokens": 0, "audio_tokens": 0},
            "completion_tokens_details": {
                "reasoning_tokens": 0,
                "audio_tokens": 0,
                "accepted_prediction_tokens": 0,
                "rejected_prediction_tokens": 0,
            },
        }


def answer_request(request: Mapping[str, Any], *, window: int, counter: SimulatorTokenCounter) -> SimulatedAnswer:
    """Answers a chat completion request.

    Args:
        request: the decoded body. `messages`, `tools`, `tool_choice`, `response_format`, `stop`, `n`, `max_tokens` and
            `max_completion_tokens` are honoured; everything else is accepted.
        window: the context window to enforce, in tokens.
        counter: counts prompt and answer.
    """
    messages = request.get("messages")
    if not isinstance(messages, list) or not messages or not all(isinstance(one, dict) for one in messages):
        return SimulatedAnswer(
            error_body=build_error_body("'messages' must be a non-empty array of objects.", param="messages")
        )
    try:
        check_chat_request(request)
        return _answer_valid_request(request, messages, window, counter)
    except InvalidRequest as error:
        return SimulatedAnswer(error_body=error.build_body())


def _answer_valid_request(
    request: Mapping[str, Any], messages: list[dict[str, Any]], window: int, counter: SimulatorTokenCounter
) -> SimulatedAnswer:
    """Answers a request whose fields have the right types.

    Raises:
        InvalidRequest: a JSON schema in it is invalid, or asks for too much.
    """
    fault = find_tool_pairing_fault(messages)
    if fault is not None:
        return SimulatedAnswer(error_body=build_error_body(fault.message, param=fault.param))
    prompt_tokens = counter.count_request(
        [ChatMessage(b"", message) for message in messages], read_schemas({"tools": request.get("tools")})
    )
    limit = request.get("max_completion_tokens") or request.get("max_tokens") or 0
    overflow_error = build_error_if_overflow(window, prompt_tokens, limit)
    if overflow_error is not None:
        return SimulatedAnswer(prompt_tokens=prompt_tokens, error_body=overflow_error)
    return _choose_answer(request, messages, prompt_tokens, limit or window - prompt_tokens, counter)


def _choose_answer(
    request: Mapping[str, Any],
    messages: list[dict[str, Any]],
    prompt_tokens: int,
    limit: int,
    counter: SimulatorTokenCounter,
) -> SimulatedAnswer:
    choices = request.get("n") or 1
    prompt_texts = [
        PromptText(str(message.get("role", "")), extract_text(message.get("content"))) for message in messages
    ]
    transcript = find_transcript_to_summarize(prompt_texts)
    calls = (
        []
        if transcript
        else make_tool_calls(request, _newest_user_text(prompt_texts), may_choose=prompt_texts[-1].role == "user")
    )
    # Like a real model, it searches only if its context has no answer.
    if not calls and not transcript and prompt_texts[-1].role == "user":
        search = make_search_call(request, _newest_user_text(prompt_texts))
        calls = [search] if search is not None and _answer_user_message(prompt_texts) == UNKNOWN_ANSWER else []
    if calls:
        tokens = sum(counter.count(orjson.dumps(call[call["type"]]).decode()) for call in calls)
        return SimulatedAnswer(
            tool_calls=tuple(calls),
            finish_reason="tool_calls",
            choice_count=choices,
            prompt_tokens=prompt_tokens,
            completion_tokens=tokens * choices,
        )
    asked_limit = request.get("max_completion_tokens") or request.get("max_tokens")
    text = (
        summarize_by_extraction(transcript, asked_limit, counter.count)
        if transcript
        else _write_answer_text(request, prompt_texts)
    )
    text = _cut_at_stop_sequence(text, request.get("stop"))
    text, finish_reason = _truncate_to_limit(text, limit, counter.count)
    return SimulatedAnswer(
        text=text,
        finish_reason=finish_reason,
        choice_count=choices,
        prompt_tokens=prompt_tokens,
        completion_tokens=counter.count(text) * choices,
        is_summary=transcript is not None,
    )


def _write_answer_text(request: Mapping[str, Any], prompt_texts: Sequence[PromptText]) -> str:
    """Returns an ordinary answer, in the form that `response_format` asks for."""
    response_format = request.get("response_format") or {}
    if response_format.get("type") == "json_schema":
        schema = (response_format.get("json_schema") or {}).get("schema") or {}
        return orjson.dumps(build_schema_instance(schema, _newest_user_text(prompt_texts))).decode()
    # Results of the search tool are context to answer from, not something to report.
    tells_results = prompt_texts[-1].role in {"tool", "function"} and not ends_with_search_results(request["messages"])
    text = _report_tool_results(prompt_texts) if tells_results else _answer_user_message(prompt_texts)
    return orjson.dumps({"answer": text}).decode() if response_format.get("type") == "json_object" else text


def _answer_user_message(prompt_texts: Sequence[PromptText]) -> str:
    """Returns an answer to the newest user message from the context, or a note of what it says."""
    user_text = _newest_user_text(prompt_texts)
    if not user_text.strip():
        return GREETING
    earlier = list(prompt_texts)
    newest = next(
        (index for index in range(len(prompt_texts) - 1, -1, -1) if prompt_texts[index].role == "user"),
        len(prompt_texts) - 1,
    )
    del earlier[newest]
    question, statements = _split_questions(user_text)
    if not question:
        return (
            f"{NOTED_PREFIX} {_shorten_quotation(shorten_to_best_sentence(user_text, MAX_QUOTE_CHARS))}"
            if split_sentences(user_text).stems
            else GREETING
        )
    return " ".join(find_answer_sentences(question, [*earlier, PromptText("user", statements)])) or UNKNOWN_ANSWER


def _split_questions(user_text: str) -> tuple[str, str]:
    """Returns the questions of the last paragraph that has any, and the rest of the message."""
    paragraphs = user_text.split("\n\n")
    for index in range(len(paragraphs) - 1, -1, -1):
        sentences = split_sentences(paragraphs[index]).sentences
        questions = [sentence.text for sentence in sentences if is_question(sentence.text)]
        if questions:
            statements = [sentence.text for sentence in sentences if not is_question(sentence.text)]
            return " ".join(questions), "\n\n".join([*paragraphs[:index], *statements, *paragraphs[index + 1 :]])
    return "", user_text


def _report_tool_results(prompt_texts: Sequence[PromptText]) -> str:
    """Returns an answer that repeats the tool results at the end of the prompt."""
    results: list[str] = []
    for source in reversed(prompt_texts):
        if source.role not in {"tool", "function"}:
            break
        results.insert(0, source.text.strip()[:MAX_RESULT_CHARS])
    return "The tool says: " + " | ".join(results)


def _newest_user_text(prompt_texts: Sequence[PromptText]) -> str:
    """Returns the newest user message's text."""
    return next((source.text for source in reversed(prompt_texts) if source.role == "user"), "")


def _shorten_quotation(text: str) -> str:
    flat = " ".join(text.split())
    return flat if len(flat) <= MAX_QUOTE_CHARS else flat[: MAX_QUOTE_CHARS - 1] + "…"


def _cut_at_stop_sequence(text: str, stop: object) -> str:
    """Returns the text up to the first stop sequence."""
    sequences = [stop] if isinstance(stop, str) else stop if isinstance(stop, list) else []
    cuts = [text.find(sequence) for sequence in sequences if isinstance(sequence, str) and sequence in text]
    return text[: min(cuts)] if cuts else text


def _truncate_to_limit(text: str, limit: int, count: Callable[[str], int]) -> tuple[str, str]:
    """Returns the longest beginning of at most `limit` tokens, and the finish reason."""
    if count(text) <= limit:
        return text, "stop"
    low, high = 0, len(text)
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if count(text[:middle]) <= limit else (low, middle - 1)
    return text[:low], "length"
