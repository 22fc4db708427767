"""``python -m shardex.compat`` prints which names of the five systems are covered, and how.

``python -m shardex.compat atdata`` prints those of one system.
"""

import sys
from collections.abc import Sequence

from shardex.compat.coverage import SYSTEMS, lines
from shardex.errors import ArgumentError


def main(arguments: Sequence[str]) -> int:
    """Print the names of some systems, all without arguments; return the exit status."""
    try:
        print(*lines(arguments or SYSTEMS), sep="\n")
    except ArgumentError as error:
        print(error, file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
