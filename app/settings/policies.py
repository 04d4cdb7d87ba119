"""The settings of policies. Each docstring of a field is its row in `docs/configuration.md`."""

from __future__ import annotations

from typing import Annotated, Any, Literal, get_args

from pydantic import BeforeValidator, Field

from app.settings.value_types import Chars, Instruction, Seconds, Section, Share, Tokens

SAME_MODEL = "same"
"""`summarizer.model`: the request's own model."""
Band = tuple[Annotated[float, Field(gt=0, le=1)], Annotated[float, Field(gt=0, le=1)]]
"""Pressure from which on, and the share of a result's cap that is left then."""
PolicyKind = Literal["additive", "checkpoint", "fade", "prune", "window"]
POLICY_KINDS: tuple[PolicyKind, ...] = get_args(PolicyKind)
"""Each is built in, as a policy of its own name."""
Stage = Literal[
    "mask_results",
    "cap_messages",
    "fade_results",
    "prune_by_position",
    "truncate_results",
    "tell_old_rounds",
    "drop_results",
    "clear_tool_results",
    "clear_reasoning",
    "keep_last",
    "drop_oldest",
    "share_evenly",
]


def _parse_recall(value: object) -> object:
    """YAML reads a bare `off` as false."""
    return {False: "off", True: "quote"}[value] if isinstance(value, bool) else value


Recall = Annotated[Literal["off", "quote", "tool"], BeforeValidator(_parse_recall)]


class Trigger(Section):
    """When policy `aligned_prefix` writes one."""

    type: Literal["token_ratio", "remaining_tokens", "messages_to_refine"] | None = None
    """`aligned_prefix`: when one is written. `token_ratio`: the used share of the window is at least `value`;
    `remaining_tokens`: at most `value` are left; `messages_to_refine`: at least `value` messages overflow. Empty:
    whenever messages overflow."""
    value: Annotated[float, Field(gt=0)] | None = None
    """The number that the type compares with."""


class ClearToolResults(Section):
    trigger_tokens: Tokens | None = None
    """`clear_tool_results`: old tool results are cleared once the prompt is above this many tokens. Empty:
    never."""
    keep: Annotated[int, Field(ge=0)] = 3
    """How many of the newest results stay."""
    clear_at_least_tokens: Annotated[int, Field(ge=0)] = 0
    """Nothing is cleared where it would free less: clearing costs the provider's prompt cache from that place
    on."""
    exclude_tools: tuple[str, ...] = ()
    """Names of tools whose results are never cleared."""
    inputs: bool = False
    """Clear the arguments of these calls too."""


class ClearReasoning(Section):
    keep_turns: Annotated[int, Field(ge=0)] | None = None
    """`clear_reasoning`: reasoning is cleared from all but this many of the newest turns, and never from the
    newest. Empty: never."""


class Summarizer(Section):
    enabled: bool = True
    """`false`: no model is asked; views are trimmed."""
    model: str = SAME_MODEL
    """The model that writes summaries: `same` is the request's own, or a name as in `models`."""
    fallbacks: tuple[str, ...] = ()
    """Models that are asked, in order, when that one fails or rests after failures."""
    max_summary_tokens: Tokens | None = None
    """The longest summary. Empty: 4,096; 2,048 for kind `aligned_prefix`. Never more than 1/16 of the window (or 256
    tokens, if that is more), nor than 1/20 of what the summary stands for (or 1,024 tokens)."""
    prompt: Instruction | None = None
    """An instruction in place of the built-in one: what a summary must keep in your domain. Folds keep the built-in
    one."""
    update_prompt: Instruction | None = None
    """`aligned_prefix`: the instruction for each one after the first. Empty: `prompt`, or the built-in one."""
    form: Literal["auto", "conversation", "transcript"] = "auto"
    """`auto`: the request's own model gets the messages of the last prompt again, and the instruction after them,
    so that the provider's prompt cache is hit; other models, and what does not fit, a fenced transcript.
    `transcript`: always that. `conversation`: the same as `auto` in this version."""
    parameters: dict[str, Any] = Field(default_factory=dict)
    """Sent along with the summary call, such as `temperature`. It cannot change messages, model, tools and
    limits."""
    timeout_seconds: Seconds = 120.0
    """How long one summary call may take before the next fallback, or a mechanical summary, takes its place."""


