"""The page on telemetry, the dashboard and the alerts name numbers that there are."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from app.observability.metric_families import FAMILIES, MetricFamily

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs/telemetry.md").read_text()
DASHBOARD: dict[str, Any] = json.loads((ROOT / "config/grafana/dashboards/concertina.json").read_text())
PROMETHEUS = ROOT / "config/prometheus"
RULES = [rule for group in yaml.safe_load((PROMETHEUS / "alerts.yml").read_text())["groups"] for rule in group["rules"]]
COMPOSE: dict[str, Any] = yaml.safe_load((ROOT / "docker-compose.yml").read_text())
ROW = re.compile(r"^\| `(concertina_\w+)` \| (\w+) \| (.*?) \| (.*) \|$", re.MULTILINE)
METRIC = re.compile(r"(concertina_\w+)(?:\{(.*?)\})?")
NAMED_LABEL = re.compile(r"(\w+)\s*(?:=~|!~|!=|=)")
GROUPED = re.compile(r"by \(([^)]*)\)")
OF_PROMETHEUS = {"le", "instance", "job"}


def samples_of(family: MetricFamily) -> list[str]:
    if family.kind != "histogram":
        return [family.full_name]
    return [f"{family.full_name}_{part}" for part in ("bucket", "sum", "count")]


BY_SAMPLE = {sample: family for family in FAMILIES for sample in samples_of(family)}


def queries() -> Iterator[Any]:
    for panel in DASHBOARD["panels"]:
        for target in panel.get("targets", ()):
            yield pytest.param(target["expr"], id=f"panel {panel['title']} {target['refId']}")
    for rule in RULES:
        yield pytest.param(rule["expr"], id=rule["alert"])
    for variable in DASHBOARD["templating"]["list"]:
        if variable["type"] == "query":
            yield pytest.param(variable["definition"], id=f"variable {variable['name']}")


@pytest.mark.parametrize("query", list(queries()))
def test_each_query_asks_for_numbers_and_labels_that_there_are(query: str) -> None:
    used = METRIC.findall(query)
    assert [name for name, _ in used if name not in BY_SAMPLE] == []
    known = OF_PROMETHEUS.union(*(BY_SAMPLE[name].labels for name, _ in used))
    for name, selector in used:
        assert set(NAMED_LABEL.findall(selector)) <= OF_PROMETHEUS.union(BY_SAMPLE[name].labels)
    assert {label.strip() for group in GROUPED.findall(query) for label in group.split(",")} <= known


def test_every_family_is_drawn() -> None:
    drawn = {
        name
        for panel in DASHBOARD["panels"]
        for one in panel.get("targets", ())
        for name in METRIC.findall(one["expr"])
    }
    shown = {BY_SAMPLE[name].name for name, _ in drawn}
    assert {family.name for family in FAMILIES} - shown == set()


def test_panels_have_places_of_their_own() -> None:
    taken: set[tuple[int, int]] = set()
    for panel in DASHBOARD["panels"]:
        place = panel["gridPos"]
        cells = {
            (x, y)
            for x in range(place["x"], place["x"] + place["w"])
            for y in range(place["y"], place["y"] + place["h"])
        }
        assert place["x"] + place["w"] <= 24
        assert not cells & taken
        taken |= cells
    ids = [panel["id"] for panel in DASHBOARD["panels"]]
    assert len(ids) == len(set(ids))


def test_every_family_is_documented_as_it_is() -> None:
    documented = [(name, kind, labels, told) for name, kind, labels, told in ROW.findall(PAGE)]
    assert documented == [
        (one.full_name, one.kind, ", ".join(f"`{label}`" for label in one.labels) or "–", one.help) for one in FAMILIES
    ]


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: str(rule["alert"]))
def test_each_alert_leads_to_its_section(rule: dict[str, Any]) -> None:
    assert rule["annotations"]["runbook"] == f"docs/telemetry.md#{rule['alert'].lower()}"
    assert f"\n### {rule['alert']}\n" in PAGE
    assert rule["labels"]["severity"] in {"warning", "critical"}
    assert {"summary", "description"} <= rule["annotations"].keys()


def test_what_is_mounted_for_watching_exists() -> None:
    watching = [service for service in COMPOSE["services"].values() if "watch" in service.get("profiles", ())]
    assert watching
    for service in watching:
        assert re.search(r":v?\d+\.\d+\.\d+$", service["image"]), "pinned"
        mounted = [volume.split(":")[0] for volume in service.get("volumes", ()) if volume.startswith("./")]
        assert [path for path in mounted if not (ROOT / path).exists()] == []


@pytest.mark.parametrize(
    "arguments",
    [
        ("check", "config", "prometheus.yml"),
        ("check", "rules", "alerts.yml"),
        ("test", "rules", "tests/alerts_test.yml"),
    ],
    ids=" ".join,
)
def test_prometheus_takes_what_is_configured(arguments: tuple[str, ...]) -> None:
    promtool = shutil.which("promtool")
    if promtool is None:
        pytest.skip("promtool is not installed (it comes with Prometheus)")
    run = subprocess.run([promtool, *arguments], cwd=PROMETHEUS, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stdout + run.stderr
