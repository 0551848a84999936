"""pcnn-bench: one convolutional network, trained sequentially and in parallel, with every cost recorded."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pcnn_bench.config import load_config
    from pcnn_bench.network import Network
    from pcnn_bench.results import load_results
    from pcnn_bench.running import run

__version__ = "0.1.0"
__all__ = ["Network", "__version__", "load_config", "load_results", "run"]

_HOMES = {
    "load_config": "pcnn_bench.config",
    "run": "pcnn_bench.running",
    "Network": "pcnn_bench.network",
    "load_results": "pcnn_bench.results",
}


def __getattr__(name: str) -> Any:
    """Import a public name when it is first asked for: importing the package imports nothing heavy."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(_HOMES[name]), name)
