"""Recorded conversations that live beside the repository, not in it. Tests that need them are skipped without them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

FOLDER = Path(__file__).resolve().parents[2] / "shared" / "eval"

needs_recordings = pytest.mark.skipif(
    not FOLDER.is_dir(), reason="the recorded conversations are not part of the repository"
)


def recorded(name: str) -> list[dict[str, Any]]:
    """The lines of a recording."""
    with (FOLDER / name).open() as file:
        return [json.loads(line) for line in file]


def agent_tools() -> dict[str, Any]:
    """Tool schemas of the agent runs, by the name that the runs refer to."""
    tools: dict[str, Any] = json.loads((FOLDER / "agent_tools.json").read_text())
    return tools
