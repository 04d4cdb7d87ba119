"""Write the bundle of the console: one script and one style sheet of all that `app/console/sources.html` names, and
`index.html`, which names those two in their place.

    python tools/bundle_console.py            # write app/console/bundle and app/console/index.html
    python tools/bundle_console.py --check    # exit with 1 where they say something else

Every module becomes a function that is called once and returns what it exports, after the modules that it imports. In a
browser modules differ from that only in cycles, in exports that change later (`export let`) and in `import.meta.url`:
the program refuses the first two, and the third where the address would be another.
"""

from __future__ import annotations

import argparse
import hashlib
import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from posixpath import normpath, relpath
from typing import Final

CONSOLE: Final = Path(__file__).parent.parent / "app" / "console"
COMMAND: Final = "make console"
SOURCES: Final = "sources.html"
FOLDER: Final = "bundle"
SCRIPT, STYLES = f"{FOLDER}/console.js", f"{FOLDER}/console.css"
DIGEST_CHARS: Final = 16
"""Of the digest of a file of the bundle (SHA-256, hex), which is in its address in `index.html`."""

_IMPORT: Final = re.compile(r"""^import\s*(?:\{([^}]*)\}|(\w+))\s*from\s*["']([^"']+)["'];?""", re.MULTILINE)
_EXPORT_FROM: Final = re.compile(r"""^export\s*\{([^}]*)\}\s*from\s*["']([^"']+)["'];?""", re.MULTILINE)
_EXPORT_LIST: Final = re.compile(r"(?:^|(?<=[;}]))export\s*\{([^}]*)\};?\s*\Z", re.MULTILINE)
_EXPORT_DEFAULT: Final = re.compile(r"(?:^|(?<=[;}]))export default\b", re.MULTILINE)
_EXPORT: Final = re.compile(r"^export (?=(?:async )?(?:function\*?|const|class) (\w+))", re.MULTILINE)
_LOAD_LATER: Final = re.compile(r"""\bimport\(["']([^"']+)["']\)""")
_LEFT_OVER: Final = re.compile(r"^(?:import\b(?!\()|export\b).*|[;}]export[ {].*|\bimport\((?![\"']\.)", re.MULTILINE)
_STYLE_LINK: Final = re.compile(r'\s*<link rel="stylesheet" href="([^"]+)">')
_SCRIPT_TAG: Final = re.compile(r'<script type="module" src="([^"]+)"></script>')


class CannotBundle(Exception):
    """A source has something that the bundle would do otherwise than a browser."""


@dataclass
class Bundle:
    """Modules below `folder` as functions, each behind those that it imports."""

    folder: Path
    texts: dict[str, str] = field(default_factory=dict)
    """By the path of the module. The order is that in which they are called."""
    _exported: dict[str, dict[str, str]] = field(default_factory=dict)
    """What each module exports: the names, and what stands for them in it."""
    _open: list[str] = field(default_factory=list)

    def add_module(self, path: str) -> str:
        """Adds a module and all that it imports. Returns the name of what it exports.

        Raises:
            CannotBundle: see there.
        """
        if path in self._open:
            raise CannotBundle(f"modules import each other: {' -> '.join([*self._open, path])}")
        if path not in self.texts:
            self._open.append(path)
            text = self._write_module(path, (self.folder / path).read_text())
            self._open.pop()
            self.texts[path] = f"const {_name_exports(path)} = (() => {{ // {path}\n{text}}})();\n"
        return _name_exports(path)

    def _import_names(self, importer: str, address: str, names: Sequence[str]) -> str:
        path = _resolve(importer, address)
        module = self.add_module(path)
        if missing := [name for name in names if name not in self._exported[path]]:
            raise CannotBundle(f"{importer}: {path} does not export {', '.join(missing)}")
        return module

    def _write_module(self, path: str, text: str) -> str:
        exported = self._exported[path] = {}

        def read_import(found: re.Match[str]) -> str:
            names, default, other = found.groups()
            module = self._import_names(path, other, ["default"] if default else [name for name, _ in _pairs(names)])
            if default:
                return f"const {default} = {module}.default;"
            return f"const {{ {', '.join(f'{name}: {local}' for name, local in _pairs(names))} }} = {module};"

        def read_export_from(found: re.Match[str]) -> str:
            module = self._import_names(path, found[2], [name for name, _ in _pairs(found[1])])
            exported.update({told: f"{module}.{name}" for name, told in _pairs(found[1])})
            return ""

        def read_export_list(found: re.Match[str]) -> str:
            exported.update({told: local for local, told in _pairs(found[1])})
            return ""

        def read_export_default(_: re.Match[str]) -> str:
            exported["default"] = "default_"
            return "const default_ ="

        def read_export(found: re.Match[str]) -> str:
            exported[found[1]] = found[1]
            return ""

        def load_later(found: re.Match[str]) -> str:
            return f'import("./{relpath(_resolve(path, found[1]), FOLDER)}")'.replace("./../", "../")

        for pattern, read in (
            (_IMPORT, read_import),
            (_EXPORT_FROM, read_export_from),
            (_EXPORT_LIST, read_export_list),
            (_EXPORT_DEFAULT, read_export_default),
            (_EXPORT, read_export),
        ):
            text = pattern.sub(read, text)
        if left := _LEFT_OVER.search(text):
            raise CannotBundle(f"{path}: {left[0][:80]!r} is no import or export that the bundle knows")
        if "import.meta" in text and len(PurePosixPath(path).parts) != len(PurePosixPath(SCRIPT).parts):
            raise CannotBundle(f"{path}: import.meta.url would be another in {SCRIPT}")
        given = ", ".join(f"{name}: {value}" for name, value in exported.items())
        return f"{_LOAD_LATER.sub(load_later, text).strip()}\nreturn {{ {given} }};\n"


