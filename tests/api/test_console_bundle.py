"""The console's bundle: it is what the command makes of the sources, and what the command does not take, it refuses."""

from __future__ import annotations

import gzip
import re
from pathlib import Path

import pytest

from app.api.console import COMPRESSED_ABOVE_BYTES, CONSOLE_FOLDER
from tests.api.test_console_files import gateway
from tools.bundle_console import SCRIPT, SOURCES, Bundle, CannotBundle, build_files

LOAD_BYTES = 300_000
CHARTS = "vendor/uplot.js"
"""Loaded by pages with a chart."""


def test_the_bundle_is_what_the_command_makes_of_the_sources() -> None:
    for name, text in build_files().items():
        assert (CONSOLE_FOLDER / name).read_text() == text, f"{name} is older than its sources: run `make console`"


def test_every_module_of_the_console_is_in_the_bundle_once() -> None:
    named = re.findall(r"^const \$\w+ = \(\(\) => \{ // (.*)$", (CONSOLE_FOLDER / SCRIPT).read_text(), re.MULTILINE)
    ours = {str(path.relative_to(CONSOLE_FOLDER)) for path in (CONSOLE_FOLDER / "js").rglob("*.js")}
    assert len(named) == len(set(named))
    assert ours <= set(named)


async def test_a_load_is_three_files_of_code_and_less_than_300_kb() -> None:
    page = (CONSOLE_FOLDER / "index.html").read_text()
    code = [*re.findall(r'(?:src|href)="([^"]+\.(?:js|css)[^"]*)"', page), CHARTS]
    assert len(code) == 3
    async with gateway() as client:
        sent = 0
        for name in code:
            answer = await client.get(f"/console/{name}")
            sent += int(answer.headers["content-length"])
            is_large = len(answer.content) > COMPRESSED_ABOVE_BYTES
            assert answer.headers.get("content-encoding") == ("gzip" if is_large else None)
            assert answer.content == (CONSOLE_FOLDER / name.partition("?")[0]).read_bytes()
        assert sent < LOAD_BYTES
        assert (await client.get(f"/console/{SOURCES}")).status_code == 200
        head = await client.head(f"/console/{CHARTS}")
        assert int(head.headers["content-length"]) < len(gzip.compress((CONSOLE_FOLDER / CHARTS).read_bytes())) * 1.1


def write_modules(folder: Path, **texts: str) -> Bundle:
    (folder / "js").mkdir()
    for name, text in texts.items():
        (folder / "js" / f"{name}.js").write_text(text)
    return Bundle(folder)


def test_modules_stand_behind_what_they_import_with_the_names_that_they_give(tmp_path: Path) -> None:
    bundle = write_modules(
        tmp_path,
        main='import { one as first } from "./lib.js";\nimport pick from "./lib.js";\nimport("./later.js");\n',
        lib='export { two } from "./deep.js";\nexport const one = 1;\nexport default function (x) { return x; }\n',
        deep="const b = 2;\nexport {\n  b as two,\n};\n",
    )
    bundle.add_module("js/main.js")
    assert list(bundle.texts) == ["js/deep.js", "js/lib.js", "js/main.js"]
    text = "".join(bundle.texts.values())
    assert "return { two: b };" in text
    assert "return { two: $js_deep.two, default: default_, one: one };" in text
    assert "const { one: first } = $js_lib;" in text
    assert "const pick = $js_lib.default;" in text
    assert 'import("../js/later.js");' in text


@pytest.mark.parametrize(
    ("texts", "told"),
    [
        (
            {"main": 'import { a } from "./main.js";\nexport const a = 1;'},
            "each other: js/main.js -> js/main.js",
        ),
        ({"main": "export let changing = 1;"}, "no import or export"),
        ({"main": 'export * from "./main.js";'}, "no import or export"),
        ({"main": 'import * as all from "./main.js";'}, "no import or export"),
        ({"main": 'import "./main.js";'}, "no import or export"),
        ({"main": "const f = (name) => import(name);"}, "no import or export"),
        ({"main": 'import { a } from "preact";'}, "no relative address"),
        ({"main": 'import { a } from "./lib.js";', "lib": "export const b = 1;"}, "does not export a"),
    ],
)
def test_what_would_be_something_else_in_one_file_is_refused(tmp_path: Path, texts: dict[str, str], told: str) -> None:
    with pytest.raises(CannotBundle, match=re.escape(told)):
        write_modules(tmp_path, **texts).add_module("js/main.js")


def test_an_address_that_would_be_another_in_the_bundle_is_refused(tmp_path: Path) -> None:
    bundle = write_modules(tmp_path, main="")
    (tmp_path / "main.js").write_text("export const HERE = import.meta.url;")
    with pytest.raises(CannotBundle, match=r"import\.meta\.url"):
        bundle.add_module("main.js")
