"""How many threads this process copies and decodes with: `SHARDEX_THREADS`, or one for each core it may use.

Worker processes use one each, as there are as many of them as cores: those of shardex, and those of a DataLoader.
"""

from __future__ import annotations

import os
import sys

from shardex.errors import ArgumentError

_SETTING = "SHARDEX_THREADS"
_count: int | None = None
"""What `threads` found, or what `set_threads` was given."""


def threads() -> int:
    """Return how many threads one call may use, with the calling one."""
    return _count or _find()


def set_threads(count: int | None) -> None:
    """Set how many threads one call may use; None restores the default.

    >>> set_threads(3); threads()
    3
    >>> set_threads(None)
    """
    global _count  # noqa: PLW0603
    if count is not None and count < 1:
        raise ArgumentError(f"expected at least 1 thread, got {count}")
    _count = count


def cores() -> int:
    """Return the number of cores that this process may use: by its affinity, and by the limit of its container."""
    found = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return min(found, _quota("/sys/fs/cgroup", "/proc/self/cgroup") or found)


def _quota(root: str, membership: str) -> int | None:
    """Return how many cores the cgroup of this process (version 2) may use, rounded up; None if there is no limit."""
    try:
        with open(membership, encoding="utf-8") as file:
            group = next(line for line in file if line.startswith("0::")).removeprefix("0::").strip()
        with open(f"{root}{group.rstrip('/')}/cpu.max", encoding="utf-8") as file:
            limit, period = file.read().split()
        return max(1, -(-int(limit) // int(period)))
    except (OSError, ValueError, StopIteration):  # no cgroup, or "max", which is no limit
        return None


def _find() -> int:
    processes = sys.modules.get("multiprocessing.process")
    if processes is not None and processes.current_process().daemon:  # a worker of a DataLoader of torch
        found = 1
    elif given := os.environ.get(_SETTING):
        if not given.isdecimal() or int(given) < 1:
            raise ArgumentError(f"expected {_SETTING} to be a number of threads from 1 on, got {given!r}")
        found = int(given)
    else:
        found = cores()
    set_threads(found)
    return found


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=lambda: set_threads(None))
