"""The body of a summary call, made to fit the window of whoever reads it: a fenced transcript, or a conversation with
one more message. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final, Protocol

import orjson

from app.compaction.summarizer.prompts import (
    build_conversation_prompt,
    build_improvement_prompt,
    build_transcript_prompt,
)
from app.compaction.summarizer.summary_request import NoUsableSummary
from app.compaction.summarizer.transcript import TranscriptEntry, fence_entries
from app.context.plan.budget import compute_summary_token_limit
from app.context.plan.policy import ContextPolicy
from app.context.view.view_messages import ViewTokenCounter
from app.upstream.provider import ModelDeployment
from app.upstream.quirks import apply_quirks

MARGIN_RATIO: Final = 0.06
"""Of the window, left free because our count of a summarizer's prompt is an estimate."""
MIN_INPUT_TOKENS: Final = 128
INSTRUCTION_TOKENS: Final = 400
"""What instruction and fence take, generously, where ranges are cut before there is a call to count."""
MATERIAL_SHARE: Final = 0.85
"""Of a transcript, what the messages themselves take; the rest is lines that name speakers."""
REASONING_MODELS: Final = ("o1", "o3", "o4", "gpt-5")
"""Models of OpenAI's that know `max_completion_tokens` only."""
CACHED_PREFIX_FIELDS: Final = ("tools", "functions", "parallel_tool_calls", "prompt_cache_key")
"""Of a request, what belongs to its cached prefix or names it."""
RESERVED_FIELDS: Final = frozenset(
    {"model", "messages", "stream", "stream_options", "n", "max_tokens", "max_completion_tokens", "tool_choice"}
    | {"function_call", *CACHED_PREFIX_FIELDS}
)
"""What configured parameters do not change."""


@dataclass(frozen=True, slots=True)
class CallBudget:
    """What one call may take. Tokens as the deployment counts them."""

    window_tokens: int
    output_tokens: int
    counter: ViewTokenCounter
    input_share: float = 1.0
    """Of the room that is left for material, how much is used."""

    @property
    def prompt_tokens(self) -> int:
        return self.window_tokens - self.output_tokens - round(self.window_tokens * MARGIN_RATIO)


class SummaryPrompt(Protocol):
    """What is asked, for any room."""

    @property
    def limit_tokens(self) -> int:
        """How long the summary may be."""

    @property
    def fields(self) -> Mapping[str, bytes]:
        """Further top-level fields."""

    def build_messages(self, call_budget: CallBudget) -> list[bytes]:
        """JSON text of the messages.

        Raises:
            SummaryRefused: they cannot be made to fit.
        """


@dataclass(frozen=True, slots=True)
class TranscriptPrompt:
    """Entries in a fence, shortened to what fits."""

    instruction: str
    """The instruction."""
    entries: Sequence[TranscriptEntry]
    limit_tokens: int
    fields: Mapping[str, bytes] = field(default_factory=dict)

    def compute_material_limit(self, call_budget: CallBudget) -> int:
        """How many tokens of material there is room for."""
        empty_message = _build_user_message(
            build_transcript_prompt(self.instruction, "0" * 8, "", limit_tokens=self.limit_tokens)
        )
        return max(
            MIN_INPUT_TOKENS,
            int(
                (call_budget.prompt_tokens - call_budget.counter.count_message(empty_message)) * call_budget.input_share
            ),
        )

    def build_messages(self, call_budget: CallBudget) -> list[bytes]:
        material = fence_entries(self.entries, self.compute_material_limit(call_budget), call_budget.counter.count)
        prompt = build_transcript_prompt(self.instruction, material.mark, material.text, limit_tokens=self.limit_tokens)
        return [orjson.dumps(_build_user_message(prompt))]


