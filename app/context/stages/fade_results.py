"""Let tool results fade as the window fills: the higher the pressure, the smaller the share of its cap each keeps."""

from __future__ import annotations

from app.context.stages.cap_messages import results_capped
from app.context.stages.draft import Draft


def fade_results(draft: Draft) -> Draft:
    """Apply the first band that the pressure reaches."""
    pressure = draft.pressure
    bands = sorted(draft.scene.policy.fade_bands, reverse=True)
    share = next((share for threshold, share in bands if pressure >= threshold), None)
    if share is None:
        return draft
    faded = results_capped(draft, share)
    removed = draft.tokens - faded.tokens
    return faded.noted("faded", pressure=round(pressure, 3), share=share, tokens=removed) if removed else draft
