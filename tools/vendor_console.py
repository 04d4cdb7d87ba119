"""Fetch the libraries that the console is built on, at the versions named here, and put them into app/console/vendor.

    python tools/vendor_console.py

Needs npm, which checks the integrity of what it fetches. Changed are only the names of imports, which browsers do not
resolve, and the switch for development builds; `versions.json` has the digests of what came out.
"""

from __future__ import annotations

import hashlib
import json
import re
import subprocess
import tarfile
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Final

VENDOR: Final = Path(__file__).parent.parent / "app" / "console" / "vendor"


@dataclass(frozen=True, slots=True)
class Library:
    """What is taken from one npm package: `files` maps a path in the package to a name in the vendor folder."""

    package: str
    version: str
    licence: str
    files: dict[str, str]


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
)


def main() -> None:
    told = []
    with tempfile.TemporaryDirectory() as folder:
        for library in LIBRARIES:
            told.append(vendored(library, Path(folder)))
            print(f"{library.package} {library.version}")
    (VENDOR / "versions.json").write_text(json.dumps(told, indent=2) + "\n")


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
            target = VENDOR / name
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_text(text)
            digests[name] = hashlib.sha256(text.encode()).hexdigest()
    return {
        "package": library.package,
        "version": library.version,
        "licence": library.licence,
        "integrity": package["integrity"],
        "sha256": digests,
    }


def for_browsers(text: str) -> str:
    """A module as a browser can load it from beside the others."""
    text = re.sub(r"""(\bfrom\s*|\bimport\s*)(["'])preact\2""", r"\1\2./preact.js\2", text)
    text = text.replace("process.env.NODE_ENV", '"production"')
    return re.sub(r"\n?//# sourceMappingURL=\S+", "", text).rstrip() + "\n"


if __name__ == "__main__":
    main()
