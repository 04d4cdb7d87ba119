"""Other gateways that are measured beside this one, with the versions, settings and headers that they need.

A peer is measured where its program is found: on the PATH, in the folders of `CONCERTINA_TEST_PEERS` (as a PATH is
written), or where `python -m tests.benchmarks.compare` installs it.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Literal

import yaml

from tests.benchmarks.messages import KEY
from tests.benchmarks.processes import ROOT

PEERS_VARIABLE: Final = "CONCERTINA_TEST_PEERS"
INSTALLED: Final = ROOT / "build" / "compare" / "gateways"
REPLY_TOKENS: Final = 512
"""What compacting peers keep free for an answer: their own defaults, 4,096 and 8,192, leave nothing of a small
window."""


@dataclass(frozen=True, slots=True)
class Place:
    """Where a peer runs: a folder of its own, its port, the upstream's port, and the window that it is told."""

    program: str
    folder: Path
    port: int
    upstream_port: int
    window_tokens: int

    @property
    def upstream(self) -> str:
        return f"http://127.0.0.1:{self.upstream_port}"


@dataclass(frozen=True, slots=True)
class Peer:
    """Another gateway.

    Attributes:
        package: what its registry installs, with its version; blank: it is not installed from one.
        program: its program's path below the folder of the installation.
        build_command: what starts it.
        installation: the folder that it is installed in, if another peer is there, too.
        compacts: whether it shortens histories.
        headers: what each request to it needs, by the upstream's base URL.
    """

    name: str
    about: str
    build_command: Callable[[Place], Sequence[str]]
    registry: Literal["pip", "npm", ""] = ""
    package: str = ""
    program: str = ""
    installation: str = ""
    compacts: bool = False
    headers: Callable[[str], Mapping[str, str]] = field(default=lambda _: {})

    @property
    def folder(self) -> Path:
        """Where it is installed."""
        return INSTALLED / (self.installation or self.name)

    @property
    def version(self) -> str:
        return self.package.rpartition("==" if self.registry == "pip" else "@")[2]

    def find_program(self) -> str | None:
        """Returns the path of its program; None where it is not installed."""
        name = Path(self.program).name
        folders = os.pathsep.join(filter(None, (os.environ.get(PEERS_VARIABLE), os.environ.get("PATH"))))
        own = self.folder / self.program
        return str(own) if self.program and own.exists() else shutil.which(name, path=folders)


def _build_litellm_command(place: Place) -> Sequence[str]:
    """LiteLLM's proxy without its database: one process, production mode, no logging to the terminal."""
    forwarded = {"model": "openai/*", "api_base": f"{place.upstream}/v1", "api_key": "sk-up"}
    config = place.folder / "litellm.yaml"
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
        *("/usr/bin/env", *settings, place.program, "--config", str(config)),
        *("--host", "127.0.0.1", "--port", str(place.port), "--num_workers", "1"),
    ]


def _build_portkey_command(place: Place) -> Sequence[str]:
    """Portkey's open gateway, which must be told that an address of this machine may be a provider."""
    return ["/usr/bin/env", "TRUSTED_CUSTOM_HOSTS=127.0.0.1", place.program, f"--port={place.port}", "--headless"]


def _build_portkey_headers(base_url: str) -> Mapping[str, str]:
    return {"x-portkey-provider": "openai", "x-portkey-custom-host": base_url}


def _build_context_guardian_command(place: Place) -> Sequence[str]:
    settings = {
        "HOME": place.folder,
        "GUARDIAN_PORT": place.port,
        "GUARDIAN_UPSTREAM_URL": f"{place.upstream}/v1",
        "GUARDIAN_NUM_CTX": place.window_tokens,
        "GUARDIAN_RESERVE_OUTPUT": REPLY_TOKENS,
        "GUARDIAN_VERBOSE": 0,
    }
    return ["/usr/bin/env", *(f"{name}={value}" for name, value in settings.items()), place.program]


def _build_ctxkeeper_command(place: Place) -> Sequence[str]:
    return [
        *(place.program, "--upstream", place.upstream, "--port", str(place.port)),
        *("--budget", str(place.window_tokens), "--reply-reserve", str(REPLY_TOKENS), "--headroom", "256"),
        *("--notes-cap", str(place.window_tokens // 4), "--state-dir", str(place.folder / "state")),
    ]


def _build_ctxkeeper_in_place_command(place: Place) -> Sequence[str]:
    return [*_build_ctxkeeper_command(place), "--notes-mode", "inplace", "--inplace-fit"]


def _build_headroom_command(place: Place) -> Sequence[str]:
    settings = {
        "HOME": place.folder,
        "OPENAI_TARGET_API_URL": f"{place.upstream}/v1",
        "HEADROOM_TELEMETRY": "off",
        "HEADROOM_UPDATE_CHECK": "off",
        "HF_HUB_OFFLINE": 1,
    }
    options = ("proxy", "--port", str(place.port), "--no-rate-limit", "--no-cache")
    return ["/usr/bin/env", *(f"{name}={value}" for name, value in settings.items()), place.program, *options]


def _build_nginx_command(place: Place) -> Sequence[str]:
    """nginx as a plain proxy in one process: what the way through costs at the very least."""
    folder = place.folder
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
          upstream model {{ server 127.0.0.1:{place.upstream_port}; keepalive 256; }}
          server {{
            listen 127.0.0.1:{place.port}; keepalive_requests 1000000;
            location / {{
              proxy_pass http://model; proxy_http_version 1.1; proxy_set_header Connection ""; proxy_buffering off;
            }}
          }}
        }}
        """
    )
    return [place.program, "-p", str(folder), "-c", str(config)]


PEERS: Final[Mapping[str, Peer]] = {
    peer.name: peer
    for peer in (
        Peer(
            "litellm",
            "LiteLLM's proxy, one worker, nothing kept",
            _build_litellm_command,
            registry="pip",
            package="litellm[proxy]==1.108.7",
            program="bin/litellm",
        ),
        Peer(
            "portkey",
            "Portkey's open gateway on Node.js, nothing kept",
            _build_portkey_command,
            registry="npm",
            package="@portkey-ai/gateway@1.15.2",
            program="node_modules/.bin/gateway",
            headers=_build_portkey_headers,
        ),
        Peer(
            "context-guardian",
            "a proxy that compacts before the window fills",
            _build_context_guardian_command,
            registry="pip",
            package="context-guardian==0.12.0",
            program="bin/context-guardian",
            compacts=True,
        ),
        Peer(
            "ctxkeeper",
            "a proxy that keeps notes, written anew at each cut",
            _build_ctxkeeper_command,
            registry="pip",
            package="ctxkeeper==1.2.0",
            program="bin/ctxkeeper",
            compacts=True,
        ),
        Peer(
            "ctxkeeper-in-place",
            "the same, which asks for what changes in its notes",
            _build_ctxkeeper_in_place_command,
            registry="pip",
            package="ctxkeeper==1.2.0",
            program="bin/ctxkeeper",
            installation="ctxkeeper",
            compacts=True,
        ),
        Peer(
            "headroom",
            "a proxy that compresses tool results, without its language models",
            _build_headroom_command,
            registry="pip",
            package="headroom-ai[proxy]==0.42.0",
            program="bin/headroom",
            compacts=True,
        ),
        Peer("nginx", "nginx as a plain proxy, nothing parsed, nothing kept", _build_nginx_command, program="nginx"),
    )
}
