"""`concertina export` and `concertina import`, over a database in a file."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from app.__main__ import main

HISTORY = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": "What is the weather?"},
    {"role": "assistant", "content": "It rains."},
]


@pytest.fixture(autouse=True)
def database(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CONCERTINA_DATABASE__URL", f"sqlite:///{tmp_path}/kept.db")


def file_with(folder: Path, *lines: object) -> str:
    file = folder / "file.jsonl"
    file.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return str(file)


def lines_of(text: str) -> list[Any]:
    return [json.loads(line) for line in text.splitlines()]


def test_what_is_imported_can_be_exported_again(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    line = {"created_at": 1_700_000_000, "metadata": {"topic": "demo"}, "external_id": "mine", "messages": HISTORY}
    file = file_with(tmp_path, line, {"messages": HISTORY[1:]})
    assert main(["import", file, "--tenant", "acme"]) == 0
    first, second = capsys.readouterr().out.split()
    assert main(["export", "--tenant", "acme"]) == 0
    told = lines_of(capsys.readouterr().out)
    assert told[0] == {"id": first, **line, "metadata": {"topic": "demo", "imported_from": "openai"}}
    assert [one["id"] for one in told] == [first, second]
    assert main(["export", "--tenant", "other"]) == 0
    assert capsys.readouterr().out == ""
    assert main(["export", second]) == 0
    (only,) = lines_of(capsys.readouterr().out)
    assert (only["tenant"], only["messages"]) == ("acme", HISTORY[1:])


def test_a_folder_gets_a_file_of_messages_per_conversation(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["import", file_with(tmp_path, *HISTORY), "--tenant", "acme"]) == 0
    (conversation_id,) = capsys.readouterr().out.split()
    out = tmp_path / "new" / "folder"
    assert main(["export", "--out", str(out)]) == 0
    (file,) = out.iterdir()
    assert file.name == f"{conversation_id}.jsonl"
    assert lines_of(file.read_text()) == HISTORY
    assert main(["import", str(file), "--tenant", "acme", "--format", "jsonl"]) == 0


def test_a_file_with_a_fault_is_refused_by_its_place(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["import", file_with(tmp_path, HISTORY[1], {"role": "robot"}), "--tenant", "acme"]) == 1
    assert "line 2.role" in capsys.readouterr().err
    assert not (tmp_path / "kept.db").exists()
    assert main(["import", str(tmp_path / "none"), "--tenant", "acme"]) == 1
    assert "cannot be read" in capsys.readouterr().err


def test_an_unknown_conversation_is_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["import", file_with(tmp_path, *HISTORY), "--tenant", "acme"]) == 0
    assert main(["export", "conv_none"]) == 1
    assert main(["export", "mine", "--tenant", "acme"]) == 1
    assert "there is no conversation 'mine' of tenant 'acme'" in capsys.readouterr().err


def test_a_store_in_memory_keeps_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("CONCERTINA_DATABASE__URL", "memory://")
    assert main(["import", file_with(tmp_path, *HISTORY), "--tenant", "acme"]) == 1
    assert "memory://" in capsys.readouterr().err


@pytest.mark.parametrize("tenant", ["", "a b", "a\0b", "a\x1b[2J", "b" * 65, "operator", "shop/context-only", "shop/x"])
def test_a_text_that_is_no_tenant_is_refused(tenant: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["import", file_with(tmp_path, *HISTORY), "--tenant", tenant]) == 1
    assert "tenant" in capsys.readouterr().err
    assert main(["keys", "create", "--name", "n", "--tenant", tenant]) == 1
    assert "tenant" in capsys.readouterr().err


def test_an_end_user_s_conversations_can_be_imported(tmp_path: Path) -> None:
    assert main(["import", file_with(tmp_path, *HISTORY), "--tenant", f"shop/{'a1' * 16}"]) == 0
