"""What mkdocs cannot be told in `mkdocs.yml`: pages that are found by looking, and the changelog, which lives outside.

An entry `folder/*` of the navigation stands for the pages of that folder, in the order of their names, `index.md`
first. A page that is named and not there is an error.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files

CHANGELOG = Path(__file__).parents[1] / "CHANGELOG.md"


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    config.nav = _with_folders(config.nav or [], Path(config.docs_dir))
    return config


def on_files(files: Files, config: MkDocsConfig) -> Files:
    files.append(File.generated(config, "changelog.md", content=CHANGELOG.read_text()))
    return files


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
        else:
            pages.append(entry)
    return pages
