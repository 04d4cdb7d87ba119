"""Get a Chromium for the console's tests where there is none: `python -m tests.console.install_browser`.

As root on Debian or Ubuntu it is installed with apt. Elsewhere on Linux one is unpacked into the virtual environment:
the headless Chromium that the npm package @sparticuz/chromium carries, with the libraries and fonts beside it, so that
nothing of the system is changed. Without either the tests are skipped, and say so.
"""

from __future__ import annotations

import base64
import fcntl
import hashlib
import os
import platform
import shutil
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path
from typing import Final

from playwright.sync_api import Error, Playwright, sync_playwright

from tests.console.browser import ARGUMENTS, MISSING, UNPACKED, find_browser
from tests.node.packages import tools

PACKAGE: Final = "@sparticuz/chromium@147.0.0"
INTEGRITY: Final = "sha512-4ZKeAQQa8up2mt675qSitztLdbQrlf8BKdC5naeap+5Mv1OV1OlJdPoU+EJC/p5sQUJUQmN4r+q5+EhaaOUHpQ=="
"""As package-lock.json would have it."""
PARTS: Final = {"fonts.tar.br": "fonts", "al2023.tar.br": "libraries", "swiftshader.tar.br": "."}
"""Archives of the package, and the folders they are unpacked into."""
EXPAND: Final = """
    const { createReadStream, createWriteStream } = require("node:fs");
    const { createBrotliDecompress } = require("node:zlib");
    const [, from, to] = process.argv;
    require("node:stream").pipeline(
        createReadStream(from), createBrotliDecompress(), createWriteStream(to),
        (error) => { if (error) throw error; });
"""
START: Final = """#!/bin/sh
here=$(dirname "$(readlink -f "$0")")
[ -e /etc/fonts/fonts.conf ] || export FONTCONFIG_FILE="$here/fonts.conf"
LD_LIBRARY_PATH="$here/libraries/lib${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}" exec "$here/chromium" "$@"
"""
FONTS: Final = """<?xml version="1.0"?>
<!DOCTYPE fontconfig SYSTEM "fonts.dtd">
<fontconfig><dir>{folder}/fonts</dir><cachedir>{folder}/fonts-cache</cachedir></fontconfig>
"""
INSTALL_SECONDS: Final = 600
TRY_MS: Final = 60_000


def installed() -> str | None:
    """The browser that tests would use, if it starts."""
    with sync_playwright() as playwright:
        found = find_browser(playwright)
        return found if found is not None and starts(playwright, found) else None


def starts(playwright: Playwright, browser: str) -> bool:
    """Whether it shows a page: an installed name may stand for nothing but a hint to install something else."""
    try:
        started = playwright.chromium.launch(executable_path=browser, args=list(ARGUMENTS), timeout=TRY_MS)
        started.new_page().goto("data:text/html,<p>ready</p>", timeout=TRY_MS)
        started.close()
    except Error as error:
        print(f"{browser} does not start: {error.message.splitlines()[0]}", file=sys.stderr)
        return False
    return True


def with_apt() -> bool:
    """Debian's package."""
    if os.geteuid() != 0 or shutil.which("apt-get") is None:
        return False
    quiet = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    for command in (["update"], ["install", "--yes", "--no-install-recommends", "chromium"]):
        ended = subprocess.run(
            ["apt-get", "-qq", *command],
            env=quiet,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
            timeout=INSTALL_SECONDS,
        )
        if ended.returncode != 0:
            print(f"apt-get {command[0]} failed: {ended.stderr[-300:]}", file=sys.stderr)
            return False
    return True


def unpacked() -> bool:
    """The package's own, in the virtual environment."""
    found = tools()
    if found is None or platform.system() != "Linux" or platform.machine() != "x86_64":
        return False
    node, npm = found
    with tempfile.TemporaryDirectory() as folder:
        work = Path(folder)
        packed = subprocess.run(
            [*npm, "pack", "--silent", PACKAGE],
            cwd=work,
            capture_output=True,
            text=True,
            check=False,
            timeout=INSTALL_SECONDS,
        )
        archives = list(work.glob("*.tgz"))
        if packed.returncode != 0 or len(archives) != 1:
            print(f"npm could not get {PACKAGE}: {packed.stderr[-300:]}", file=sys.stderr)
            return False
        unpack(archives[0], node, work)
    return True


def unpack(archive: Path, node: str, work: Path) -> None:
    """Put what is in the package's archive in its place.

    Raises:
        ValueError: it is not the archive that is expected.
    """
    digest = base64.b64encode(hashlib.sha512(archive.read_bytes()).digest()).decode()
    if f"sha512-{digest}" != INTEGRITY:
        raise ValueError(f"{PACKAGE} is not what it was: its digest is sha512-{digest}.")
    with tarfile.open(archive) as package:
        package.extractall(work, filter="data")
    binaries, target = work / "package" / "bin", work / "browser"
    target.mkdir()
    _expand(node, binaries / "chromium.br", target / "chromium")
    for name, place in PARTS.items():
        plain = work / name.removesuffix(".br")
        _expand(node, binaries / name, plain)
        with tarfile.open(plain) as part:
            part.extractall(target / place, filter="data")
    (target / "chromium").chmod(0o755)
    (target / "fonts.conf").write_text(FONTS.format(folder=UNPACKED.parent))
    (target / UNPACKED.name).write_text(START)
    (target / UNPACKED.name).chmod(0o755)
    shutil.rmtree(UNPACKED.parent, ignore_errors=True)
    shutil.move(target, UNPACKED.parent)


def _expand(node: str, source: Path, target: Path) -> None:
    subprocess.run([node, "--eval", EXPAND, str(source), str(target)], check=True, timeout=INSTALL_SECONDS)


def main() -> int:
    """Say which browser there is, after getting one if need be. A machine without is no failure."""
    with (Path(tempfile.gettempdir()) / "concertina-tests-browser.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        found = installed()
        for way in (with_apt, unpacked):
            if found is None and way():
                found = installed()
    print(f"browser for the console's tests: {found}" if found else MISSING)
    return 0


if __name__ == "__main__":
    sys.exit(main())
