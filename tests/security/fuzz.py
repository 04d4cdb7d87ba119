"""`python -m tests.security.fuzz TARGET --seconds 60`: a target under inputs that coverage leads to something new.

Needs atheris (`pip install atheris`), which is in no lock: it is made for Linux and some versions of Python only. What
was found to be of interest stays in `build/fuzz/TARGET` for the next run; an input that breaks the target is written
beside it, and told.
"""

from __future__ import annotations

import argparse
import importlib
import sys
from pathlib import Path
from typing import Any, Final

FOLDER: Final = Path("build/fuzz")
MOST_BYTES: Final = 4096
SLOW_SECONDS: Final = 10


def main() -> int:
    try:
        atheris: Any = importlib.import_module("atheris")
    except ImportError:
        print("atheris is not installed: `pip install atheris` into this environment.", file=sys.stderr)
        return 2
    with atheris.instrument_imports(include=["app"]):
        targets = importlib.import_module("tests.security.targets").TARGETS
        seeds = importlib.import_module("tests.security.seeds").SEEDS
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("target", choices=targets)
    parser.add_argument("--seconds", type=int, default=60)
    asked = parser.parse_args()
    corpus = FOLDER / asked.target
    corpus.mkdir(parents=True, exist_ok=True)
    for number, seed in enumerate(seeds[asked.target]):
        (corpus / f"seed-{number}").write_bytes(seed)
    options = [
        f"-max_total_time={asked.seconds}",
        f"-max_len={MOST_BYTES}",
        f"-timeout={SLOW_SECONDS}",
        f"-artifact_prefix={FOLDER}/{asked.target}-",
    ]
    atheris.Setup([sys.argv[0], str(corpus), *options], targets[asked.target])
    atheris.Fuzz()
    return 0


if __name__ == "__main__":
    sys.exit(main())
