"""Pages about clients as scripts: the blocks of a page, in order, are one program against a gateway."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "docs" / "integrations"
WRITTEN_ADDRESS = "http://127.0.0.1:8000"
PAGE_SECONDS = 120
_BLOCK = re.compile(r"^```(\w+)\n(.*?)^```", re.MULTILINE | re.DOTALL)


@dataclass(frozen=True, slots=True)
class Page:
    """A page below `docs/integrations`, without its `.md`."""

    name: str

    def blocks(self, language: str) -> list[str]:
        return [code for kind, code in _BLOCK.findall(self.text) if kind == language]

    def program(self, language: str, address: str) -> str:
        """Its blocks of a language, in order, with the address of a gateway that runs (`http://host:port`)."""
        return "\n".join(self.blocks(language)).replace(WRITTEN_ADDRESS, address)

    @property
    def text(self) -> str:
        return (FOLDER / f"{self.name}.md").read_text()


def run(command: Sequence[str], *, cwd: Path, environ: dict[str, str]) -> None:
    """Run a page's program; what it printed is the reason where it fails."""
    ended = subprocess.run(
        command, cwd=cwd, env=environ, capture_output=True, text=True, check=False, timeout=PAGE_SECONDS
    )
    assert ended.returncode == 0, f"{ended.stdout[-2000:]}\n{ended.stderr[-4000:]}"
