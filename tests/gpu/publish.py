"""Copy a run folder to where it is cited: samples compressed, weights left out.

``python tests/gpu/publish.py RUN_FOLDER results/published/h200``
"""

from __future__ import annotations

import gzip
import shutil
import sys
from pathlib import Path


def publish(run: Path, target: Path) -> Path:
    """Copy ``run`` below ``target``.

    Raises:
        FileExistsError: it is published already.
    """
    copy = target / run.name
    shutil.copytree(run, copy, ignore=shutil.ignore_patterns("weights-*", ".*.partial"))
    samples = copy / "samples.csv"
    with gzip.GzipFile(f"{samples}.gz", "wb", compresslevel=9, mtime=0) as file:
        file.write(samples.read_bytes())
    samples.unlink()
    return copy


if __name__ == "__main__":
    print(publish(Path(sys.argv[1]), Path(sys.argv[2])))
