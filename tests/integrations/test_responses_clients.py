"""Clients that speak the Responses API by default hold long conversations with tools through a gateway."""

from __future__ import annotations

import itertools
import json
import os
import subprocess
import urllib.request
from pathlib import Path
from typing import Any, Final

import pytest

from tests.node.packages import HERE as NODE_FOLDER
from tests.node.packages import node_with_packages

SCRIPTS: Final = Path(__file__).parent / "talks"
STATES: Final = {
    "openai_agents.py": ("history", "compacted", "previous_response_id", "conversation"),
    "openai-agents.mjs": ("history", "compacted", "previous_response_id", "conversation"),
    "ai-sdk.mjs": (
        "history",
        "no_store",
        "previous_response_id",
        "previous_response_id_and_history",
        "conversation",
        "conversation_and_history",
    ),
}
"""The ways to continue a conversation that each client has."""
UNLISTED_STATES: Final = {"no_store"}
"""What is kept of these is for continuing the conversation only: no list shows it."""
SHORT_TALK: Final = {
    "The archive has locker code 7741.": "Noted: The archive has locker code 7741.",
    'Call get_weather for "Oslo".': "The tool says: -4 degrees in Oslo",
    "What is the locker code of the archive?": "The archive has locker code 7741.",
}
"""Prompts, and what the simulated model answers when it is asked without a gateway."""
FILLER: Final = "It was a long day. " * 100
LONG_TALK: Final = [
    *(f"Parcel {number} weighs {number * 7} kg. {FILLER}" for number in range(1, 11)),
    'Call get_weather for "Oslo".',
    "How many kg does parcel 2 weigh?",
]
"""About three times a window of 4,096 tokens."""
TALK_SECONDS: Final = 110


@pytest.mark.timeout(240)
@pytest.mark.parametrize("model", ["sim-4k", "sim-128k"])
@pytest.mark.parametrize("script", STATES)
def test_a_talk_that_fits_is_answered_as_without_a_gateway(
    script: str, model: str, address: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    talks = list_talks(script, f"short-{model}")
    answers = run_talks(script, address, model, list(SHORT_TALK), talks, request, tmp_path)
    assert answers == [list(SHORT_TALK.values())] * len(talks)
    for talk in talks:
        check_log(address, talk, list(SHORT_TALK))


@pytest.mark.timeout(240)
@pytest.mark.parametrize("script", STATES)
def test_a_talk_that_outgrows_the_window_goes_on(
    script: str, address: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    talks = list_talks(script, "long")
    for talk, answers in zip(
        talks, run_talks(script, address, "sim-4k", LONG_TALK, talks, request, tmp_path), strict=True
    ):
        assert len(answers) == len(LONG_TALK), talk
        assert answers[-2] == "The tool says: -4 degrees in Oslo", talk
        assert "14 kg" in answers[-1], talk
        check_log(address, talk, LONG_TALK)


def list_talks(script: str, name: str) -> list[dict[str, Any]]:
    """One talk for each way to continue, whole and streamed. Each has a key, and thereby a tenant, of its own."""
    return [
        {"script": script, "key": f"sk-{script}-{name}-{state}-{stream}", "stream": stream, "state": state}
        for state, stream in itertools.product(STATES[script], (False, True))
    ]


def run_talks(
    script: str,
    address: str,
    model: str,
    prompts: list[str],
    talks: list[dict[str, Any]],
    request: pytest.FixtureRequest,
    folder: Path,
) -> list[list[str]]:
    """Returns the final answers of each talk."""
    if script.endswith(".py"):
        interpreter = request.getfixturevalue("frameworks")
    else:
        interpreter = node_with_packages()
        (folder / "node_modules").symlink_to(NODE_FOLDER / "node_modules", target_is_directory=True)
    program = folder / script
    program.write_text((SCRIPTS / script).read_text())
    tasks = [{name: talk[name] for name in ("key", "stream", "state")} for talk in talks]
    task = {"base_url": f"{address}/v1", "model": model, "prompts": prompts, "talks": tasks}
    ended = subprocess.run(
        [interpreter, str(program), json.dumps(task)],
        cwd=folder,
        env={"PATH": os.environ["PATH"], "HOME": str(folder), "PYTHONUTF8": "1", "PYTHONWARNINGS": "ignore"},
        capture_output=True,
        text=True,
        check=False,
        timeout=TALK_SECONDS,
    )
    assert ended.returncode == 0, f"{ended.stdout[-2000:]}\n{ended.stderr[-4000:]}"
    answers: list[list[str]] = json.loads(ended.stdout)
    return answers


def check_log(address: str, talk: dict[str, Any], prompts: list[str]) -> None:
    """The talk is one conversation, which has each prompt, each call and each result once."""
    conversations = read_list(address, "/v1/conversations?limit=100", talk["key"])
    if talk["state"] in UNLISTED_STATES:
        assert conversations == []
        return
    assert len(conversations) == 1, talk
    items = read_list(address, f"/v1/conversations/{conversations[0]['id']}/items?limit=100&order=asc", talk["key"])
    written = [item["content"][0]["text"] for item in items if item.get("role") == "user"]
    assert written == prompts, talk
    called = [item["call_id"] for item in items if item["type"] == "function_call"]
    assert [item["call_id"] for item in items if item["type"] == "function_call_output"] == called, talk
    assert len(called) == 1, talk


def read_list(address: str, path: str, key: str) -> list[dict[str, Any]]:
    request = urllib.request.Request(address + path, headers={"Authorization": f"Bearer {key}"})
    with urllib.request.urlopen(request, timeout=30) as answer:
        found: list[dict[str, Any]] = json.load(answer)["data"]
    return found
