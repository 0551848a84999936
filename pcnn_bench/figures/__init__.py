"""One file per figure: rows of a run in, a matplotlib ``Figure`` out; no pyplot, no state."""

from __future__ import annotations

import os

# A broken MPLBACKEND, as a notebook leaves it to the programs it starts, makes the import itself
# fail. No backend is wanted here, so the import does not see it.
_backend = os.environ.pop("MPLBACKEND", None)
try:
    import matplotlib  # noqa: F401
finally:
    if _backend is not None:
        os.environ["MPLBACKEND"] = _backend
