"""The command `concertina`: makes this project's `app` and `migrations` importable, then runs the command line.

They stand in this folder in an installation, and beside it in a clone.
"""

from __future__ import annotations

import sys
from pathlib import Path

# First on the path: a user's own `app`, in the working directory or installed, must not be imported instead. Worker
# processes get the same path from `multiprocessing`.
sys.path.insert(0, str(next(folder for folder in Path(__file__).parents[:2] if (folder / "app" / "main.py").is_file())))

from app.__main__ import main

__all__ = ["main"]

if __name__ == "__main__":
    sys.exit(main())
