from __future__ import annotations

import pytest

from app.context.calibration import Calibration
from app.pipeline.turn.last_view_and_calibration import (
    MAX_CONVERSATIONS_PER_TENANT,
    MAX_TENANTS_PER_MODEL,
    MIN_EVIDENCE_TOKENS,
    SLOPES_FACT,
    CalibrationSlopes,
)


def learned(slope: float, tokens: int = 100_000) -> Calibration:
    return Calibration(changed_estimated=tokens, changed_reported=slope * tokens)


def test_a_tenant_starts_with_the_median_of_its_own_conversations() -> None:
    slopes = CalibrationSlopes()
    for number, slope in enumerate((1.1, 1.2, 1.5)):
        slopes.learn_slope("p/m", "one", f"conv_{number}", learned(slope))
    assert slopes.find_start_slope("p/m", "one") == pytest.approx(1.2, abs=0.001)
    assert slopes.find_start_slope("p/other", "one") == 1.0


def test_others_count_once_there_are_three() -> None:
    slopes = CalibrationSlopes()
    for tenant, slope in (("a", 1.2), ("b", 1.3)):
        slopes.learn_slope("p/m", tenant, "conv", learned(slope))
    assert slopes.find_start_slope("p/m", "new") == 1.0
    slopes.learn_slope("p/m", "c", "conv", learned(1.5))
    assert slopes.find_start_slope("p/m", "new") == pytest.approx(1.3, abs=0.001)
    assert slopes.find_start_slope("p/m", "a") == pytest.approx(1.2, abs=0.001)


def test_a_conversation_that_compared_little_says_nothing() -> None:
    slopes = CalibrationSlopes()
    assert slopes.learn_slope("p/m", "one", "conv", learned(1.5, MIN_EVIDENCE_TOKENS - 1)) is None
    assert slopes.find_start_slope("p/m", "one") == 1.0


def test_what_is_stored_is_read_by_another_process_without_names_of_tenants() -> None:
    slopes, others = CalibrationSlopes(), CalibrationSlopes()
    facts = slopes.learn_slope("p/m", "one", "conv", learned(1.4))
    assert facts is not None
    assert "one" not in facts[SLOPES_FACT]
    assert slopes.learn_slope("p/m", "one", "conv", learned(1.405)) is None, "it hardly moved"
    others.restore_slopes("p/m", facts[SLOPES_FACT])
    assert others.find_start_slope("p/m", "one") == pytest.approx(1.4, abs=0.001)
    others.learn_slope("p/m", "one", "conv", learned(1.2))
    assert others.find_start_slope("p/m", "one") == pytest.approx(1.2, abs=0.001)


@pytest.mark.parametrize("facts", [None, [1], {"a": "b"}, {"a": 3.9}, {"reported": 310.0, "estimated": 80.0}])
def test_facts_of_another_form_are_passed_over(facts: object) -> None:
    slopes = CalibrationSlopes()
    slopes.restore_slopes("p/m", facts)
    assert slopes.find_start_slope("p/m", "a") == 1.0


def test_what_is_remembered_is_bounded() -> None:
    slopes = CalibrationSlopes()
    for tenant in range(MAX_TENANTS_PER_MODEL + 5):
        for conversation in range(MAX_CONVERSATIONS_PER_TENANT + 1):
            slopes.learn_slope("p/m", f"{tenant}", f"{conversation}", learned(1.0 if conversation == 0 else 1.3))
    assert slopes.find_start_slope("p/m", f"{MAX_TENANTS_PER_MODEL}") == pytest.approx(1.3, abs=0.002)
    facts = slopes.learn_slope("p/m", "last", "conv", learned(1.5))
    assert facts is not None
    assert len(facts[SLOPES_FACT]) <= MAX_TENANTS_PER_MODEL
