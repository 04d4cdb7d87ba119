"""Fetch the libraries that the console and the API reference are built on, at the versions named here, and put them
into app/console/vendor and app/reference/vendor.

    python tools/vendor_libraries.py [PACKAGE …]

Needs npm, which checks the integrity of what it fetches. Changed are only the names of imports, which browsers do not
resolve, the switch for development builds, and a question that the page's policy forbids; a file with the name `….gz`
is compressed. `versions.json` has the digests of what came out.
"""

from __future__ import annotations

import gzip
import hashlib
import json
import re
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

APP: Final = Path(__file__).parent.parent / "app"
CONSOLE: Final = APP / "console" / "vendor"
REFERENCE: Final = APP / "reference" / "vendor"
SCALAR_LICENCE: Final = """\
MIT License

Copyright (c) 2023-present Scalar

Permission is hereby granted, free of charge, to any person obtaining a copy
of this software and associated documentation files (the "Software"), to deal
in the Software without restriction, including without limitation the rights
to use, copy, modify, merge, publish, distribute, sublicense, and/or sell
copies of the Software, and to permit persons to whom the Software is
furnished to do so, subject to the following conditions:

The above copyright notice and this permission notice shall be included in all
copies or substantial portions of the Software.

THE SOFTWARE IS PROVIDED "AS IS", WITHOUT WARRANTY OF ANY KIND, EXPRESS OR
IMPLIED, INCLUDING BUT NOT LIMITED TO THE WARRANTIES OF MERCHANTABILITY,
FITNESS FOR A PARTICULAR PURPOSE AND NONINFRINGEMENT. IN NO EVENT SHALL THE
AUTHORS OR COPYRIGHT HOLDERS BE LIABLE FOR ANY CLAIM, DAMAGES OR OTHER
LIABILITY, WHETHER IN AN ACTION OF CONTRACT, TORT OR OTHERWISE, ARISING FROM,
OUT OF OR IN CONNECTION WITH THE SOFTWARE OR THE USE OR OTHER DEALINGS IN THE
SOFTWARE.
"""
"""https://github.com/scalar/scalar/blob/main/LICENSE: the package has no file with it."""


@dataclass(frozen=True, slots=True)
class Library:
    """What is taken from one npm package: `files` maps a path in the package to a name in the vendor folder. `texts`
    are files that the package lacks, by name."""

    package: str
    version: str
    licence: str
    files: dict[str, str]
    folder: Path = CONSOLE
    texts: Mapping[str, str] = field(default_factory=dict)


LIBRARIES: Final = (
    Library(
        "preact",
        "11.2.0",
        "MIT",
        {"dist/preact.mjs": "preact.js", "hooks/dist/hooks.mjs": "preact-hooks.js", "LICENSE": "preact.LICENSE.txt"},
    ),
    Library("htm", "3.1.1", "Apache-2.0", {"dist/htm.mjs": "htm.js", "LICENSE": "htm.LICENSE.txt"}),
    Library(
        "uplot",
        "1.6.32",
        "MIT",
        {"dist/uPlot.esm.js": "uplot.js", "dist/uPlot.min.css": "uplot.css", "LICENSE": "uplot.LICENSE.txt"},
    ),
    Library("marked", "18.2.1", "MIT", {"lib/marked.esm.js": "marked.js", "LICENSE": "marked.LICENSE.txt"}),
    Library(
        "@tanstack/virtual-core",
        "3.19.11",
        "MIT",
        {
            "dist/esm/index.js": "virtual-core/index.js",
            "dist/esm/utils.js": "virtual-core/utils.js",
            "dist/esm/ios-gesture.js": "virtual-core/ios-gesture.js",
            "dist/esm/lazy-measurements.js": "virtual-core/lazy-measurements.js",
            "dist/esm/scroll-classifier.js": "virtual-core/scroll-classifier.js",
            "LICENSE": "virtual-core/LICENSE.txt",
        },
    ),
    Library(
        "@scalar/api-reference",
        "1.46.4",
        "MIT",
        {"dist/browser/standalone.js": "scalar.js.gz"},
        REFERENCE,
        {"scalar.LICENSE.txt": SCALAR_LICENCE},
    ),
)


def main() -> None:
    wanted = sys.argv[1:]
    for vendor in (CONSOLE, REFERENCE):
        file = vendor / "versions.json"
        known = {one["package"]: one for one in json.loads(file.read_text())} if file.exists() else {}
        told = []
        with tempfile.TemporaryDirectory() as folder:
            for library in (one for one in LIBRARIES if one.folder == vendor):
                if wanted and library.package not in wanted:
                    told.append(known[library.package])
                    continue
                told.append(vendored(library, Path(folder)))
                print(f"{library.package} {library.version}")
        file.write_text(json.dumps(told, indent=2) + "\n")


def vendored(library: Library, folder: Path) -> dict[str, object]:
    """Write the files of one library; what `versions.json` says of it."""
    packed = subprocess.run(  # noqa: S603 - names and versions are those above
        ["npm", "pack", "--json", "--pack-destination", folder, f"{library.package}@{library.version}"],  # noqa: S607
        check=True,
        capture_output=True,
    )
    found = json.loads(packed.stdout)
    package = found[0] if isinstance(found, list) else next(iter(found.values()))
    digests = {}
    with tarfile.open(folder / package["filename"]) as archive:
        for path, name in library.files.items():
            content = archive.extractfile(f"package/{path}")
            assert content is not None, f"{library.package} has no file {path}"
            text = for_browsers(content.read().decode())
            digests[name] = write(library.folder / name, text)
    digests |= {name: write(library.folder / name, text) for name, text in library.texts.items()}
    return {
        "package": library.package,
        "version": library.version,
        "licence": library.licence,
        "integrity": package["integrity"],
        "sha256": digests,
    }


def write(target: Path, text: str) -> str:
    """Write a file, compressed if its name says so; its digest."""
    content = text.encode()
    if target.suffix == ".gz":
        content = gzip.compress(content, compresslevel=9, mtime=0)
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_bytes(content)
    return hashlib.sha256(content).hexdigest()


def for_browsers(text: str) -> str:
    """A module as a browser can load it from beside the others."""
    text = re.sub(r"""(\bfrom\s*|\bimport\s*)(["'])preact\2""", r"\1\2./preact.js\2", text)
    text = text.replace("process.env.NODE_ENV", '"production"')
    # Zod asks whether it may make functions out of text. The policy says no, and reports each attempt as an error. Zod
    # does not ask where it is known that the answer is no.
    text = text.replace('navigator?.userAgent?.includes("Cloudflare")', "true")
    return re.sub(r"\n?//# sourceMappingURL=\S+", "", text).rstrip() + "\n"


if __name__ == "__main__":
    main()
