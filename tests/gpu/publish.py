"""Copy a run folder to where it is cited: samples compressed, weights left out.

``python tests/gpu/publish.py RUN_FOLDER results/published/h200 [COMMIT]``

COMMIT is that of the tree that ran, where the machine had the tree but an older history than it, and recorded that one.
"""

from __future__ import annotations

import gzip
import json
import shutil
import sys
from pathlib import Path


def publish(run: Path, target: Path, commit: str | None = None) -> Path:
    """Copy ``run`` below ``target``, under the name and with the record of ``commit`` if there is one.

    Raises:
        FileExistsError: it is published already.
    """
    recorded = json.loads((run / "run.json").read_text())["commit"]
    copy = target / (run.name.replace(recorded, commit) if commit else run.name)
    shutil.copytree(run, copy, ignore=shutil.ignore_patterns("weights-*", ".*.partial"))
    samples = copy / "samples.csv"
    with gzip.GzipFile(f"{samples}.gz", "wb", compresslevel=9, mtime=0) as file:
        file.write(samples.read_bytes())
    samples.unlink()
    if commit:
        for name in ("run.json", "environment.json"):
            text = (copy / name).read_text(encoding="utf-8")
            (copy / name).write_text(
                text.replace(f'"commit": "{recorded}"', f'"commit": "{commit}"'), encoding="utf-8"
            )
    return copy


if __name__ == "__main__":
    print(publish(Path(sys.argv[1]), Path(sys.argv[2]), *sys.argv[3:]))
