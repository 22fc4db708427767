"""``python -m shardex.compat`` prints which names of the five systems are covered, and how.

``python -m shardex.compat atdata`` prints those of one system.
"""

import os
import sys
from collections.abc import Sequence

from shardex.compat.coverage import SYSTEMS, lines
from shardex.errors import ArgumentError


def main(arguments: Sequence[str]) -> int:
    """Print the names of some systems, all without arguments; return the exit status."""
    try:
        print(*lines(arguments or SYSTEMS), sep="\n", flush=True)
    except BrokenPipeError:  # the reader, such as head, has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    except ArgumentError as error:
        print(error, file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
