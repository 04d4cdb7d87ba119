"""A turn before its answer: the request with all that is known of it, and the view that is sent for it."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from functools import cached_property
from types import MappingProxyType
from typing import Any, Final

import msgspec

from app.context.calibration import Calibration, CountedPrompt, digest_instructions
from app.context.plan.budget import Budget
from app.context.plan.outline import Outline, Plan
from app.context.plan.policy import ContextPolicy
from app.context.user_text.user_text import find_user_text
from app.context.view.client_words import NO_WORDS, ClientWords
from app.conversation.context_edits import ContextEdits
from app.dialects.client_dialects import CLIENT_DIALECTS, select_schema_fields
from app.dialects.provider_dialects import PROVIDER_DIALECTS
from app.pipeline.turn.chat_request import ChatRequest
from app.pipeline.turn.resolved_request import ResolvedRequest
from app.upstream.provider_contract import (
    ClientKey,
    ContextWindow,
    ModelDeployment,
    RouteTarget,
)

RawLogMessages = Mapping[int, bytes] | Sequence[bytes]
NO_COMPACTION: Final[Mapping[str, Any]] = MappingProxyType({"ran": False})


class SearchToolSession:
    """The state of the search tool in one turn; it changes while the answer is made.

    Attributes:
        request_without_tool: the client's request, without the tool.
        instructions_tokens: tokens of the instructions of `request_without_tool`.
        searches: each search so far, `{query, found}`; `found` holds the seqs of the messages that the model got.
        first_usage: the upstream's usage of the first round, if there were several rounds.
        rounds: how many rounds there were in addition to the first.
    """

    __slots__ = ("first_usage", "instructions_tokens", "request_without_tool", "rounds", "searches")

    def __init__(self, request_without_tool: ChatRequest, instructions_tokens: int) -> None:
        self.request_without_tool = request_without_tool
        self.instructions_tokens = instructions_tokens
        self.searches: list[dict[str, Any]] = []
        self.first_usage: Mapping[str, Any] | None = None
        self.rounds = 0


class Turn(msgspec.Struct, frozen=True, dict=True):
    """A request with everything that is known of it before planning."""

    request: ChatRequest
    target: RouteTarget
    policy: ContextPolicy
    window: ContextWindow
    calibration: Calibration
    summarizer_input_tokens: int
    resolved_request: ResolvedRequest
    search_tool_session: SearchToolSession | None = None
    """Set if the request offers the search tool to the model."""
    context_edits: ContextEdits | None = None
    """What the client asks to clear, if the gateway does it and not the provider."""

    @property
    def model_key(self) -> str:
        return self.target.deployments[0].key

    @property
    def client_key(self) -> ClientKey | None:
        """The client's own key, bound to the first provider of the model that the client asked for
        (docs/decisions/0031)."""
        authorization = self.request.caller.authorization
        return None if authorization is None else ClientKey(authorization, self.target.deployments[0].provider.name)

    @cached_property
    def planned_instructions_tokens(self) -> int:
        """The raw tokens of the instructions for planning: our count, and what the provider was seen to add to it."""
        calibration, own_count = self.calibration, self.resolved_request.instructions_tokens
        if not calibration.reports and not calibration.attachments:
            return own_count
        return calibration.estimate_planned_instructions_tokens(own_count, self.instructions_digest)

    @cached_property
    def instructions_digest(self) -> str:
        """A digest of the leading system messages and the tool schemas."""
        schemas = select_schema_fields(self.request.protocol, self.request.raw_fields)
        return digest_instructions((bytes(message.raw) for message in self.resolved_request.instructions), schemas)

    def build_counted_prompt(self, view: View) -> CountedPrompt:
        """Returns our raw count of the prompt that is sent with a view, for the calibration."""
        own_count = self.resolved_request.instructions_tokens
        return CountedPrompt(
            estimated_tokens=view.plan.prompt_tokens - view.outline.instructions_tokens + own_count,
            instructions_tokens=own_count,
            instructions=self.instructions_digest,
            boundary_seq=view.plan.boundary_seq,
            has_provider_tools=CLIENT_DIALECTS[self.request.protocol].may_run_provider_tools(self.request.raw_fields),
        )


def speaks_protocol(deployment: ModelDeployment, request: ChatRequest) -> bool:
    """Says whether a deployment's provider speaks the protocol of a request's client."""
    return PROVIDER_DIALECTS[deployment.provider.protocol].client_protocol == request.protocol


def read_context_edits(request: ChatRequest, deployment: ModelDeployment) -> ContextEdits | None:
    """Returns what a request asks to clear; None if it asks for nothing, or if the deployment's provider does it.

    A provider of the request's protocol does it, unless its quirks say that it refuses the field.

    Raises:
        InvalidRequest: an edit is unknown or not valid.
    """
    dialect = CLIENT_DIALECTS[request.protocol]
    if not dialect.context_edits_field or edits_context(deployment, request):
        return None
    return dialect.read_context_edits(request.raw_fields)


def edits_context(deployment: ModelDeployment, request: ChatRequest) -> bool:
    """Says whether a deployment's provider itself clears and compacts what a request asks for."""
    field = CLIENT_DIALECTS[request.protocol].context_edits_field
    return bool(field) and speaks_protocol(deployment, request) and field not in deployment.quirks.strip_fields


