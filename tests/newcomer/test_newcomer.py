"""A newcomer follows the README's first screen, and has an answer within minutes.

The whole way takes minutes, a package registry, and a machine that does nothing else: it is gone by `make newcomer`.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.newcomer.following import ROOT, STEPS_SECONDS, TO_REGISTRIES, Newcomer, bare_environment, first_screen

FIRST_ANSWER_SECONDS = 300


def test_the_first_screen_shows_how_to_run_test_ask_look_and_read_on() -> None:
    screen = first_screen((ROOT / "README.md").read_text())
    assert screen.make == ("make run", "make test")
    assert len(screen.curl) == len(screen.python) == 1
    assert screen.installs == ("pip install openai",)
    assert [link.rpartition("/")[2] for link in screen.links] == ["console", "docs"]
    assert screen.pages == ("docs/quickstart.md",)


def test_the_first_screen_fits_a_screen() -> None:
    before_the_demo = (ROOT / "README.md").read_text().partition("`make demo`")[0]
    assert len(before_the_demo.splitlines()) <= 40


def test_make_run_installs_what_serving_needs_and_no_more() -> None:
    makefile = (ROOT / "Makefile").read_text()
    assert re.search(r"^run: \$\(SERVING\)", makefile, re.MULTILINE)
    serving = makefile.partition("$(SERVING): ")[2].partition("\n\n")[0]
    assert "requirements.lock" in serving
    assert "requirements-dev.lock" not in serving


def test_a_newcomer_has_a_path_a_home_and_a_way_to_a_registry(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PIP_INDEX_URL", "https://registry.test/simple")
    monkeypatch.setenv("PIP_CACHE_DIR", "/full/of/wheels")
    monkeypatch.setenv("CONCERTINA_POLICY", "fade")
    environ = bare_environment(tmp_path)
    assert environ["HOME"] == str(tmp_path)
    assert environ["PIP_INDEX_URL"] == "https://registry.test/simple"
    assert [name for name in environ if name not in {"HOME", "PATH"} and not TO_REGISTRIES.fullmatch(name)] == []
    assert "PIP_CACHE_DIR" not in environ


@pytest.mark.timeout(STEPS_SECONDS)
def test_the_readme_leads_from_a_clone_to_an_answer_within_five_minutes(newcomer: Newcomer) -> None:
    print(f"\nseconds after `make run`: {newcomer.seconds}")
    by_curl, by_client = newcomer.answers
    assert '"context_status":"full"' in by_curl.replace(" ", "")
    assert "full conv_" in by_client
    assert newcomer.seconds["curl"] < FIRST_ANSWER_SECONDS
