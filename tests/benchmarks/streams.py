"""What many streams at once weigh: `python -m tests.benchmarks.streams [--streams 1000] [--database sqlite|postgres]`.

All are under way together: each lasts longer than it takes to open them all. Memory is that of the gateway's processes,
before, at its highest, and when all have ended.
"""

from __future__ import annotations

import argparse
import resource
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Final

from tests.benchmarks.load import Job
from tests.benchmarks.processes import Cores, Process, resident_mb, settled
from tests.benchmarks.scenarios import Bench
from tests.benchmarks.targets import MEMORY, POSTGRES, SQLITE, free_port, running

STORES: Final = {"sqlite": SQLITE, "postgres": POSTGRES, "memory": MEMORY}
FILES: Final = 20_000
OPENING_SECONDS: Final = 15.0
"""In which no connection that has its answer asks again, so that each asks once."""
PAUSE_SECONDS: Final = 0.5
CHUNKS: Final = 40
"""Of each stream: 20 seconds."""
SAMPLE_SECONDS, REST_SECONDS = 0.1, 3.0
TARGET_MB: Final = 300


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks.streams", description=__doc__)
    parser.add_argument("--streams", type=int, default=1_000)
    parser.add_argument("--database", choices=sorted(STORES), default="sqlite")
    options = parser.parse_args()
    _allow_files()
    with ExitStack() as stack:
        port = free_port()
        cores = Cores.of_this_machine()
        upstream = stack.enter_context(Process(["tests.benchmarks.upstream", str(port)], core=cores.driving))
        upstream.read_line()
        load = stack.enter_context(Process(["tests.benchmarks.load"], core=cores.driving))
        load.read_line()
        gateway = stack.enter_context(running(STORES[options.database], port, cores))
        bench = Bench(load, 1.0)
        bench.send(Job(gateway.port, 8, 0, seconds=2))
        before_mb, cpu_before = resident_mb(gateway.process.pid), settled(gateway.process.pid)
        with _highest(gateway.process.pid) as samples:
            job = Job(gateway.port, options.streams, 0, f"scripted-{CHUNKS}-{PAUSE_SECONDS * 1000:.0f}", stream=True)
            job.chunks, job.seconds = CHUNKS, OPENING_SECONDS
            result = bench.send(job)
        spent = settled(gateway.process.pid).since(cpu_before)
        time.sleep(REST_SECONDS)
        after_mb = resident_mb(gateway.process.pid)
    peak_mb = max(samples)
    print(
        f"{result['requests']} streams of {CHUNKS} chunks on {options.database}: {before_mb:.0f} MB before, "
        f"{peak_mb:.0f} MB at most (target {TARGET_MB}), {after_mb:.0f} MB after; "
        f"{(peak_mb - before_mb) / options.streams * 1024:.0f} KB a stream, "
        f"{spent / result['requests'] / CHUNKS * 1e6:.0f} µs CPU a chunk, first byte p50 "
        f"{result['first_byte_ms']['p50']:.0f} ms"
    )
    return 0


def _allow_files() -> None:
    """As many sockets as it takes, for this process and those that it starts."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(FILES, hard), hard))


@contextmanager
def _highest(root: int) -> Iterator[list[float]]:
    """Resident memory of a process tree, sampled until the block ends."""
    samples, ended = [resident_mb(root)], threading.Event()

    def sample() -> None:
        while not ended.wait(SAMPLE_SECONDS):
            samples.append(resident_mb(root))

    sampling = threading.Thread(target=sample)
    sampling.start()
    try:
        yield samples
    finally:
        ended.set()
        sampling.join()


if __name__ == "__main__":
    raise SystemExit(main())
