"""Progress bars whose lock is this process's own.

The lock of `tqdm` itself is shared by all processes that were forked by one that has drawn a bar, and every bar takes
it, also one that is not shown: a process that is killed while it has it would hold up all its siblings for ever.
"""

from __future__ import annotations

import os
import threading

from tqdm import tqdm

__all__ = ["Bar"]


class Bar(tqdm):  # type: ignore[misc]
    """A bar."""

    _lock = threading.RLock()


def _renew() -> None:
    Bar.set_lock(threading.RLock())


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_renew)  # another thread may have had it
