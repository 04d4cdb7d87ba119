"""A whole installation that can be broken: database, model, gateways, and proxies between them."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal

from migrations.run import prepare_database
from tests.faults.proxy import Proxy, proxied
from tests.faults.servers import Database, Instance
from tests.faults.verification import VerificationReport, verify_database
from tests.harness import Simulated

Backend = Literal["postgres", "sqlite"]
LEASE_SECONDS: Final = 3.0
WINDOW: Final = 2048
ANSWER_SECONDS: Final = 5.0
"""A provider that says nothing for so long is given up."""


@dataclass(slots=True)
class Scene:
    """What can be broken, and where it can be reached."""

    folder: Path
    backend: Backend
    gateways: list[Instance]
    balancer: Proxy
    to_model: Proxy
    to_database: Proxy | None
    database: Database | None
    database_url: str
    """Past the proxy."""
    database_disturbances: int = 0
    database_is_disturbed: bool = False

    @property
    def base_url(self) -> str:
        return f"http://127.0.0.1:{self.balancer.port}/v1"

    def stores(self) -> tuple[int, bool]:
        """How often the database was disturbed, and whether it is now."""
        return self.database_disturbances, self.database_is_disturbed

    async def verify(self) -> VerificationReport:
        """Checks everything that is stored against itself."""
        return await verify_database(self.database_url)


def config_of(upstream: str, database: str, /, **sections: Any) -> dict[str, Any]:
    """Short patience everywhere, so that a fault shows at once."""
    timeouts = {"connect_seconds": 1, "first_byte_seconds": ANSWER_SECONDS, "between_bytes_seconds": 3}
    values: dict[str, Any] = {
        "server": {"log_level": "warning", "drain_seconds": 5, "console": False},
        "database": {"url": database, "timeout_seconds": 3, "pool_size": 8},
        "telemetry": {"request_log": False},
        "providers": {"upstream": {"base_url": upstream, "api_key": "sk-upstream", "timeouts": timeouts}},
        "models": {"*": {"provider": "upstream", "context_window": WINDOW}},
        "policies": {"additive": {"token_floor": 1}},
        "compaction": {"lease_seconds": LEASE_SECONDS, "wait_seconds": 20},
        "retries": {
            "base_seconds": 0.05,
            "breaker_seconds": 1,
            "breaker_max_seconds": 2,
        },
    }
    for name, section in sections.items():
        known = values.get(name)
        values[name] = {**known, **section} if isinstance(known, Mapping) and isinstance(section, Mapping) else section
    return values


@asynccontextmanager
async def scene(
    folder: Path,
    *,
    backend: Backend,
    count: int,
    upstream: str | None = None,
    model: tuple[str, ...] = ("--seconds-per-token", "0.002", "--summary-seconds", "0.1"),
    settings: Mapping[str, str] | None = None,
    **sections: Any,
) -> AsyncIterator[Scene]:
    """
    Args:
        count: how many gateways.
        upstream: the base URL of a model of the test's own; without it a simulated one is started.
        model: options of the simulated model.
        settings: of PostgreSQL.
        sections: of the gateways' configuration, beside `config_of`.
    """
    folder = _emptied(folder)
    async with AsyncExitStack() as stack:
        if upstream is None:
            simulated = await asyncio.to_thread(Simulated, *model)
            stack.callback(simulated.stop)
            upstream = simulated.base_url
        to_model = await stack.enter_async_context(proxied(_target_of(upstream)))
        seen_model = f"http://127.0.0.1:{to_model.port}/v1"
        database: Database | None = None
        to_database: Proxy | None = None
        if backend == "postgres":
            database = await asyncio.to_thread(Database, **(settings or {}))
            stack.callback(database.remove)
            await asyncio.to_thread(database.start)
            to_database = await stack.enter_async_context(proxied(database.socket_path))
            url = database.url("postgres")
            seen = f"postgresql+asyncpg://postgres@127.0.0.1:{to_database.port}/postgres"
        else:
            url = seen = f"sqlite+aiosqlite:///{folder}/kept.db"
        await asyncio.to_thread(prepare_database, url, auto_migrate=True)
        gateways = [
            Instance(folder / "logs", f"gateway-{n}", config_of(seen_model, seen, **sections)) for n in range(count)
        ]
        balancer = await stack.enter_async_context(proxied(*(one.target for one in gateways)))
        for one in gateways:
            stack.push_async_callback(one.kill)
        await asyncio.gather(*(one.start() for one in gateways))
        yield Scene(folder, backend, gateways, balancer, to_model, to_database, database, url)


def _emptied(folder: Path) -> Path:
    """Make room for a run; the journal, which is open already, stays."""
    folder.mkdir(parents=True, exist_ok=True)
    shutil.rmtree(folder / "logs", ignore_errors=True)
    for old in folder.glob("kept.db*"):
        old.unlink()
    return folder.absolute()


def _target_of(base_url: str) -> tuple[str, int]:
    host, _, port = base_url.removeprefix("http://").partition("/")[0].partition(":")
    return host, int(port)
