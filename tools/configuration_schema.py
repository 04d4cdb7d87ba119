"""Write `config/concertina.schema.json` from the settings: what editors complete and check a configuration by.

    python tools/configuration_schema.py            # write it
    python tools/configuration_schema.py --check    # exit with 1 where the file says something else

It is a little wider than the settings where the file is read otherwise than JSON: a section may be left empty, and any
value may be taken from the environment (`"${NAME}"`).
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

from pydantic import BaseModel

ROOT = Path(__file__).parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "tools")]

from configuration_reference import _docstring  # noqa: E402 (a script of the repository, not installed)

from app.settings.sections import Settings  # noqa: E402

FILE = ROOT / "config/concertina.schema.json"
COMMAND = "python tools/configuration_schema.py"
REFERENCE = {"type": "string", "pattern": r"\$\{"}
"""A value that is taken from the environment."""
NOISE = ("title", "format", "writeOnly")


def schema() -> dict[str, Any]:
    document = Settings.model_json_schema()
    sections = {section.__name__: section for section in _sections(Settings)}
    definitions = {name: _section(one, sections[name]) for name, one in document.pop("$defs").items()}
    return {
        "$schema": "http://json-schema.org/draft-07/schema#",
        "title": "Concertina's configuration",
        **_section(document, Settings),
        "definitions": definitions,
    }


def _sections(section: type[BaseModel]) -> set[type[BaseModel]]:
    """A section and all below it."""
    found = {section}
    waiting: list[Any] = [field.annotation for field in section.model_fields.values()]
    while waiting:
        annotation = waiting.pop()
        if isinstance(annotation, type) and issubclass(annotation, BaseModel):
            found |= _sections(annotation)
        waiting += getattr(annotation, "__args__", ())
    return found


def _section(document: dict[str, Any], section: type[BaseModel]) -> dict[str, Any]:
    properties = {}
    for name, field in document["properties"].items():
        meaning = _docstring(section, name)
        properties[name] = ({"description": meaning} if meaning else {}) | _value(field)
    return {"type": "object", "additionalProperties": False, "properties": properties}


def _value(node: dict[str, Any]) -> dict[str, Any]:
    """The schema of one value: without what editors do not need, and with what the file allows besides."""
    kept = {key: value for key, value in node.items() if key not in NOISE}
    default = kept.pop("default", None)
    # The default of a section is the defaults of its settings.
    shown = {} if default is None or isinstance(default, dict) else {"default": default}
    if "$ref" in kept:
        return {"anyOf": [{"$ref": kept["$ref"].replace("$defs", "definitions")}, {"type": "null"}]}
    if "anyOf" in kept:
        options = [_value(option) for option in kept["anyOf"]]
        return {"anyOf": [one for option in options for one in option.get("anyOf", [option])], **shown}
    for key in ("items", "additionalProperties"):
        if isinstance(kept.get(key), dict):
            kept[key] = _value(kept[key])
    if "prefixItems" in kept:  # as drafts before 2020 call it, which editors know better
        kept["items"] = [_value(one) for one in kept.pop("prefixItems")]
    if "patternProperties" in kept:
        kept["patternProperties"] = {key: _value(one) for key, one in kept["patternProperties"].items()}
        kept["additionalProperties"] = False
    if kept.get("type") == "object":
        return {"anyOf": [kept, {"type": "null"}]}
    if "enum" in kept or "pattern" in kept or kept.get("type") in {"integer", "number", "boolean"}:
        return {"anyOf": [kept, REFERENCE], **shown}
    return kept | shown


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--check", action="store_true", help="write nothing, exit with 1 where something would change")
    arguments = parser.parse_args()
    written = json.dumps(schema(), indent=1, ensure_ascii=False) + "\n"
    if FILE.exists() and FILE.read_text() == written:
        return 0
    if arguments.check:
        print(f"{FILE.relative_to(ROOT)} is older than the settings: {COMMAND}", file=sys.stderr)
        return 1
    FILE.write_text(written)
    print(f"wrote {FILE.relative_to(ROOT)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
