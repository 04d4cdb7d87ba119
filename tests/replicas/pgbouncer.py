"""PgBouncer before a PostgreSQL of the tests', in transaction mode and with few connections of its own.

Where it is not installed (Debian's package: pgbouncer), and with `CONCERTINA_TEST_POOLER=stand-in`, it is
`tests.replicas.pooler` that stands there.
"""

from __future__ import annotations

import os
import pwd
import re
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Final

from tests.faults.servers import free_port

ROOT: Final = Path(__file__).parents[2]
START_SECONDS: Final = 20.0
POOLER_VARIABLE: Final = "CONCERTINA_TEST_POOLER"
KEEPS_STATEMENTS: Final = (1, 21)
"""The first version that can have `max_prepared_statements`."""


def binary() -> str | None:
    """Where PgBouncer is, if it is to be used; Debian puts it where only root looks."""
    if os.environ.get(POOLER_VARIABLE) == "stand-in":
        return None
    return shutil.which("pgbouncer", path=f"{os.environ.get('PATH', '')}:/usr/sbin:/usr/local/sbin")


def version(program: str) -> tuple[int, int]:
    told = subprocess.run([program, "--version"], capture_output=True, text=True, check=True).stdout
    found = re.search(r"PgBouncer (\d+)\.(\d+)", told)
    assert found is not None, told
    return int(found[1]), int(found[2])


@contextmanager
def pooled(server_folder: str, *, pool_size: int = 2, **settings: Any) -> Iterator[int]:
    """The port of a PgBouncer, or of what stands in for it; every database of the server is there by its name.

    Args:
        server_folder: where PostgreSQL's socket is.
        pool_size: connections to each database.
        settings: more of PgBouncer's; the stand-in has none.
    """
    program = binary()
    if program is None:
        assert not settings, "only PgBouncer itself has settings"
        with stand_in(server_folder, pool_size=pool_size) as port:
            yield port
        return
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
        with _listening([program, "-q", str(file)], port, **_ordinary(folder)):
            yield port


@contextmanager
def stand_in(server_folder: str, *, pool_size: int = 2) -> Iterator[int]:
    """The port of a `tests.replicas.pooler`."""
    port = free_port()
    command = [sys.executable, "-m", "tests.replicas.pooler", "--listen", str(port), "--server", server_folder]
    with _listening([*command, "--pool-size", str(pool_size)], port, cwd=ROOT) as process:
        yield port
        process.kill()
        told = process.communicate()[1]
        assert not told, told


@contextmanager
def _listening(command: Sequence[str], port: int, **options: Any) -> Iterator[subprocess.Popen[str]]:
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True, **options) as process:
        try:
            _await(process, port)
            yield process
        finally:
            process.kill()


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
    raise RuntimeError(f"the pooler does not start: {process.communicate()[1]}")
