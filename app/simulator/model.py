"""The stand-in model itself: `reply(request) → SimulatedAnswer`, a deterministic function of the request. Pure.

It knows nothing but what a prompt shows: questions are answered with sentences found there, statements are noted, tools
are called when asked for, transcripts are summarized by extraction. So what a context lacks is missing in the answer.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import orjson

from app.conversation.messages import text_of
from app.errors import InvalidRequest
from app.simulator.answers import NOTED, UNKNOWN, Source, is_question, recall
from app.simulator.context_window import error_body, overflow
from app.simulator.request_schemas import check_chat
from app.simulator.summaries import most_telling, summarize, transcript_in
from app.simulator.text import passage
from app.simulator.tool_pairing import pairing_fault
from app.simulator.tools import has_searched, instance, search_call, tool_calls

QUOTED_CHARS = 160
RESULT_CHARS = 400
GREETING = "Hello. I am a simulated model: I answer from what my context shows."


class Counter(Protocol):
    """Counts tokens the way the gateway does (`context.count.token_counter`)."""

    def count(self, text: str) -> int: ...

    def request(
        self, messages: Sequence[Mapping[str, Any]], *, tools: Sequence[Mapping[str, Any]] | None = None
    ) -> int: ...


@dataclass(frozen=True, slots=True)
class SimulatedAnswer:
    """What the model says, or the `error` body with which the request is refused (status 400)."""

    text: str | None = None
    tool_calls: tuple[dict[str, Any], ...] = ()
    finish_reason: str = "stop"
    choices: int = 1
    prompt_tokens: int = 0
    completion_tokens: int = 0
    is_summary: bool = False
    error: dict[str, Any] | None = None

    def usage(self) -> dict[str, Any]:
        """Token numbers in OpenAI's form, all details zero."""
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


def reply(request: Mapping[str, Any], *, window: int, counter: Counter) -> SimulatedAnswer:
    """The answer to a chat completion request.

    Args:
        request: the decoded body; `messages`, `tools`, `tool_choice`, `response_format`, `stop`, `n`, `max_tokens` and
            `max_completion_tokens` are honoured, everything else is accepted.
        window: context window that is enforced, tokens.
        counter: counts prompt and answer.
    """
    messages = request.get("messages")
    if not isinstance(messages, list) or not messages or not all(isinstance(one, dict) for one in messages):
        return SimulatedAnswer(error=error_body("'messages' must be a non-empty array of objects.", param="messages"))
    try:
        check_chat(request)
        return _checked(request, messages, window, counter)
    except InvalidRequest as error:
        return SimulatedAnswer(error=error.body())


def _checked(
    request: Mapping[str, Any], messages: list[dict[str, Any]], window: int, counter: Counter
) -> SimulatedAnswer:
    """The answer to a request whose fields have their types.

    Raises:
        InvalidRequest: a JSON schema in it is none, or asks for too much.
    """
    fault = pairing_fault(messages)
    if fault is not None:
        return SimulatedAnswer(error=error_body(fault.message, param=fault.param))
    prompt_tokens = counter.request(messages, tools=request.get("tools"))
    limit = request.get("max_completion_tokens") or request.get("max_tokens") or 0
    refused = overflow(window, prompt_tokens, limit)
    if refused is not None:
        return SimulatedAnswer(prompt_tokens=prompt_tokens, error=refused)
    return _answer(request, messages, prompt_tokens, limit or window - prompt_tokens, counter)


