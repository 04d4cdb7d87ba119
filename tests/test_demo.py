"""`make demo` shows what it promises, also where nobody watches."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from demo.__main__ import QUICK_TURNS
from demo.script import PROBES, TOPICS, conversation

ROOT = Path(__file__).parents[1]
IMPORT = re.compile(r"^(?:from|import) (\w+)", re.MULTILINE)


@pytest.fixture(scope="module")
def told() -> str:
    command = [sys.executable, "-m", "demo", "--quick", "--fast"]
    ended = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=100)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    return ended.stdout


def test_a_compaction_is_shown_while_it_runs_and_when_it_is_done(told: str) -> None:
    steps = ["compaction_started", "compaction_completed", "compaction 1: messages 0-"]
    assert [told.index(step) for step in steps] == sorted(told.index(step) for step in steps)


def test_probes_are_right_and_every_message_is_kept(told: str) -> None:
    asked = sum(number <= QUICK_TURNS for number in PROBES)
    assert told.count("✓") == asked
    assert f"{asked} of {asked}" in told
    assert f"{2 * QUICK_TURNS}, every one as it was said" in told


def test_each_bar_ends_at_the_threshold_of_its_turn_or_before(told: str) -> None:
    bars = re.findall(r"^ +\d+ ([█│·]{48}) ", told, re.MULTILINE)
    lines = [bar.index("│") for bar in bars]
    assert len(bars) == QUICK_TURNS
    assert lines[0] == round(48 * 0.7)
    assert max(lines) > lines[0], "user text and quotations raise the threshold"
    assert all("█" not in bar[line + 1 :] for bar, line in zip(bars, lines, strict=True))


def test_no_colours_come_out_without_a_terminal(told: str) -> None:
    assert "\x1b" not in told


def test_fifty_questions_over_ten_topics_and_probes_for_what_was_said_at_least_eight_turns_before() -> None:
    turns = conversation()
    said = [turn for turn in turns if not turn.is_probe]
    assert (len(said), len({turn.topic for turn in said}), len(turns)) == (50, len(TOPICS), 60)
    for turn in turns:
        if turn.expected is not None:
            first = next(other.number for other in turns if turn.expected in other.text)
            assert turn.number - first >= 8
            assert turn.expected not in turn.text


def pinned(lock: str) -> set[str]:
    """What a lock names, as `openai==3.54.0`."""
    return set(re.findall(r"^[a-z0-9-]+==[^ ;]+", (ROOT / lock).read_text(), re.MULTILINE))


def test_the_demo_needs_one_client_beside_what_serving_needs() -> None:
    makefile = (ROOT / "Makefile").read_text()
    assert re.search(r"^demo: \$\(DEMO\)", makefile, re.MULTILINE)
    assert "requirements-dev.lock" not in makefile.partition("$(DEMO): ")[2].partition("\n\n")[0]
    demo = pinned("demo/requirements.lock")
    assert demo <= pinned("requirements-dev.lock"), "the same versions as in tests: make lock"
    assert any(one.startswith("openai==") for one in demo)
    imports = {name for file in (ROOT / "demo").glob("*.py") for name in IMPORT.findall(file.read_text())}
    provided = {one.partition("==")[0] for one in demo | pinned("requirements.lock")} | {"app", "demo", "yaml"}
    assert imports - sys.stdlib_module_names <= provided
