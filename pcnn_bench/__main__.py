"""``pcnn-bench`` and ``python -m pcnn_bench``: nothing is imported here before Ctrl-C is heeded."""

import sys
from typing import NoReturn

INTERRUPTED = 130
"""128 + SIGINT, as shells have it."""


def main() -> NoReturn:
    """Run the command line; an interruption that nothing else has met is one word and its exit code."""
    try:
        from pcnn_bench.cli import main as run

        run()
    except KeyboardInterrupt:
        # while modules were loaded, or a second time while the first was being answered
        if sys.stderr:
            sys.stderr.write("interrupted\n")
        sys.exit(INTERRUPTED)


if __name__ == "__main__":
    main()
