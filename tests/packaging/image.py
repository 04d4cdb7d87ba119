"""An image without a container engine: runs the steps of a Dockerfile in folders that are the roots of their stages.

The base image is this machine's `/usr` with this Python in `/usr/local`, both read-only, and an `/etc` that knows root
only. The steps run with `chroot` in a mount name space of their own, so they find the paths that they name.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import string
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from tests.newcomer.following import bare_environment

STEP_SECONDS: Final = 300
ROOT_USER: Final = "0:0"
BUILD_USER: Final = "65534:65534"
"""Who runs the steps before the last stage: they need no rights of root."""
TAKEN_FROM_ETC: Final = ("hosts", "ld.so.cache", "pip.conf", "resolv.conf", "ssl")
WITHOUT_EFFECT: Final = {"ARG", "EXPOSE", "LABEL", "VOLUME"}
UNSHARE: Final = ("unshare", "--mount", "--propagation", "private")
ENTER: Final = """
set -e
mount --bind /usr "$ROOT/usr"; mount --bind "$BASE" "$ROOT/usr/local"
for place in usr usr/local; do mount -o remount,bind,ro "$ROOT/$place"; done
mount --rbind /dev "$ROOT/dev"; mount --rbind /proc "$ROOT/proc"
exec chroot --userspec="$AS" "$ROOT" "$@"
"""


def can_build() -> bool:
    """Tells whether this process may mount and change its root."""
    if os.geteuid() != 0 or not all(shutil.which(name) for name in ("unshare", "mount", "chroot")):
        return False
    has_python = (Path(sys.base_prefix) / "bin/python").exists() and Path("/bin").is_symlink()
    return has_python and subprocess.run([*UNSHARE, "true"], check=False).returncode == 0


@dataclass(slots=True)
class Stage:
    """The file system of a stage, and how commands run in it."""

    root: Path
    environ: dict[str, str]
    user: str
    folder: str = "/"
    health_check: list[str] = field(default_factory=list)
    command: list[str] = field(default_factory=list)

    def wrap(self, command: Sequence[str], environ: Mapping[str, str], user: str) -> tuple[list[str], dict[str, str]]:
        """Returns the command, and its environment, that run a command in this stage."""
        variables = [f"{name}={value}" for name, value in {**self.environ, **environ}.items()]
        inside = ["/usr/bin/env", "-i", f"--chdir={self.folder}", *variables, *command]
        outside = {"ROOT": str(self.root), "BASE": sys.base_prefix, "AS": user, "PATH": os.environ["PATH"]}
        return [*UNSHARE, "sh", "-c", ENTER, "enter", *inside], outside

    def run(self, command: Sequence[str], environ: Mapping[str, str], user: str) -> subprocess.CompletedProcess[str]:
        """Runs a command to its end."""
        wrapped, outside = self.wrap(command, environ, user)
        return subprocess.run(wrapped, env=outside, capture_output=True, text=True, check=False, timeout=STEP_SECONDS)

    def path(self, inside: str) -> Path:
        """Returns where a path of the stage is outside of it."""
        return self.root / os.path.normpath(Path(self.folder, inside)).lstrip("/")


def read_steps(dockerfile: str) -> list[tuple[str, str]]:
    """Splits a Dockerfile into instructions and their arguments."""
    without_comments = re.sub(r"^\s*#.*\n", "", dockerfile, flags=re.MULTILINE)
    lines = re.sub(r"\s*\\\n\s*", " ", without_comments).splitlines()
    return [(line.split()[0], line.split(maxsplit=1)[1]) for line in lines if line.strip()]


def build(dockerfile: Path, folder: Path) -> Stage:
    """Runs the steps of a Dockerfile; returns its last stage.

    Raises:
        AssertionError: a step fails; with what it printed.
    """
    steps = read_steps(dockerfile.read_text())
    stages: dict[str, Stage] = {}
    count = sum(name == "FROM" for name, _ in steps)
    for name, arguments in steps[[name for name, _ in steps].index("FROM") :]:
        if name == "FROM":
            is_last = len(stages) == count - 1
            stage = begin_stage(folder / f"stage-{len(stages)}", ROOT_USER if is_last else BUILD_USER)
            stages[arguments.partition(" AS ")[2] or "last"] = stage
        elif name == "COPY":
            _copy(arguments.split(), dockerfile.parent, stage, stages)
        else:
            _apply(name, arguments, stage, folder)
    return stage


def begin_stage(root: Path, user: str) -> Stage:
    """Creates the file system of the base image."""
    for name in ("usr", "dev", "proc", "tmp", "opt", "etc", "root"):
        (root / name).mkdir(parents=True)
    for name in ("bin", "sbin", "lib", "lib64"):
        (root / name).symlink_to(f"usr/{name}")
    (root / "tmp").chmod(0o1777)
    for name in ("", "opt"):
        os.chown(root / name, *map(int, user.split(":")))
    (root / "etc/passwd").write_text("root:x:0:0::/root:/bin/sh\n")
    (root / "etc/group").write_text("root:x:0:\n")
    registry = bare_environment(root / "root")
    for value in ["/etc/" + name for name in TAKEN_FROM_ETC] + [*registry.values()]:
        if value.startswith("/etc/") and Path(value).is_dir() and not (root / value[1:]).exists():
            shutil.copytree(value, root / value[1:], symlinks=True)
        elif value.startswith("/") and Path(value).is_file() and not (root / value[1:]).exists():
            (root / value[1:]).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(value, root / value[1:])
    path = "/usr/local/bin:/usr/local/sbin:/usr/sbin:/usr/bin"
    environ = {**registry, "HOME": "/tmp", "PATH": path, "LD_LIBRARY_PATH": "/usr/local/lib"}
    return Stage(root, environ, user)


def _apply(name: str, arguments: str, stage: Stage, folder: Path) -> None:
    match name:
        case "RUN":
            ended = stage.run(["/bin/sh", "-c", arguments], {}, stage.user)
            assert ended.returncode == 0, f"RUN {arguments}:\n{ended.stdout}{ended.stderr}"
        case "ENV":
            for setting in shlex.split(arguments):
                variable, _, value = setting.partition("=")
                stage.environ[variable] = string.Template(value).safe_substitute(stage.environ)
        case "WORKDIR":
            stage.folder = arguments
            if not stage.path("").exists():
                stage.path("").mkdir(parents=True)
                os.chown(stage.path(""), *map(int, stage.user.split(":")))
        case "USER":
            stage.user = arguments
        case "HEALTHCHECK":
            stage.health_check = json.loads(arguments.partition(" CMD ")[2])
        case "CMD":
            stage.command = json.loads(arguments)
        case _:
            assert name in WITHOUT_EFFECT, name


def _copy(arguments: list[str], context: Path, stage: Stage, stages: Mapping[str, Stage]) -> None:
    """Copies what COPY names, from the context or an earlier stage; that stage's files are linked, since it is done."""
    origin = arguments.pop(0).removeprefix("--from=") if arguments[0].startswith("--from=") else None
    *sources, target = arguments
    for source in sources:
        place = stage.path(target) / (Path(source).name if target.endswith("/") else "")
        if origin is not None:
            shutil.copytree(stages[origin].path(source), place, symlinks=True, copy_function=os.link)
        elif (context / source).is_dir():
            shutil.copytree(context / source, place, ignore=shutil.ignore_patterns("__pycache__", "*.pyc"))
        else:
            shutil.copy(context / source, place)
