"""Reads and writes what earlier views left in a conversation's state: the last views, the calibration of token counts,
which summaries an answer has told the cost of, and the last prompt that a provider's cache has. Remembers the slopes of
calibrations, from which new conversations start."""

from __future__ import annotations

import hashlib
import math
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from statistics import median
from typing import Any, Final

import msgspec

from app.context.calibration import HIGHEST_SLOPE, LOWEST_SLOPE, Calibration
from app.context.plan.outline import MAX_STORED_VIEWS, LastView, Outline
from app.context.plan.policy import ContextPolicy
from app.conversation.conversation_types import Conversation, Summary
from app.upstream.provider_contract import CacheRule

CALIBRATIONS, LAST_VIEWS = "calibration", "views"
"""`Conversation.state`: the calibration of each `provider/model`; the last view of each policy and window."""
BILLED_UNTIL: Final = "summaries_billed_until"
"""`Conversation.state`: when the newest summary was written whose cost an answer has told. Unix seconds."""
PROMPT_CACHE: Final = "prompt_cache"
"""`Conversation.state`: the last prompt, as the provider's cache has it (`CachedPrompt`)."""
LIFETIME_SECONDS: Final[Mapping[CacheRule, int]] = {"anthropic": 300, "breakpoints": 1800, "prefix": 600, "none": 600}
"""After so long without a call a cache may have forgotten a prompt. The shortest that providers promise: OpenAI's and
Anthropic's guides "Prompt caching"."""
MAX_UNBILLED: Final = 256
"""So many of the newest summaries, and of the newest folds, may be unbilled: a long log has thousands."""
NO_LAST_VIEW: Final = LastView()


class CachedPrompt(msgspec.Struct, frozen=True):
    """A prompt that was sent."""

    conversation_id: str
    model_key: str
    instructions: str
    """The digest of schemas and instructions (`context.calibration.digest_instructions`)."""
    view: int
    """A checksum of what the view shows in place of the log."""
    quotation_count: int
    prompt_tokens: int
    cached_tokens: int
    """Both as the provider counts."""
    sent_at: float
    """Unix seconds."""


def read_calibration(state: Mapping[str, Any], model_key: str, start_slope: float = 1.0) -> Calibration:
    """Returns the calibration of a conversation for a model.

    Args:
        start_slope: the slope to begin with, if the model has not answered in this conversation yet.
    """
    calibrations = state.get(CALIBRATIONS)
    return Calibration.from_dict(calibrations.get(model_key) if calibrations else None, start_slope=start_slope)


def read_last_view(state: Mapping[str, Any], policy: ContextPolicy, window: int) -> LastView:
    """Returns what is stored of the last view of a policy and window."""
    last_views = state.get(LAST_VIEWS)
    stored = last_views.get(_view_key(policy, window)) if last_views else None
    return NO_LAST_VIEW if stored is None else msgspec.convert(stored, LastView)


def find_end_of_shown_summaries(state: Mapping[str, Any]) -> int:
    """Returns the seq before which summaries stood for messages in the last view of any policy and window; 0: in
    none."""
    views = [msgspec.convert(stored, LastView) for stored in state.get(LAST_VIEWS, {}).values()]
    return max((view.boundary.to_seq for view in views), default=0)


def add_last_view(state: Mapping[str, Any], policy: ContextPolicy, window: int, view: LastView) -> Mapping[str, Any]:
    """Returns `Conversation.state["views"]` with one more view. If there are too many, the view that was not used for
    longest is removed."""
    key = _view_key(policy, window)
    stored_views: Mapping[str, Any] = state.get(LAST_VIEWS, {})
    if view == NO_LAST_VIEW and key not in stored_views:  # a missing entry means the same
        return stored_views
    kept_views = {name: stored for name, stored in stored_views.items() if name != key}
    while len(kept_views) >= MAX_STORED_VIEWS:
        del kept_views[next(iter(kept_views))]
    return {**kept_views, key: msgspec.to_builtins(view)}


def list_unbilled_summaries(conversation: Conversation, outline: Outline) -> Sequence[Summary]:
    """Returns the summaries and folds that were written for a conversation since its last answer, shown or not.

    Not only those that the view is the first to show: a fold is often shown beside a newer summary, and the last
    summary of a conversation is never shown.
    """
    # A conversation of an earlier version has told the cost of the summaries that it has shown.
    billed_until = conversation.state.get(BILLED_UNTIL, math.inf if conversation.chunk_count else 0)
    return [
        one
        for one in _list_newest_summaries(outline)
        if one.conversation_id == conversation.id and one.created_at.timestamp() > billed_until
    ]


def build_billed_state(outline: Outline) -> dict[str, float]:
    """Returns the member of the conversation's state after an answer told the cost of all summaries."""
    newest = _list_newest_summaries(outline)
    return {BILLED_UNTIL: max(one.created_at.timestamp() for one in newest)} if newest else {}


def _list_newest_summaries(outline: Outline) -> Sequence[Summary]:
    return (*outline.summaries[-MAX_UNBILLED:], *outline.folds[-MAX_UNBILLED:])


def _view_key(policy: ContextPolicy, window: int) -> str:
    return f"{policy.name}:{window}"


