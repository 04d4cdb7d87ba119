"""PgBouncer before a PostgreSQL of the tests', in transaction mode and with few connections of its own."""

from __future__ import annotations

import os
import pwd
import re
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Final

import pytest

from tests.faults.servers import free_port

START_SECONDS: Final = 20.0
MISSING: Final = "PgBouncer is not installed (Debian's package: pgbouncer)"
KEEPS_STATEMENTS: Final = (1, 21)
"""The first version that can have `max_prepared_statements`."""


def binary() -> str | None:
    """Where PgBouncer is; Debian puts it where only root looks."""
    return shutil.which("pgbouncer", path=f"{os.environ.get('PATH', '')}:/usr/sbin:/usr/local/sbin")


def version(program: str) -> tuple[int, int]:
    told = subprocess.run([program, "--version"], capture_output=True, text=True, check=True).stdout
    found = re.search(r"PgBouncer (\d+)\.(\d+)", told)
    assert found is not None, told
    return int(found[1]), int(found[2])


@contextmanager
def pooled(server_folder: str, *, pool_size: int = 2, **settings: Any) -> Iterator[int]:
    """The port of a PgBouncer; every database of the server is there by its name.

    Args:
        server_folder: where PostgreSQL's socket is.
        pool_size: connections to each database.
        settings: more of PgBouncer's.
    """
    program = binary()
    if program is None:
        pytest.skip(MISSING)
    port = free_port()
    values = {
        "listen_addr": "127.0.0.1",
        "listen_port": port,
        "unix_socket_dir": "",
        "auth_type": "any",
        "pool_mode": "transaction",
        "default_pool_size": pool_size,
        "max_client_conn": 200,
        **settings,
    }
    lines = ["[databases]", f"* = host={server_folder} user=postgres", "[pgbouncer]"]
    lines += [f"{name} = {value}" for name, value in values.items()]
    with tempfile.TemporaryDirectory(prefix="concertina-pgbouncer-") as folder:
        file = Path(folder) / "pgbouncer.ini"
        file.write_text("\n".join([*lines, ""]))
        process = subprocess.Popen([program, "-q", str(file)], stderr=subprocess.PIPE, text=True, **_ordinary(folder))
        try:
            _await(process, port)
            yield port
        finally:
            process.kill()
            process.communicate()


def _ordinary(folder: str) -> dict[str, Any]:
    """It does not run as root."""
    if os.geteuid() != 0:
        return {}
    nobody = pwd.getpwnam("nobody")
    os.chown(folder, nobody.pw_uid, nobody.pw_gid)
    return {"user": nobody.pw_uid, "group": nobody.pw_gid, "extra_groups": []}


def _await(process: subprocess.Popen[str], port: int) -> None:
    deadline = time.monotonic() + START_SECONDS
    while time.monotonic() < deadline and process.poll() is None:
        with suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1):
            return
        time.sleep(0.02)
    process.kill()
    raise RuntimeError(f"PgBouncer does not start: {process.communicate()[1]}")
