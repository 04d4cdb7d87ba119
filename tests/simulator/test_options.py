from __future__ import annotations

import pytest

from app.errors import InvalidRequest
from app.simulator.options_and_faults import SimulatedFaults, parse_faults_from_name
from app.simulator.request_checks import parse_window_from_name


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


def test_a_rule_with_a_count_of_requests_but_no_fault_means_status_500() -> None:
    assert SimulatedFaults(first=1).error_status == 500
    assert SimulatedFaults(first=1, hang=True).error_status is None
    assert SimulatedFaults().error_status is None