def build_cache_key(turn: Turn, deployment: ModelDeployment) -> str | None:
    """Returns the name of a conversation's family for the prompt cache of a deployment's provider: a digest that tells
    nothing, the same in all branches. None if the provider takes no name, or if the turn is not stored: the next one
    would have another name."""
    resolved_request = turn.resolved_request
    if not resolved_request.storage.is_stored or not deployment.takes_cache_key:
        return None
    conversation = resolved_request.conversation
    return hashlib.sha256(f"{conversation.tenant}\0{conversation.root}".encode()).hexdigest()[:32]


class RefusedSize(msgspec.Struct, frozen=True):
    """What a refusal of a prompt as too long tells of a deployment."""

    model_key: str
    """`provider/model` of the deployment that refused."""
    tokens: int
    """The window: stated by the provider, or derived from what was refused and what passed."""
    is_stated: bool = True
    is_of_deployment: bool = False
    """The limit counts for all requests to the deployment, not for this conversation alone."""


class View(msgspec.Struct, frozen=True, dict=True):
    """What is sent upstream, and how it was planned."""

    outline: Outline
    plan: Plan
    budget: Budget
    messages: Sequence[bytes] | None
    """The JSON text of each message; None if the client's own messages are sent unchanged."""
    raw_log_messages: RawLogMessages | None = None
    """The JSON text of the log messages that the view shows, by seq. It may have further messages."""
    compaction: Mapping[str, Any] = NO_COMPACTION
    is_overflow_recovered: bool = False
    warnings: tuple[str, ...] = ()
    provider_output_limit: int | None = None
    """The longest answer that fits beside this prompt, computed from the window that the provider reported."""
    words: ClientWords = NO_WORDS
    """What may be drawn from the log for this request."""
    refused_size: RefusedSize | None = None
    """Set if this view is sent in place of one that was refused."""
    fallback: str | None = None
    """The key of the deployment that got this view, if it is not the first for its model."""
    protocol_fields: Mapping[str, Any] = {}
    """Fields of the client's protocol that tell what was cleared because the client asked for it."""

    @cached_property
    def prompt_tokens(self) -> int:
        """Calibrated tokens of the prompt."""
        return self.budget.calibrate_tokens(self.plan.prompt_tokens)

    def compute_lowered_output_limit(self, added_tokens: int = 0) -> int | None:
        """Returns the output limit to send in place of the client's; None if the client's is sent.

        Args:
            added_tokens: raw tokens of messages after the view.
        """
        added_estimate = self.budget.calibrate_tokens(added_tokens) if added_tokens else 0
        if self.provider_output_limit is None:
            return self.budget.compute_output_limit(self.prompt_tokens + added_estimate)
        return max(1, self.provider_output_limit - added_estimate)

    @property
    def compaction_status(self) -> Mapping[str, Any]:
        """`context.compaction`: the compaction of this answer, or the precompaction whose summary this view is the
        first to show."""
        plan, previous_view = self.plan, self.outline.last_view
        if not plan.summaries or self.compaction.get("ran") or plan.boundary_seq <= previous_view.boundary.to_seq:
            return self.compaction
        newest = plan.summaries[-1]
        return {"ran": False, "prepared": True, "duration_ms": 0, "model": newest.model or None, "usage": newest.usage}

    @property
    def shows_new_compaction(self) -> bool:
        """Whether the answer to this view is the first after a compaction."""
        status = self.compaction_status
        return bool(self.plan.summaries) and bool(status["ran"] or status.get("prepared"))

    @property
    def tokens_before_compaction(self) -> int:
        """Calibrated tokens of a prompt that uses all stored summaries and shortens nothing else."""
        outline = self.outline
        covered_tokens = outline.summaries[-1].tokens_total if outline.summaries else 0
        summary_tokens = sum(summary.tokens for summary in outline.summaries)
        end = outline.summaries[-1].to_seq if outline.summaries else 0
        user_text = find_user_text(outline.user_texts, end)
        user_text_tokens = user_text.count_tokens(user_text.select_before(end))
        return self.budget.calibrate_tokens(
            outline.instructions_tokens + summary_tokens + user_text_tokens + outline.log_tokens - covered_tokens
        )