def _answer(
    request: Mapping[str, Any], messages: list[dict[str, Any]], prompt_tokens: int, limit: int, counter: Counter
) -> SimulatedAnswer:
    choices = request.get("n") or 1
    shown = [Source(str(message.get("role", "")), text_of(message.get("content"))) for message in messages]
    transcript = transcript_in(shown)
    calls = [] if transcript else tool_calls(request, _asked(shown), may_choose=shown[-1].role == "user")
    if not calls and not transcript and shown[-1].role == "user":
        search = search_call(request, _asked(shown))
        calls = [search] if search is not None and _told(shown) == UNKNOWN else []
    if calls:
        tokens = sum(counter.count(orjson.dumps(call[call["type"]]).decode()) for call in calls)
        return SimulatedAnswer(
            tool_calls=tuple(calls),
            finish_reason="tool_calls",
            choices=choices,
            prompt_tokens=prompt_tokens,
            completion_tokens=tokens * choices,
        )
    asked_limit = request.get("max_completion_tokens") or request.get("max_tokens")
    text = summarize(transcript, asked_limit, counter.count) if transcript else _words(request, shown)
    text = _stopped(text, request.get("stop"))
    text, finish_reason = _shortened(text, limit, counter.count)
    return SimulatedAnswer(
        text=text,
        finish_reason=finish_reason,
        choices=choices,
        prompt_tokens=prompt_tokens,
        completion_tokens=counter.count(text) * choices,
        is_summary=transcript is not None,
    )


def _words(request: Mapping[str, Any], shown: Sequence[Source]) -> str:
    """An ordinary answer, in the form that `response_format` asks for."""
    form = request.get("response_format") or {}
    if form.get("type") == "json_schema":
        schema = (form.get("json_schema") or {}).get("schema") or {}
        return orjson.dumps(instance(schema, _asked(shown))).decode()
    tells_results = shown[-1].role in {"tool", "function"} and not has_searched(request["messages"])
    text = _results(shown) if tells_results else _told(shown)
    return orjson.dumps({"answer": text}).decode() if form.get("type") == "json_object" else text


def _told(shown: Sequence[Source]) -> str:
    """What to say to the newest user message: an answer from the context, or that it was noted."""
    asked = _asked(shown)
    if not asked.strip():
        return GREETING
    earlier = list(shown)
    newest = next((at for at in range(len(shown) - 1, -1, -1) if shown[at].role == "user"), len(shown) - 1)
    del earlier[newest]
    question, given = _question_in(asked)
    if not question:
        return f"{NOTED} {_quoted(most_telling(asked, QUOTED_CHARS))}" if passage(asked).stems else GREETING
    return " ".join(recall(question, [*earlier, Source("user", given)])) or UNKNOWN


def _question_in(asked: str) -> tuple[str, str]:
    """The questions of the last paragraph that has any, and everything else that the message says."""
    paragraphs = asked.split("\n\n")
    for at in range(len(paragraphs) - 1, -1, -1):
        found = passage(paragraphs[at]).sentences
        questions = [sentence.text for sentence in found if is_question(sentence.text)]
        if questions:
            statements = [sentence.text for sentence in found if not is_question(sentence.text)]
            return " ".join(questions), "\n\n".join([*paragraphs[:at], *statements, *paragraphs[at + 1 :]])
    return "", asked


def _results(shown: Sequence[Source]) -> str:
    """An answer that tells the tool results which stand at the end."""
    results: list[str] = []
    for source in reversed(shown):
        if source.role not in {"tool", "function"}:
            break
        results.insert(0, source.text.strip()[:RESULT_CHARS])
    return "The tool says: " + " | ".join(results)


def _asked(shown: Sequence[Source]) -> str:
    """The newest user message's text."""
    return next((source.text for source in reversed(shown) if source.role == "user"), "")


def _quoted(text: str) -> str:
    flat = " ".join(text.split())
    return flat if len(flat) <= QUOTED_CHARS else flat[: QUOTED_CHARS - 1] + "…"


def _stopped(text: str, stop: object) -> str:
    """The text up to the first stop sequence."""
    sequences = [stop] if isinstance(stop, str) else stop if isinstance(stop, list) else []
    cuts = [text.find(sequence) for sequence in sequences if isinstance(sequence, str) and sequence in text]
    return text[: min(cuts)] if cuts else text


def _shortened(text: str, limit: int, count: Callable[[str], int]) -> tuple[str, str]:
    """The longest beginning of at most `limit` tokens, and the finish reason."""
    if count(text) <= limit:
        return text, "stop"
    low, high = 0, len(text)
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if count(text[:middle]) <= limit else (low, middle - 1)
    return text[:low], "length"
