"""Builds the body of a summarizer call, within the summarizer's window: a fenced transcript, or a conversation with
one more message. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import orjson

from app.compaction.summarizer.prompts import (
    build_instruction_after_view,
    build_transcript_prompt,
)
from app.compaction.summarizer.summary_request import NoUsableSummary
from app.compaction.summarizer.transcript import TranscriptEntry, render_fenced_transcript
from app.context.plan.budget import MIN_SUMMARY_INPUT_TOKENS, SUMMARY_CALL_MARGIN_RATIO
from app.context.plan.policy import ContextPolicy
from app.context.view.cache_boundaries import find_cache_marks
from app.context.view.view_rendering import ViewTokenCounter
from app.dialects.body.message import ChatMessage
from app.dialects.cache_marks import NO_CACHE_MARKS
from app.dialects.item_decoding import decode_item
from app.dialects.provider_dialects import PROVIDER_DIALECTS
from app.dialects.request_body import encode_fields
from app.dialects.summarizer_fields import CACHED_PREFIX_FIELDS, RESERVED_FIELDS, choose_output_limit_field
from app.errors import InvalidRequest
from app.upstream.provider_contract import ModelDeployment
from app.upstream.quirks import fit_to_quirks


@dataclass(frozen=True, slots=True)
class CallBudget:
    """The token budget of one call, in tokens of the deployment's encoding."""

    window_tokens: int
    output_tokens: int
    counter: ViewTokenCounter
    input_share: float = 1.0
    """The share of the room for material that is used."""

    @property
    def max_prompt_tokens(self) -> int:
        return self.window_tokens - self.output_tokens - round(self.window_tokens * SUMMARY_CALL_MARGIN_RATIO)


@dataclass(frozen=True, slots=True)
class TranscriptPrompt:
    """A prompt with a fenced transcript, shortened to the room."""

    instruction: str
    entries: Sequence[TranscriptEntry]
    limit_tokens: int
    fields: Mapping[str, bytes] = field(default_factory=dict)

    def compute_material_limit(self, call_budget: CallBudget) -> int:
        """Computes the room for material in tokens."""
        empty_message = ChatMessage.from_text(
            "user", build_transcript_prompt(self.instruction, "0" * 8, "", limit_tokens=self.limit_tokens)
        )
        return max(
            MIN_SUMMARY_INPUT_TOKENS,
            int(
                (call_budget.max_prompt_tokens - call_budget.counter.count_message(empty_message))
                * call_budget.input_share
            ),
        )

    def build_messages(self, call_budget: CallBudget) -> list[bytes]:
        material = render_fenced_transcript(
            self.entries, self.compute_material_limit(call_budget), call_budget.counter.count
        )
        prompt = build_transcript_prompt(self.instruction, material.mark, material.text, limit_tokens=self.limit_tokens)
        return [ChatMessage.from_text("user", prompt).raw]


@dataclass(frozen=True, slots=True)
class CachedViewPrompt:
    """A prompt of the messages that the provider saw last, byte for byte, and the instruction after them."""

    instruction: str
    range_description: str
    view_prefix: Sequence[bytes]
    limit_tokens: int
    fields: Mapping[str, bytes] = field(default_factory=dict)

    def build_messages(self, call_budget: CallBudget) -> list[bytes]:
        user_message = ChatMessage.from_text(
            "user",
            build_instruction_after_view(self.instruction, self.range_description, limit_tokens=self.limit_tokens),
        )
        tokens = call_budget.counter.count_message(user_message) + sum(
            call_budget.counter.count_message(decode_item(raw)) for raw in self.view_prefix
        )
        tokens += sum(
            call_budget.counter.count(raw.decode()) for name, raw in self.fields.items() if name in CACHED_PREFIX_FIELDS
        )
        # Without SUMMARY_CALL_MARGIN_RATIO: the provider has accepted these messages before, so they fit.
        if tokens > call_budget.window_tokens - call_budget.output_tokens:
            raise NoUsableSummary("the conversation does not fit into the summarizer's window")
        return [*self.view_prefix, user_message.raw]


@dataclass(frozen=True, slots=True)
class FollowUpPrompt:
    """The first call with its answer, and a request to write the summary again."""

    first_prompt: SummaryPrompt
    first_answer: str
    request_text: str

    @property
    def limit_tokens(self) -> int:
        return self.first_prompt.limit_tokens

    @property
    def fields(self) -> Mapping[str, bytes]:
        return self.first_prompt.fields

    def build_messages(self, call_budget: CallBudget) -> list[bytes]:
        added_messages = [
            ChatMessage.from_text("assistant", self.first_answer),
            ChatMessage.from_text("user", self.request_text),
        ]
        added_tokens = sum(map(call_budget.counter.count_message, added_messages))
        smaller_budget = replace(call_budget, window_tokens=call_budget.window_tokens - added_tokens)
        return [*self.first_prompt.build_messages(smaller_budget), *[message.raw for message in added_messages]]


SummaryPrompt = TranscriptPrompt | CachedViewPrompt | FollowUpPrompt
"""A prompt that can be built for any budget. `build_messages` raises `NoUsableSummary` if the messages cannot fit."""


def build_summarizer_body(
    prompt: SummaryPrompt, policy: ContextPolicy, deployment: ModelDeployment, call_budget: CallBudget
) -> bytes:
    """Builds a body whose prompt and answer fit into the window, with the quirks of the deployment, in the protocol of
    its provider.

    Raises:
        NoUsableSummary: the prompt cannot be made to fit, or has no form in the provider's protocol.
    """
    parameters = {
        name: orjson.dumps(value) for name, value in policy.summarizer.parameters.items() if name not in RESERVED_FIELDS
    }
    limit_field = deployment.quirks.max_tokens_field or choose_output_limit_field(deployment.upstream_model)
    fields = {
        "model": orjson.dumps(deployment.upstream_model),
        "messages": b"[]",
        **prompt.fields,
        **parameters,
        limit_field: b"%d" % call_budget.output_tokens,
        # Streamed, because gateways of providers cut a connection that is silent for 60 to 120 s.
        "stream": b"true",
    }
    messages = prompt.build_messages(call_budget)
    dialect = PROVIDER_DIALECTS[deployment.provider.protocol]
    try:
        fields = dialect.select_fields("chat", fields).fields
    except InvalidRequest as error:
        # A tool of the client, such as only a transcript leaves out.
        raise NoUsableSummary("the prompt has no form in the summarizer's protocol") from error
    if deployment.quirks.stream_usage:
        fields |= dialect.ask_for_usage(fields)
    # Encrypted content of the view is left out: another provider may have written it.
    marks = NO_CACHE_MARKS
    if isinstance(prompt, CachedViewPrompt) and not dialect.has_cache_marks(fields, messages):
        marks = find_cache_marks(messages, deployment.cache, is_summary_call=True)
    rendered = dialect.render_messages(messages, frozenset(), fields, cache_marks=marks)
    adapted, fields = fit_to_quirks(dialect.protocol, deployment.quirks, rendered.messages, rendered.put_into(fields))
    return encode_fields({**fields, dialect.messages_field: b"[" + b",".join(adapted) + b"]"})
