"""The documentation is a site: it builds without a warning, asks no other host for anything, and its links lead on."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest

ROOT = Path(__file__).parents[2]
LOADS = {"script": ("src",), "img": ("src",), "iframe": ("src",), "source": ("src", "srcset"), "object": ("data",)}
LOADING_LINKS = {"stylesheet", "icon", "preload", "prefetch", "preconnect", "dns-prefetch", "modulepreload", "manifest"}
ELSEWHERE = re.compile(r"(?:https?:)?//")
ASKED_BY_CSS = re.compile(r"(?:url\(|@import )['\"]?((?:https?:)?//[^)'\"]+)")


class Page(HTMLParser):
    """What a page asks for, what it links to, and what can be linked to in it."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.loaded: list[str] = []
        self.links: list[str] = []
        self.anchors: set[str] = set()
        self.unnamed_drawings = 0
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = {name: value or "" for name, value in attrs}
        self.anchors |= {given[name] for name in ("id", "name") if name in given}
        self.loaded += [given[name] for name in LOADS.get(tag, ()) if name in given]
        if tag == "link" and LOADING_LINKS & set(given.get("rel", "").split()):
            self.loaded.append(given["href"])
        if tag == "a" and "href" in given:
            self.links.append(given["href"])
        if tag == "svg" and "drawing" in given.get("class", ""):
            self.unnamed_drawings += given.get("role") != "img" or not given.get("aria-labelledby")


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(folder)]
    environ = os.environ | {"NO_MKDOCS_2_WARNING": "1"}
    ended = subprocess.run(command, cwd=ROOT, env=environ, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stderr
    assert "WARNING" not in ended.stderr
    return folder


@pytest.fixture(scope="module")
def pages(site: Path) -> dict[Path, Page]:
    return {file: Page(file.read_text()) for file in sorted(site.rglob("*.html"))}


def test_every_page_of_the_documentation_is_in_the_site(pages: dict[Path, Page], site: Path) -> None:
    written = {file.relative_to(ROOT / "docs").with_suffix("") for file in (ROOT / "docs").rglob("*.md")}
    built = {file.relative_to(site).parent for file in pages}
    assert {page.parent if page.name == "index" else page for page in written} - built == set()


def test_no_page_asks_another_host_for_anything(pages: dict[Path, Page], site: Path) -> None:
    asked = [(file.name, place) for file, page in pages.items() for place in page.loaded if ELSEWHERE.match(place)]
    for sheet in site.rglob("*.css"):
        asked += [(sheet.name, place) for place in ASKED_BY_CSS.findall(sheet.read_text())]
    assert asked == []


def test_every_link_and_anchor_leads_somewhere(pages: dict[Path, Page], site: Path) -> None:
    assert list(broken(pages, site)) == []


def test_every_picture_and_script_is_there(pages: dict[Path, Page], site: Path) -> None:
    missing = [
        f"{file.relative_to(site)}: {place}"
        for file, page in pages.items()
        for place in page.loaded
        if file.name != "404.html" and not (file.parent / unquote(urlsplit(place).path)).exists()
    ]
    assert missing == []


def broken(pages: dict[Path, Page], site: Path) -> Iterator[str]:
    for file, page in pages.items():
        if file.name == "404.html":  # its links are absolute: it is shown in every folder
            continue
        for link in page.links:
            parts = urlsplit(link)
            if parts.scheme or parts.netloc:
                continue
            target = (file.parent / unquote(parts.path)).resolve() if parts.path else file
            target = target / "index.html" if target.is_dir() else target
            if not target.exists() or (parts.fragment and unquote(parts.fragment) not in pages[target].anchors):
                yield f"{file.relative_to(site)}: {link}"


def test_every_drawing_is_told_in_words_as_well(pages: dict[Path, Page]) -> None:
    assert [file.parent.name for file, page in pages.items() if page.unnamed_drawings] == []
    drawings = sorted((ROOT / "docs/drawings").glob("*.svg"))
    assert [one.name for one in drawings if one.stem != "logo" and "<title" not in one.read_text()] == []
