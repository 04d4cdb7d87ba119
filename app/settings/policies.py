"""The settings of policies. The docstring of each field is its row in `docs/configuration.md`."""

from __future__ import annotations

from typing import Annotated, Any, Literal, get_args

from pydantic import BeforeValidator, Field

from app.settings.value_types import Instruction, Seconds, Section, Share, Tokens

SAME_MODEL = "same"
"""The value of `summarizer.model` that stands for the request's own model."""
LOCAL_EMBEDDING_MODEL = "universal-sentence-encoder"
"""The one embedding model that runs in this process: Google's, for 16 languages, with 512 components."""
PolicyKind = Literal["additive", "checkpoint", "fade", "prune", "window"]
POLICY_KINDS: tuple[PolicyKind, ...] = get_args(PolicyKind)
"""For each kind there is a built-in policy of the same name."""
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
    """Turns a boolean into the word that was written: YAML 1.1 reads a bare `off` as false."""
    # `on`, `yes` and `true` are no documented values; they enable what kind `additive` does by default.
    return {False: "off", True: "quote"}[value] if isinstance(value, bool) else value


Recall = Annotated[Literal["off", "quote", "tool"], BeforeValidator(_parse_recall)]


class Trigger(Section):
    """When a policy of kind `checkpoint` writes a checkpoint."""

    type: Literal["token_ratio", "remaining_tokens", "messages_to_refine"] | None = None
    """`checkpoint`: when one is written. `token_ratio`: at least the share `value` of the window is used.
    `remaining_tokens`: at most `value` tokens are left. `messages_to_refine`: at least `value` messages overflow.
    Empty: whenever messages overflow."""
    value: Annotated[float, Field(gt=0)] | None = None
    """The number for `trigger.type`."""


class ClearToolResults(Section):
    trigger_tokens: Tokens | None = None
    """`clear_tool_results`: starts when the prompt has more tokens than this. Empty: never."""
    keep: Annotated[int, Field(ge=0)] = 3
    """How many of the newest tool results are not cleared."""
    clear_at_least_tokens: Annotated[int, Field(ge=0)] = 0
    """Nothing is cleared if that would free fewer tokens."""
    exclude_tools: tuple[str, ...] = ()
    """Names of tools whose results are never cleared."""
    inputs: bool = False
    """`true`: also clears the arguments of calls, if all results of their round are cleared."""


class ClearReasoning(Section):
    keep_turns: Annotated[int, Field(ge=0)] | None = None
    """`clear_reasoning`: reasoning is cleared from all but so many of the newest turns. Empty: never."""


class RecallEmbeddings(Section):
    provider: str | None = None
    """The provider whose `/embeddings` is asked, as in `providers`. Empty: the model runs in this process."""
    model: str | None = None
    """The embedding model by which `recall: quote` finds messages of the same [meaning](policies.md#by-meaning): the
    provider's name of it; without a provider, `universal-sentence-encoder`. Empty: they are found by words only."""


class Summarizer(Section):
    enabled: bool = True
    """`false`: no model is called for summaries; long views are trimmed instead."""
    model: str = SAME_MODEL
    """The model that writes summaries: `same` (the request's own model), or a name as in `models`."""
    fallbacks: tuple[str, ...] = ()
    """Models that are called, in this order, if `summarizer.model` fails or is paused."""
    max_summary_tokens: Tokens | None = None
    """The longest summary. Empty: 4,096 tokens; for kind `checkpoint`, 2,048. [Further limits](policies.md#additive)
    always hold."""
    prompt: Instruction | None = None
    """An instruction that replaces the built-in one, except for folds: what a summary must keep in your domain."""
    update_prompt: Instruction | None = None
    """`checkpoint`: the instruction for every checkpoint after the first. Empty: `summarizer.prompt`, or the built-in
    one."""
    form: Literal["auto", "transcript"] = "auto"
    """What the summary call sends. `auto`: the request's own model gets the messages of its last prompt
    and then the instruction, so that the provider's prompt cache is used; other models get a fenced transcript.
    `transcript`: always a transcript."""
    parameters: dict[str, Any] = Field(default_factory=dict)
    """Further fields of the summary call, such as `temperature`; not the messages, the model, the tools and the
    limits."""
    timeout_seconds: Seconds = 120.0
    """How long a summary call may be silent, before its first byte and between two pieces. Then the next fallback is
    called."""


