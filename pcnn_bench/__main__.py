"""``python -m pcnn_bench`` is ``pcnn-bench``."""

from pcnn_bench.cli import main

main()
