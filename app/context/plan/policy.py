"""Parameters of context policies: how a view is made when a conversation outgrows its window. No decisions."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any, Final, Literal

from app.conversation.context_edits import ReasoningClearing, ToolResultClearing

PolicyKind = Literal["additive", "checkpoint", "fade", "prune", "window"]
SummaryStrategy = Literal["additive", "recursive"]
RecallMode = Literal["off", "quote", "tool"]
RestoreMode = Literal["none", "quotes"]
TriggerType = Literal["token_ratio", "remaining_tokens", "messages_to_refine"]
SummarizerForm = Literal["auto", "transcript"]

STAGES_OF_KIND: Final[Mapping[PolicyKind, tuple[str, ...]]] = {
    "additive": ("clear_tool_results", "clear_reasoning"),
    "checkpoint": ("mask_results", "cap_messages", "fade_results", "drop_oldest", "share_evenly"),
    "fade": ("mask_results", "cap_messages", "fade_results", "prune_by_position", "drop_oldest", "share_evenly"),
    "prune": ("truncate_results", "tell_old_rounds", "drop_results", "drop_oldest"),
    "window": ("keep_last", "drop_oldest"),
}
"""The stages that shorten a view, in order, unless a policy lists its own (`context.stages.stage_registry`)."""
CHECKPOINT_KEEP_TURNS: Final = 2
MAX_SUMMARY_TOKENS: Final[Mapping[PolicyKind, int]] = {
    "additive": 4096,
    "checkpoint": 2048,
    "fade": 4096,
    "prune": 4096,
    "window": 4096,
}
"""The longest summary if none is configured."""


@dataclass(frozen=True, slots=True)
class SummarizerPolicy:
    """How the old part of a conversation is summarized.

    `model` is the model that writes summaries; ``same`` is the request's model. `fallbacks` are called if it fails.
    `prompt` replaces the built-in instruction, `update_prompt` the instruction for each checkpoint after the first.
    `form`: ``auto`` sends the messages of the last view and the instruction after them where that is possible, so that
    the provider's prompt cache is used; ``transcript`` sends them as one fenced text. `parameters` are sent with the
    call. `max_summary_tokens` limits each summary.
    """

    enabled: bool = True
    model: str = "same"
    fallbacks: tuple[str, ...] = ()
    max_summary_tokens: int = 4096
    prompt: str | None = None
    update_prompt: str | None = None
    form: SummarizerForm = "auto"
    parameters: Mapping[str, Any] = field(default_factory=dict)
    timeout_seconds: float = 120.0


@dataclass(frozen=True, slots=True)
class CheckpointTrigger:
    """When a checkpoint is written. Without a type: whenever a message overflows."""

    type: TriggerType | None = None
    value: float | None = None


@dataclass(frozen=True, slots=True)
class EmbeddingModel:
    """A model that turns texts into vectors, for quotations by meaning. Without a provider it runs in this process."""

    provider: str | None
    model: str


@dataclass(frozen=True, slots=True)
class TrimmingLimits:
    """How much the stages leave of messages. No settings: tests of short conversations have smaller numbers."""

    mask_pressure: float = 0.8
    """Tool results that an answer has used are masked from this pressure on."""
    mask_chars: int = 300
    """About how many characters of a masked result remain."""
    result_ratio: float = 0.3
    """The most that one tool result may take, as a share of the window without reserve and instructions."""
    result_max_chars: int = 400_000
    arguments_ratio: float = 0.15
    """The most that the arguments of one tool call may take, as a share of the same."""
    arguments_max_chars: int = 200_000
    oldest_share: float = 0.2
    """The share of the newest tool result's cap that the oldest result may take."""
    fade_bands: tuple[tuple[float, float], ...] = ((0.99, 0.05), (0.9, 0.2), (0.85, 0.5), (0.8, 1.0))
    """Pairs of a pressure and the share of the cap per result that remains from that pressure on. The highest
    pressure that is reached applies."""
    keep_last_assistants: int = 3
    """How many of the last turns pruning by position leaves alone."""
    soft_trim_ratio: float = 0.3
    """From this relative age on (0: newest, 1: oldest) a large result keeps only its head and tail."""
    hard_clear_ratio: float = 0.5
    """From this relative age on a large result becomes a placeholder."""
    soft_trim_chars: int = 1_500
    min_prunable_tool_chars: int = 50_000
    emergency_chars: int = 200
    """The fewest characters that each message keeps when no other stage helped."""
    max_tool_result_tokens: int = 2_000
    """Policy `prune`: results above this size are truncated first."""
    told_result_chars: int = 200


TRIMMING_LIMITS: Final = TrimmingLimits()


@dataclass(frozen=True, slots=True)
class CutPolicy:
    """How far a view is cut once it is too large."""

    regrow_ratio: float = 0.5
    """A view begins before the last view's boundary only if it then takes less than this share."""
    target_ratio: float = 0.75
    """What a cut leaves, as a share of the limit that was passed (decision 16)."""
    step_ratio: float = 0.25
    """Messages are left out in multiples of this share of the limit (decision 16)."""


