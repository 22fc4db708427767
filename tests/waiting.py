"""Waiting for a condition: tests wait until something has happened, never for a time."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

import psutil

LIMIT = 60
"""Seconds until a test fails; long, because a busy machine is slow."""


def becomes_true(condition: Callable[[], object], limit: float = LIMIT) -> bool:
    """Return True as soon as a condition is true, False if it is not within `limit` seconds."""
    end = time.monotonic() + limit
    while not condition():
        if time.monotonic() > end:
            return False
        time.sleep(0.005)
    return True


def has_ended(process: int | psutil.Process) -> bool:
    """Return whether a process has ended; an orphan may not have been reaped yet.

    A number may belong to a later process; a `psutil.Process` knows which one it was.
    """
    try:
        known = psutil.Process(process) if isinstance(process, int) else process
        return not known.is_running() or bool(known.status() == psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return True


def wait_until_ended(processes: Sequence[int | psutil.Process]) -> None:
    """Poll until all processes have ended: they need not be children of this one, so it cannot wait for them."""
    ended = becomes_true(lambda: all(map(has_ended, processes)))
    assert ended, f"still running: {[one for one in processes if not has_ended(one)]}"
