"""What a cluster is given is what its API takes, runs as the image expects, and is configured soundly."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema_rs
import pytest
import yaml

from app.settings import Settings, load_settings

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "config/kubernetes"
SCHEMAS = json.loads((Path(__file__).parent / "kubernetes_schemas.json").read_text())
DOCKERFILE = (ROOT / "Dockerfile").read_text()
NOT_KUBERNETES = {"ServiceMonitor", "Kustomization"}


def objects() -> Iterator[tuple[Path, dict[str, Any]]]:
    for file in sorted(FOLDER.rglob("*.yaml")):
        for document in yaml.safe_load_all(file.read_text()):
            if "kind" in document:
                yield file, document


OBJECTS = list(objects())


def named(kind: str, name: str = "concertina") -> dict[str, Any]:
    return next(one for _, one in OBJECTS if one["kind"] == kind and one["metadata"]["name"] == name)


def pods() -> Iterator[Any]:
    for file, one in OBJECTS:
        if one["kind"] in {"Deployment", "StatefulSet", "Job"}:
            yield pytest.param(one["spec"]["template"]["spec"], id=f"{file.parent.name}-{one['metadata']['name']}")


def gateway_of(pod: dict[str, Any]) -> dict[str, Any]:
    containers = [*pod.get("initContainers", []), *pod["containers"]]
    return next(one for one in containers if one.get("args", [None])[0] == "concertina")


def faults(document: dict[str, Any]) -> list[str]:
    schema = SCHEMAS["kinds"][f"{document['apiVersion']}/{document['kind']}"] | {"$defs": SCHEMAS["$defs"]}
    validator = jsonschema_rs.Draft202012Validator(schema)
    return [f"{'/'.join(map(str, error.instance_path))}: {error.message}" for error in validator.iter_errors(document)]


@pytest.mark.parametrize(("file", "document"), OBJECTS, ids=lambda one: one.name if isinstance(one, Path) else "")
def test_each_object_is_one_that_kubernetes_takes(file: Path, document: dict[str, Any]) -> None:
    if document["kind"] not in NOT_KUBERNETES:
        assert faults(document) == []


def test_a_field_that_kubernetes_does_not_know_is_noticed() -> None:
    wrong = json.loads(json.dumps(named("Deployment")))
    wrong["spec"]["template"]["spec"]["containers"][0]["readynessProbe"] = {}
    assert any("readynessProbe" in fault for fault in faults(wrong))


@pytest.mark.parametrize("folder", [FOLDER, FOLDER / "sidecar"], ids=["replicas", "sidecar"])
def test_a_kustomization_names_files_that_exist(folder: Path) -> None:
    told = yaml.safe_load((folder / "kustomization.yaml").read_text())
    files = [*told["resources"], *(file for one in told["configMapGenerator"] for file in one["files"])]
    assert [file for file in files if not (folder / file).is_file()] == []


@pytest.mark.parametrize("folder", [FOLDER, FOLDER / "sidecar"], ids=["replicas", "sidecar"])
def test_what_kustomize_makes_of_it_is_one_that_kubernetes_takes(folder: Path) -> None:
    if shutil.which("kubectl") is None:
        pytest.skip("there is no kubectl, which renders it")
    ended = subprocess.run(["kubectl", "kustomize", folder], capture_output=True, text=True, check=False, timeout=60)
    assert ended.returncode == 0, ended.stderr
    rendered = list(yaml.safe_load_all(ended.stdout))
    assert {fault for document in rendered for fault in faults(document)} == set()


def configured(file: Path, secrets: dict[str, str]) -> Settings:
    overrides: list[str] = []
    image = {"CONCERTINA_DEFAULTS": str(ROOT / "config/image.yaml")}
    settings = load_settings(str(file), environ=image | secrets, on_override=overrides.append)
    assert overrides == []
    return settings


def test_the_replicas_are_configured_soundly() -> None:
    settings = configured(FOLDER / "concertina.yaml", named("Secret")["stringData"])
    assert settings.auth.mode == "keys"
    assert settings.database.url_without_credentials.startswith("postgresql+asyncpg://")
    assert not settings.uses_simulated_model


def test_the_sidecar_is_configured_soundly_and_found_by_nobody_else() -> None:
    settings = configured(FOLDER / "sidecar/concertina.yaml", {})
    assert (settings.server.host, settings.server.workers) == ("127.0.0.1", 1)
    assert settings.database.url_without_credentials == "sqlite+aiosqlite:////data/concertina.db"
    mounts = {
        one["mountPath"]
        for one in gateway_of(named("StatefulSet", "application")["spec"]["template"]["spec"])["volumeMounts"]
    }
    assert mounts >= {"/data", "/tmp", "/etc/concertina"}


def test_a_pod_is_given_the_time_that_its_streams_may_take() -> None:
    pod = named("Deployment")["spec"]["template"]["spec"]
    pause = float(gateway_of(pod)["lifecycle"]["preStop"]["exec"]["command"][1])
    settings = configured(FOLDER / "concertina.yaml", named("Secret")["stringData"])
    assert pod["terminationGracePeriodSeconds"] > pause + settings.server.drain_seconds
    sidecar = configured(FOLDER / "sidecar/concertina.yaml", {})
    beside = named("StatefulSet", "application")["spec"]["template"]["spec"]
    assert beside["terminationGracePeriodSeconds"] > sidecar.server.drain_seconds


@pytest.mark.parametrize("pod", list(pods()))
def test_the_gateway_runs_as_the_image_s_user_on_a_root_that_cannot_be_written(pod: dict[str, Any]) -> None:
    container = gateway_of(pod)
    user = re.findall(r"--uid (\d+)", DOCKERFILE)[0]
    secured = pod.get("securityContext", {}) | container["securityContext"]
    assert (secured["runAsNonRoot"], str(secured["runAsUser"])) == (True, user)
    assert secured["readOnlyRootFilesystem"]
    assert not secured["allowPrivilegeEscalation"]
    assert secured["capabilities"] == {"drop": ["ALL"]}
    assert {"requests", "limits"} <= container["resources"].keys()
    volumes = {one["name"] for one in pod["volumes"]} | {"conversations"}
    assert {one["name"] for one in container["volumeMounts"]} <= volumes


@pytest.mark.parametrize("pod", list(pods()))
def test_no_variable_of_a_service_is_taken_for_a_setting(pod: dict[str, Any]) -> None:
    """Kubernetes would put CONCERTINA_PORT into every pod beside a Service of that name."""
    assert pod["enableServiceLinks"] is False


def test_probes_ask_paths_that_answer_without_a_key() -> None:
    container = gateway_of(named("Deployment")["spec"]["template"]["spec"])
    asked = {name: container[f"{name}Probe"]["httpGet"]["path"] for name in ("startup", "liveness", "readiness")}
    assert asked == {"startup": "/healthz", "liveness": "/healthz", "readiness": "/readyz"}
    assert container["ports"][0]["containerPort"] == Settings().server.port


def test_service_budget_scaler_and_network_mean_the_pods_of_the_deployment() -> None:
    labels = named("Deployment")["spec"]["template"]["metadata"]["labels"]
    assert named("Service")["spec"]["selector"] == labels
    assert named("PodDisruptionBudget")["spec"]["selector"]["matchLabels"] == labels
    assert named("NetworkPolicy")["spec"]["podSelector"]["matchLabels"] == labels
    assert named("HorizontalPodAutoscaler")["spec"]["scaleTargetRef"]["name"] == named("Deployment")["metadata"]["name"]
    assert named("ServiceMonitor")["spec"]["selector"]["matchLabels"] == named("Service")["metadata"]["labels"]