def read_cached_prompt(state: Mapping[str, Any]) -> CachedPrompt | None:
    """Returns the last prompt of a conversation; None if the provider reported nothing of a cache."""
    stored = state.get(PROMPT_CACHE)
    return None if stored is None else msgspec.convert(stored, CachedPrompt)


def is_cache_cold(before: CachedPrompt, rule: CacheRule, now: float) -> bool:
    """Says whether a cache has forgotten the last prompt by now."""
    return now - before.sent_at > LIFETIME_SECONDS[rule]


MIN_EVIDENCE_TOKENS: Final = 500
"""A conversation's slope counts after this many tokens have been compared with the provider's reports."""
MIN_TENANTS: Final = 3
"""With this many tenants, their slopes say something about a model. Fewer may only say what one tenant sends."""
MAX_CONVERSATIONS_PER_TENANT: Final = 9
"""For each tenant and model, the slopes of this many conversations are remembered: those that learned last."""
MAX_TENANTS_PER_MODEL: Final = 64
"""For each model, the slopes of this many tenants are remembered: those that learned last."""
MAX_MODELS: Final = 1_000
MIN_SLOPE_DRIFT: Final = 0.02
"""A tenant's median is stored when it differs from the stored one by more than this."""
SLOPES_FACT: Final = "slopes"
"""A key of the stored facts of a model: the median slope of each tenant, by the digest of the tenant's name."""
STORED_SLOPE_KEY: Final = ""
"""Stands in the place of a conversation's id for the slope that was stored for a tenant."""


class CalibrationSlopes:
    """Remembers the slopes of recent conversations by model and tenant, as a start for new conversations. Offsets are
    not shared: an offset depends on the instructions of one application."""

    def __init__(self) -> None:
        self._slopes: OrderedDict[str, OrderedDict[str, OrderedDict[str, float]]] = OrderedDict()
        """By model, digest of the tenant, and conversation."""
        self._stored_slopes: dict[str, dict[str, float]] = {}
        """The stored slopes, by model and digest of the tenant."""

    def find_start_slope(self, model_key: str, tenant: str) -> float:
        """Returns the slope for a new conversation: the median of the tenant's own slopes; else the median over the
        other tenants, if there are at least three; else 1."""
        tenants = self._slopes.get(model_key)
        if tenants is None:
            return 1.0
        if tenant_slopes := tenants.get(_digest_tenant(tenant)):
            return median(tenant_slopes.values())
        return median(median(one.values()) for one in tenants.values()) if len(tenants) >= MIN_TENANTS else 1.0

    def learn_slope(
        self, model_key: str, tenant: str, conversation_id: str, calibration: Calibration
    ) -> dict[str, Any] | None:
        """Records the slope that a conversation has learned.

        Returns:
            The facts to store for the model; None if they have not changed enough.
        """
        if calibration.changed_estimated < MIN_EVIDENCE_TOKENS:
            return None
        tenant_digest = _digest_tenant(tenant)
        tenant_slopes = self._touch_tenant_slopes(model_key, tenant_digest)
        # A slope from this process's own traffic replaces the one that was read from the store.
        tenant_slopes.pop(STORED_SLOPE_KEY, None)
        tenant_slopes[conversation_id] = calibration.slope
        tenant_slopes.move_to_end(conversation_id)
        while len(tenant_slopes) > MAX_CONVERSATIONS_PER_TENANT:
            tenant_slopes.popitem(last=False)
        stored_slopes, tenant_median = self._stored_slopes.setdefault(model_key, {}), median(tenant_slopes.values())
        if abs(stored_slopes.get(tenant_digest, 1.0) - tenant_median) <= MIN_SLOPE_DRIFT:
            return None
        stored_slopes = {name: slope for name, slope in stored_slopes.items() if name in self._slopes[model_key]}
        stored_slopes[tenant_digest] = round(tenant_median, 4)
        self._stored_slopes[model_key] = stored_slopes
        return {SLOPES_FACT: stored_slopes}

    def restore_slopes(self, model_key: str, facts: object) -> None:
        """Takes over slopes from the stored facts of a model. Anything that is not a plausible slope is ignored."""
        for tenant, slope in facts.items() if isinstance(facts, Mapping) else ():
            if isinstance(slope, int | float) and LOWEST_SLOPE <= slope <= HIGHEST_SLOPE:
                self._touch_tenant_slopes(model_key, str(tenant))[STORED_SLOPE_KEY] = float(slope)
                self._stored_slopes.setdefault(model_key, {})[str(tenant)] = float(slope)

    def _touch_tenant_slopes(self, model_key: str, tenant: str) -> OrderedDict[str, float]:
        """Returns the slopes of a tenant, and makes the tenant the one that learned last."""
        tenants = self._slopes.setdefault(model_key, OrderedDict())
        self._slopes.move_to_end(model_key)
        tenant_slopes = tenants.setdefault(tenant, OrderedDict())
        tenants.move_to_end(tenant)
        if len(tenants) > MAX_TENANTS_PER_MODEL:
            tenants.popitem(last=False)
        if len(self._slopes) > MAX_MODELS:
            evicted_model, _ = self._slopes.popitem(last=False)
            self._stored_slopes.pop(evicted_model, None)
        return tenant_slopes


def _digest_tenant(tenant: str) -> str:
    return hashlib.blake2b(tenant.encode("utf-8", "surrogatepass"), digest_size=8).hexdigest()
