"""What a passed-through call of a model costs: an estimate before the call, and the usage that its answer reports."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import msgspec

from app.api.passthrough_paths import strip_model_prefix
from app.dialects.usage import TokenUsage, read_answer_limit, read_usage
from app.errors import InsufficientPermissions
from app.pipeline.admission.admission import CallLimits
from app.pipeline.turn.chat_request import Caller
from app.store.call_allowance import CallAllowance
from app.store.usage_recorder import UsageRecorder
from app.upstream.provider_contract import ModelDeployment
from app.upstream.routing.prices import LEAST_BYTES_PER_TOKEN, compute_call_cost_usd

FREE_METHODS: Final = ("DELETE", "GET", "HEAD", "OPTIONS")
"""Methods that call no model."""
FREE_PATHS: Final = ("moderations", "messages/count_tokens")
EMBEDDINGS_PATH: Final = "embeddings"
ANSWER_PATHS: Final = ("chat/completions", "completions", "messages")
"""Paths whose answers are text and report their tokens, as those of embeddings do."""
MAX_READ_BYTES: Final = 8 * 1024 * 1024
"""Usage is not read in a larger JSON answer, and not in a longer line of a stream."""


class _AnswerWithUsage(msgspec.Struct):
    usage: dict[str, Any] | None = None
    message: _AnswerWithUsage | None = None
    """In the first event of Anthropic's streams."""


_decode_answer = msgspec.json.Decoder(_AnswerWithUsage).decode


def _estimate_usage(
    limits: CallLimits, normalized_path: str, fields: Mapping[str, Any], body_bytes: int
) -> TokenUsage | None:
    """Returns the most tokens that a call is expected to take; None if it is not known for its path.

    Args:
        fields: the body's fields.
    """
    path = strip_model_prefix(normalized_path)
    prompt_tokens = body_bytes // LEAST_BYTES_PER_TOKEN
    if path == EMBEDDINGS_PATH:
        return TokenUsage(prompt_tokens)
    if path not in ANSWER_PATHS:
        return None
    return TokenUsage(prompt_tokens, output_tokens=limits.compute_answer_tokens(*read_answer_limit(fields)))


def _price_call(
    caller: Caller, method: str, normalized_path: str, deployment: ModelDeployment | None, estimate: TokenUsage | None
) -> float:
    """Returns what a call of a key with a budget may cost, in US dollars.

    Raises:
        InsufficientPermissions: it is not known what the call costs.
    """
    if method in FREE_METHODS or strip_model_prefix(normalized_path) in FREE_PATHS:
        return 0.0
    cost_usd = None
    if deployment is not None and estimate is not None:
        cost_usd = compute_call_cost_usd(deployment, estimate)
    if cost_usd is None:
        raise InsufficientPermissions(
            f"This API key ({caller.api_key_id}) has a budget, and what '/v1/{normalized_path}' costs is not known.",
            hint="Use a key without a budget."
            if estimate is None
            else "Use a key without a budget, or ask the operator to set `models.<name>.price`.",
        )
    return cost_usd


async def admit_call(
    limits: CallLimits,
    usage: UsageRecorder,
    caller: Caller,
    method: str,
    normalized_path: str,
    deployment: ModelDeployment | None,
    fields: Mapping[str, Any],
    body_bytes: int,
) -> AdmittedCall:
    """Lets a call in within its caller's limits, and reserves what it may cost.

    Raises:
        BudgetExceeded: the caller's budget has not so much left.
        InsufficientPermissions: the caller has a budget, and what the call costs is not known.
        RateLimitExceeded: there were too many requests or tokens in the last minute.
    """
    estimate = _estimate_usage(limits, normalized_path, fields, body_bytes)
    cost_usd = 0.0
    if caller.budget is not None:
        cost_usd = _price_call(caller, method, normalized_path, deployment, estimate)
    allowance = None
    if method not in FREE_METHODS and limits.is_limited(caller):
        answer_tokens = 0 if estimate is None else estimate.output_tokens
        allowance = await limits.admit(caller, body_bytes=body_bytes, answer_tokens=answer_tokens)
        if allowance is not None:
            try:
                await allowance.reserve(cost_usd)
            except BaseException:
                allowance.finish()
                raise
    return AdmittedCall(usage, caller, None if method in FREE_METHODS else deployment, allowance, estimate)


class AdmittedCall(msgspec.Struct, frozen=True):
    """Who pays for a call, and how much.

    Attributes:
        deployment: of the model that is called; None if none is known.
        estimate: what the call was expected to take; None if that is not known.
    """

    usage: UsageRecorder
    caller: Caller
    deployment: ModelDeployment | None
    allowance: CallAllowance | None
    estimate: TokenUsage | None

    @property
    def headers(self) -> dict[str, str]:
        return {} if self.allowance is None else self.allowance.headers

    def record(self, reported: TokenUsage | None) -> None:
        """Counts the tokens and the cost of an answer. Without a report, the estimate counts for a key with a budget:
        the answer may have cost as much."""
        used = reported
        if used is None and self.caller.budget is not None:
            used = self.estimate
        if self.allowance is not None and used is not None:
            self.allowance.record_usage(used)
        deployment = self.deployment
        if deployment is not None:
            cost_usd = None if used is None else compute_call_cost_usd(deployment, used)
            caller = self.caller
            self.usage.record_call(caller.tenant, caller.api_key_id, deployment.upstream_model, used, cost_usd)

    def finish(self) -> None:
        """Settles what was reserved."""
        if self.allowance is not None:
            self.allowance.finish()


class AnswerUsageReader:
    """Reads the usage in an answer, while it is relayed: in a JSON body, or in the events of a stream.

    Args:
        content_type: of the answer.
    """

    def __init__(self, content_type: str) -> None:
        self._is_stream = content_type.startswith("text/event-stream")
        self._is_read = self._is_stream or "json" in content_type
        self._pieces: list[bytes] = []
        """Of a body, or of the last line of a stream."""
        self._size_bytes = 0
        self._usage: dict[str, Any] = {}

    def feed(self, piece: bytes) -> None:
        """Takes the next piece of the answer."""
        if not self._is_read:
            return
        if self._is_stream and b"\n" in piece:
            *lines, piece = b"".join([*self._pieces, piece]).split(b"\n")
            self._pieces, self._size_bytes = [], 0
            for line in lines:
                self._add(line)
        self._pieces.append(piece)
        self._size_bytes += len(piece)
        if self._size_bytes > MAX_READ_BYTES:
            self._is_read, self._pieces = False, []

    def find_usage(self) -> TokenUsage | None:
        """Returns the usage of the whole answer; None if it reports none."""
        self._add(b"".join(self._pieces))
        return read_usage(self._usage)

    def _add(self, text: bytes) -> None:
        """Takes the usage of a body or of a line of a stream. Later events repeat or complete the counts."""
        if b'"usage"' not in text:
            return
        try:
            answer = _decode_answer(text.removeprefix(b"data:"))
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
            return
        for part in (answer.message, answer):
            if part is not None and part.usage:
                self._usage |= part.usage