@dataclass(frozen=True, slots=True)
class ConversationPrompt:
    """The messages that the provider has seen last, byte for byte, and the instruction after them."""

    instruction: str
    range_description: str
    view_prefix: Sequence[bytes]
    limit_tokens: int
    fields: Mapping[str, bytes] = field(default_factory=dict)

    def build_messages(self, call_budget: CallBudget) -> list[bytes]:
        user_message = _build_user_message(
            build_conversation_prompt(self.instruction, self.range_description, limit_tokens=self.limit_tokens)
        )
        tokens = call_budget.counter.count_message(user_message) + sum(
            call_budget.counter.count_message(orjson.loads(raw)) for raw in self.view_prefix
        )
        tokens += sum(
            call_budget.counter.count(raw.decode()) for name, raw in self.fields.items() if name in CACHED_PREFIX_FIELDS
        )
        # No margin is kept as for what is put together here: the provider has taken these messages before.
        if tokens > call_budget.window_tokens - call_budget.output_tokens:
            raise NoUsableSummary("the conversation does not fit into the summarizer's window")
        return [*self.view_prefix, orjson.dumps(user_message)]


@dataclass(frozen=True, slots=True)
class ImprovementPrompt:
    """The same call with its answer, and what that lacks."""

    first_prompt: SummaryPrompt
    first_answer: str
    lacking_values: Sequence[str]

    @property
    def limit_tokens(self) -> int:
        return self.first_prompt.limit_tokens

    @property
    def fields(self) -> Mapping[str, bytes]:
        return self.first_prompt.fields

    def build_messages(self, call_budget: CallBudget) -> list[bytes]:
        added_messages = [
            {"role": "assistant", "content": self.first_answer},
            _build_user_message(build_improvement_prompt(self.lacking_values, limit_tokens=self.limit_tokens)),
        ]
        added_tokens = sum(map(call_budget.counter.count_message, added_messages))
        smaller_budget = replace(call_budget, window_tokens=call_budget.window_tokens - added_tokens)
        return [*self.first_prompt.build_messages(smaller_budget), *map(orjson.dumps, added_messages)]


def build_cached_prefix_fields(fields: Mapping[str, bytes]) -> dict[str, bytes]:
    """A request's fields as a call in its place binds them: the same tools, none of which may be called."""
    kept_fields = {name: bytes(fields[name]) for name in CACHED_PREFIX_FIELDS if name in fields}
    for name, choice in (("tools", "tool_choice"), ("functions", "function_call")):
        if orjson.loads(kept_fields.get(name, b"null")):
            kept_fields[choice] = b'"none"'
    return kept_fields


def compute_max_input_tokens(policy: ContextPolicy, window_tokens: int) -> int:
    """The most tokens of log that one summary call may read, as the provider counts: what ranges are cut to.

    Args:
        window_tokens: context window of the summarizer.
    """
    output_tokens = min(compute_summary_token_limit(policy, window_tokens), window_tokens // 4)
    margin = round(window_tokens * MARGIN_RATIO)
    room_tokens = window_tokens - output_tokens - margin - INSTRUCTION_TOKENS
    return max(MIN_INPUT_TOKENS, int(room_tokens * MATERIAL_SHARE))


def build_summarizer_body(
    prompt: SummaryPrompt, policy: ContextPolicy, deployment: ModelDeployment, call_budget: CallBudget
) -> bytes:
    """A body whose prompt and answer fit into the window, as this deployment's provider takes it.

    Raises:
        SummaryRefused: it cannot be made to fit.
    """
    parameters = {
        name: orjson.dumps(value) for name, value in policy.summarizer.parameters.items() if name not in RESERVED_FIELDS
    }
    limit = {_choose_limit_field(deployment): b"%d" % call_budget.output_tokens}
    messages, fields = apply_quirks(
        deployment.quirks, prompt.build_messages(call_budget), {**prompt.fields, **parameters, **limit}
    )
    fields = {"model": orjson.dumps(deployment.upstream_model), "messages": b"[" + b",".join(messages) + b"]", **fields}
    return b"{" + b",".join(b"%b:%b" % (orjson.dumps(name), raw) for name, raw in fields.items()) + b"}"


def _build_user_message(content: str) -> dict[str, str]:
    return {"role": "user", "content": content}


def _choose_limit_field(deployment: ModelDeployment) -> str:
    configured_field = deployment.quirks.max_tokens_field
    name = deployment.upstream_model.rpartition("/")[2]
    return configured_field or ("max_completion_tokens" if name.startswith(REASONING_MODELS) else "max_tokens")
