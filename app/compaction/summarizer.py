"""One summary from one model call: the input is made to fit, the answer is accepted or refused."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import orjson

from app.compaction.prompts import instruction, messages_for, prompt_version
from app.compaction.transcript import fold_transcript, transcript, without_thoughts
from app.context.budget import summary_limit
from app.context.policy import Policy
from app.context.view import Counter
from app.context.vocabulary import encoding_for
from app.conversation.messages import Chunk, LogMessage, text_of
from app.errors import UpstreamRefused, UpstreamUnavailable
from app.upstream.base import Deployment, Window
from app.upstream.overflow import recognise
from app.upstream.router import Router

SAME_MODEL = "same"
"""As `SummarizerPolicy.model`: the request's own."""
CHAT_PATH = "/chat/completions"
MARGIN_RATIO = 0.06
"""Of the window, left free because our count of a summarizer's prompt is an estimate."""
SMALLEST_INPUT_TOKENS = 128
INSTRUCTION_TOKENS = 400
"""What instruction and fence take, generously, where ranges are cut before there is a call to count."""
SPOKEN_SHARE = 0.85
"""Of a transcript, what the messages themselves take; the rest is lines that name speakers."""
THINKING_FACTOR = 4
"""A model that spent its whole allowance on thinking gets this many times as much, once."""
REASONING_MODELS = ("o1", "o3", "o4", "gpt-5")
"""Models of OpenAI's that know `max_completion_tokens` only."""


class SummaryRefused(Exception):
    """The model answered, but not with a summary that can be used; the text says why."""


class Windows(Protocol):
    """The part of `upstream.windows` that a summary call needs."""

    async def of(self, deployment: Deployment, authorization: str | None) -> Window: ...


@dataclass(frozen=True, slots=True)
class SummaryRequest:
    """What is to be summarized: log messages, or the chunks that are folded into one."""

    messages: Sequence[LogMessage]
    folded: Sequence[Chunk]
    policy: Policy
    model: str
    """The model of the request that needs the summary."""
    limit_tokens: int
    """The most tokens that the summary may have."""
    replaced_tokens: int
    """Raw tokens of what it stands for."""
    encoding: str
    """In which `replaced_tokens` are counted."""
    authorization: str | None = None
    focus: str | None = None
    """What the caller asked to pay attention to."""


@dataclass(frozen=True, slots=True)
class Summary:
    """An accepted summary; `model` is the one that wrote it, by its provider's name."""

    text: str
    model: str
    prompt_version: str
    duration_ms: int
    usage: Mapping[str, Any] | None = None


@dataclass(frozen=True, slots=True)
class Attempt:
    """How one attempt differs from the first: a share of the input, a multiple of the allowance."""

    input_share: float = 1.0
    """Of the room that the window leaves for material, how much is used."""
    allowance: int = 1
    """Multiple of the summary's limit that is granted for the answer."""


FIRST = Attempt()


