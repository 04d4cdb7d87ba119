"""`export`, `import`, `purge`, `reencrypt` and `migrate`: what they say at their end, and when interrupted."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import re
import signal
import sqlite3
from collections.abc import AsyncIterator, Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from app.__main__ import main
from app.commands import reencrypt
from app.commands.progress import CommandProgress
from app.conversations.erase.retention_sweeper import RetentionSweeper
from app.conversations.transfer.conversation_import import ConversationImporter
from app.conversations.transfer.message_export import ConversationExporter
from app.store.database_url import parse_database_url
from migrations import run as migrations
from migrations.upgrading import upgrade_schema

INTERRUPTED = 130
TURNS = [{"role": "user", "content": "What is the weather?"}, {"role": "assistant", "content": "It rains."}]
SECONDS = re.compile(r"\d+\.\d s")


@pytest.fixture(autouse=True)
def database(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("CONCERTINA_DATABASE__URL", f"sqlite:///{tmp_path}/kept.db")
    return tmp_path / "kept.db"


@pytest.fixture
def kept(tmp_path: Path, database: Path, capsys: pytest.CaptureFixture[str]) -> list[str]:
    """Ids of three conversations of two messages."""
    file = tmp_path / "three.jsonl"
    file.write_text("".join(json.dumps({"messages": TURNS}) + "\n" for _ in range(3)))
    assert main(["import", str(file), "--tenant", "acme", "--quiet"]) == 0
    told = capsys.readouterr()
    assert told.err == ""
    return told.out.split()


def told(capsys: pytest.CaptureFixture[str]) -> tuple[str, str]:
    """Output and errors, times blanked."""
    out, err = capsys.readouterr()
    return SECONDS.sub("T", out), SECONDS.sub("T", err)


def interrupt(*_: Any, **__: Any) -> None:
    os.kill(os.getpid(), signal.SIGINT)


def interrupting_after(calls: int, function: Callable[..., Any]) -> Callable[..., Any]:
    """A coroutine function that is interrupted as by Ctrl-C in the call after so many."""
    count = 0

    async def interrupted(*arguments: Any, **named: Any) -> Any:
        nonlocal count
        count += 1
        if count > calls:
            interrupt()
            await asyncio.sleep(60)
        return await function(*arguments, **named)

    return interrupted


def test_export_sums_up_on_stderr_and_leaves_output_to_conversations(
    kept: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["export"]) == 0
    out, err = told(capsys)
    assert [json.loads(line)["id"] for line in out.splitlines()] == kept
    assert err == "3 conversations, 0.0 MB exported in T.\n"
    assert main(["export", "--out", str(tmp_path / "out"), kept[0]]) == 0
    assert told(capsys) == ("", f"1 conversation, 0.0 MB exported to {tmp_path}/out in T.\n")
    assert main(["export", "--quiet", kept[0]]) == 0
    assert capsys.readouterr().err == ""


def test_an_interrupted_export_leaves_whole_files_and_says_how_to_go_on(
    kept: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    lines, begun = ConversationExporter.stream_message_lines, []

    async def interrupted(*arguments: Any, **named: Any) -> AsyncIterator[bytes]:
        begun.append(arguments)
        async for piece in lines(*arguments, **named):
            yield piece
        if len(begun) > 1:
            interrupt()
            await asyncio.sleep(60)

    monkeypatch.setattr(ConversationExporter, "stream_message_lines", interrupted)
    out = tmp_path / "out"
    assert main(["export", "--out", str(out)]) == INTERRUPTED
    assert [file.name for file in out.iterdir()] == [f"{kept[0]}.jsonl"]
    assert "interrupted. 1 conversation, 0.0 MB are in" in capsys.readouterr().err


def test_import_names_conversations_on_output_and_sums_up_on_stderr(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "one.jsonl"
    file.write_text(json.dumps({"messages": TURNS}))
    assert main(["import", str(file), "--tenant", "acme"]) == 0
    out, err = told(capsys)
    assert re.fullmatch(r"conv_\w+\n", out)
    assert err == "1 conversation, 2 messages imported for tenant 'acme' in T.\n"


def test_an_interrupted_import_keeps_nothing_and_says_so(
    tmp_path: Path, database: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(ConversationImporter, "_write_log", interrupting_after(2, ConversationImporter._write_log))
    file = tmp_path / "three.jsonl"
    file.write_text("".join(json.dumps({"messages": TURNS}) + "\n" for _ in range(3)))
    assert main(["import", str(file), "--tenant", "acme"]) == INTERRUPTED
    out, err = told(capsys)
    assert (out, "was removed" in err) == ("", True)
    assert rows(database, "conversations") == 0


def test_purge_sums_up_and_is_quiet_where_it_shall_be(kept: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["purge", "--older-than", "0m", "--dry-run"]) == 0
    assert told(capsys) == ("3 conversations would be erased.\n", "")
    assert main(["purge", "--older-than", "0m", "--quiet"]) == 0
    assert told(capsys) == ("", "")
    assert main(["purge", "--older-than", "0m"]) == 0
    assert told(capsys) == ("0 conversations erased, 0 in use and left.\n", "")


def test_purging_a_tenant_erases_its_sums_of_usage(kept: list[str], database: Path) -> None:
    def days() -> list[tuple[str, str]]:
        with contextlib.closing(sqlite3.connect(database)) as connection:
            return connection.execute("SELECT tenant, day FROM usage_totals ORDER BY tenant, day").fetchall()

    today = datetime.now(UTC).date()
    old, now = (today - timedelta(days=9)).isoformat(), today.isoformat()
    with contextlib.closing(sqlite3.connect(database)) as connection, connection:
        row = "INSERT INTO usage_totals VALUES (?, '', ?, 'm', 1, 0, 1, 0, 1, 0.5)"
        connection.executemany(row, [(tenant, day) for tenant in ("shop", "site") for day in (old, now)])
    assert main(["purge", "--older-than", "0m", "--tenant", "shop", "--dry-run"]) == 0
    assert main(["purge", "--older-than", "0m"]) == 0
    assert len(days()) == 4
    assert main(["purge", "--older-than", "7d", "--tenant", "shop"]) == 0
    assert days() == [("shop", now), ("site", old), ("site", now)]
    assert main(["purge", "--older-than", "0m", "--tenant", "shop"]) == 0
    assert days() == [("site", old), ("site", now)]


def test_an_interrupted_purge_says_what_is_gone(
    kept: list[str], database: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(
        RetentionSweeper, "erase_unless_in_use", interrupting_after(1, RetentionSweeper.erase_unless_in_use)
    )
    assert main(["purge", "--older-than", "0m"]) == INTERRUPTED
    assert "interrupted. 1 conversation erased, 0 in use and left; the others" in capsys.readouterr().err
    assert rows(database, "conversations") == len(kept) - 1


@pytest.fixture
def key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CONCERTINA_ENCRYPTION__KEYS", "{first: " + "ab" * 32 + "}")
    monkeypatch.setenv("CONCERTINA_ENCRYPTION__ACTIVE", "first")


@pytest.mark.usefixtures("key")
def test_reencrypt_sums_up_and_is_quiet_where_it_shall_be(kept: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["reencrypt", "--quiet"]) == 0
    assert told(capsys) == ("", "")
    assert main(["reencrypt"]) == 0
    assert told(capsys)[0].startswith("3 conversations rewritten under the key 'first'")


@pytest.mark.usefixtures("key")
def test_an_interrupted_reencryption_says_that_keys_are_still_needed(
    kept: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    rewriting = interrupting_after(1, reencrypt._rewrite_conversation)
    monkeypatch.setattr(reencrypt, "_rewrite_conversation", rewriting)
    assert main(["reencrypt"]) == INTERRUPTED
    assert "keep all keys" in capsys.readouterr().err


def test_migrate_tells_each_step_and_nothing_when_quiet(database: Path, capsys: pytest.CaptureFixture[str]) -> None:
    upgrade_schema(parse_database_url(f"sqlite:///{database}"), "2026_11_21_initial")
    assert main(["migrate"]) == 0
    out, err = told(capsys)
    steps = [line.partition(":")[0] for line in err.splitlines()]
    assert steps[0] == "2026_11_22_find_messages"
    assert steps[-1] == migrations.required_schema_version()
    assert out.endswith("is up to date.\n")
    assert main(["migrate", "--quiet"]) == 0
    assert told(capsys) == ("", "")


def test_an_interrupted_migration_changes_nothing(
    database: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    upgrade_schema(parse_database_url(f"sqlite:///{database}"), "2026_11_21_initial")
    monkeypatch.setattr(CommandProgress, "advance", interrupt)
    assert main(["migrate"]) == INTERRUPTED
    assert "The database is unchanged" in capsys.readouterr().err
    assert migrations.read_schema_version(f"sqlite:///{database}") == "2026_11_21_initial"


def rows(database: Path, table: str) -> int:
    with contextlib.closing(sqlite3.connect(database)) as opened:
        return int(opened.execute(f"SELECT count(*) FROM {table}").fetchone()[0])


def test_an_import_that_memory_would_lose_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("CONCERTINA_DATABASE__URL", "memory://")
    file = tmp_path / "one.jsonl"
    file.write_text(json.dumps({"messages": TURNS}))
    assert main(["import", str(file), "--tenant", "acme"]) == 1
    assert capsys.readouterr().err.startswith("concertina: an import into memory:// would be lost")


def test_an_import_into_a_newer_schema_is_refused(
    kept: list[str], database: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with contextlib.closing(sqlite3.connect(database)) as connection:
        connection.execute("UPDATE alembic_version SET version_num = '9999_12_31'")
        connection.commit()
    assert main(["import", str(tmp_path / "three.jsonl"), "--tenant", "acme"]) == 1
    assert "9999_12_31" in capsys.readouterr().err
