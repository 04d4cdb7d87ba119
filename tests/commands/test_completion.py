"""`concertina completion` prints scripts that the shells understand and that know every command."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from app.__main__ import main

COMPLETE = """
source ./{script}
COMP_WORDS=({words})
COMP_CWORD=$((${{#COMP_WORDS[@]}} - 1))
_shtab_concertina
printf '%s\\n' "${{COMPREPLY[@]}}"
"""


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_a_script_knows_every_command_and_the_shell_accepts_it(
    shell: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["completion", shell]) == 0
    script = capsys.readouterr().out
    for word in ("serve", "check-config", "init", "doctor", "older-than", "openrouter"):
        assert word in script
    program = shutil.which(shell)
    if program is not None:
        subprocess.run([program, "-n"], input=script, text=True, check=True, capture_output=True)


@pytest.mark.parametrize(
    ("words", "offered"),
    [
        ("concertina ser", ["serve"]),
        ("concertina keys cr", ["create"]),
        ("concertina serve --co", ["--config"]),
        ("concertina init --provider open", ["openai", "openrouter"]),
        ("concertina serve --config c.y", ["c.yaml"]),
    ],
)
def test_bash_completes(words: str, offered: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    main(["completion", "bash"])
    (tmp_path / "script").write_text(capsys.readouterr().out)
    (tmp_path / "c.yaml").touch()
    program = COMPLETE.format(script="script", words=words)
    ran = subprocess.run(["bash", "-c", program], text=True, check=True, capture_output=True, cwd=tmp_path)
    assert ran.stdout.split() == offered