@dataclass(frozen=True, slots=True)
class QuotationPolicy:
    """Whether old messages are quoted, and which."""

    recall: RecallMode | None = None
    """Whether old messages that match the newest one are quoted, or the model may search for them; None: by kind."""
    recall_ratio: float = 0.15
    """The share of the window that a quotation may take (`app.pipeline.view.quotations`)."""
    recall_embeddings: EmbeddingModel | None = None
    """The model by which quotations are searched for by meaning, too; None: by words only."""
    restore: RestoreMode = "quotes"
    """Whether messages that the client leaves out of its history may be quoted."""


@dataclass(frozen=True, slots=True)
class CompactionPolicy:
    """When old messages are summarized, and what for."""

    threshold_ratio: float = 0.7
    """Compaction starts if the estimated prompt is above this share and above `token_floor`."""
    threshold_tokens: int | None = None
    """Compaction also starts above this. All other shares are then those of a window with this threshold."""
    token_floor: int = 4096
    """The smallest threshold for compaction."""
    fold_ratio: float = 0.3
    """Summaries above this share are merged into one."""
    prepare_ratio: float = 0.6
    """Above this share the next summary is made ahead, after an answer; 1: never."""
    blocking: bool = False
    """Whether a turn above the threshold waits for its summary although it fits."""
    min_gain_ratio: float = 0.1
    """A compaction must make the view smaller by at least this share of it."""
    strategy: SummaryStrategy = "additive"
    """``recursive``: one rolling summary, rewritten with each compaction."""


@dataclass(frozen=True, slots=True)
class VerbatimPolicy:
    """Which of the last messages stay as they are."""

    buffer_turns: int = 4
    """How many of the last turns stay verbatim, if they fit."""
    buffer_max_ratio: float = 0.3
    """The most that these turns may take."""
    keep_turns: int | None = None
    """Turns that stay verbatim after a checkpoint (None: 2), or under policy `window` (None: all that fit)."""
    keep_tokens: int | None = None
    """Policy `window`: the most tokens that messages may take."""


@dataclass(frozen=True, slots=True)
class ContextPolicy:
    """Parameters of a policy. Ratios are shares of the context window unless said otherwise."""

    name: str = "additive"
    kind: PolicyKind = "additive"
    stages: tuple[str, ...] | None = None
    """Stages that shorten a view, in order; None: the stages of the kind."""
    reserve_ratio: float = 0.05
    """Kept free in addition to the answer that the request asks for."""
    user_text_ratio: float = 0.15
    """The most that user text may take; 0: none are shown."""
    pin_ratio: float = 0.5
    """The most that pinned messages may take."""
    trigger: CheckpointTrigger = field(default_factory=CheckpointTrigger)
    position_pruning: bool = False
    summarize_after_turns: int = 4
    """Policy `prune`: tool rounds older than this many turns are condensed to one line per call."""
    cut: CutPolicy = CutPolicy()
    quotations: QuotationPolicy = QuotationPolicy()
    compaction: CompactionPolicy = CompactionPolicy()
    verbatim: VerbatimPolicy = VerbatimPolicy()
    trimming: TrimmingLimits = TRIMMING_LIMITS
    clear_tool_results: ToolResultClearing = field(default_factory=ToolResultClearing)
    clear_reasoning: ReasoningClearing = field(default_factory=ReasoningClearing)
    summarizer: SummarizerPolicy = field(default_factory=SummarizerPolicy)

    @property
    def stage_names(self) -> tuple[str, ...]:
        return STAGES_OF_KIND[self.kind] if self.stages is None else self.stages

    @property
    def recall_mode(self) -> RecallMode:
        if self.quotations.recall is not None:
            return self.quotations.recall
        return "quote" if self.kind == "additive" else "off"

    @property
    def checkpoint_keep_turns(self) -> int:
        """Turns that stay verbatim after a checkpoint."""
        return CHECKPOINT_KEEP_TURNS if self.verbatim.keep_turns is None else self.verbatim.keep_turns

    @property
    def is_additive_without_stages(self) -> bool:
        """Says whether the policy is `additive` and no stage is active: a view under the threshold then stays
        as it is.
        """
        edits = self.clear_tool_results.trigger_tokens is not None or self.clear_reasoning.keep_turns is not None
        return self.kind == "additive" and self.stages is None and not edits

    @property
    def may_summarize(self) -> bool:
        """Says whether a model may be called for summaries."""
        return self.kind in {"additive", "checkpoint"} and self.summarizer.enabled

    @property
    def has_replacing_summaries(self) -> bool:
        """Says whether a new summary stands for everything before it, earlier summaries included."""
        return self.kind == "checkpoint" or self.compaction.strategy == "recursive"


POLICY_SECTIONS: Final[Mapping[str, type]] = {
    "cut": CutPolicy,
    "quotations": QuotationPolicy,
    "compaction": CompactionPolicy,
    "verbatim": VerbatimPolicy,
}


def make_policy(**values: Any) -> ContextPolicy:
    """Makes a policy of values that are named as in the settings, which have no sections.

    Raises:
        TypeError: a value has no such name.
    """
    sections = {
        section: section_class(
            **{name: values.pop(name) for name in [field.name for field in fields(section_class)] if name in values}
        )
        for section, section_class in POLICY_SECTIONS.items()
    }
    return ContextPolicy(**sections, **values)
