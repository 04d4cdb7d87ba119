"""Processes under measurement: starting, pinning, stopping them, and reading what they used from Linux's /proc."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import IO, Final, Self

ROOT = Path(__file__).resolve().parents[2]
STOP_SECONDS = 10.0
SETTLE_SECONDS, SETTLE_POLL_SECONDS, SETTLED_CPU_SECONDS = 5.0, 0.15, 0.003
TICK_SECONDS = 1 / os.sysconf("SC_CLK_TCK")
TRUSTED_GAP_SECONDS = 0.05
"""Ticks are this coarse; beyond it, they know of threads that the exact figures missed."""


class BenchmarkFailed(Exception):
    """Something could not be run, or did not answer as it must."""


@dataclass(frozen=True, slots=True)
class Cores:
    """Where things run: what is measured on one core, what drives it on another; None where there is only one."""

    measured: int | None
    driving: int | None

    @classmethod
    def of_this_machine(cls) -> Cores:
        allowed = sorted(os.sched_getaffinity(0))
        return cls(allowed[0], allowed[1]) if len(allowed) > 1 else cls(None, None)


@dataclass(frozen=True, slots=True)
class Cpu:
    """CPU time of a process tree at a moment: exact by thread, and in ticks, which remember threads that ended."""

    nanoseconds: Mapping[tuple[int, int], int]
    ticks: int

    @classmethod
    def of(cls, root: int) -> Cpu:
        nanoseconds: dict[tuple[int, int], int] = {}
        ticks = 0
        for process in tree(root):
            with contextlib.suppress(OSError):
                ticks += sum(int(value) for value in _stat(process)[11:15])
                for task in Path(f"/proc/{process}/task").iterdir():
                    on_cpu = (task / "schedstat").read_text().split()[0]
                    nanoseconds[process, int(task.name)] = int(on_cpu)
        return cls(nanoseconds, ticks)

    def since(self, before: Cpu) -> float:
        """Seconds of CPU time between two moments."""
        by_ticks = (self.ticks - before.ticks) * TICK_SECONDS
        if not before.nanoseconds.keys() <= self.nanoseconds.keys():
            return by_ticks
        exact = (sum(self.nanoseconds.values()) - sum(before.nanoseconds.values())) / 1e9
        return by_ticks if by_ticks - exact > max(TRUSTED_GAP_SECONDS, 0.1 * exact) else exact


def tree(root: int) -> list[int]:
    """A process and all its descendants."""
    children: dict[int, list[int]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal():
            with contextlib.suppress(OSError):
                children.setdefault(int(_stat(int(entry.name))[1]), []).append(int(entry.name))
    found, due = [], [root]
    while due:
        process = due.pop()
        found.append(process)
        due.extend(children.get(process, ()))
    return found


def resident_mb(root: int) -> float:
    """Resident memory of a process tree, shared pages counted once for each process."""
    kilobytes = 0
    for process in tree(root):
        with contextlib.suppress(OSError):
            for line in Path(f"/proc/{process}/status").read_text().splitlines():
                if line.startswith("VmRSS:"):
                    kilobytes += int(line.split()[1])
    return round(kilobytes / 1024, 1)


def settled(root: int) -> Cpu:
    """CPU time once background work (writers, checkpoints) has come to rest, so that requests are charged with it."""
    deadline = time.monotonic() + SETTLE_SECONDS
    before = Cpu.of(root)
    while time.monotonic() < deadline:
        time.sleep(SETTLE_POLL_SECONDS)
        now = Cpu.of(root)
        if now.since(before) < SETTLED_CPU_SECONDS:
            return now
        before = now
    return before


MODULE: Final = (sys.executable, "-m")
"""Runs a module of Python's."""


class Process:
    """A Python module or another program in a process of its own, pinned to a core, its output in a file or on a pipe.

    Args:
        arguments: after those of the `runner`.
        log: where its output goes; without it, stdin and stdout are pipes.
        environ: variables that it has besides those of this process.
    """

    def __init__(
        self,
        arguments: Sequence[str],
        *,
        core: int | None,
        log: Path | None = None,
        runner: Sequence[str] = MODULE,
        environ: Mapping[str, str] | None = None,
    ) -> None:
        self.started_at = time.perf_counter()
        self.log = log
        self._file: IO[bytes] | None = log.open("wb") if log is not None else None
        self.popen = subprocess.Popen(
            [*runner, *arguments],
            stdin=subprocess.DEVNULL if log is not None else subprocess.PIPE,
            stdout=self._file or subprocess.PIPE,
            stderr=self._file,
            cwd=ROOT,
            env={name: value for name, value in os.environ.items() if not name.startswith("CONCERTINA_")}
            | dict(environ or {}),
            start_new_session=True,
        )
        pin(self.pid, core)

    @property
    def pid(self) -> int:
        return self.popen.pid

    def check(self) -> None:
        """
        Raises:
            BenchmarkFailed: it has ended.
        """
        if self.popen.poll() is not None:
            raise BenchmarkFailed(f"the process ended with status {self.popen.returncode}: {self.tail()}")

    def tail(self) -> str:
        """The end of its output."""
        return self.log.read_text(errors="replace")[-2000:] if self.log is not None else ""

    def send_line(self, line: bytes) -> None:
        assert self.popen.stdin is not None
        self.popen.stdin.write(line + b"\n")
        self.popen.stdin.flush()

    def read_line(self) -> bytes:
        """
        Raises:
            BenchmarkFailed: it ended instead.
        """
        assert self.popen.stdout is not None
        line: bytes = self.popen.stdout.readline()
        if not line:
            raise BenchmarkFailed(f"{self.popen.args!r} ended unexpectedly")
        return line

    def stop(self) -> None:
        """SIGTERM, then SIGKILL, to this process and what it started."""
        members = tree(self.pid)
        self.popen.terminate()
        try:
            self.popen.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            for process in members:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(process, signal.SIGKILL)
            self.popen.wait()
        for stream in (self.popen.stdin, self.popen.stdout, self._file):
            if stream is not None:
                stream.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()


def pin(process: int, core: int | None) -> None:
    """Keep a process, and whatever it starts from now on, on one core."""
    if core is not None:
        for member in tree(process):
            with contextlib.suppress(OSError):
                os.sched_setaffinity(member, {core})


def _stat(process: int) -> list[str]:
    """The fields of /proc/PID/stat after the command, which may hold anything."""
    return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
