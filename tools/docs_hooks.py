"""What mkdocs cannot be told in `mkdocs.yml`: pages that are found by looking, the changelog, which lives outside, and
drawings that become part of their page, so that they take its colours, and pictures in HTML, whose places depend on the
address of their page.

In the navigation, `folder/*` stands for the pages of that folder, in the order of their names, `index.md` first, and
`page.md?` for a page that may not be there.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

DRAWING = re.compile(r'<img alt="[^"]*" src="[^"]*drawings/([\w-]+\.svg)" ?/?>')
PICTURE = re.compile(r'(?<= )(src|srcset)="pictures/')
CHANGELOG = Path(__file__).parents[1] / "CHANGELOG.md"


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    config.nav = _with_folders(config.nav or [], Path(config.docs_dir))
    return config


def on_files(files: Files, config: MkDocsConfig) -> Files:
    files.append(File.generated(config, "changelog.md", content=CHANGELOG.read_text()))
    return files


def on_page_content(html: str, page: Page, config: MkDocsConfig, **_: Any) -> str:
    drawings = Path(config.docs_dir) / "drawings"
    html = PICTURE.sub(rf'\1="{"../" * page.url.count("/")}pictures/', html)
    return DRAWING.sub(lambda image: (drawings / image[1]).read_text(), html)


def _with_folders(entries: list[Any], docs: Path) -> list[Any]:
    pages: list[Any] = []
    for entry in entries:
        if isinstance(entry, dict):
            ((title, below),) = entry.items()
            pages.append({title: _with_folders(below, docs) if isinstance(below, list) else below})
        elif entry.endswith("/*"):
            folder = entry.removesuffix("*")
            found = sorted((docs / folder).glob("*.md"), key=lambda page: (page.name != "index.md", page.name))
            pages += [folder + page.name for page in found]
        elif not entry.endswith("?") or (docs / entry.removesuffix("?")).exists():
            pages.append(entry.removesuffix("?"))
    return pages
