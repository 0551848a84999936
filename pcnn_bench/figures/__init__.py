"""One file per figure: rows of a run in, a matplotlib ``Figure`` out; no pyplot, no state."""

from __future__ import annotations

import logging
import os

# A broken MPLBACKEND, as a notebook leaves it to the programs it starts, makes the import itself
# fail. No backend is wanted here, so the import does not see it.
_backend = os.environ.pop("MPLBACKEND", None)
# Without a home that can be written, matplotlib takes a temporary folder and says so, which nobody
# who asked for a figure can use.
_logger = logging.getLogger("matplotlib")
_level = _logger.level
_logger.setLevel(logging.ERROR)
try:
    import matplotlib.font_manager  # noqa: F401
finally:
    _logger.setLevel(_level)
    if _backend is not None:
        os.environ["MPLBACKEND"] = _backend
