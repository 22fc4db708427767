"""Waiting for a condition: tests wait until something has happened, never for a time."""

from __future__ import annotations

import time
from collections.abc import Callable

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