class Policy(Section):
    """One policy. Ratios are shares of the context window unless the docstring says otherwise. The planner reads the
    policy as `app.context.plan.policy.ContextPolicy`.
    """

    # What every kind reads.
    kind: PolicyKind = "additive"
    """How the view is built ([policies](policies.md)). Left out: the policy's name if it is a kind, else `additive`."""
    stages: tuple[Stage, ...] | None = None
    """The stages that shorten a view, in this order. Empty: those of the kind (below)."""
    reserve_ratio: Annotated[float, Field(ge=0, lt=1)] = 0.05
    """Kept free, in addition to the room for the answer."""
    regrow_ratio: Share = 0.5
    """With the same model, verbatim text replaces a summary or a cut again only if the prompt then stays below this
    share."""
    target_ratio: Share = 0.75
    """How much a cut leaves, as a share of the limit that was passed."""
    step_ratio: Share = 0.25
    """`drop_oldest`: whole rounds are dropped in steps of this share of the limit."""
    recall: Recall | None = None
    """How old messages come back ([recall](policies.md#recall)). Empty: `quote` for kind `additive`, else `off`."""
    recall_embeddings: RecallEmbeddings = RecallEmbeddings()
    restore: Literal["none", "quotes"] = "quotes"
    """`quotes`: messages that the client left out of its history may be quoted, too. `none`: they are never quoted."""
    user_text_ratio: Annotated[float, Field(ge=0, lt=1)] = 0.15
    """The most that [user text](policies.md#user-text) may take, up to 20,000 tokens; its head may take more. `0`: none
    is shown."""

    # When the kinds that call a model make summaries, and of what.
    threshold_ratio: Share = 0.7
    """`additive`: the compaction threshold: compaction starts when the prompt is above this share and above
    `token_floor`. Further compactions start up to 0.1 of the window later if they do not pay earlier."""
    threshold_tokens: Annotated[int, Field(ge=1)] | None = None
    """`additive`: a second threshold, in tokens, for large windows: the lower one counts, at least `token_floor`. Other
    shares are then those of a window of which it is `threshold_ratio`. Empty: none."""
    token_floor: Annotated[int, Field(ge=0)] = 4096
    """`additive`: the lowest compaction threshold, in tokens, or the limit if that is smaller."""
    buffer_turns: Annotated[int, Field(ge=0)] = 4
    """`additive`: how many of the last turns a compaction leaves verbatim."""
    buffer_max_ratio: Share = 0.3
    """The most that these turns may take. `checkpoint`: the most that the turns after a checkpoint may take."""
    fold_ratio: Share = 0.3
    """`additive`: summaries that together take more are folded into one."""
    prepare_ratio: Annotated[float, Field(gt=0, le=1)] = 0.6
    """If the prompt is above this share and the next turn may cross the compaction threshold, the next summary is
    written in the background. `1`: never."""
    blocking: bool = False
    """`true`: a turn above the compaction threshold waits for its summary, also if it fits. `false`: the summary is
    written in the background."""
    strategy: Literal["additive", "recursive"] = "additive"
    """`additive`: each compaction adds a summary (`additive`), or rewrites one rolling summary (`recursive`)."""

    # For kind `checkpoint` and the stage of sliding windows.
    keep_turns: Annotated[int, Field(ge=0)] | None = None
    """`checkpoint`: how many of the last turns stay verbatim (empty: 2). `keep_last`: the most turns that are shown
    (empty: all that fit)."""
    keep_tokens: Tokens | None = None
    """`keep_last`: the most tokens of messages, pins included (empty: all that fit)."""
    trigger: Trigger = Trigger()

    # For single stages; each docstring names its stage.
    position_pruning: bool = False
    """`true`: stage `prune_by_position` does its work."""
    summarize_after_turns: Annotated[int, Field(ge=0)] = 4
    """`tell_old_rounds`: tool rounds at least so many turns old become one line per call."""
    clear_tool_results: ClearToolResults = ClearToolResults()
    clear_reasoning: ClearReasoning = ClearReasoning()
    summarizer: Summarizer = Summarizer()


def build_default_policies() -> dict[str, Policy]:
    """Returns the built-in policies: one of each kind, under the kind's name."""
    return {kind: Policy(kind=kind) for kind in POLICY_KINDS}
