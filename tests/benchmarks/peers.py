"""Other things that stand between clients and models, measured beside the gateway where their programs are found: on
the PATH, or in the folders of `CONCERTINA_TEST_PEERS` (as a PATH is written)."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

import yaml

from tests.benchmarks.messages import KEY

PEERS_VARIABLE: Final = "CONCERTINA_TEST_PEERS"
Command = Callable[[str, Path, int, int], Sequence[str]]
"""From the program's path, a folder, its own port and the upstream's: what to start."""


def _litellm(program: str, folder: Path, port: int, upstream_port: int) -> Sequence[str]:
    """LiteLLM's proxy as it comes, without its database: one process, production mode, no logging to the terminal."""
    forwarded = {"model": "openai/*", "api_base": f"http://127.0.0.1:{upstream_port}/v1", "api_key": "sk-up"}
    config = folder / "litellm.yaml"
    config.write_text(
        yaml.safe_dump(
            {
                "model_list": [{"model_name": "*", "litellm_params": forwarded}],
                "litellm_settings": {"set_verbose": False, "telemetry": False},
                "general_settings": {"master_key": KEY, "dangerously_permit_weak_or_unset_master_key": True},
            }
        )
    )
    settings = ["LITELLM_MODE=PRODUCTION", "LITELLM_LOG=ERROR", "LITELLM_LOCAL_MODEL_COST_MAP=True"]
    return [
        *("/usr/bin/env", *settings, program, "--config", str(config)),
        *("--host", "127.0.0.1", "--port", str(port), "--num_workers", "1"),
    ]


def _nginx(program: str, folder: Path, port: int, upstream_port: int) -> Sequence[str]:
    """nginx as a plain proxy in one process: what the way through costs at the very least."""
    temporary = "".join(
        f"{kind}_temp_path {folder}/{kind};" for kind in ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
    )
    config = folder / "nginx.conf"
    config.write_text(
        f"""
        daemon off; master_process off; pid {folder}/nginx.pid; error_log stderr error;
        events {{ worker_connections 4096; }}
        http {{
          access_log off; client_max_body_size 64m; client_body_buffer_size 4m; {temporary}
          upstream model {{ server 127.0.0.1:{upstream_port}; keepalive 256; }}
          server {{
            listen 127.0.0.1:{port}; keepalive_requests 1000000;
            location / {{
              proxy_pass http://model; proxy_http_version 1.1; proxy_set_header Connection ""; proxy_buffering off;
            }}
          }}
        }}
        """
    )
    return [program, "-p", str(folder), "-c", str(config)]


COMMANDS: Final[dict[str, Command]] = {"litellm": _litellm, "nginx": _nginx}


def program_of(name: str) -> str | None:
    """The path of a peer's program; None where it is not installed."""
    folders = os.pathsep.join(part for part in (os.environ.get(PEERS_VARIABLE, ""), os.environ.get("PATH", "")) if part)
    return shutil.which(name, path=folders)


def command_of(name: str, folder: Path, port: int, upstream_port: int) -> Sequence[str]:
    """What starts a peer that is installed."""
    program = program_of(name)
    assert program is not None
    return COMMANDS[name](program, folder, port, upstream_port)