class Summarizer:
    """Writes summaries through the router.

    Args:
        router: finds the deployments of a model and falls over between them.
        windows: knows the context window of a deployment.
        counter_for: the token counter of an encoding.
        monotonic: seconds, for durations.
    """

    def __init__(
        self,
        *,
        router: Router,
        windows: Windows,
        counter_for: Callable[[str], Counter],
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._router = router
        self._windows = windows
        self._counter_for = counter_for
        self._monotonic = monotonic

    async def summarize(self, request: SummaryRequest) -> Summary:
        """A summary of what the request names.

        Raises:
            SummaryRefused: the answer is blank, calls a tool, was filtered, does not end, or gains too little.
            UpstreamRefused: the summarizer's own error answer.
            UpstreamUnavailable: it could not be reached, did not answer in time, or answered nonsense.
        """
        began = self._monotonic()
        try:
            async with asyncio.timeout(request.policy.summarizer.timeout_seconds):
                answer, model = await self._answer(request)
        except TimeoutError as error:
            seconds = request.policy.summarizer.timeout_seconds
            raise UpstreamUnavailable(f"The summarizer did not answer within {seconds:g} s.", status=504) from error
        return Summary(
            text=accepted(answer, request, self._counter_for(request.encoding)),
            model=model,
            prompt_version=prompt_version(request.policy.summarizer.prompt),
            duration_ms=round((self._monotonic() - began) * 1000),
            usage=answer.get("usage") if isinstance(answer.get("usage"), dict) else None,
        )

    async def _answer(self, request: SummaryRequest) -> tuple[dict[str, Any], str]:
        """The model's answer; asked a second time with half the input if that was too long, or with a larger
        allowance if the first was spent on thinking."""
        try:
            answer, model = await self._ask(request, FIRST)
        except UpstreamRefused as refusal:
            if recognise(refusal.status, refusal.raw_body) is None:
                raise
            return await self._ask(request, Attempt(input_share=0.5))
        if _finish_reason(answer) == "length" and not _text(answer):
            return await self._ask(request, Attempt(allowance=THINKING_FACTOR))
        return answer, model

    async def _ask(self, request: SummaryRequest, attempt: Attempt) -> tuple[dict[str, Any], str]:
        async def body_for(deployment: Deployment) -> bytes:
            window = await self._windows.of(deployment, request.authorization)
            count = self._counter_for(deployment.encoding or encoding_for(deployment.upstream_model))
            return await asyncio.to_thread(body_of, request, deployment, window.tokens, count, attempt)

        named = request.policy.summarizer.model
        target = self._router.resolve(request.model if named == SAME_MODEL else named)
        opened = await self._router.open(target, body_for, path=CHAT_PATH, authorization=request.authorization)
        reply = opened.reply
        try:
            raw = await reply.read()
            if reply.status != 200:
                raise UpstreamRefused(reply.status, raw, reply.headers)
        finally:
            await reply.aclose()
        return _decoded(raw), opened.deployment.upstream_model


def input_tokens(policy: Policy, window_tokens: int) -> int:
    """The most tokens of log that one summary call may read, as the provider counts: what ranges are cut to.

    Args:
        window_tokens: context window of the summarizer.
    """
    output_tokens = min(summary_limit(policy, window_tokens), window_tokens // 4)
    room = _room(window_tokens, output_tokens) - INSTRUCTION_TOKENS
    return max(SMALLEST_INPUT_TOKENS, int(room * SPOKEN_SHARE))


def body_of(
    request: SummaryRequest, deployment: Deployment, window_tokens: int, count: Counter, attempt: Attempt = FIRST
) -> bytes:
    """The body of a summary call whose prompt and answer fit into the window.

    Args:
        window_tokens: context window of the deployment.
        count: counts in the deployment's encoding.
    """
    output_tokens = max(1, min(request.limit_tokens * attempt.allowance, window_tokens // 4))
    text = instruction(request.policy.summarizer.prompt, is_fold=bool(request.folded), focus=request.focus)
    frame = {
        "role": "user",
        "content": messages_for(text, "0" * 8, "", limit_tokens=request.limit_tokens)[0]["content"],
    }
    room = _room(window_tokens, output_tokens) - count.message(frame)
    limit_tokens = max(SMALLEST_INPUT_TOKENS, int(room * attempt.input_share))
    if request.folded:
        material = fold_transcript(request.folded, limit_tokens, count.count)
    else:
        material = transcript(request.messages, limit_tokens, count.count)
    messages = messages_for(text, material.mark, material.text, limit_tokens=request.limit_tokens)
    limit = {_limit_field(deployment): output_tokens}
    taken = {name: value for name, value in limit.items() if name not in deployment.quirks.strip_fields}
    return orjson.dumps({"model": deployment.upstream_model, "messages": messages, **taken})


def _room(window_tokens: int, output_tokens: int) -> int:
    """What a window leaves for the prompt of a summary call."""
    return window_tokens - output_tokens - round(window_tokens * MARGIN_RATIO)


def accepted(answer: Mapping[str, Any], request: SummaryRequest, count: Counter) -> str:
    """The text of a usable summary.

    Raises:
        SummaryRefused: see `Summarizer.summarize`.
    """
    finish_reason = _finish_reason(answer)
    if not finish_reason:
        raise SummaryRefused("the answer has no finish reason")
    if finish_reason == "content_filter":
        raise SummaryRefused("the answer was filtered")
    if _message(answer).get("tool_calls") or _message(answer).get("function_call"):
        raise SummaryRefused("the answer calls a tool")
    text = _text(answer)
    if not text:
        raise SummaryRefused("the answer is blank")
    allowed = request.replaced_tokens * (1 - request.policy.min_gain_ratio)
    if count.count(text) > allowed:
        raise SummaryRefused("the summary is hardly shorter than what it replaces")
    return text


def _limit_field(deployment: Deployment) -> str:
    told = deployment.quirks.max_tokens_field
    name = deployment.upstream_model.rpartition("/")[2]
    return told or ("max_completion_tokens" if name.startswith(REASONING_MODELS) else "max_tokens")


def _decoded(raw: bytes) -> dict[str, Any]:
    try:
        decoded = orjson.loads(raw)
    except orjson.JSONDecodeError as error:
        raise UpstreamUnavailable("The summarizer's answer is not valid JSON.") from error
    if not isinstance(decoded, dict):
        raise UpstreamUnavailable("The summarizer's answer is not a JSON object.")
    return decoded


def _choice(answer: Mapping[str, Any]) -> Mapping[str, Any]:
    choices = answer.get("choices")
    first = choices[0] if isinstance(choices, list) and choices else None
    return first if isinstance(first, dict) else {}


def _message(answer: Mapping[str, Any]) -> Mapping[str, Any]:
    message = _choice(answer).get("message")
    return message if isinstance(message, dict) else {}


def _finish_reason(answer: Mapping[str, Any]) -> str:
    return str(_choice(answer).get("finish_reason") or "")


def _text(answer: Mapping[str, Any]) -> str:
    return without_thoughts(text_of(_message(answer).get("content")))