class Policy(Section):
    """One policy; ratios are of the context window unless said otherwise. What they do:
    `context.plan.policy.Policy`.
    """

    kind: PolicyKind = "additive"
    """How the view is made: `additive` summarizes old turns, each once. `aligned_prefix` shortens tool results, then
    writes one summary of everything. `fade` shortens tool results as the window fills, without a model. `prune`
    cuts tool results before messages once the window is full, without a model. `window` keeps the last turns. Left
    out: the name of the policy where that is a kind, else `additive`."""
    stages: tuple[Stage, ...] | None = None
    """The stages that shorten a view, in order, in place of the kind's own (below)."""
    reserve_ratio: Annotated[float, Field(ge=0, lt=1)] = 0.05
    """Kept free for the answer, on top of what the request asks for (`max_tokens`, up to an eighth of the window)."""
    regrow_ratio: Share = 0.5
    """Under the same model, verbatim text comes back in place of a summary or a cut only if the prompt then stays
    under this share."""
    target_ratio: Share = 0.75
    """What a cut leaves, as a share of the limit that was passed (of `keep_turns` or `keep_tokens` in a sliding
    window): what is cut stays cut for many turns, and the provider's prompt cache keeps working."""
    step_ratio: Share = 0.25
    """`drop_oldest`: whole rounds are left out in quanta of this share of the limit."""
    recall: Recall | None = None
    """`quote` shows old messages that bear on the newest one, in front of it; `tool` lets the model search for
    them; `off` neither. Empty: `quote` in kind `additive`, `off` in others."""
    recall_ratio: Share = 0.15
    """The most that quotations may take. Where part of the log is folded, `additive` keeps it free below the
    limit."""
    restore: Literal["none", "quotes"] = "quotes"
    """`quotes`: messages that a client leaves out of the history it resends may be quoted, too, in views that do not
    show everything anyway; `none`: never."""
    pin_ratio: Share = 0.5
    """The most that pinned messages may take. A request that pins more is refused."""

    threshold_ratio: Share = 0.7
    """`additive`: compaction starts when the estimated prompt is above this share …"""
    token_floor: Annotated[int, Field(ge=0)] = 4096
    """… and above this many tokens."""
    buffer_turns: Annotated[int, Field(ge=0)] = 4
    """How many of the last turns stay verbatim, if they fit."""
    buffer_max_ratio: Share = 0.3
    """The most that they may take. `aligned_prefix`: the most that the turns after one may take."""
    fold_ratio: Share = 0.3
    """`additive`: summaries that weigh more than this together are folded into one."""
    prepare_ratio: Annotated[float, Field(gt=0, le=1)] = 0.6
    """Above this share, and where the next turn may cross the threshold, the next summary is written in the
    background after an answer, and waits. `1`: never."""
    min_gain_ratio: Share = 0.1
    """A compaction, or a step of stages below the limit, counts only if it makes the prompt at least this much
    smaller, as a share of what it was."""
    strategy: Literal["additive", "recursive"] = "additive"
    """`additive` adds a summary for each stretch. `recursive`: one rolling summary, rewritten with each compaction.
    For kind `additive`."""

    keep_turns: Annotated[int, Field(ge=0)] | None = None
    """`aligned_prefix`: turns that stay verbatim after one (empty: 2). `keep_last`: the most turns that are shown
    (empty: all that fit)."""
    keep_tokens: Tokens | None = None
    """`keep_last`: the most tokens that messages may take (empty: all that fit)."""
    trigger: Trigger = Trigger()

    mask_pressure: Share = 0.8
    """Pressure from which on `mask_results`, `cap_messages` and `prune_by_position` run. Pressure is the messages'
    share of the window without the reserve."""
    mask_chars: Chars = 300
    """`mask_results`: about how many characters a result keeps that a later answer has made use of, more where
    there is room."""
    result_ratio: Share = 0.3
    """`cap_messages`: the most that one tool result may take, as a share of what reserve and instructions leave of
    the window …"""
    result_max_chars: Chars = 400_000
    """… and in characters."""
    arguments_ratio: Share = 0.15
    """`cap_messages`: the same share for the arguments of one tool call, which remain a JSON object …"""
    arguments_max_chars: Chars = 200_000
    """… and in characters."""
    oldest_share: Annotated[float, Field(gt=0, le=1)] = 0.2
    """`mask_results`, `cap_messages`, `fade_results`: of what the newest tool result may keep, how much the oldest
    may; those between in proportion."""
    fade_bands: tuple[Band, ...] = ((0.99, 0.05), (0.9, 0.2), (0.85, 0.5), (0.8, 1.0))
    """`fade_results`: from this pressure on, this share of the cap (`result_ratio`) is left to each result. The
    highest that is reached counts."""
    position_pruning: bool = False
    """`prune_by_position`: whether it runs at all."""
    keep_last_assistants: Annotated[int, Field(ge=0)] = 3
    """It leaves the last so many turns alone."""
    soft_trim_ratio: Share = 0.3
    """Relative age (1 is the oldest) from which on it keeps head and tail of a result …"""
    hard_clear_ratio: Share = 0.5
    """… and from which on a placeholder only."""
    soft_trim_chars: Chars = 1_500
    """Characters of the head, and as many of the tail."""
    min_prunable_tool_chars: Chars = 50_000
    """Results with fewer characters are left alone."""
    emergency_chars: Chars = 200
    """`share_evenly`: what each message keeps at least when the limit is shared evenly."""
    max_tool_result_tokens: Tokens = 2_000
    """`truncate_results`: longer results are truncated, oldest first, once the limit is passed."""
    summarize_after_turns: Annotated[int, Field(ge=0)] = 4
    """`tell_old_rounds`: tool rounds that are at least this many turns old become a line per call."""
    told_result_chars: Chars = 200
    """How much of each result such a line repeats."""
    clear_tool_results: ClearToolResults = ClearToolResults()
    clear_reasoning: ClearReasoning = ClearReasoning()
    summarizer: Summarizer = Summarizer()


def build_default_policies() -> dict[str, Policy]:
    """One of each kind, by its name."""
    return {kind: Policy(kind=kind) for kind in POLICY_KINDS}