def _name_exports(path: str) -> str:
    return "$" + re.sub(r"\W", "_", path.removesuffix(".js"))


def _resolve(importer: str, address: str) -> str:
    if not address.startswith("."):
        raise CannotBundle(f"{importer}: {address!r} is no relative address")
    return normpath(PurePosixPath(importer).parent / address)


def _pairs(names: str) -> list[tuple[str, str]]:
    """`a, b as c` as pairs of the names before and behind `as`."""
    split = [name.split(" as ") for name in re.sub(r"\s+", " ", names).strip(", ").split(",") if name.strip()]
    return [(one[0].strip(), one[-1].strip()) for one in split]


def build_files(folder: Path = CONSOLE) -> Mapping[str, str]:
    """Builds what each file of the bundle holds, by its path below `folder`."""
    page = (folder / SOURCES).read_text()
    styles = _STYLE_LINK.findall(page)
    (entry,) = _SCRIPT_TAG.findall(page)
    bundle = Bundle(folder)
    bundle.add_module(entry)
    head = f"/* Made by `{COMMAND}` from {SOURCES}; the sources are beside this folder. */\n"
    files = {
        SCRIPT: head + "".join(bundle.texts.values()),
        STYLES: head + "".join(f"/* {name} */\n{(folder / name).read_text()}" for name in styles),
    }
    addresses = {
        name: f"{name}?{hashlib.sha256(text.encode()).hexdigest()[:DIGEST_CHARS]}" for name, text in files.items()
    }
    first, rest = _STYLE_LINK.search(page), _STYLE_LINK.sub("", page)
    assert first is not None
    link = f'{first[0].split("<", 1)[0]}<link rel="stylesheet" href="{addresses[STYLES]}">'
    script = f'<script type="module" src="{addresses[SCRIPT]}"></script>'
    files["index.html"] = _SCRIPT_TAG.sub(script, rest[: first.start()] + link + rest[first.start() :])
    return files


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n\n")[0])
    parser.add_argument("--check", action="store_true", help="write nothing; exit with 1 where a file is another")
    is_check = parser.parse_args().check
    stale = {
        CONSOLE / name: text
        for name, text in build_files().items()
        if not (CONSOLE / name).exists() or (CONSOLE / name).read_text() != text
    }
    for path, text in stale.items():
        print(f"{path} is {'not what the sources make of it: run ' + COMMAND if is_check else 'written'}")
        if not is_check:
            path.parent.mkdir(exist_ok=True)
            path.write_text(text)
    return int(is_check and bool(stale))


if __name__ == "__main__":
    try:
        sys.exit(main())
    except CannotBundle as error:
        sys.exit(f"{COMMAND}: {error}")
