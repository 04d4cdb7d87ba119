from __future__ import annotations

import pytest

from app.errors import InvalidRequest
from app.simulator.context_window import parse_window_from_name
from app.simulator.options_and_faults import SimulatedFaults, parse_faults_from_name


@pytest.mark.parametrize(
    ("model", "window"),
    [
        ("sim", 128_000),
        ("sim-8k", 8192),
        ("sim-32k", 32_768),
        ("sim-128k", 128_000),
        ("sim-4096", 4096),
        ("sim-8k!status=500,first=2", 8192),
        ("gpt-4", 128_000),
    ],
)
def test_a_models_name_tells_its_window(model: str, window: int) -> None:
    assert parse_window_from_name(model) == window


def test_a_models_name_tells_its_faults() -> None:
    assert parse_faults_from_name("sim-8k") is None
    assert parse_faults_from_name("sim!status=503,first=2,on=summary") == SimulatedFaults(
        status=503, first=2, on="summary"
    )
    assert parse_faults_from_name("sim!hang") == SimulatedFaults(hang=True)


@pytest.mark.parametrize("model", ["sim!colour=red", "sim!first=two", "sim!on=never"])
def test_an_unknown_fault_is_refused_with_what_was_expected(model: str) -> None:
    with pytest.raises(InvalidRequest):
        parse_faults_from_name(model)


def test_faults_strike_the_first_or_every_nth_request() -> None:
    assert [SimulatedFaults(first=2).is_request_affected(nth) for nth in (1, 2, 3)] == [True, True, False]
    assert [SimulatedFaults(every=2, status=429).is_request_affected(nth) for nth in (1, 2, 3, 4)] == [
        False,
        True,
        False,
        True,
    ]
    assert SimulatedFaults(first=1).error_status == 500
    assert SimulatedFaults(first=1, hang=True).error_status is None
    assert not SimulatedFaults().is_request_affected(1)
