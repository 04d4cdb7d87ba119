from __future__ import annotations

import pytest

from app.context.calibration import Calibration
from app.pipeline.resolve.model_context import (
    KEPT_CONVERSATIONS,
    KEPT_TENANTS,
    LEAST_EVIDENCE_TOKENS,
    SLOPES,
    Slopes,
)


def learned(slope: float, tokens: int = 100_000) -> Calibration:
    return Calibration(changed_estimated=tokens, changed_reported=slope * tokens)


def test_a_tenant_starts_with_the_median_of_its_own_conversations() -> None:
    slopes = Slopes()
    for number, slope in enumerate((1.1, 1.2, 1.5)):
        slopes.learn("p/m", "one", f"conv_{number}", learned(slope))
    assert slopes.start("p/m", "one") == pytest.approx(1.2, abs=0.001)
    assert slopes.start("p/other", "one") == 1.0


def test_others_count_once_there_are_three() -> None:
    slopes = Slopes()
    for tenant, slope in (("a", 1.2), ("b", 1.3)):
        slopes.learn("p/m", tenant, "conv", learned(slope))
    assert slopes.start("p/m", "new") == 1.0
    slopes.learn("p/m", "c", "conv", learned(1.5))
    assert slopes.start("p/m", "new") == pytest.approx(1.3, abs=0.001)
    assert slopes.start("p/m", "a") == pytest.approx(1.2, abs=0.001)


def test_a_conversation_that_compared_little_says_nothing() -> None:
    slopes = Slopes()
    assert slopes.learn("p/m", "one", "conv", learned(1.5, LEAST_EVIDENCE_TOKENS - 1)) is None
    assert slopes.start("p/m", "one") == 1.0


def test_what_is_stored_is_read_by_another_process_without_names_of_tenants() -> None:
    slopes, others = Slopes(), Slopes()
    facts = slopes.learn("p/m", "one", "conv", learned(1.4))
    assert facts is not None
    assert "one" not in facts[SLOPES]
    assert slopes.learn("p/m", "one", "conv", learned(1.405)) is None, "it hardly moved"
    others.restore("p/m", facts[SLOPES])
    assert others.start("p/m", "one") == pytest.approx(1.4, abs=0.001)
    others.learn("p/m", "one", "conv", learned(1.2))
    assert others.start("p/m", "one") == pytest.approx(1.2, abs=0.001)


@pytest.mark.parametrize("facts", [None, [1], {"a": "b"}, {"a": 3.9}, {"reported": 310.0, "estimated": 80.0}])
def test_facts_of_another_form_are_passed_over(facts: object) -> None:
    slopes = Slopes()
    slopes.restore("p/m", facts)
    assert slopes.start("p/m", "a") == 1.0


def test_what_is_remembered_is_bounded() -> None:
    slopes = Slopes()
    for tenant in range(KEPT_TENANTS + 5):
        for conversation in range(KEPT_CONVERSATIONS + 1):
            slopes.learn("p/m", f"{tenant}", f"{conversation}", learned(1.0 if conversation == 0 else 1.3))
    assert slopes.start("p/m", f"{KEPT_TENANTS}") == pytest.approx(1.3, abs=0.002)
    facts = slopes.learn("p/m", "last", "conv", learned(1.5))
    assert facts is not None
    assert len(facts[SLOPES]) <= KEPT_TENANTS
